"""Repeat one call that overflowed: on the CPU in the recorded dtype, and one precision up.

record, its data ─► BothSides (precheck) ─► does the CPU overflow too?        the verdict
├► how large is the exact result?     the reason
└► does the device do it again?       if one is given
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tensorprobe.errors import RebuildError
from tensorprobe.names import ApiCall, forward_of, is_call_name, kind_of_call
from tensorprobe.operations.facts import CASTING, Fact
from tensorprobe.overflow.equal_inputs import equal_places, sums_over
from tensorprobe.overflow.verdict import Replay, Verdict
from tensorprobe.overflow_rule import LARGEST, Extent, find_overflow, is_nonfinite
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.replay.both_sides import BothSides, CannotJudgeError
from tensorprobe.replay.functions import parse_api_call
from tensorprobe.replay.random_inputs import make_inputs, seed_of
from tensorprobe.replay.rebuild import load_tensor
from tensorprobe.replay.recorded import tensor_values
from tensorprobe.replay.side import Side
from tensorprobe.store.dump import RankDump

__all__ = ["replay_overflow"]

_CPU = torch.device("cpu")
_SEED = 1234
# Their exact result is what went in: some name their dtype (`half`), and no wider one takes the
# place of an 8-bit float.
_CONVERSIONS = CASTING | Fact("copy_")
# From this share of the largest number on, the order of a sum decides whether it is reached.
_NEAR = 0.99


def replay_overflow(part: RankDump, name: str, *, device: torch.device | None = None) -> Replay:
    """Repeat one recorded call; whatever keeps it from being repeated is in the result.

    Args:
        part: the dump.
        name: of the call, forward or backward.
        device: where it is made once more; None for nowhere.
    """
    try:
        with warnings.catch_warnings():
            # What torch says of a function is for those who wrote the call.
            warnings.simplefilter("ignore")
            return _Replaying(part, name).run(device)
    except (CannotJudgeError, RebuildError) as err:
        return Replay("not judged", message=str(err))


class _Exact(NamedTuple):
    """What a call gives in a higher precision.

    Attributes:
        text: in words.
        is_beyond: whether the recorded dtype cannot hold it.
        is_near: whether it can, but only just.
        has_floats: whether there is a floating-point number in it.
        is_wider: whether the precision is higher than the recorded one.
    """

    text: str
    is_beyond: bool = False
    is_near: bool = False
    has_floats: bool = True
    is_wider: bool = True


class _Replaying:
    """One call while it is repeated."""

    def __init__(self, part: RankDump, name: str) -> None:
        self._part = part
        if is_call_name(name) and kind_of_call(name)[0] != "api":
            raise RebuildError(
                "the code of a module is not in a dump; capture with level L1 or mix, which record "
                "the calls inside it"
            )
        self._call = parse_api_call(name)
        self._record = _read(part, name)
        # At L2 a backward is a call of its own, with all its arguments.
        self._sends_back = self._call.direction == "backward" and part.info.level != "L2"
        self._forward = self._record
        self._name: ApiCall = self._call
        if self._sends_back:
            self._name = replace(self._call, direction="forward")
            if forward_of(name) not in part:
                raise RebuildError("the dump lacks the forward of this backward")
            self._forward = _read(part, forward_of(name))
        self._values = tensor_values(self._forward)
        sent = _tensors_of(self._record.inputs or ()) if self._sends_back else ()
        self._has_data = all(map(_has_data, (*self._values, *sent)))
        self._equals: list[list[int]] = []

    def run(self, device: torch.device | None) -> Replay:
        """Repeat it and say what that means."""
        sides = self._sides(_CPU)
        refusal = ""
        try:
            candidate = sides.run_candidate()
        except CannotJudgeError as err:
            candidate, refusal = None, str(err)
        reference = sides.run_reference()
        if self._sends_back:
            if candidate is None:
                raise CannotJudgeError(refusal)
            refused = sides.run_backwards(candidate, reference)
            if refused:
                raise CannotJudgeError(refused)
            data = sides.inputs() if all(map(_has_data, self._values)) else None
            self._equals = equal_places(self._values, self._record.outputs or (), data)
        given = self._given(sides)
        exact = self._exact(sides, reference)
        notes = []
        if candidate is None:
            overflows, on_cpu = exact.is_beyond, refusal
            notes.append("judged by the higher precision, because the CPU lacks this dtype")
        else:
            overflows = _overflows(given, _extents(self._results(candidate)))
            on_cpu = "overflows" if overflows else "finite"
            if overflows and self._equals and not _overflows(given, _extents(_alone(candidate))):
                notes.append(
                    "inputs are equal, perhaps one tensor: the sum of their gradients overflows"
                )
            if overflows and not exact.is_beyond and exact.is_wider:
                notes.append("only values in between overflow: the exact result fits")
        if not overflows and exact.is_near:
            overflows = True
            notes.append("the exact result is so near the limit that rounding decides")
        on_device = "" if device is None else self._on_device(device, given)
        if not overflows:
            self._require_certainty(candidate, on_device, exact)
        if not self._has_data:
            notes.append("with random data within the recorded range")
        if on_device == "finite":
            notes.append(f"it does not happen again on {device}")
        verdict: Verdict = "normal" if overflows else "abnormal"
        return Replay(verdict, on_cpu, exact.text, on_device, "; ".join(notes))

    def _require_certainty(self, candidate: Side | None, on_device: str, exact: _Exact) -> None:
        """Go no further if a call that does not overflow on the CPU may have been right to do so.

        Raises:
            CannotJudgeError: it says nothing of the device; the message is the reason.
        """
        if not self._has_data:
            raise CannotJudgeError(
                "the dump holds no data of this call, and random data within the recorded range "
                "do not overflow; capture with task overflow_check or tensor"
            )
        if candidate is not None and candidate.drew_random:
            raise CannotJudgeError("it draws random numbers, and those of the CPU do not overflow")
        if self._record.outputs is None:
            # Only the list that it stands in says that it overflowed.
            if not exact.has_floats:
                raise CannotJudgeError("its results are no floating-point numbers")
            if on_device == "finite":
                raise CannotJudgeError("neither the CPU nor the device overflows")

    def _on_device(self, device: torch.device, given: Sequence[Extent]) -> str:
        sides = self._sides(device)
        try:
            candidate = sides.run_candidate()
            if self._sends_back:
                refused = sides.run_backwards(candidate, sides.run_reference())
                if refused:
                    return refused
        except CannotJudgeError as err:
            return str(err)
        made = _extents(self._results(candidate))
        return "overflows" if _overflows(given, made) else "finite"

    def _exact(self, sides: BothSides, reference: Side) -> _Exact:
        """Return what the higher precision gave, seen from the recorded dtype."""
        tensors = self._converted(sides) or self._results(reference)
        made = _extents(tensors)
        dtype = next((str(t.dtype) for t in tensors if t.is_floating_point()), "")
        narrow = self._recorded_dtype()
        limit = LARGEST.get(narrow, math.inf)
        is_wider = dtype != narrow
        if any(map(is_nonfinite, made)):
            either = " either" if is_wider else ""
            return _Exact(f"not finite in {dtype}{either}", is_beyond=True)
        largest = max((abs(n) for extent in made for n in (extent.max, extent.min)), default=0.0)
        if largest > limit:
            text = f"up to {largest:g} in {dtype}, beyond {narrow} ({limit:g})"
            return _Exact(text, is_beyond=True)
        if not made:
            return _Exact("", has_floats=False)
        is_near = largest >= _NEAR * limit
        if not is_wider:
            text = f"up to {largest:g} in {dtype}: the CPU computes it in no wider dtype"
            return _Exact(text, is_near=is_near, is_wider=False)
        return _Exact(f"up to {largest:g} in {dtype}", is_near=is_near)

    def _converted(self, sides: BothSides) -> list[torch.Tensor]:
        """Return the tensor that a conversion reads; nothing for any other call."""
        api = self._name.api_name.partition(".")[0]
        if self._sends_back or api not in _CONVERSIONS:
            return []
        place = 1 if api == "copy_" else 0
        source = sides.plain.args[place] if len(sides.plain.args) > place else None
        if not isinstance(source, torch.Tensor) or not source.is_floating_point():
            return []
        return [source]

    def _recorded_dtype(self) -> str:
        """Return the dtype of the result, or of the arguments where no result was recorded."""
        values = list(_tensors_of(self._record.outputs or ()))
        values = values or list(self._values)
        floats = [value.dtype for value in values if value.dtype in LARGEST]
        return min(floats, key=lambda dtype: LARGEST[dtype], default="")

    def _results(self, side: Side) -> list[torch.Tensor]:
        if self._sends_back:
            return [*_alone(side), *sums_over(self._equals, side.gradients)]
        return [*side.outputs, *side.written.values()]

    def _given(self, sides: BothSides) -> list[Extent]:
        given = list(sides.inputs())
        if self._sends_back:
            given += [tensor for tensor in sides.sent if tensor is not None]
        numbers = [v for v in (*sides.plain.args, *sides.plain.kwargs.values()) if _is_number(v)]
        return [*_extents(given), *(Extent("float", number, number) for number in numbers)]

    def _sides(self, device: torch.device) -> BothSides:
        seed = seed_of(_SEED, str(self._name))
        return BothSides.of_record(
            self._forward, self._name, self._inputs, self._gradients, device, seed
        )

    def _inputs(self) -> Sequence[torch.Tensor]:
        if not all(map(_has_data, self._values)):
            return make_inputs(self._name, self._values, seed_of(_SEED, str(self._name)))
        return [self._load(value) for value in self._values]

    def _gradients(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        recorded = self._record.inputs or ()
        if len(recorded) != len(outputs):
            raise CannotJudgeError(
                f"the backward was given {len(recorded)} gradients, the call has {len(outputs)} "
                "results"
            )
        return [
            self._load(value).to(output.dtype) if isinstance(value, TensorValue) else None
            for value, output in zip(recorded, outputs, strict=True)
        ]

    def _load(self, value: TensorValue) -> torch.Tensor:
        """Return a tensor's data; other numbers of its range where the dump holds none."""
        if value.data_name is not None:
            return load_tensor(self._part, value)
        return make_inputs(self._call, [value], seed_of(_SEED, str(self._call)))[0]


