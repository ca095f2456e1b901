"""Read the small files that people write by hand: config.json, compare.json, a mapping in YAML.

    path ─► bytes (a regular file, at most 64 MiB) ─► text (UTF-8) ─► values of JSON

Both readers give the same kinds of value (dict, list, str, int, float, bool, None) and one kind of
failure: one line that names the file, the line and column where they are known, and what to do.
YAML is rebuilt from parser events instead of ``yaml.load``: that way nesting, aliases, tags and
repeated keys are judged before anything is built, and each of them with its line and column.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from tensorprobe.errors import DumpError, TensorprobeError

if TYPE_CHECKING:
    from yaml.error import MarkedYAMLError
    from yaml.events import Event, ScalarEvent

__all__ = ["find_near", "read_json", "read_yaml", "show_path"]

_MOST_BYTES = 64 * 2**20
_MOST_DIGITS = 1000  # int() is quadratic in the digits, and a longer one cannot even be printed
_DEEPEST = 100
_TOO_DEEP = "the values are nested too deeply; flatten them"
_JSON_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_COMMENT = re.compile(r"(?:^|(?<=[\s,{}\[\]]))(?:#|//|/\*)")
_JSON_PROBLEMS = {  # the beginning of what the json module says: what it means to the writer
    "Extra data": "something follows the end of the value; remove it",
    "Illegal trailing comma": "nothing follows the last comma; remove the comma",
    "Invalid \\": "a backslash stands alone; write it twice, or / in a path",
    "Invalid control character": "a text holds a line break or a tab; close its quotes before it",
    "Unterminated string": "the text that starts here is not closed; add a quote",
}
_YAML_TAG = "tag:yaml.org,2002:"


def read_json(path: str | os.PathLike[str], *, error: type[TensorprobeError] = DumpError) -> object:
    """Read one JSON file; the bare words NaN and Infinity are allowed, as older tools write them.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
    ...     _ = file.write(b'{"npu_path": "./npu", "is_print_compare_log": true}')
    ...     file.flush()
    ...     read_json(file.name)
    {'npu_path': './npu', 'is_print_compare_log': True}

    Args:
        path: the file.
        error: the class of the error to raise.

    Returns:
        The value in the file.

    Raises:
        TensorprobeError: of the class ``error``, where the file cannot be read or is not JSON.
    """
    name = show_path(path)
    text = _read_text(path, name, error)
    if not text.strip():
        raise error(f"{name}: the file is empty, wanted JSON; write at least {{}}")
    try:
        return json.loads(text, parse_int=_parse_int, object_pairs_hook=_build_object)
    except json.JSONDecodeError as err:
        where = _at(err.lineno, err.colno)
        raise error(f"{name}: {where}: {_explain_json(text, err)}") from None
    except _RepeatedKeyError as err:
        where = _place_second(text, err.key)
        raise error(f"{name}: {where}{_repeated(err.key)}") from None
    except _LongNumberError as err:
        where = _at(*_line_and_column(text, text.find(err.digits)))
        raise error(f"{name}: {where}: {_long_number(len(err.digits))}") from None
    except RecursionError:
        raise error(f"{name}: {_TOO_DEEP}") from None


def read_yaml(path: str | os.PathLike[str], *, error: type[TensorprobeError] = DumpError) -> object:
    r"""Read one YAML file into the values that JSON knows; a date stays the text that it is.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
    ...     _ = file.write(b"api:\n- Distributed.all_reduce  # a comment\nstep: [0, 4-6]\n")
    ...     file.flush()
    ...     read_yaml(file.name)
    {'api': ['Distributed.all_reduce'], 'step': [0, '4-6']}

    Args:
        path: the file.
        error: the class of the error to raise.

    Returns:
        The value in the file; None for an empty one.

    Raises:
        TensorprobeError: of the class ``error``, where PyYAML is missing, the file cannot be read,
            is not YAML, or uses a part of YAML that is refused here (aliases, tags, several
            documents, keys that are no plain values).
    """
    name = show_path(path)
    try:
        import yaml
    except ImportError:
        raise error(
            f"{name}: reading YAML needs PyYAML, which is not installed; "
            "run 'pip install pyyaml' or write the file as JSON"
        ) from None
    text = _read_text(path, name, error)
    loader_class: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        loader = loader_class(text)
        try:
            return _YamlBuilder(loader).build()
        finally:
            loader.dispose()
    except _YamlRefusedError as err:
        raise error(f"{name}: {_at(err.line, err.column)}: {err}") from None
    except yaml.MarkedYAMLError as err:
        mark: Any = err.problem_mark or err.context_mark
        where = _at(mark.line + 1, mark.column + 1)
        raise error(f"{name}: {where}: this is not YAML: {_explain_yaml(text, err)}") from None
    except yaml.YAMLError as err:  # a character that YAML forbids: this one has no mark
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        if bad is None:
            raise error(f"{name}: this is not YAML: {' '.join(str(err).split())}") from None
        where = _at(*_line_and_column(text, bad.start()))
        raise error(f"{name}: {where}: YAML forbids {bad[0]!r} here; remove it") from None


def show_path(path: str | os.PathLike[str]) -> str:
    r"""Write a path so that it stays on one line of a message.

    >>> show_path("run 1/config.json"), show_path("two\nlines")
    ('run 1/config.json', "'two\\nlines'")
    """
    text = os.fsdecode(path)
    return text if text.isprintable() and text else repr(text)


def find_near(name: str, known: Iterable[str], *, cutoff: float) -> str | None:
    """Return the known word that somebody may have meant, upper and lower case being one.

    >>> find_near("max dif", ["Max diff", "Min diff"], cutoff=0.6)
    'Max diff'

    Args:
        name: what was written.
        known: what could have been.
        cutoff: how alike they must be, from 0 to 1.
    """
    if len(name) > 60:  # difflib takes a time that grows with the square of the length
        return None
    folded = {word.lower(): word for word in sorted(known)}
    found = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def _read_text(path: str | os.PathLike[str], name: str, error: type[TensorprobeError]) -> str:
    """Read a regular file of bearable size as UTF-8, with or without a byte order mark."""
    try:
        # Without O_NONBLOCK, opening a pipe that nobody writes to would wait forever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            mode = os.fstat(handle).st_mode
            if stat.S_ISDIR(mode):
                raise error(f"{name}: this is a folder; give the file inside it")
            if not stat.S_ISREG(mode):
                raise error(f"{name}: this is no regular file; copy its content into one")
            with os.fdopen(handle, "rb", closefd=False) as file:
                data = file.read(_MOST_BYTES + 1)
        finally:
            os.close(handle)
    except OSError as err:
        raise error(f"{name}: the file cannot be read: {err.strerror}; check the path") from err
    except ValueError as err:  # a NUL, or half of a surrogate pair
        raise error(f"{name}: no file can have this name; check the path") from err
    if len(data) > _MOST_BYTES:
        limit = f"{_MOST_BYTES // 2**20} MiB"
        raise error(f"{name}: the file is larger than {limit}; this cannot be the one meant")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise error(f"{name}: the file is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = data.count(b"\n", 0, err.start) + 1
        raise error(f"{name}: line {line}: the text is not UTF-8; save the file as UTF-8") from None


def _at(line: int, column: int) -> str:
    return f"line {line}, column {column}"


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _repeated(key: object) -> str:
    return f"the key {_shorten(repr(key))} stands here twice; keep one of them"


def _long_number(digits: int) -> str:
    return f"a number has {digits} characters, at most {_MOST_DIGITS} are read; shorten it"


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}…{text[-15:]}"


# JSON ---------------------------------------------------------------------------------------------


class _RepeatedKeyError(Exception):
    def __init__(self, key: str) -> None:
        self.key = key


class _LongNumberError(Exception):
    def __init__(self, digits: str) -> None:
        self.digits = digits


def _parse_int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise _LongNumberError(digits)
    return int(digits)


def _build_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    built: dict[str, object] = {}
    for key, value in pairs:
        if key in built:
            raise _RepeatedKeyError(key)
        built[key] = value
    return built


def _place_second(text: str, key: str) -> str:
    """Say where a repeated key stands, where the text leaves no doubt."""
    written = re.escape(json.dumps(key, ensure_ascii=False))
    offsets = [found.start() for found in re.finditer(written + r"\s*:", text)]
    return f"{_at(*_line_and_column(text, offsets[1]))}: " if len(offsets) == 2 else ""


def _explain_json(text: str, err: json.JSONDecodeError) -> str:
    """Say what is wrong in the words of somebody who typed the file."""
    start, end = text.rfind("\n", 0, err.pos) + 1, text.find("\n", err.pos)
    line = text[start : end if end >= 0 else len(text)]
    bare = text[err.pos : err.pos + 2] if len(line) > 10_000 else _JSON_STRING.sub("", line)
    if comment := _COMMENT.search(bare.partition('"')[0]):
        return f"comments are not allowed in JSON; remove the text from {comment[0]!r} on"
    here, before = text[err.pos : err.pos + 1], text[: err.pos].rstrip()
    for beginning, meaning in _JSON_PROBLEMS.items():
        if err.msg.startswith(beginning):
            return f"this is not JSON: {meaning}"
    if not here:
        return "this is not JSON: the file ends too early; close its brackets"
    if here in "}]" and before.endswith(","):
        return f"this is not JSON: {_JSON_PROBLEMS['Illegal trailing comma']}"
    if here == "'":
        return "this is not JSON: texts stand in double quotes; replace ' by \""
    if text.startswith(("True", "False", "None"), err.pos):
        return "this is not JSON: write true, false or null, in small letters"
    return f"this is not JSON: {err.msg[0].lower()}{err.msg[1:]}, found {here!r}"


# YAML ---------------------------------------------------------------------------------------------


class _YamlRefusedError(Exception):
    """A part of YAML that is well formed and refused here."""

    def __init__(self, message: str, event: Event) -> None:
        super().__init__(message)
        mark: Any = event.start_mark
        self.line, self.column = mark.line + 1, mark.column + 1


class _YamlBuilder:
    """Build the value of one document from the loader's events, without recursion."""

    _PLAIN = frozenset(f"{_YAML_TAG}{kind}" for kind in ("null", "bool", "int", "float"))
    _TEXT = frozenset(f"{_YAML_TAG}{kind}" for kind in ("str", "timestamp", "value"))

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._stack: list[list[object] | dict[Hashable, object]] = []
        self._keys: list[Hashable | None] = []  # per open mapping: the key that waits for its value
        self._documents: list[object] = []

    def build(self) -> object:
        from yaml import events

        while self._loader.check_event():
            event = self._loader.get_event()
            if isinstance(event, events.AliasEvent):
                _refuse_yaml(
                    "aliases (*name) are not read here; write the value, or quote it", event
                )
            elif isinstance(event, events.DocumentStartEvent):
                if self._documents:
                    _refuse_yaml("a second document starts; keep one document in a file", event)
            elif isinstance(event, events.ScalarEvent):
                self._add(self._read_scalar(event), event)
            elif isinstance(event, events.SequenceStartEvent):
                self._open([], "seq", event)
            elif isinstance(event, events.MappingStartEvent):
                self._open({}, "map", event)
            elif isinstance(event, events.CollectionEndEvent):
                self._stack.pop()
                self._keys.pop()
        return self._documents[0] if self._documents else None

    def _open(self, value: list[object] | dict[Hashable, object], kind: str, event: Any) -> None:
        if event.tag not in (None, "!", f"{_YAML_TAG}{kind}"):
            _refuse_tag(event.tag, event)
        if len(self._stack) == _DEEPEST:
            _refuse_yaml(_TOO_DEEP, event)
        self._add(value, event)
        self._stack.append(value)
        self._keys.append(_NO_KEY)

    def _add(self, value: object, event: Event) -> None:
        if not self._stack:
            self._documents.append(value)
            return
        parent = self._stack[-1]
        if isinstance(parent, list):
            parent.append(value)
        elif self._keys[-1] is _NO_KEY:
            if isinstance(value, list | dict):
                _refuse_yaml("a key is a list or a mapping; write a plain text as the key", event)
            if value in parent:
                _refuse_yaml(_repeated(value), event)
            self._keys[-1] = value
        else:
            parent[self._keys[-1]] = value
            self._keys[-1] = _NO_KEY

    def _read_scalar(self, event: ScalarEvent) -> object:
        from yaml import ScalarNode

        tag = event.tag
        if tag is None or tag == "!":
            tag = self._loader.resolve(ScalarNode, event.value, event.implicit)
        if tag in self._TEXT:
            return event.value
        if tag == f"{_YAML_TAG}merge":
            _refuse_yaml("merge keys (<<) are not read here; write the fields out", event)
        if tag not in self._PLAIN:
            _refuse_tag(tag, event)
        if len(event.value) > _MOST_DIGITS:
            _refuse_yaml(_long_number(len(event.value)), event)
        kind = tag.removeprefix(_YAML_TAG)
        construct = getattr(self._loader, f"construct_yaml_{kind}")
        try:
            return construct(ScalarNode(tag, event.value))
        except (ValueError, LookupError):
            shown = _shorten(repr(event.value))
            _refuse_yaml(f"{shown} looks like a value of type {kind} and is none; quote it", event)


_NO_KEY: Any = object()


def _refuse_yaml(message: str, event: Event) -> NoReturn:
    raise _YamlRefusedError(message, event)


def _refuse_tag(tag: str, event: Event) -> NoReturn:
    _refuse_yaml(f"the tag {_shorten(repr(tag))} is not read here; write a plain value", event)


def _explain_yaml(text: str, err: MarkedYAMLError) -> str:
    problem = " ".join((err.problem or "it cannot be parsed").split())
    mark: Any = err.problem_mark or err.context_mark
    lines = text.split("\n", mark.line + 1)
    if mark.line < len(lines) and lines[mark.line][mark.column :].startswith("\t"):
        problem += "; indent with spaces instead of tabs"
    return problem
