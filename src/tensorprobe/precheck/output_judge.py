"""Judge one result of a call: doubts about it cost runs, and are settled by the cheapest that can.

equal, or within a few roundings? ─► settled by a call before? ─► a sample of its rows
    ─► the reference in a higher precision, and runs with noise ─► Judgement
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial

import torch

from tensorprobe.dtypes import roundoff_of
from tensorprobe.names import ApiCall
from tensorprobe.operations.facts import ADDED_IN_PLACE, PARTLY_IN_HALVES, SUMMED_IN_HALVES
from tensorprobe.precheck.checked_call import CheckedOutput
from tensorprobe.precheck.judge import (
    Judgement,
    Resemblance,
    Runs,
    judge_at_once,
    judge_output,
    skipped,
    typical_size,
)
from tensorprobe.precheck.measure import OutputNumbers
from tensorprobe.precheck.picks import Pick, as_compared, norm, on_cpu, pick_from
from tensorprobe.precheck.repeated_errors import resemblance_of
from tensorprobe.precheck.repeats import Repeats
from tensorprobe.precheck.sample import is_worth_a_sample, samples_of
from tensorprobe.precheck.settled import SettledDoubts
from tensorprobe.replay.both_sides import BothSides
from tensorprobe.replay.refusals import REFUSALS
from tensorprobe.replay.side import Side
from tensorprobe.replay.stopwatch import Stopwatch
from tensorprobe.rounding import tolerances

__all__ = ["OutputJudge"]

_WITH_TARGET = 2
_SETTINGS = (int, float, str, type(None))


class OutputJudge:
    """Judges the results of one call.

    Args:
        name: its name in parts.
        sides: the call.
        watch: takes the time of each phase.
        settled: what was found out of earlier calls of a run that goes on; for such a call one
            pass is enough where it tells enough.
    """

    def __init__(
        self, name: ApiCall, sides: BothSides, watch: Stopwatch, settled: SettledDoubts | None
    ) -> None:
        self._settled = settled
        self._repeats = Repeats(sides)
        self._watch = watch
        self._name = name
        self._sides = sides

    def judge(
        self,
        place: str,
        candidate: torch.Tensor | None,
        reference: torch.Tensor | None,
        pick: Pick,
    ) -> CheckedOutput:
        """Judge what the device gave by what the reference gave.

        Args:
            place: which result it is, such as `forward.output.0`.
            candidate: the device's.
            reference: the reference's.
            pick: finds it in another run.
        """
        if candidate is None or reference is None:
            if candidate is reference:
                judgement = skipped("there is none on either side")
            else:
                side = "reference" if candidate is None else "device"
                judgement = Judgement("error", f"only the {side} has one", excess=math.inf)
            return CheckedOutput(place, on_cpu(candidate), reference, judgement)
        with self._watch.phase("fetch"):
            ours, theirs = as_compared(candidate), as_compared(reference)
        if ours is None or theirs is None:
            judgement = skipped(f"{candidate.layout} tensors are not compared")
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
            slack=self._slack(),
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

    @property
    def is_half(self) -> bool:
        """Whether the narrowest dtype in the call has 16 bits or fewer."""
        return self._sides.unit >= roundoff_of(torch.float16)

    def _slack(self) -> float:
        """Return how many times the tolerance applies: of what the CPU adds up in a half, more."""
        is_cpu = self.is_half and self._sides.device.type == "cpu"
        given = self._sides.inputs()
        if not is_cpu or self._name.api_name not in SUMMED_IN_HALVES or len(given) < _WITH_TARGET:
            return 1.0
        rows = given[1].numel()
        return min(
            max(1.0, math.sqrt(rows / tolerances.ROWS_WITHOUT_SLACK)), tolerances.MOST_LOSS_SLACK
        )

    def _computed_in(self, ours: torch.Tensor) -> torch.dtype | None:
        """Return the dtype that a result was computed in, if that is not its own."""
        if not ours.is_floating_point():
            return None
        is_partly = self.is_half and self._name.api_name in PARTLY_IN_HALVES
        return self._sides.noisy_dtype if is_partly else self._sides.autocast

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

    def _kind_of(self, place: str, ours: torch.Tensor) -> tuple[object, ...]:
        call = self._sides.plain
        settings = repr([value for value in call.args if isinstance(value, _SETTINGS)])
        return call.function, settings, place, ours.dtype, self._length(ours)

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
            if norm(truth - there) > self._sides.unit * tolerances.SAME_ROWS * norm(there):
                continue  # These rows depend on others.
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
        if sides.device.type != "cpu" and self._name.api_name in ADDED_IN_PLACE:
            return Resemblance(is_alike=False, shared_by=0.0)
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
        size = norm(truth) * self._sides.unit * tolerances.ILL_CONDITIONED if is_float else 0.0
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
        largest = max(map(math.prod, self._sides.shapes), default=1)
        inner = max((max(shape, default=1) for shape in self._sides.shapes), default=1)
        return max(1, largest // max(output.numel(), 1), inner)
