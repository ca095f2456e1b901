"""One run of the two: its calls by name, and their tensors, each read once for a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tensorprobe.errors import RebuildError
from tensorprobe.names import is_call_name
from tensorprobe.pairing.partners import pair_in_order
from tensorprobe.pairing.run_order import forward_name, in_run_order, phase_of
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.store import RankDump

if TYPE_CHECKING:
    import torch

__all__ = ["RecordedRun", "open_runs"]

# Of a part of a run: the beginning, which tells what it was fed with, and what led up to the part.
_BEGINNING = 50
_LEAD = 200


class _CallsOnDemand(Mapping[str, CallRecord]):
    """The calls of a dump by name, each read when it is asked for."""

    def __init__(self, part: RankDump) -> None:
        self._part = part

    def __getitem__(self, name: str) -> CallRecord:
        call = self._part.try_call(name) if name in self._part else None
        if call is None:
            raise KeyError(name)
        return call

    def __iter__(self) -> Iterator[str]:
        return iter(self._part.names)

    def __len__(self) -> int:
        return len(self._part)


def _read_calls(part: RankDump, names: Sequence[str]) -> dict[str, CallRecord]:
    """Read calls of a dump; those that cannot be read are left out, and are gaps of it."""
    read = (part.try_call(name) for name in names)
    return {call.name: call for call in read if call is not None}


class RecordedRun:
    """One rank of one run.

    Args:
        part: the dump.
        names: the calls that are looked at; None: all.
        on_demand: whether each call is read when it is asked for, and no sooner.

    Attributes:
        part: the dump.
        calls: the calls, in the order of the dump.
        unnamed: what stands among the calls and has no name of one.
    """

    def __init__(
        self, part: RankDump, names: Sequence[str] | None = None, *, on_demand: bool = False
    ) -> None:
        self.part = part
        wanted = part.names if names is None else names
        # Names are taken apart everywhere; what no grammar knows must not end all of that.
        self.unnamed = tuple(name for name in wanted if not is_call_name(name))
        unnamed = frozenset(self.unnamed)
        self.calls: Mapping[str, CallRecord] = (
            _CallsOnDemand(part)
            if on_demand
            else _read_calls(part, [name for name in wanted if name not in unnamed])
        )
        self._loaded: dict[str, torch.Tensor] = {}
        self._cut: frozenset[str] = frozenset()
        self._rows: torch.Tensor | None = None

    def load(self, value: TensorValue) -> torch.Tensor:
        """Return the data of a tensor; kept until `forget`.

        Raises:
            RebuildError: there is none, or it cannot be read.
        """
        if value.data_name is None:
            raise RebuildError("the tensor's data were not recorded")
        tensor = self._loaded.get(value.data_name)
        if tensor is None:
            # Many questions are answered without torch, which takes longer to import than they.
            from tensorprobe.replay.rebuild import load_tensor

            tensor = self._loaded[value.data_name] = load_tensor(self.part, value)
            if value.data_name in self._cut and self._rows is not None:
                tensor = tensor.reshape(-1, tensor.shape[-1])[self._rows]
                self._loaded[value.data_name] = tensor
        return tensor

    def cut(self, files: frozenset[str], rows: torch.Tensor) -> None:
        """From now on, until `forget`, load only these rows of these files."""
        self._cut, self._rows = files, rows
        self._loaded.clear()

    def forget(self) -> None:
        """Let go of the data of the calls that were looked at."""
        self._loaded.clear()
        self._cut, self._rows = frozenset(), None


def open_runs(
    candidate: RankDump, reference: RankDump, *, most: int | None, first: str | None
) -> tuple[RecordedRun, RecordedRun, int]:
    """Read the calls of one rank of both runs.

    Args:
        candidate: the run under test.
        reference: the trusted run.
        most: how many calls are read, in the order of the run; None: all.
        first: the first call of which something differs, where that is known: before it there is
            nothing to be found.

    Returns:
        Both sides, and how many calls were left out.
    """
    if most is None or len(candidate) <= most:
        return RecordedRun(candidate), RecordedRun(reference), 0
    ours, theirs = (
        in_run_order(filter(is_call_name, part.names)) for part in (candidate, reference)
    )
    partners = pair_in_order(ours, theirs)
    beginning, lead = min(_BEGINNING, most // 4), min(_LEAD, most // 4)
    start = max(0, ours.index(first) - lead) if first is not None and first in candidate else 0
    if start <= beginning:
        start, kept = 0, ours[:most]
    else:
        kept = [*ours[:beginning], *ours[start : start + most - beginning]]
    # A backward call is judged and replayed with its forward call.
    kept += [forward_name(name) for name in kept if phase_of(name) == "backward"]
    wanted = set(kept)
    chosen = [name for name in candidate.names if name in wanted]
    paired = {partners[name] for name in kept if name in partners}
    # What only the reference has stands behind a call that both have.
    only = set(theirs) - set(partners.values())
    others, is_inside = [], start == 0
    for name in reference.names:
        if name in paired:
            is_inside = True
            others.append(name)
        elif name in only:
            if is_inside:
                others.append(name)
        else:
            is_inside = False
    return RecordedRun(candidate, chosen), RecordedRun(reference, others), len(ours) - len(chosen)
