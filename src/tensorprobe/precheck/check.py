"""Check one recorded call: run both sides and judge each output and gradient.

BothSides ─► outputs, written inputs, gradients ─► judge each ─► CheckedCall
         └► a call that drew random numbers is judged by what holds of any draw
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from tensorprobe.dtypes import roundoff_of
from tensorprobe.errors import RebuildError
from tensorprobe.names import ApiCall
from tensorprobe.operations.facts import (
    CASTING,
    COARSE_IN_HALVES,
    UNINITIALISED,
    undetermined_outputs,
)
from tensorprobe.precheck.checked_call import CheckedCall, CheckedOutput
from tensorprobe.precheck.choices import Choice
from tensorprobe.precheck.judge import Judgement, Verdict, skipped, worst_verdict
from tensorprobe.precheck.output_judge import OutputJudge
from tensorprobe.precheck.picks import on_cpu, pick_gradient, pick_written
from tensorprobe.precheck.random_call import judge_random
from tensorprobe.precheck.settled import SettledDoubts
from tensorprobe.records import CallRecord
from tensorprobe.replay.both_sides import (
    BothSides,
    CannotJudgeError,
    DeviceRefusesError,
    GradientsFor,
    LoadInputs,
)
from tensorprobe.replay.refusals import REFUSALS
from tensorprobe.replay.side import Side
from tensorprobe.replay.special_calls import needs_recorded_dtype
from tensorprobe.replay.stopwatch import Stopwatch
from tensorprobe.summary.host import fetch, hold_same_bits

__all__ = ["check_call", "check_made_call"]

FindWritten: TypeAlias = Callable[[int], "torch.Tensor | None"]
# Which dtypes the CPU gives, by the operator and what it is given: that never changes.
_DTYPES: dict[object, tuple[torch.dtype, ...]] = {}
# Whose names say what a function does.
_OF_TORCH = frozenset(("Aten", "Functional", "Tensor", "Torch"))
_JUMPS = "the gradient of places jumps, and in a half they are not exact"


def check_call(
    record: CallRecord,
    name: ApiCall,
    load: LoadInputs,
    gradients: GradientsFor,
    *,
    device: torch.device,
    seed: int,
    watch: Stopwatch | None = None,
) -> CheckedCall:
    """Check one call.

    Args:
        record: the forward record.
        name: its name in parts.
        load: returns the input tensors on the CPU, in the order of the arguments; the same ones
            whenever it is asked.
        gradients: given the device's outputs, returns what is sent back to each.
        device: where the candidate runs.
        seed: of the random numbers that the call itself may draw.
        watch: takes the time; it may have begun before.
    """
    watch = watch or Stopwatch()
    if name.api_name in UNINITIALISED:
        return CheckedCall("SKIP", message="the result is uninitialised memory")
    try:
        with watch.phase("prepare"):
            sides = BothSides.of_record(record, name, load, gradients, device, seed, watch)
        checked = _Check(name, sides, watch).run()
    except (CannotJudgeError, RebuildError) as err:
        return CheckedCall("SKIP", message=str(err), phases=watch.stop())
    if "error" not in (checked.forward, checked.backward):
        return replace(checked, phases=watch.stop())
    # What a script needs to repeat it.
    return replace(
        checked,
        repetition=sides.repetition(),
        phases=watch.stop(),
    )


def check_made_call(
    name: ApiCall,
    sides: BothSides,
    candidate: Side,
    find_written: FindWritten,
    settled: SettledDoubts,
    *,
    touched: Collection[int] = (),
    default_dtype: torch.dtype | None = None,
) -> CheckedCall:
    """Check a call that the run itself has just made; nothing of it is random.

    Args:
        name: its name in parts.
        sides: the call, with its inputs as they were before it.
        candidate: what it returned.
        find_written: returns what the call left of an input tensor, by its place.
        settled: what was found out in earlier checks of this kind.
        touched: the places of inputs that may have changed though they should not.
        default_dtype: torch's when the call was made.
    """
    sides.take_candidate(candidate)
    try:
        check = _Check(name, sides, sides.watch, settled, default_dtype)
        return check.run_made(find_written, candidate, touched)
    except CannotJudgeError as err:
        return CheckedCall("SKIP", message=str(err))


class _Check:
    """One check while it runs."""

    def __init__(
        self,
        name: ApiCall,
        sides: BothSides,
        watch: Stopwatch,
        settled: SettledDoubts | None = None,
        default_dtype: torch.dtype | None = None,
    ) -> None:
        self._outputs = OutputJudge(name, sides, watch, settled)
        self._name = name
        self._sides = sides
        self._choice = Choice(sides)
        self._default_dtype = default_dtype

    def run(self) -> CheckedCall:
        """Run both sides and judge what they gave."""
        try:
            candidate = self._sides.run_candidate()
        except DeviceRefusesError as err:
            if err.is_unable or not self._sides.runs_on_the_cpu():
                raise
            return CheckedCall("error", message=f"{err}; the CPU runs it")
        if not candidate.outputs:
            raise CannotJudgeError("the call returns nothing that could be compared")
        if candidate.drew_random:
            return self._judge_random(candidate)
        reference = self._sides.run_reference()
        if len(candidate.outputs) != len(reference.outputs):
            count = f"{len(candidate.outputs)} results, the reference {len(reference.outputs)}"
            return CheckedCall("error", message=f"the device gave {count}")
        message = self._sides.run_backwards(candidate, reference)
        forward = self._judge_forward(candidate, reference)
        if not message and self._choice.is_another(candidate, reference):
            message = "backward: it goes to what was chosen, which here is another of equal values"
        backward = [] if message else self._judge_backward(candidate, reference)
        back: Verdict | None = "SKIP" if message else None
        if backward:
            back = worst_verdict([output.judgement.verdict for output in backward])
            if back == "SKIP":
                message = f"{backward[0].place}: {backward[0].judgement.message}"
        return CheckedCall(
            worst_verdict([output.judgement.verdict for output in forward]),
            back,
            self._summarise([*forward, *backward], message),
            (*forward, *backward),
            chooses=self._choice.chooses,
            device_seconds=candidate.seconds,
            reference_seconds=reference.seconds,
        )

    def run_made(
        self,
        find_written: FindWritten,
        candidate: Side,
        touched: Collection[int],
    ) -> CheckedCall:
        """Run the reference of a call that was made, and judge what the call gave."""
        reference = self._sides.run_reference()
        if len(candidate.outputs) != len(reference.outputs):
            count = f"{len(candidate.outputs)} results, the reference {len(reference.outputs)}"
            return CheckedCall("error", message=f"the device gave {count}")
        for place in reference.written:
            tensor = find_written(place)
            if tensor is not None:
                candidate.written[place] = tensor
        forward = [
            self._judge_form(index, output, candidate, reference)
            for index, output in enumerate(self._judge_forward(candidate, reference))
        ]
        forward += self._judge_untouched(reference, find_written, touched)
        verdict = worst_verdict([output.judgement.verdict for output in forward])
        return CheckedCall(verdict, None, self._summarise(forward, ""), tuple(forward))

    # --- a call that was made: what is right in every number and wrong all the same ----------

    def _judge_form(
        self,
        index: int,
        output: CheckedOutput,
        candidate: Side,
        reference: Side,
    ) -> CheckedOutput:
        """Let a result fail that has another dtype, or is other memory, than it should be."""
        if index >= len(candidate.outputs) or output.judgement.verdict == "error":
            return output
        reason = ""
        if candidate.shared and candidate.shared[index] is not reference.shared[index]:
            should = "should" if reference.shared[index] else "should not"
            reason = f"it {should} be memory of an input"
        if not reason and candidate.misplaced and candidate.misplaced[index]:
            reason = "it is a view of other elements of its base, or another view of them"
        ours, wanted = candidate.outputs[index].dtype, self._dtypes(reference)
        if index < len(wanted) and ours != wanted[index]:
            # What a kernel of another device hands on beside its result may be wider.
            is_wider = roundoff_of(ours) <= roundoff_of(wanted[index])
            if not (index and is_wider and self._sides.device.type != "cpu"):
                reason = f"the device gave {ours}, wanted {wanted[index]}"
        if not reason:
            return output
        judgement = replace(output.judgement, verdict="error", message=reason, excess=math.inf)
        return replace(output, judgement=judgement)

    def _dtypes(self, reference: Side) -> tuple[torch.dtype, ...]:
        """Return the dtypes of the results as the CPU gives them; none if it does not run."""
        if not self._sides.is_raised:
            return tuple(output.dtype for output in reference.outputs)
        # What a user's operator gives may be a matter of any of its arguments, and what others give
        # one of torch's default, which the run may have changed since.
        default = torch.get_default_dtype()
        if self._name.api_type != "Aten" or default is not self._default_dtype:
            return ()
        call = self._sides.plain
        settings = tuple(
            (key, _setting_of(value))
            for key, value in (*enumerate(call.args), *call.kwargs.items())
        )
        given = tuple((tensor.dtype, tensor.dim() == 0) for tensor in self._sides.inputs())
        kind = (call.function, settings, given, default)
        known = _DTYPES.get(kind)
        if known is None:
            try:
                outputs = self._sides.candidate(torch.device("cpu")).outputs
            except REFUSALS:
                return ()
            known = tuple(output.dtype for output in outputs)
            if torch.get_default_dtype() is not default:
                return ()
            _DTYPES[kind] = known
        return known

    def _judge_untouched(
        self, reference: Side, find_written: FindWritten, touched: Collection[int]
    ) -> Iterator[CheckedOutput]:
        """Hold inputs that the reference does not write into against what they were."""
        for place, before in enumerate(self._sides.inputs()):
            left = find_written(place) if place in touched else None
            if left is None or place in reference.written or hold_same_bits(fetch(left), before):
                continue
            reason = "the device wrote into it, the reference does not"
            judgement = Judgement("error", reason, excess=math.inf)
            yield CheckedOutput(f"forward.input.{place}", on_cpu(left), before, judgement)

    # --- outputs and gradients ---------------------------------------------------------------

    def _judge_forward(self, candidate: Side, reference: Side) -> list[CheckedOutput]:
        candidate = self._choice.in_order(candidate)
        undetermined = undetermined_outputs(self._name.api_name)
        is_backward = self._name.api_name.endswith("_backward")
        found = []
        for index, output in enumerate(candidate.outputs):
            place = f"forward.output.{index}"
            if index in undetermined:
                judgement = skipped("one of many right results")
                found.append(CheckedOutput(place, on_cpu(output), None, judgement))
            elif is_backward and index and self._is_coarse:
                found.append(CheckedOutput(place, on_cpu(output), None, skipped(_JUMPS)))
            else:
                pick = self._choice.pick_output(index)
                judged = self._outputs.judge(place, output, pick(reference), pick)
                if index == self._choice.result:
                    judged = self._choice.among_equals(judged)
                found.append(judged)
        for index, tensor in candidate.written.items():
            pick = pick_written(index)
            found.append(
                self._outputs.judge(f"forward.input.{index}", tensor, pick(reference), pick)
            )
        return found

    def _judge_backward(self, candidate: Side, reference: Side) -> list[CheckedOutput]:
        found = []
        for index, gradient in candidate.gradients.items():
            place = f"backward.output.{index}"
            if index and self._is_coarse:
                found.append(CheckedOutput(place, on_cpu(gradient), None, skipped(_JUMPS)))
            else:
                pick = pick_gradient(index)
                found.append(self._outputs.judge(place, gradient, pick(reference), pick))
        return found

    @property
    def _is_coarse(self) -> bool:
        return self._outputs.is_half and self._name.api_name in COARSE_IN_HALVES

    # --- random calls ------------------------------------------------------------------------

    def _judge_random(self, candidate: Side) -> CheckedCall:
        outputs, draw = judge_random(self._name, self._sides, candidate)
        forward = [o.judgement.verdict for o in outputs if o.place.startswith("forward")]
        back = [o.judgement.verdict for o in outputs if o.place.startswith("backward")]
        message = ""
        if candidate.leaves and not back:
            back = ["SKIP"]
            message = "backward: its gradients follow from what it drew, which no two runs share"
        return CheckedCall(
            worst_verdict(forward),
            worst_verdict(back) if back else None,
            self._summarise(outputs, message, is_random=True),
            tuple(outputs),
            draw=draw,
            device_seconds=candidate.seconds,
        )

    # --- words -------------------------------------------------------------------------------

    def _summarise(
        self, outputs: Sequence[CheckedOutput], message: str, *, is_random: bool = False
    ) -> str:
        worst = worst_verdict([output.judgement.verdict for output in outputs])
        lines = [
            f"{output.place}: {output.judgement.message}"
            for output in outputs
            if worst != "pass" and output.judgement.verdict == worst
        ]
        if message:
            lines.append(message)
        sides = self._sides
        if sides.autocast is not None:
            lines.append(f"run under autocast to {sides.autocast}")
        plain = sides.plain
        is_odd = needs_recorded_dtype(self._name.api_name, plain.args, plain.kwargs)
        if not (sides.is_raised or is_odd or is_random):
            lines.append("the CPU has no wider form, so the reference has the recorded dtype")
        is_torchs = self._name.api_type in _OF_TORCH
        if is_torchs and self._name.api_name in CASTING:
            lines.append("a cast is of limited value: the reference is rounded the same way")
        return "; ".join(lines)


def _setting_of(value: object) -> object:
    """Return what of an argument that is no tensor may decide on the dtype of a result."""
    if isinstance(value, (bool, torch.dtype)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_setting_of, value))
    return type(value)
