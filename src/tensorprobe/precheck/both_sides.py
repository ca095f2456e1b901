"""Run one recorded call on both sides: as recorded on the device, one precision up on the CPU.

inputs ─► device, recorded dtype (under autocast if the result shows that it was)
      ├► CPU, raised dtype, or the recorded one where the CPU has no wider form
      └► CPU, raised dtype with rounding noise: only when a result is in doubt
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from tensorprobe.names import ApiCall
from tensorprobe.precheck.arguments import map_leaves
from tensorprobe.precheck.judge import rounding_unit
from tensorprobe.precheck.kinds import (
    STEPWISE_IN_HALVES,
    UNSEEN_WRITERS,
    is_in_place,
    needs_recorded_dtype,
    undetermined_outputs,
)
from tensorprobe.precheck.noise import RoundingNoise, disturb
from tensorprobe.precheck.precision import (
    is_raisable,
    raise_dtype,
    raise_tensor,
    reference_dtype,
    with_dtypes,
    with_own_epsilon,
)
from tensorprobe.precheck.rebuild import RebuiltCall, rebuild_call
from tensorprobe.precheck.recorded import tensor_values, wants_gradients
from tensorprobe.precheck.side import Side, run_backward, run_forward
from tensorprobe.precheck.stopwatch import Stopwatch
from tensorprobe.records import CallRecord, TensorValue

__all__ = ["BothSides", "CannotJudgeError", "GradientsFor", "LoadInputs"]

LoadInputs = Callable[[], Sequence[torch.Tensor]]
GradientsFor = Callable[[Sequence[torch.Tensor]], Sequence["torch.Tensor | None"]]

_NOISY_RUNS = 4
# In more roundings than these an error of 1/1000 could hide.
_LONGEST_WALK = 100.0
# So many elements show in two runs what few show in four.
_LARGE = 1_000_000
_CPU = torch.device("cpu")
_NO_SIDE = Side([])
_HALVES = {"torch.float16": torch.float16, "torch.bfloat16": torch.bfloat16}
# What torch raises of arguments that it does not take.
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
             ValueError)  # fmt: skip


class _Noise(NamedTuple):
    """What moves one run: its inputs, and what its kernels hand on to each other."""

    generator: torch.Generator
    mode: AbstractContextManager[Any]
    moves_inputs: bool
    input_unit: float


class CannotJudgeError(Exception):
    """The call cannot be judged; the message is the reason."""


class BothSides:
    """One recorded call, its inputs, and what its runs showed of it.

    Args:
        record: the forward record.
        name: its name in parts.
        load: returns the input tensors on the CPU, in the order of the arguments; the same ones
            whenever it is asked.
        gradients: given the device's outputs, returns what is sent back to each.
        device: where the candidate runs.
        seed: of the random numbers that the call itself may draw.
        watch: takes the time of each phase.

    Attributes:
        autocast: the dtype of the autocast that the call was made under, if it was.
        is_raised: whether the reference computes in a wider dtype.
        copies_leaves: whether the call writes into its inputs.
        sent: the gradients that were sent back.
        unit: the rounding error of the narrowest dtype in the call.
        plain: the call with its arguments as they were recorded.
        values: what was recorded of its input tensors.
    """

    def __init__(
        self,
        record: CallRecord,
        name: ApiCall,
        load: LoadInputs,
        gradients: GradientsFor,
        device: torch.device,
        seed: int,
        watch: Stopwatch | None = None,
    ) -> None:
        self._watch = watch or Stopwatch()
        self._record = record
        self._name = name
        self._load = load
        self._gradients_for = gradients
        self._device = device
        self._seed = seed
        self.values = tensor_values(record)
        self._writes_unseen = name.api_name in UNSEEN_WRITERS
        self._base: list[torch.Tensor] | None = None
        self._versions: list[int] = []
        self._wants_gradients = wants_gradients(record, self.values)
        self._real: torch.dtype = torch.float64
        self._noisy_dtype = torch.float32
        self._noise: list[Side] | None = None
        self._as_recorded: list[Side] | None = None
        self._moved: list[Side] | None = None
        self._result_sizes: list[int] = []
        self._precise: Side | None = None
        # Until a run has shown that it does not.
        self._draws_random = True
        self.autocast: torch.dtype | None = None
        self.is_raised = True
        self.sent: tuple[torch.Tensor | None, ...] = ()
        self.unit = rounding_unit(torch.float32)
        self._recorded = self.inputs()
        waiting = iter(self._recorded)
        self.plain = rebuild_call(record, lambda _: next(waiting), device=_CPU)
        self.copies_leaves = is_in_place(
            self.plain.function, name.api_name, self.plain.args, self.plain.kwargs
        )

    def inputs(self) -> list[torch.Tensor]:
        """Return the inputs as recorded; loaded again if a run wrote into them."""
        base = self._base
        if base is None or self._versions != [tensor._version for tensor in base]:
            with self._watch.phase("load"):
                base = self._base = list(self._load())
            self._versions = [tensor._version for tensor in base]
        return base

    def as_recorded(self) -> RebuiltCall:
        """Return the call with copies of its inputs, which want gradients where they did."""
        base = self.inputs()
        flags = self._leaf_flags(base)
        copies = [_as_leaf(t.clone(), wanted) for t, wanted in zip(base, flags, strict=True)]
        return self._rebuild(copies, _CPU)

    # --- the device --------------------------------------------------------------------------

    def run_candidate(self) -> Side:
        """Make the call on the device.

        Raises:
            CannotJudgeError: the device refuses it.
        """
        side = self._try_candidate()
        first = self._record.outputs[0] if self._record.outputs else None
        recorded = _HALVES.get(first.dtype) if isinstance(first, TensorValue) else None
        if recorded is not None and side.outputs and side.outputs[0].dtype is torch.float32:
            # Only autocast makes a half of what the arguments alone give in float32.
            self.autocast = recorded
            side = self._try_candidate()
        self._draws_random = side.drew_random
        results = (*side.outputs, *side.leaves.values())
        self._result_sizes = [t.numel() for t in results if t.is_floating_point() and t.numel()]
        self._choose_precision(side)
        return side

    def _try_candidate(self) -> Side:
        try:
            with self._watch.phase("prepare"):
                return self._candidate(self._device)
        except _REFUSALS as err:
            is_final = self.copies_leaves or not self._wants_gradients
            if is_final or not isinstance(err, RuntimeError):
                raise CannotJudgeError(_refusal("the device", err)) from err
        # Perhaps it writes into a leaf, which only a copy allows.
        self.copies_leaves = True
        return self._try_candidate()

    def _candidate(self, device: torch.device) -> Side:
        base = self.inputs()
        tensors = [
            _as_leaf(tensor.to(device, copy=self._writes_unseen), is_wanted)
            for tensor, is_wanted in zip(base, self._leaf_flags(base), strict=True)
        ]
        around: AbstractContextManager[Any] | None = None
        if self.autocast is not None:
            around = torch.autocast(device.type, dtype=self.autocast)
        return run_forward(
            self._rebuild(tensors, device),
            seed=self._seed,
            device=device,
            with_gradients=self._wants_gradients,
            copies_leaves=self.copies_leaves,
            watches_writes=self._writes_unseen,
            around=around,
            timed=self._watch.phase("device"),
        )

    def _choose_precision(self, candidate: Side) -> None:
        plain = self.plain
        dtypes = [tensor.dtype for tensor in self.inputs()]
        map_leaves(
            [list(plain.args), dict(plain.kwargs)],
            lambda value: dtypes.append(value) if isinstance(value, torch.dtype) else None,
        )
        self._real = reference_dtype(dtypes)
        self.is_raised = not needs_recorded_dtype(self._name.api_name, plain.args, plain.kwargs)
        dtypes += [output.dtype for output in candidate.outputs]
        floats = [dtype for dtype in dtypes if is_raisable(dtype)]
        self._noisy_dtype = max(floats, key=rounding_unit, default=torch.float32)
        self.unit = rounding_unit(self._noisy_dtype)

    # --- the reference -----------------------------------------------------------------------

    def run_reference(self) -> Side:
        """Make the call on the CPU, one precision up if it can.

        Raises:
            CannotJudgeError: the CPU refuses it.
        """
        if self.is_raised:
            try:
                with self._watch.phase("prepare"):
                    return self._reference()
            except _REFUSALS:
                self.is_raised = False
        try:
            with self._watch.phase("prepare"):
                return self._reference()
        except _REFUSALS as err:
            raise CannotJudgeError(_refusal("the CPU", err)) from err

    def draw_again(self) -> Side:
        """Make a random call on the CPU in the recorded dtype, with other random numbers.

        Raises:
            CannotJudgeError: the CPU refuses it.
        """
        self.is_raised = False
        self._seed += 1
        return self.run_reference()

    def _reference(self, noise: _Noise | None = None) -> Side:
        base = self.inputs()
        tensors = []
        for tensor, is_wanted in zip(base, self._leaf_flags(base), strict=True):
            raised = self._raise(tensor)
            if noise is not None and noise.moves_inputs:
                disturb(raised, noise.input_unit, noise.generator)
            tensors.append(_as_leaf(raised, is_wanted))
        call = self._rebuild(tensors, _CPU)
        if self.is_raised:
            call = with_dtypes(call, lambda dtype: raise_dtype(dtype, self._real))
            call = with_own_epsilon(call, self._name.api_name, base)
        around = None if noise is None else noise.mode
        before = torch.get_default_dtype()
        try:
            # Results of integers and of nothing come in the default dtype.
            if self.is_raised and before is torch.float32:
                torch.set_default_dtype(self._real)
            return run_forward(
                call,
                seed=self._seed if self._draws_random else None,
                device=_CPU,
                with_gradients=self._wants_gradients,
                copies_leaves=self.copies_leaves,
                watches_writes=self._writes_unseen,
                around=around,
                timed=self._watch.phase("reference"),
            )
        finally:
            torch.set_default_dtype(before)

    def _raise(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.autocast is not None and tensor.dtype is torch.float32:
            tensor = tensor.to(self.autocast)
        if self.is_raised:
            return raise_tensor(tensor, self._real)
        return tensor.detach().to("cpu", copy=True)

    @property
    def _is_noisy_inside(self) -> bool:
        """Whether kernels compute in the recorded dtype: of bfloat16 nearly all use float32.

        There a rounding error more would hide an error of one per cent.
        """
        return self._noisy_dtype is not torch.bfloat16 or self._name.api_name in STEPWISE_IN_HALVES

    # --- backward ----------------------------------------------------------------------------

    def run_backwards(self, candidate: Side, reference: Side) -> str:
        """Send the same gradients back on both sides; returns why not, if so."""
        if not candidate.leaves:
            return ""
        if not any(output.requires_grad for output in candidate.outputs):
            return ""
        if undetermined_outputs(self._name.api_name):
            return "gradients of vectors that may turn cannot be compared"
        with self._watch.phase("load"):
            self.sent = tuple(self._gradients_for(candidate.outputs))
        try:
            with self._watch.phase("prepare"):
                on_device = [None if g is None else g.to(self._device) for g in self.sent]
                timed = self._watch.phase("device")
                run_backward(candidate, on_device, self._device, timed)
        except (RuntimeError, ValueError) as err:
            return _refusal("backward: the device", err)
        try:
            with self._watch.phase("prepare"):
                self._send_back(reference)
        except (RuntimeError, ValueError) as err:
            return _refusal("backward: the CPU", err)
        return ""

    def _send_back(self, side: Side, noise: _Noise | None = None) -> None:
        sent = [
            None if gradient is None else gradient.to(output.dtype, copy=noise is not None)
            for gradient, output in zip(self.sent, side.outputs, strict=True)
        ]
        if noise is not None and noise.moves_inputs:
            for gradient in sent:
                if gradient is not None:
                    disturb(gradient, noise.input_unit, noise.generator)
        run_backward(side, sent, _CPU, self._watch.phase("reference"))

    # --- noise -------------------------------------------------------------------------------

    def noisy_sides(self) -> list[Side]:
        """Return runs of the reference with rounding noise; made when first asked for."""
        if self._noise is None:
            with self._watch.phase("noise"):
                self._noise = self._make_noise()
        return self._noise

    def _make_noise(self, *, inputs_only: bool = False) -> list[Side]:
        found = []
        generator = torch.Generator().manual_seed(self._seed)
        size = sum(tensor.numel() for tensor in self.inputs())
        by_steps = self._is_noisy_inside
        for _ in range(_NOISY_RUNS if size < _LARGE else _NOISY_RUNS // 2):
            mode: AbstractContextManager[Any] = nullcontext()
            if not inputs_only:
                mode = RoundingNoise(self._noisy_dtype, self.unit, generator, by_steps=by_steps)
            noise = _Noise(generator, mode, inputs_only or by_steps, self._input_unit())
            try:
                side = self._reference(noise)
                if self.sent:
                    with mode:
                        self._send_back(side, noise)
            except _REFUSALS:
                # Noise led it out of what it takes; the other runs tell enough.
                continue
            found.append(side)
        return found

    def _input_unit(self) -> float:
        """Return by how much inputs move: a rounding error, and what adding them up is worth.

        A sum of n numbers is the exact sum of others that are off by sqrt(n) roundings at most,
        almost surely, however much of it cancels. Sums of halves are kept in float32.
        """
        given = [*self.inputs(), *(g for g in self.sent if g is not None)]
        largest = max((tensor.numel() for tensor in given), default=1)
        least = min(self._result_sizes, default=1)
        walk = min(math.sqrt(max(largest // max(least, 1), 1)), _LONGEST_WALK)
        if self.unit > rounding_unit(torch.float32):
            return self.unit + walk * rounding_unit(torch.float32)
        return self.unit * walk

    def cpu_as_recorded(self) -> list[Side]:
        """Return what the CPU makes of the call in the recorded dtype: it errs too.

        None where it is the device itself, or has no such kernel.
        """
        if self._as_recorded is None:
            self._as_recorded = []
            if self._device.type != "cpu":
                with self._watch.phase("noise"):
                    self._as_recorded = self._run_as_recorded()
        return self._as_recorded

    def _run_as_recorded(self) -> list[Side]:
        try:
            side = self._candidate(_CPU)
            if self.sent:
                self._send_back(side)
        except _REFUSALS:
            # The CPU has no such kernel for this dtype; the noise stands alone.
            return []
        return [side]

    def ill_conditioned_sides(self) -> list[Side]:
        """Return runs of the reference whose inputs are off by a rounding error, and nothing else.

        Of bfloat16 alone: for other dtypes the noisy runs do that, too. Not of a function of one
        number: nothing is rounded inside it before something else is added.
        """
        if self._moved is None:
            self._moved = []
            if not self._is_noisy_inside and not self._is_elementwise():
                with self._watch.phase("noise"):
                    self._moved = self._make_noise(inputs_only=True)
        return self._moved

    def _is_elementwise(self) -> bool:
        floats = [tensor for tensor in self.inputs() if tensor.is_floating_point()]
        return len(floats) == 1 and set(self._result_sizes) <= {floats[0].numel()}

    def precise_side(self) -> Side | None:
        """Return the reference in float64 where it was float32, which may itself be inexact.

        From then on every other run of the reference has that precision, too.
        """
        if self._precise is None and self.is_raised and self._real is torch.float32:
            self._real = torch.float64
            try:
                with self._watch.phase("noise"):
                    side = self._reference()
                    if self.sent:
                        self._send_back(side)
            except _REFUSALS:
                # The CPU has no such kernel; float32 is the best there is.
                self._real = torch.float32
                self._precise = _NO_SIDE
            else:
                self._precise = side
        return self._precise if self._precise is not _NO_SIDE else None

    def _rebuild(self, tensors: Sequence[torch.Tensor], device: torch.device) -> RebuiltCall:
        """Return the recorded call with other tensors, on another device."""
        swap = dict(zip(map(id, self._recorded), tensors, strict=True))

        def changed(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return swap.get(id(value), value)
            return device if isinstance(value, torch.device) else value

        plain = self.plain
        return RebuiltCall(
            plain.function, map_leaves(plain.args, changed), map_leaves(plain.kwargs, changed)
        )

    def _leaf_flags(self, base: Sequence[torch.Tensor]) -> list[bool]:
        return [
            self._wants_gradients
            and bool(value.requires_grad)
            and (tensor.is_floating_point() or tensor.is_complex())
            for value, tensor in zip(self.values, base, strict=True)
        ]


def _as_leaf(tensor: torch.Tensor, is_wanted: bool) -> torch.Tensor:
    return tensor.detach().requires_grad_(is_wanted)


def _refusal(who: str, err: Exception) -> str:
    text = " ".join(str(err).split())
    short = text if len(text) <= 300 else text[:300] + "…"
    return f"{who} refuses the call: {type(err).__name__}: {short}"
