"""Take rows that nobody wants out of a sheet's XML: to parse one takes far longer than its name.

Only a row that is written as our tables and msprobe's are, and whose name stands there in plain
letters, is taken out. Whatever is written in another way goes on to the parser, which decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from tensorprobe.ranks.sheet_cells import SharedText
from tensorprobe.report.xlsx_cells import column_letters

__all__ = ["RowSieve"]

_ROW_END = b"</row>"
_LONGEST_ROW = 1 << 20
# A sheet with more is left to the parser, which refuses it.
_MOST_ROWS = 1 << 20
# A comment or a section of raw text may hold what looks like the end of a row.
_RAW = b"<!"
_NAME = re.compile(
    rb'\s*<row(?: [a-zA-Z]+="[^"<>]*")*><c r="A[0-9]+"(?: s="[0-9]+")?'
    rb' t="(?:inlineStr"><is><t(?: xml:space="preserve")?>([^<&]*)</t></is></c>|'
    rb's"><v>([0-9]{1,9})</v></c>)'
)


class RowSieve:
    """Says which rows are taken out.

    Args:
        wants: whether the row of a name, or of a name's number in the list of texts, is wanted.
        watched: columns whose zeros, ones and truth values are wanted in every row.
        is_settled: whether they are no longer.
    """

    def __init__(
        self,
        wants: Callable[[str | SharedText], bool],
        watched: Sequence[int],
        is_settled: Callable[[], bool],
    ) -> None:
        self._wants = wants
        letters = "|".join(column_letters(column) for column in watched)
        self._watched = re.compile(
            rf'<c r="(?:{letters})[0-9]+"[^>]*>\s*<v>\s*-?[01](?:\.0*)?\s*<'.encode()
        )
        self._is_settled = is_settled

    def sift(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the XML of a sheet without the rows that are taken out; the header stays."""
        waiting = b""
        is_header = True
        count = 0
        source = iter(chunks)
        for chunk in source:
            # One may begin at the end of a chunk.
            if _RAW in waiting[-1:] + chunk or count > _MOST_ROWS:
                yield waiting + chunk
                yield from source
                return
            *rows, waiting = (waiting + chunk).split(_ROW_END)
            count += len(rows)
            if is_header and rows:
                is_header = False
                yield rows.pop(0) + _ROW_END
            yield b"".join([row + _ROW_END for row in rows if self._stays(row)])
            if len(waiting) > _LONGEST_ROW:
                yield waiting
                yield from source
                return
        yield waiting

    def _stays(self, row: bytes) -> bool:
        found = _NAME.match(row)
        if found is None:
            return True
        name, number = found.groups()
        if name is not None and b"_x" in name:
            return True
        try:
            wanted = self._wants(name.decode() if name is not None else SharedText(number))
        except UnicodeDecodeError:
            return True
        return wanted or not (self._is_settled() or self._watched.search(row) is None)