def _alone(side: Side) -> list[torch.Tensor]:
    """Return the gradients of the inputs, each by itself."""
    return [gradient for gradient in side.gradients.values() if gradient is not None]


def _read(part: RankDump, name: str) -> CallRecord:
    record = part.try_call(name)
    if record is None:
        raise RebuildError("the record of the call cannot be read")
    return record


def _tensors_of(values: Iterable[Any]) -> Iterable[TensorValue]:
    for leaf in CallRecord("", outputs=tuple(values)).leaves():
        if isinstance(leaf.value, TensorValue):
            yield leaf.value


def _has_data(value: TensorValue) -> bool:
    return value.data_name is not None or not math.prod(value.shape)


def _overflows(given: Sequence[Extent], made: Sequence[Extent]) -> bool:
    """Whether results are not finite, whatever was given, or newly at the limit of their dtype."""
    return any(map(is_nonfinite, made)) or find_overflow(given, made) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _extents(tensors: Iterable[torch.Tensor]) -> list[Extent]:
    found = []
    for tensor in tensors:
        if not tensor.numel() or tensor.layout is not torch.strided:
            continue
        values = tensor.detach().cpu()
        if values.is_complex():
            values = values.abs()
        if not values.is_floating_point():
            continue
        low, high = torch.aminmax(values.double())
        found.append(Extent(str(tensor.dtype), high.item(), low.item()))
    return found
