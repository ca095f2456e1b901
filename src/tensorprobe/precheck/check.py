"""Check one recorded call: run both sides and judge each output and gradient.

BothSides ─► outputs, written inputs, gradients ─► judge each ─► CheckedCall
         └► a call that drew random numbers is judged by what holds of any draw
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeAlias

import torch

from tensorprobe.errors import RebuildError
from tensorprobe.names import ApiCall
from tensorprobe.precheck.both_sides import (
    BothSides,
    CannotJudgeError,
    DeviceRefusesError,
    GradientsFor,
    LoadInputs,
)
from tensorprobe.precheck.checked_call import CheckedCall, CheckedOutput
from tensorprobe.precheck.choices import Choice
from tensorprobe.precheck.judge import (
    Judgement,
    Resemblance,
    Runs,
    Verdict,
    judge_at_once,
    judge_output,
    rounding_unit,
    typical_size,
    worst_verdict,
)
from tensorprobe.precheck.kinds import (
    CASTS,
    COARSE_IN_HALVES,
    PARTLY_IN_HALVES,
    UNINITIALISED,
    needs_recorded_dtype,
    undetermined_outputs,
)
from tensorprobe.precheck.measure import OutputNumbers
from tensorprobe.precheck.picks import (
    Pick,
    as_compared,
    norm,
    on_cpu,
    pick_from,
    pick_gradient,
    pick_written,
)
from tensorprobe.precheck.random_call import judge_random
from tensorprobe.precheck.repeated_errors import resemblance_of
from tensorprobe.precheck.repeats import Repeats
from tensorprobe.precheck.sample import is_worth_a_sample, samples_of
from tensorprobe.precheck.settled import SettledDoubts
from tensorprobe.precheck.side import Side
from tensorprobe.precheck.stopwatch import Stopwatch
from tensorprobe.records import CallRecord
from tensorprobe.replay.refusals import REFUSALS
from tensorprobe.summary.host import fetch, have_equal_bits

__all__ = ["check_call", "check_made_call"]

FindWritten: TypeAlias = Callable[[int], "torch.Tensor | None"]
# So many times the rounding error of its inputs a result must move to be ill-conditioned.
_ILL_CONDITIONED = 4.0
# Whose names say what a function does.
_OF_TORCH = frozenset(("Aten", "Functional", "Tensor", "Torch"))
_JUMPS = "the gradient of places jumps, and in a half they are not exact"
# A part of the call gives what the whole gave, up to this share of a rounding error.
_SAME = 0.25


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
    if UNINITIALISED & set(name.api_name.split(".")):
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
        call=sides.as_recorded(),
        gradients=sides.sent,
        copies_leaves=sides.copies_leaves,
        phases=watch.stop(),
    )


def check_made_call(
    name: ApiCall,
    sides: BothSides,
    candidate: Side,
    find_written: FindWritten,
    settled: SettledDoubts,
    *,
    watches_writes: bool = False,
) -> CheckedCall:
    """Check a call that the run itself has just made; nothing of it is random.

    Args:
        name: its name in parts.
        sides: the call, with its inputs as they were before it.
        candidate: what it returned.
        find_written: returns what the call left of an input tensor, by its place.
        settled: what was found out in earlier checks of this kind.
        watches_writes: whether it may have written where it should not.
    """
    sides.take_candidate(candidate)
    try:
        check = _Check(name, sides, sides.watch, settled)
        return check.run_made(find_written, candidate, watches_writes=watches_writes)
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
    ) -> None:
        # Of calls of a run that goes on; for them one pass is enough where it tells enough.
        self._settled = settled
        self._repeats = Repeats(sides)
        self._watch = watch
        self._name = name
        self._sides = sides
        self._shapes = sides.shapes
        self._choice = Choice(sides)

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
            device_seconds=candidate.seconds,
            reference_seconds=reference.seconds,
        )

    def run_made(
        self, find_written: FindWritten, candidate: Side, *, watches_writes: bool
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
        forward = self._judge_forward(candidate, reference)
        if watches_writes:
            forward += self._judge_untouched(reference, find_written)
        verdict = worst_verdict([output.judgement.verdict for output in forward])
        return CheckedCall(verdict, None, self._summarise(forward, ""), tuple(forward))

    # --- outputs and gradients ---------------------------------------------------------------

    def _judge_untouched(
        self, reference: Side, find_written: FindWritten
    ) -> Iterator[CheckedOutput]:
        """Hold inputs that the reference leaves alone against what they were."""
        for place, before in enumerate(self._sides.inputs()):
            left = find_written(place) if place not in reference.written else None
            if left is None or have_equal_bits(fetch(left), before):
                continue
            reason = "the device wrote into it, the reference does not"
            judgement = Judgement("error", reason, excess=math.inf)
            yield CheckedOutput(f"forward.input.{place}", on_cpu(left), before, judgement)

    def _judge_forward(self, candidate: Side, reference: Side) -> list[CheckedOutput]:
        candidate = self._choice.in_order(candidate)
        undetermined = undetermined_outputs(self._name.api_name)
        is_backward = self._name.api_name.endswith("_backward")
        found = []
        for index, output in enumerate(candidate.outputs):
            place = f"forward.output.{index}"
            if index in undetermined:
                judgement = _skip("one of many right results")
                found.append(CheckedOutput(place, on_cpu(output), None, judgement))
            elif is_backward and index and self._is_coarse:
                found.append(CheckedOutput(place, on_cpu(output), None, _skip(_JUMPS)))
            else:
                pick = self._choice.pick_output(index)
                judged = self._judge(place, output, pick(reference), pick)
                if index == self._choice.result:
                    judged = self._choice.among_equals(judged)
                found.append(judged)
        for index, tensor in candidate.written.items():
            pick = pick_written(index)
            found.append(self._judge(f"forward.input.{index}", tensor, pick(reference), pick))
        return found

    def _judge_backward(self, candidate: Side, reference: Side) -> list[CheckedOutput]:
        found = []
        for index, gradient in candidate.gradients.items():
            place = f"backward.output.{index}"
            if index and self._is_coarse:
                found.append(CheckedOutput(place, on_cpu(gradient), None, _skip(_JUMPS)))
            else:
                pick = pick_gradient(index)
                found.append(self._judge(place, gradient, pick(reference), pick))
        return found

    @property
    def _is_coarse(self) -> bool:
        return self._is_half and self._name.api_name in COARSE_IN_HALVES

    @property
    def _is_half(self) -> bool:
        return self._sides.unit >= rounding_unit(torch.float16)

    def _computed_in(self, ours: torch.Tensor) -> torch.dtype | None:
        """Return the dtype that a result was computed in, if that is not its own."""
        if not ours.is_floating_point():
            return None
        is_partly = self._is_half and self._name.api_name in PARTLY_IN_HALVES
        return self._sides.noisy_dtype if is_partly else self._sides.autocast

    def _judge(
        self,
        place: str,
        candidate: torch.Tensor | None,
        reference: torch.Tensor | None,
        pick: Pick,
    ) -> CheckedOutput:
        if candidate is None or reference is None:
            if candidate is reference:
                judgement = _skip("there is none on either side")
            else:
                side = "reference" if candidate is None else "device"
                judgement = Judgement("error", f"only the {side} has one", excess=math.inf)
            return CheckedOutput(place, on_cpu(candidate), reference, judgement)
        with self._watch.phase("fetch"):
            ours, theirs = as_compared(candidate), as_compared(reference)
        if ours is None or theirs is None:
            judgement = _skip(f"{candidate.layout} tensors are not compared")
            return CheckedOutput(place, None, None, judgement)
        if self._settled is not None:
            passed = judge_at_once(ours, theirs, length=self._length(ours))
            if passed is not None:
                return CheckedOutput(place, ours, theirs, passed)
        judged = partial(
            judge_output,
            length=self._length(ours),
            computed_in=self._computed_in(ours),
            is_gradient=place.startswith("backward"),
        )
        with self._watch.phase("measure"):
            judgement = judged(ours, theirs)
            is_doubtful = judgement.verdict != "pass" or judgement.message
            if is_doubtful and self._repeats.is_half_by_element:
                # Nothing is added up.
                judged = partial(judged, length=1)
                judgement = judged(ours, theirs)
            if judgement.verdict != "error":
                return CheckedOutput(place, ours, theirs, judgement)
            doubt = judgement.numbers
            if self._is_settled(place, ours, doubt):
                reason = "rounding noise moved the result of another such call as far"
                judgement = replace(
                    judgement, verdict="warning", message=f"{judgement.message}; {reason}"
                )
                return CheckedOutput(place, ours, theirs, judgement)
            if is_worth_a_sample(self._name.api_type, ours):
                settled = self._judge_sample(judged, judgement, ours, theirs, pick)
                if settled is not None:
                    return CheckedOutput(place, ours, theirs, settled)
            truth = pick_from(self._repeats.precise(), pick)
            truth = theirs if truth is None else truth
            judgement = judged(
                ours,
                truth,
                noise=self._noise(self._repeats, truth, pick),
                resemblance=cache(partial(self._resemblance, self._sides, ours, truth, pick)),
            )
            if judgement.verdict != "error" and self._settled is not None and doubt is not None:
                self._settled.add(self._kind_of(place, ours), doubt, self._sizes_beside(doubt))
        return CheckedOutput(place, ours, truth, judgement)

    def _is_settled(self, place: str, ours: torch.Tensor, doubt: OutputNumbers | None) -> bool:
        if self._settled is None or doubt is None:
            return False
        find_sizes = partial(self._sizes_beside, doubt)
        return self._settled.explain(self._kind_of(place, ours), doubt, find_sizes)

    def _sizes_beside(self, doubt: OutputNumbers) -> tuple[float, ...]:
        """Return how large the call's numbers are: of each input, and of a result.

        A gradient may have any size, and what a backward operator makes of it is as many times
        as large: so there it is the shares of it that are told.
        """
        inputs = [t for t in self._sides.inputs() if t.is_floating_point() or t.is_complex()]
        sizes = [norm(t) / max(t.numel(), 1) ** 0.5 for t in inputs]
        result = typical_size(doubt.pair)
        if "_backward" in self._name.api_name and sizes and 0 < sizes[0] < math.inf:
            return (*sizes[1:], result / sizes[0])
        return (*sizes, result)

    def _kind_of(self, place: str, ours: torch.Tensor) -> tuple[str, str, torch.dtype, int]:
        return self._name.api_name, place, ours.dtype, self._length(ours)

    def _judge_sample(
        self,
        judged: Callable[..., Judgement],
        judgement: Judgement,
        ours: torch.Tensor,
        theirs: torch.Tensor,
        pick: Pick,
    ) -> Judgement | None:
        """Judge the furthest rows of a large result; None if only the whole of it tells more."""
        numbers = judgement.numbers
        if numbers is None or numbers.pair.candidate_nonfinite or numbers.pair.reference_nonfinite:
            return None
        for sample, part in samples_of(self._sides, ours, theirs):
            repeats = Repeats(self._sides, part)
            try:
                truth = pick_from(repeats.precise() or repeats.again(), pick)
            except REFUSALS:
                continue
            there = sample.of(theirs)
            if truth is None or truth.shape != there.shape:
                continue
            if norm(truth - there) > self._sides.unit * _SAME * norm(there):
                # These rows depend on others.
                continue
            of_part = judged(
                sample.of(ours),
                truth,
                noise=self._noise(repeats, truth, pick),
                resemblance=cache(partial(self._resemblance, part, sample.of(ours), truth, pick)),
            )
            if of_part.verdict == "error":
                return None
            rows = f"{len(sample.places)} of {sample.count} rows, the furthest among them"
            reason = f"rounding noise moves the precise result as far, seen in {rows}"
            return replace(judgement, verdict="warning", message=f"{judgement.message}; {reason}")
        return None

    def _resemblance(
        self, sides: BothSides, ours: torch.Tensor, truth: torch.Tensor, pick: Pick
    ) -> Resemblance:
        with self._watch.phase("noise"):
            return resemblance_of(sides, ours, truth, lambda side: pick_from(side, pick))

    def _noise(self, repeats: Repeats, truth: torch.Tensor, pick: Pick) -> tuple[Runs, ...]:
        """Return the kinds of runs that may explain a result."""

        def results_of(sides: Iterable[Side]) -> Iterator[torch.Tensor | None]:
            return (pick_from(side, pick) for side in sides)

        return (
            Runs(lambda: results_of(repeats.noisy())),
            Runs(lambda: results_of(repeats.cpu_as_recorded())),
            Runs(
                lambda: self._if_ill_conditioned(truth, results_of(repeats.ill_conditioned())),
                may_drift=False,
            ),
        )

    def _if_ill_conditioned(
        self, truth: torch.Tensor, runs: Iterable[torch.Tensor | None]
    ) -> Iterator[torch.Tensor]:
        """Yield runs whose inputs were moved, if that moves the result far more than a rounding.

        Where it does not, an error of a few roundings is no matter of the data.
        """
        is_float = truth.is_floating_point() or truth.is_complex()
        size = norm(truth) * self._sides.unit * _ILL_CONDITIONED if is_float else 0.0
        near: list[torch.Tensor] | None = [] if is_float else None
        for run in runs:
            if run is None or run.shape != truth.shape:
                continue
            if near is None:
                yield run
                continue
            near.append(run)
            if norm(run - truth) > size:
                yield from near
                near = None

    def _length(self, output: torch.Tensor) -> int:
        """Return how many numbers one element is made of, at most."""
        largest = max(map(math.prod, self._shapes), default=1)
        inner = max((max(shape, default=1) for shape in self._shapes), default=1)
        return max(1, largest // max(output.numel(), 1), inner)

    # --- random calls ------------------------------------------------------------------------

    def _judge_random(self, candidate: Side) -> CheckedCall:
        outputs = judge_random(self._name, self._sides, candidate)
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
            draw_seed=self._sides.seed,
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
        if is_torchs and self._name.api_name.rpartition(".")[2] in CASTS:
            lines.append("a cast is of limited value: the reference is rounded the same way")
        return "; ".join(lines)


def _skip(reason: str) -> Judgement:
    return Judgement("SKIP", reason)
