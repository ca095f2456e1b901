"""Write a finished dump of ours as api_accuracy_checker would have written it.

    a rank's dump ─► forward_info_{pid}.json    one line per API call: args and kwargs
                  ├► backward_info_{pid}.json   likewise: the gradients of its results
                  ├► stack_info_{pid}.json      where each of the forward calls was made
                  └► forward_real_data/, backward_real_data/    rank{pid}/{call}.{number}.pt

One set of files may take the calls of several dumps, one after the other (`CheckerKeys`).

The form is that of its state of 2023-11. Real data that are in `.pt` files already get a second
name and are not copied. Each file appears under its name when it is whole.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from tensorprobe.dtypes import dtype_named
from tensorprobe.names import ApiCall, Direction, checker_key, parse_call
from tensorprobe.records import CallRecord, DictValue, ListValue, Number, TensorValue, Value
from tensorprobe.store.claim import Claim, claim_folder
from tensorprobe.store.dump import RankDump
from tensorprobe.store.file_names import file_name_of
from tensorprobe.store.leaf_encode import encode_value
from tensorprobe.store.second_name import give_second_name
from tensorprobe.store.tensor_bytes import pt_pieces, write_whole_file
from tensorprobe.system.new_file import new_file

__all__ = ["CheckerKeys", "write_checker_files"]


class CheckerKeys:
    """The keys of several dumps in one set of files: each begins to count where one has ended.

    >>> keys, call = CheckerKeys(), ApiCall("Torch", "exp", 0, "forward")
    >>> for _ in range(2):
    ...     keys.begin()
    ...     print(keys.key_of(call), keys.key_of(replace(call, direction="backward")))
    Torch*exp*0 Torch*exp*0
    Torch*exp*1 Torch*exp*1

    Attributes:
        is_written: whether the files hold a dump already.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[str, str], int] = {}
        self._first: dict[tuple[str, str], int] = {}
        self.is_written = False

    def begin(self) -> None:
        """Go on to the next dump."""
        self._first = dict(self._next)

    def key_of(self, call: ApiCall) -> str:
        """Return the key of a call of the dump."""
        function = call.api_type, call.api_name
        number = call.number + self._first.get(function, 0)
        self._next[function] = max(number + 1, self._next.get(function, 0))
        return checker_key(replace(call, number=number))


def write_checker_files(
    part: RankDump,
    folder: Path,
    *,
    process: int,
    names: Sequence[str] | None = None,
    keys: CheckerKeys | None = None,
) -> Path:
    """Write the API calls of a dump in the layout of api_accuracy_checker.

    Args:
        part: the dump; it stays as it is.
        folder: where the three files go, and the folders with data; it is there.
        process: the number in the files' names.
        names: the calls; by default all.
        keys: of files that take several dumps: what earlier ones have put there stays.

    Returns:
        The file with the forward calls.

    Raises:
        OSError: something cannot be written.
        DumpError: the data of a tensor cannot be read.
    """
    keys = keys or CheckerKeys()
    keys.begin()
    forward = folder / f"forward_info_{process}.json"
    with ExitStack() as opened:
        # What is opened last gets its name first: who sees the forward calls finds the others.
        files: dict[str, _Members] = {}
        for kind in ("forward", "backward", "stack"):
            path = folder / f"{kind}_info_{process}.json"
            files[kind] = opened.enter_context(_object(path, goes_on=keys.is_written))
        data: dict[str, _Data] = {
            direction: opened.enter_context(_data(part, folder, direction, process))
            for direction in ("forward", "backward")
        }
        for name in part.names if names is None else names:
            parsed = parse_call(name)
            call = part.try_call(name) if isinstance(parsed, ApiCall) else None
            if call is None or not isinstance(parsed, ApiCall):
                continue
            key, direction = keys.key_of(parsed), parsed.direction
            leaves = _Leaves(key, data[direction])
            files[direction].add(f"{json.dumps(key)}: {leaves.text_of(call, direction)}")
            if direction == "forward":
                frames = {key: [str(frame) for frame in part.stack(name)]}
                files["stack"].add(json.dumps(frames, indent=4)[1:-1])
    keys.is_written = True
    return forward


