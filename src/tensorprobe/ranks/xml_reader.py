"""Read XML that anybody may have written, piece by piece: memory stays the same however long it is.

The standard library's parser of events does the work. What could make it take much memory, or
follow a reference, is refused: a document type (and with it entities), names and tags without end,
elements within elements within elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, Protocol
from xml.parsers import expat

from tensorprobe.errors import TableError

__all__ = ["DEEPEST", "Handlers", "read_xml"]

DEEPEST = 50
"""How many elements may stand within each other; who handles them counts."""

_MOST_BYTES = 8 << 30
_LONGEST_PIECE = 1 << 20
_MOST_NAMES = 5000


class Handlers(Protocol):
    """What is told of a document."""

    def start(self, name: str, attributes: dict[str, str], /) -> None:
        """Take the beginning of an element."""
        ...

    def end(self, name: str, /) -> None:
        """Take the end of an element."""
        ...

    def text(self, text: str, /) -> None:
        """Take what stands between them, whole or a piece of it."""
        ...


def read_xml(chunks: Iterable[bytes], handlers: Handlers, *, where: str) -> Iterator[None]:
    """Parse a document; pauses after each chunk, so that what was met can be handed on.

    Args:
        chunks: its bytes.
        handlers: what is told of it.
        where: what messages call it.

    Raises:
        TableError: it is no XML, ends too early, or asks for more than a table needs.
    """
    names: dict[str, str] = {}
    parser = expat.ParserCreate(intern=names)
    parser.buffer_text = True
    parser.StartElementHandler = handlers.start
    parser.EndElementHandler = handlers.end
    parser.CharacterDataHandler = handlers.text

    def refuse(*_: Any) -> NoReturn:
        raise TableError(f"{where}: holds a document type, which no workbook has; it is not read")

    parser.StartDoctypeDeclHandler = refuse
    fed = 0
    try:
        for chunk in chunks:
            parser.Parse(chunk, False)
            fed += len(chunk)
            if fed > _MOST_BYTES:
                raise TableError(f"{where}: holds more than {_MOST_BYTES >> 30} GiB of XML")
            if fed - parser.CurrentByteIndex > _LONGEST_PIECE or len(names) > _MOST_NAMES:
                raise TableError(f"{where}: its XML has names or tags without end; it is not read")
            yield
        parser.Parse(b"", True)
        yield
    except expat.ExpatError as err:
        raise TableError(f"{where}: its XML is damaged ({err}); write the file again") from None
