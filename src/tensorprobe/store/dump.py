"""One Dump, whatever tool wrote it: the calls of every rank and step, read when asked for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol, TypeVar

from tensorprobe.dtypes import dtype_named
from tensorprobe.errors import DumpError, NameFormatError
from tensorprobe.names import forward_of
from tensorprobe.records import CallRecord, DumpInfo, Frame, Gap, TensorValue
from tensorprobe.store.call_stacks import read_stack_file
from tensorprobe.store.data_folder import DataFolder
from tensorprobe.store.leaves import CallLeaves, Leaf, leaves_of
from tensorprobe.store.runs import mixed_runs_notice
from tensorprobe.tensor_data import TensorData

__all__ = ["CallSource", "Dump", "RankDump"]

_Read = TypeVar("_Read")
_MOST_SUGGESTIONS = 2000
# Whoever reads so many knows enough of a dump.
_MOST_GAPS = 10_000


class CallSource(Protocol):
    """Where a rank's calls come from: one implementation per format."""

    @property
    def names(self) -> Sequence[str]:
        """The calls' names in the order of the dump."""

    def read(self, name: str) -> tuple[CallRecord, list[str]]:
        """Return one call and, in words, what is wrong with it.

        Raises DumpError where nothing of its record can be read.
        """

    def leaves(self) -> Iterator[CallLeaves | str]:
        """Yield the values of every call; the name alone of one that `read` must see."""