class _Members:
    """The members of one JSON object, added one by one."""

    def __init__(self, file: IO[bytes], *, is_empty: bool) -> None:
        self._file = file
        self._is_first = is_empty

    def add(self, text: str) -> None:
        """Add a member: its key, a colon and its value."""
        self._file.write(b"" if self._is_first else b",\n")
        self._file.write(text.encode())
        self._is_first = False


_BEGINNING, _END = b"{\n", b"\n}"


@contextmanager
def _object(path: Path, *, goes_on: bool) -> Iterator[_Members]:
    before = _members_in(path) if goes_on else b""
    with new_file(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
        file.write(_BEGINNING)
        file.write(before)
        yield _Members(file, is_empty=not before)
        file.write(_END)


def _members_in(path: Path) -> bytes:
    """Return the members of an object that this process has written."""
    try:
        return path.read_bytes().removeprefix(_BEGINNING).removesuffix(_END)
    except FileNotFoundError:
        # Somebody has taken it away meanwhile.
        return b""


@contextmanager
def _data(part: RankDump, folder: Path, direction: str, process: int) -> Iterator[_Data]:
    """Give what writes the real data of one direction; nothing is made where there are none."""
    data = _Data(part, folder, direction, process)
    try:
        yield data
    finally:
        data.close()


class _Data:
    """The real data of the calls of one direction."""

    def __init__(self, part: RankDump, folder: Path, direction: str, process: int) -> None:
        self._part = part
        self._root = folder
        self._folder = folder / f"{direction}_real_data" / f"rank{process}"
        self._claim: Claim | None = None

    def add(self, name: str, value: TensorValue) -> Path | None:
        """Let a tensor's data stand under a name; returns the file, or None if there are none."""
        if value.data_name is None:
            return None
        if self._claim is None:
            # No link is followed below the folder that the user named.
            self._claim = claim_folder(self._folder, root=self._root)
        path = self._claim.folder / file_name_of(name, ".pt")
        if value.data_name.endswith(".pt"):
            give_second_name(self._part.data_file(value.data_name), path)
        else:
            write_whole_file(path, pt_pieces(self._part.load(value)))
        return path

    def close(self) -> None:
        """Give the folder up."""
        if self._claim is not None:
            self._claim.release()


class _Leaves:
    """The values of one call as the tool words them; each has a number, whatever it is."""

    def __init__(self, key: str, data: _Data) -> None:
        self._key = key
        self._data = data
        self._numbers = itertools.count()

    def text_of(self, call: CallRecord, direction: Direction) -> str:
        """Return the entry of a call."""
        inputs = self._list(call.inputs or ())
        if direction == "backward":
            return inputs
        pairs = ((key, value) for key, value in (call.kwargs or {}).items())
        return f'{{"args": {inputs}, "kwargs": {self._dict(pairs)}}}'

    def _list(self, values: Any) -> str:
        return f"[{', '.join(self._value(value) for value in values)}]"

    def _dict(self, pairs: Any) -> str:
        members = (f"{json.dumps(key)}: {self._value(value)}" for key, value in pairs)
        return f"{{{', '.join(members)}}}"

    def _value(self, value: Value) -> str:
        if isinstance(value, ListValue):
            return self._list(value.items)
        if isinstance(value, DictValue):
            return self._dict(value.items)
        number = next(self._numbers)
        if isinstance(value, TensorValue):
            return json.dumps(self._tensor(value, number))
        if value is None:
            return '{"type": "NoneType", "value": null}'
        return encode_value(value)

    def _tensor(self, value: TensorValue, number: int) -> dict[str, Any]:
        leaf: dict[str, Any] = {"type": "torch.Tensor"}
        path = self._data.add(f"{self._key}.{number}", value)
        if path is not None:
            leaf["datapath"] = str(path)
        else:
            leaf |= {"dtype": value.dtype, "shape": list(value.shape)}
            leaf |= {"Max": _number(value, value.max), "Min": _number(value, value.min)}
        # What nobody asked for a gradient of needs none.
        return leaf | {"requires_grad": bool(value.requires_grad)}


def _number(value: TensorValue, number: Number | None) -> Number | None:
    dtype = dtype_named(value.dtype)
    is_whole = dtype is not None and dtype.kind in ("bool", "int")
    return int(number) if is_whole and number is not None else number
