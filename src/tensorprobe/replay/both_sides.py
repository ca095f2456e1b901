"""Run one recorded call on both sides: as recorded on the device, one precision up on the CPU.

inputs ─► device, recorded dtype (under autocast if the result shows that it was)
      ├► CPU, raised dtype, or the recorded one where the CPU has no wider form
      └► either of them again, also with noise, also of a part: see `repeats`
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from tensorprobe.dtypes import roundoff_of
from tensorprobe.names import ApiCall
from tensorprobe.operations.facts import WRITES_UNSEEN, undetermined_outputs
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.replay.arguments import map_leaves
from tensorprobe.replay.chosen_places import find_axis, is_unordered
from tensorprobe.replay.memory import require_room
from tensorprobe.replay.precision import (
    is_raisable,
    raise_dtype,
    raise_tensor,
    reference_dtype,
    with_dtypes,
    with_own_epsilon,
)
from tensorprobe.replay.rebuild import RebuiltCall, rebuild_call
from tensorprobe.replay.recorded import dict_places, tensor_values, wants_gradients
from tensorprobe.replay.refusals import REFUSALS
from tensorprobe.replay.script_parts.check import UNABLE
from tensorprobe.replay.side import Side, run_backward, run_forward
from tensorprobe.replay.special_calls import is_in_place, needs_recorded_dtype
from tensorprobe.replay.stopwatch import Stopwatch
from tensorprobe.summary.host import send

__all__ = [
    "BothSides",
    "CannotJudgeError",
    "DeviceRefusesError",
    "GradientsFor",
    "LoadInputs",
    "Noise",
    "Repetition",
]

LoadInputs = Callable[[], Sequence[torch.Tensor]]
GradientsFor = Callable[[Sequence[torch.Tensor]], Sequence["torch.Tensor | None"]]

_CPU = torch.device("cpu")
_HALVES = {"torch.float16": torch.float16, "torch.bfloat16": torch.bfloat16}


class Noise(NamedTuple):
    """What moves one run.

    Attributes:
        mode: moves what its kernels hand on to each other.
        move_input: moves what it is given, in place; None if that stays.
    """

    mode: AbstractContextManager[Any]
    move_input: Callable[[torch.Tensor], None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """What is needed to make a call again on both sides, in another process or by a script.

    Attributes:
        call: with its inputs on the CPU, which want gradients where they did.
        gradients: what was sent back, one for each output.
        wider: the dtype that takes the place of one of its own in the reference.
        default: torch's default dtype in the reference; None: what it is.
        half: the half that the result was recorded in, if it was one.
        epsilon: what the reference is told and the call itself knows from its dtype.
        copies: whether it is given copies of what wants gradients, because it writes into them.
        sorts_along: the dimension of what it returns in any order.
    """

    call: RebuiltCall
    gradients: tuple[torch.Tensor | None, ...] = ()
    wider: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    default: torch.dtype | None = None
    half: torch.dtype | None = None
    epsilon: float | None = None
    copies: bool = False
    sorts_along: int | None = None


class CannotJudgeError(Exception):
    """The call cannot be judged; the message is the reason."""


class DeviceRefusesError(CannotJudgeError):
    """The device did not run the call.

    Attributes:
        is_unable: whether it has no such kernel, or the dump did not hold all of the call.
    """

    def __init__(self, message: str, *, is_unable: bool) -> None:
        super().__init__(message)
        self.is_unable = is_unable


class BothSides:
    """One call, its inputs, and what its runs showed of it.

    Args:
        call: the call, with the tensors that `load` returns.
        name: its name in parts.
        load: returns the input tensors on the CPU, in the order of the arguments; the same ones
            whenever it is asked, but after a run wrote into them.
        device: where the candidate runs.
        seed: of the random numbers that the call itself may draw; None if it draws none.
        gradients: given the device's outputs, returns what is sent back to each.
        wanted: which of the inputs want gradients; empty for none.
        recorded_half: the half that the result was recorded in, if it was one.
        lost: which arguments the dump holds as something else than they were.
        is_live: whether the call belongs to a run that goes on in this process: its inputs cannot
            be loaded again, so that the candidate, too, is given copies, and what holds for all
            threads, as the default dtype does, stays as it is.
        may_raise: whether the reference may compute in a wider dtype.
        writes_unseen: whether it may write into inputs without raising their versions.
        watch: takes the time of each phase.

    Attributes:
        autocast: the dtype of the autocast that the call was made under, if it was.
        is_raised: whether the reference computes in a wider dtype.
        copies_leaves: whether the call writes into its inputs.
        sent: the gradients that were sent back.
        unit: the rounding error of the narrowest dtype in the call.
        noisy_dtype: that dtype.
        real: the real dtype that the reference computes in.
        result_sizes: how many elements each result and gradient has, in the order of both.
        plain: the call with its arguments as they were recorded.
        shapes: those of its input tensors.
        api_name: the name of the function.
        is_live: whether the call belongs to a run that goes on.
        is_backward: whether it is an operator of a backward pass, made as a call of its own.
        device: where the candidate runs.
        seed: of the random numbers, and of noise.
        watch: takes the time of each phase.
    """

    def __init__(
        self,
        call: RebuiltCall,
        name: ApiCall,
        load: LoadInputs,
        device: torch.device,
        seed: int | None,
        *,
        gradients: GradientsFor | None = None,
        wanted: Sequence[bool] = (),
        recorded_half: torch.dtype | None = None,
        lost: Sequence[str] = (),
        is_live: bool = False,
        may_raise: bool = True,
        writes_unseen: bool = False,
        watch: Stopwatch | None = None,
    ) -> None:
        self.watch = watch or Stopwatch()
        self.plain = call
        self.api_name = name.api_name
        self.is_backward = name.direction == "backward"
        self._load = load
        self._gradients_for = gradients
        self.device = device
        self.seed = seed or 0
        # Until a run has shown that it does not.
        self._draws_random = seed is not None
        self._wanted = tuple(wanted)
        self._recorded_half = recorded_half
        self._lost = lost
        self._writes_unseen = writes_unseen or name.api_name in WRITES_UNSEEN
        self.is_live = is_live
        self._may_raise = may_raise
        self._base: list[torch.Tensor] | None = None
        self._versions: list[int] = []
        self.real: torch.dtype = torch.float64
        self.noisy_dtype = torch.float32
        self.result_sizes: list[int] = []
        self.autocast: torch.dtype | None = None
        self.is_raised = True
        self.sent: tuple[torch.Tensor | None, ...] = ()
        self.unit = roundoff_of(torch.float32)
        # The tensors that stand in the call's arguments.
        self._recorded = self.inputs()
        self.shapes = [tuple(tensor.shape) for tensor in self._recorded]
        self.copies_leaves = is_in_place(call.function, name.api_name, call.args, call.kwargs)

    @classmethod
    def of_record(
        cls,
        record: CallRecord,
        name: ApiCall,
        load: LoadInputs,
        gradients: GradientsFor,
        device: torch.device,
        seed: int,
        watch: Stopwatch | None = None,
    ) -> BothSides:
        """Return the sides of a call that a dump holds.

        Raises:
            RebuildError: the call cannot be made again.
        """
        values = tensor_values(record)
        watches_gradients = wants_gradients(record, values)
        first = record.outputs[0] if record.outputs else None
        require_room((value.shape for value in values), "its inputs")
        watch = watch or Stopwatch()
        with watch.phase("load"):
            loaded = list(load())
        waiting = iter(loaded)
        call = rebuild_call(record, lambda _: next(waiting), device=_CPU)
        # The first time these very tensors; again, if a run wrote into them, they are loaded anew.
        kept: list[Sequence[torch.Tensor]] = [loaded]
        return cls(
            call,
            name,
            lambda: kept.pop() if kept else load(),
            device,
            seed,
            gradients=gradients,
            wanted=[watches_gradients and bool(value.requires_grad) for value in values],
            recorded_half=_HALVES.get(first.dtype) if isinstance(first, TensorValue) else None,
            lost=dict_places(record),
            watch=watch,
        )

    def inputs(self) -> list[torch.Tensor]:
        """Return the inputs as recorded; loaded again if a run wrote into them."""
        base = self._base
        if base is None or self._versions != [tensor._version for tensor in base]:
            with self.watch.phase("load"):
                base = self._base = list(self._load())
            self._versions = [tensor._version for tensor in base]
        return base

    def repetition(self) -> Repetition:
        """Return the call as its last reference was made, with copies of its inputs."""
        base = self.inputs()
        flags = self._leaf_flags(base)
        copies = [_as_leaf(t.clone(), wanted) for t, wanted in zip(base, flags, strict=True)]
        plain, wider = self.plain, {}
        if self.is_raised:
            dtypes = (*(tensor.dtype for tensor in base), *_dtypes_in(plain))
            dtypes = (*dtypes, self.autocast) if self.autocast is not None else dtypes
            wider = {dtype: raise_dtype(dtype, self.real) for dtype in dtypes}
        told = with_own_epsilon(plain, self.api_name, base) if self.is_raised else plain
        order = plain.args, plain.kwargs
        return Repetition(
            call=self._rebuild(copies, _CPU),
            gradients=self.sent,
            wider={dtype: wide for dtype, wide in wider.items() if wide != dtype},
            default=self.real if self.is_raised else None,
            half=self._recorded_half,
            epsilon=None if told is plain else told.kwargs["eps"],
            copies=self.copies_leaves,
            sorts_along=find_axis(self.api_name, *order)
            if is_unordered(self.api_name, *order)
            else None,
        )

    # --- the device --------------------------------------------------------------------------

    def run_candidate(self) -> Side:
        """Make the call on the device.

        Raises:
            DeviceRefusesError: it does not run there.
        """
        side = self._try_candidate()
        is_wider = bool(side.outputs) and side.outputs[0].dtype is torch.float32
        if self._recorded_half is not None and is_wider:
            # Only autocast makes a half of what the arguments alone give in float32.
            self.autocast = self._recorded_half
            side = self._try_candidate()
        self.take_candidate(side)
        return side

    def take_candidate(self, side: Side) -> None:
        """Learn from what the device gave how the call is to be repeated."""
        self._draws_random = side.drew_random
        results = (*side.outputs, *side.leaves.values())
        self.result_sizes = [t.numel() for t in results if t.is_floating_point() and t.numel()]
        self._choose_precision(side)

    def _try_candidate(self) -> Side:
        try:
            with self.watch.phase("prepare"):
                return self.candidate(self.device)
        except REFUSALS as err:
            is_final = self.copies_leaves or not self._wants_gradients
            if is_final or not isinstance(err, RuntimeError):
                refusal = self._refusal("the device", err)
                is_unable = refusal.startswith("the dump") or bool(UNABLE.search(refusal))
                raise DeviceRefusesError(refusal, is_unable=is_unable) from err
        # Perhaps it writes into a leaf, which only a copy allows.
        self.copies_leaves = True
        return self._try_candidate()

    def candidate(self, device: torch.device) -> Side:
        """Make the call as recorded, whatever becomes of it."""
        base = self.inputs()
        tensors = [
            _as_leaf(self._place(tensor, device), is_wanted)
            for tensor, is_wanted in zip(base, self._leaf_flags(base), strict=True)
        ]
        around: AbstractContextManager[Any] | None = None
        if self.autocast is not None:
            around = torch.autocast(device.type, dtype=self.autocast)
        return run_forward(
            self._rebuild(tensors, device),
            seed=self.seed if self._draws_random else None,
            device=device,
            with_gradients=self._wants_gradients,
            copies_leaves=self.copies_leaves,
            watches_writes=self._writes_unseen,
            returns_statements=not self.is_live,
            around=around,
            timed=self.watch.phase("device"),
        )

    def _place(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        is_here = device.type == tensor.device.type
        copies = self._writes_unseen or self.is_live
        return tensor.to(device, copy=copies) if is_here else send(tensor, device)

    def _choose_precision(self, candidate: Side) -> None:
        plain = self.plain
        dtypes = [*(tensor.dtype for tensor in self.inputs()), *_dtypes_in(plain)]
        self.real = reference_dtype(dtypes)
        needs_own = needs_recorded_dtype(self.api_name, plain.args, plain.kwargs)
        self.is_raised = self._may_raise and not needs_own
        dtypes += [output.dtype for output in candidate.outputs]
        floats = [dtype for dtype in dtypes if is_raisable(dtype)]
        self.noisy_dtype = max(floats, key=roundoff_of, default=torch.float32)
        self.unit = roundoff_of(self.noisy_dtype)

    # --- the reference -----------------------------------------------------------------------

    def run_reference(self) -> Side:
        """Make the call on the CPU, one precision up if it can.

        Raises:
            CannotJudgeError: the CPU refuses it.
        """
        if self.is_raised:
            try:
                with self.watch.phase("prepare"):
                    return self.reference()
            except REFUSALS:
                self.is_raised = False
        try:
            with self.watch.phase("prepare"):
                return self.reference()
        except REFUSALS as err:
            raise CannotJudgeError(self._refusal("the CPU", err)) from err

    def runs_on_the_cpu(self) -> bool:
        """Whether the CPU makes a call that the device does not."""
        try:
            self.run_reference()
        except CannotJudgeError:
            return False
        return True

    def draw_again(self) -> Side:
        """Make a random call on the CPU in the recorded dtype, with other random numbers.

        Raises:
            CannotJudgeError: the CPU refuses it.
        """
        self.is_raised = False
        self.seed += 1
        return self.run_reference()

    def reference(self, noise: Noise | None = None) -> Side:
        """Make the call on the CPU in the reference's dtype, whatever becomes of it."""
        base = self.inputs()
        tensors = []
        for tensor, is_wanted in zip(base, self._leaf_flags(base), strict=True):
            raised = self._raise(tensor)
            if noise is not None and noise.move_input is not None:
                noise.move_input(raised)
            tensors.append(_as_leaf(raised, is_wanted))
        call = self._rebuild(tensors, _CPU)
        if self.is_raised:
            call = with_dtypes(call, lambda dtype: raise_dtype(dtype, self.real))
            call = with_own_epsilon(call, self.api_name, base)
        around = None if noise is None else noise.mode
        before = torch.get_default_dtype()
        try:
            # Results of integers and of nothing come in the default dtype.
            if self.is_raised and before is torch.float32 and not self.is_live:
                torch.set_default_dtype(self.real)
            return run_forward(
                call,
                seed=self.seed if self._draws_random else None,
                device=_CPU,
                with_gradients=self._wants_gradients,
                copies_leaves=self.copies_leaves,
                watches_writes=self._writes_unseen,
                returns_statements=not self.is_live,
                notes_sharing=self.is_live,
                around=around,
                timed=self.watch.phase("reference"),
            )
        finally:
            if not self.is_live:
                torch.set_default_dtype(before)

    def _raise(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.autocast is not None and tensor.dtype is torch.float32:
            tensor = tensor.to(self.autocast)
        if self.is_raised:
            return raise_tensor(tensor, self.real)
        return tensor.detach().to("cpu", copy=True)

    # --- backward ----------------------------------------------------------------------------

    def run_backwards(self, candidate: Side, reference: Side) -> str:
        """Send the same gradients back on both sides; returns why not, if so."""
        if not candidate.leaves or self._gradients_for is None:
            return ""
        if not any(output.requires_grad for output in candidate.outputs):
            return ""
        if undetermined_outputs(self.api_name):
            return "gradients of vectors that may turn cannot be compared"
        with self.watch.phase("load"):
            self.sent = tuple(self._gradients_for(candidate.outputs))
        try:
            with self.watch.phase("prepare"):
                on_device = [None if g is None else send(g, self.device) for g in self.sent]
                timed = self.watch.phase("device")
                run_backward(candidate, on_device, self.device, timed)
        except REFUSALS as err:
            return self._refusal("backward: the device", err)
        try:
            with self.watch.phase("prepare"):
                self.send_back(reference)
        except REFUSALS as err:
            return self._refusal("backward: the CPU", err)
        return ""

    def send_back(self, side: Side, noise: Noise | None = None) -> None:
        """Send the gradients back to a side on the CPU, whatever becomes of it."""
        sent = [
            None if gradient is None else gradient.to(output.dtype, copy=noise is not None)
            for gradient, output in zip(self.sent, side.outputs, strict=True)
        ]
        if noise is not None and noise.move_input is not None:
            for gradient in sent:
                if gradient is not None:
                    noise.move_input(gradient)
        run_backward(side, sent, _CPU, self.watch.phase("reference"))

    def run_both_again(self) -> tuple[Side, Side]:
        """Make the call on both sides, forward and backward, whatever becomes of it."""
        candidate, reference = self.candidate(self.device), self.reference()
        if self.sent:
            on_device = [None if g is None else send(g, self.device) for g in self.sent]
            run_backward(candidate, on_device, self.device)
            self.send_back(reference)
        return candidate, reference

    # --- a part ------------------------------------------------------------------------------

    def part(self, pick: Callable[[torch.Tensor], torch.Tensor]) -> BothSides:
        """Return the call with a part of each input and of each gradient that is sent back.

        Args:
            pick: returns the part of a tensor, or the tensor itself.
        """
        part = copy.copy(self)
        part._load = lambda: [pick(tensor).clone() for tensor in self.inputs()]
        part._base = None
        part.sent = tuple(None if sent is None else pick(sent) for sent in self.sent)
        return part

    def _rebuild(self, tensors: Sequence[torch.Tensor], device: torch.device) -> RebuiltCall:
        """Return the recorded call with other tensors, on another device."""
        swap = dict(zip(map(id, self._recorded), tensors, strict=True))

        def changed(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return swap.get(id(value), value)
            return device if isinstance(value, torch.device) else value

        plain = self.plain
        return replace(
            plain, args=map_leaves(plain.args, changed), kwargs=map_leaves(plain.kwargs, changed)
        )

    def _refusal(self, who: str, err: Exception) -> str:
        """Say why there is no result, and what of the call may have been lost in the dump."""
        text = " ".join(str(err).split())
        short = text if len(text) <= 300 else text[:300] + "…"
        refusal = f"{who} refuses the call: {type(err).__name__}: {short}"
        if "out of bounds for storage" in text:
            return (
                f"the dump holds the elements of a view, and the call looks beyond them; {refusal}"
            )
        if self._lost and not isinstance(err, NotImplementedError):
            places = " and ".join(self._lost)
            return f"the dump holds {places} as a dict, whatever it was; {refusal}"
        return refusal

    @property
    def _wants_gradients(self) -> bool:
        return any(self._wanted)

    def _leaf_flags(self, base: Sequence[torch.Tensor]) -> list[bool]:
        flags = self._wanted or (False,) * len(base)
        return [
            wanted and (tensor.is_floating_point() or tensor.is_complex())
            for wanted, tensor in zip(flags, base, strict=True)
        ]


def _as_leaf(tensor: torch.Tensor, is_wanted: bool) -> torch.Tensor:
    return tensor.detach().requires_grad_(is_wanted)


def _dtypes_in(call: RebuiltCall) -> list[torch.dtype]:
    """Return the dtypes among the arguments of a call."""
    found: list[torch.dtype] = []
    map_leaves(
        [list(call.args), dict(call.kwargs)],
        lambda value: found.append(value) if isinstance(value, torch.dtype) else None,
    )
    return found