class RankDump:
    """The calls that one rank made in one step.

    Attributes:
        path: the file with the calls.
        info: what is known of the dump as a whole.
    """

    def __init__(
        self,
        path: Path,
        info: DumpInfo,
        source: CallSource,
        data: DataFolder,
        *,
        read_stacks: Callable[[], Mapping[str, tuple[Frame, ...]]] = dict,
        read_parents: Callable[[], Mapping[str, str | None]] = dict,
        problems: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.info = info
        self._source = source
        self._data = data
        self._read_stacks = read_stacks
        self._read_parents = read_parents
        self._stacks: Mapping[str, tuple[Frame, ...]] | None = None
        self._parents: Mapping[str, str | None] | None = None
        # By name, so that walking the calls twice reports nothing twice.
        self._gaps: dict[str, Gap] = {}
        self._is_checked = False
        for problem in problems:
            self._add_gap(problem)

    def __repr__(self) -> str:
        return f"<RankDump {self.path}: {len(self.names)} calls>"

    def __len__(self) -> int:
        return len(self.names)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[CallRecord]:
        return self.calls()

    def __contains__(self, name: object) -> bool:
        return name in self._known_names

    @cached_property
    def _known_names(self) -> frozenset[str]:
        return frozenset(self.names)

    @property
    def label(self) -> str:
        """The folder names that tell this part from the others, `step0/rank1`."""
        step = "" if self.info.step is None else f"step{self.info.step}/"
        if self.info.rank is None and self.info.process is not None:
            return f"{step}proc{self.info.process}"
        return f"{step}rank{'' if self.info.rank is None else self.info.rank}"

    @property
    def names(self) -> Sequence[str]:
        """The calls' names in the order in which they were recorded."""
        return self._source.names

    def calls(self) -> Iterator[CallRecord]:
        """Yield every call that can be read; the others are in `gaps` from then on."""
        for name in self.names:
            call = self.try_call(name)
            if call is not None:
                yield call

    def read_leaves(self) -> Iterator[CallLeaves]:
        """Yield the values of every call that can be read, flat: four times faster than `calls`.

        What cannot be read is in `gaps` from then on, as with `calls`.
        """
        for found in self._source.leaves():
            if not isinstance(found, str):
                yield found
            elif (call := self.try_call(found)) is not None:
                yield leaves_of(call)

    def try_call(self, name: str) -> CallRecord | None:
        """Return a call of this dump, or None, and a gap, if its record is damaged."""
        try:
            call, problems = self._source.read(name)
        except (DumpError, RecursionError) as err:
            self._add_gap(f"{name}: {err}")
            return None
        for problem in problems:
            self._add_gap(f"{name}: {problem}")
        return call

    def call(self, name: str) -> CallRecord:
        """Return one call.

        Raises:
            DumpError: there is none of that name, or its record is damaged.
        """
        if name not in self:
            near = difflib.get_close_matches(name, self._similar_names(name), n=1)
            hint = f"did you mean {near[0]}?" if near else "`tensorprobe show` lists the calls"
            raise DumpError(f"{self.path} holds no call {name!r}; {hint}")
        try:
            call, problems = self._source.read(name)
        except (DumpError, RecursionError) as err:
            raise DumpError(f"{self.path}: {name}: {err}") from err
        for problem in problems:
            self._add_gap(f"{name}: {problem}")
        return call

    def _similar_names(self, name: str) -> list[str]:
        """Narrow a large dump down to the names worth a closer look."""
        ending = name.partition(".")[2][-6:]
        near = [other for other in self.names if other[:4] == name[:4] or other.endswith(ending)]
        return near[:_MOST_SUGGESTIONS]

    def stack(self, name: str) -> tuple[Frame, ...]:
        """Return where a call was made, innermost first; a backward call has its forward's."""
        if self._stacks is None:
            self._stacks = self._read_or_report(self._read_stacks, "stacks")
        if name in self._stacks:
            return self._stacks[name]
        try:
            return self._stacks.get(forward_of(name), ())
        except NameFormatError:
            return ()

    def read_stacks_from(self, path: Path) -> None:
        """Take the stacks from this file instead of the one beside the dump."""
        self._read_stacks, self._stacks = partial(read_stack_file, path), None

    def parent(self, name: str) -> str | None:
        """Return the module call around a call, or None at the top or where it is not known."""
        if self._parents is None:
            self._parents = self._read_or_report(self._read_parents, "module tree")
        return self._parents.get(name)

    def load(self, tensor: TensorValue | Leaf) -> TensorData:
        """Map the data of a tensor of this dump; nothing is read before it is looked at.

        A file that holds something else than the record says is in `gaps` from then on.

        Raises:
            DumpError: the tensor has no data, or its file is missing, damaged or unsafe.
        """
        if tensor.data_name is None:
            raise DumpError(f"{self.path}: this tensor has statistics only, no data file")
        data = self.load_file(tensor.data_name)
        if data.shape != tensor.shape or not _is_kept_as(tensor.dtype, data.dtype.name):
            self._add_gap(
                f"the data file {tensor.data_name} holds {data.dtype.name} {list(data.shape)}, the "
                f"record says {tensor.dtype} {list(tensor.shape)}"
            )
        return data

    @property
    def has_data_folder(self) -> bool:
        """Whether the folder that holds the tensors' data, if there are any, can be looked into."""
        return self._data.is_there

    def data_file(self, data_name: str) -> Path:
        """Return the path of a tensor's data, which may be missing.

        Raises:
            UnsafeFileError: the name leads out of the dump's folder.
        """
        return Path(self._data.path_of(data_name))

    def identify_file(self, data_name: str) -> tuple[int, int]:
        """Return device and number of a tensor's file: the same for two names of one file.

        Raises:
            UnsafeFileError: the name leads out of the dump's folder.
            OSError: there is no such file.
            ValueError: no file can have such a name.
        """
        return self._data.identify(data_name)

    def load_file(self, data_name: str) -> TensorData:
        """Map the data of a tensor by its file's name; nothing is read before it is looked at.

        Raises:
            DumpError: the file is missing, damaged or unsafe.
        """
        try:
            return self._data.load(data_name)
        except DumpError as err:
            self._add_gap(str(err))
            raise

    @property
    def known_gaps(self) -> tuple[Gap, ...]:
        """What turned out to be missing so far, in what was read."""
        return tuple(self._gaps.values())

    def note_gap(self, problem: str) -> None:
        """Add what another reader of this dump found missing."""
        self._add_gap(problem)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What this dump should hold and does not; the first look reads every record once."""
        if not self._is_checked:
            self._is_checked = True
            for call in self.calls():
                for leaf in call.leaves():
                    if isinstance(leaf.value, TensorValue) and leaf.value.data_name is not None:
                        problem = self._data.problem_with(leaf.value)
                        if problem is not None:
                            self._add_gap(f"{call.name}: {problem}")
            self.stack("")
            self.parent("")
        return self.known_gaps

    def _add_gap(self, problem: str) -> None:
        if len(self._gaps) >= _MOST_GAPS and problem not in self._gaps:
            problem = "more is wrong with it than is told"
        self._gaps.setdefault(problem, Gap(self.path, problem))

    def _read_or_report(
        self, read: Callable[[], Mapping[str, _Read]], what: str
    ) -> Mapping[str, _Read]:
        try:
            return read()
        except DumpError as err:
            self._add_gap(f"the {what} cannot be read: {err}")
            return {}


def _is_kept_as(dtype: str, stored: str) -> bool:
    """Whether a tensor may stand in its file in this dtype.

    ptdbg_ascend keeps what numpy does not have as float32, which holds the same numbers.
    """
    known = dtype_named(dtype)
    return stored in (dtype, "torch.float32") if known and not known.native else stored == dtype


class Dump:
    """Everything that was found under one path: one part per rank and step.

    Attributes:
        path: what was opened.
        parts: the ranks' dumps, ordered by step and rank; never empty.
        unopened: the ranks and files that could not be opened at all.
    """

    def __init__(self, path: Path, parts: Sequence[RankDump], unopened: Sequence[Gap] = ()) -> None:
        self.path = path
        self.parts = tuple(parts)
        self.unopened = tuple(unopened)

    def __repr__(self) -> str:
        return f"<Dump {self.path}: {len(self.parts)} parts, {len(self)} calls>"

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[CallRecord]:
        return self.calls()

    def calls(self) -> Iterator[CallRecord]:
        """Yield every call of every part."""
        for part in self.parts:
            yield from part.calls()

    @property
    def steps(self) -> tuple[int | None, ...]:
        """The steps that are there, in order."""
        return tuple(dict.fromkeys(part.info.step for part in self.parts))

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """The ranks that are there, in order."""
        return tuple(dict.fromkeys(part.info.rank for part in self.parts))

    def part(self, *, step: int | None = None, rank: int | None = None) -> RankDump:
        """Return the one part of a step and rank; what is left out may be anything.

        Raises:
            DumpError: no part fits, or several do.
        """
        fitting = [
            part
            for part in self.parts
            if (step is None or part.info.step == step) and (rank is None or part.info.rank == rank)
        ]
        if len(fitting) == 1:
            return fitting[0]
        there = ", ".join(part.label for part in self.parts[:8])
        more = ", …" if len(self.parts) > 8 else ""
        wanted = " and ".join(
            f"{key} {value}" for key, value in (("step", step), ("rank", rank)) if value is not None
        )
        found = "several parts fit" if fitting else "no part fits"
        raise DumpError(
            f"{self.path}: {found} {wanted or 'without a step or rank'}; there are: {there}{more}"
        )

    @property
    def notice(self) -> str | None:
        """What to know before the parts are taken for one run; None if they are."""
        return mixed_runs_notice(self.path, (part.info for part in self.parts))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What is missing from any part, and the parts that could not be opened at all."""
        return self.unopened + tuple(gap for part in self.parts for gap in part.gaps)
