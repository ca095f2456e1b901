"""Have calls of two runs replayed in a process of their own, and keep what that shows.

    calls of a plan ─► worker: split_call ─► numbers
    a gradient that arrived ─► worker: find_sender ─► who sent it, or that nobody did

What a dump holds decides how much a call computes and whether it ends its process: here that costs
the one call, which is then judged by distances.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

from tensorprobe.blame.call_split import CallSplit
from tensorprobe.blame.effort import Effort, computing_time, note_computing
from tensorprobe.blame.links import Use
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.blame.select import ReplayPlan
from tensorprobe.blame.suspicion import find_suspicions
from tensorprobe.errors import RebuildError, TensorprobeError
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.replay.pool import Order, run_orders

__all__ = ["Replays"]


class Replays:
    """Replays calls of one rank of two runs.

    Attributes:
        splits: the numbers, by call.
        failures: why other calls could not be replayed.
        is_cut_short: whether the time ended before all was done.
    """

    def __init__(self, ours: RecordedRun, theirs: RecordedRun, effort: Effort) -> None:
        self.splits: dict[str, CallSplit] = {}
        self.failures: dict[str, str] = {}
        self.is_cut_short = False
        self._sides = ours, theirs
        self._effort = effort

    def run(self, plan: ReplayPlan, *, last: int) -> None:
        """Replay the calls of a plan; of a partial one up to the first that is at fault."""
        end = self._effort.end_of_replays()
        if plan.calls and computing_time() > end:
            # Nobody waits for a process that has nothing to do.
            self.is_cut_short = True
            return
        left = {pair.name: pair for pair in plan.calls if _is_in_both(pair)}
        alone = [pair.name for pair in plan.calls if pair.name not in left]
        self.failures.update((name, f"{name}: only one run has it") for name in alone)
        orders = [
            _order(pair, "split", cost=plan.costs.get(name, 0.0)) for name, pair in left.items()
        ]

        def is_wanted(order: Order) -> bool:
            if left[order.name].position > last:
                return False
            self.is_cut_short = self.is_cut_short or computing_time() > end
            return not self.is_cut_short

        try:
            with closing(self._answers(orders, is_wanted)) as answers:
                for name, found, problem in answers:
                    pair = left.pop(name)
                    self._keep(name, found, problem)
                    split = self.splits.get(name)
                    if plan.is_partial and split is not None and find_suspicions([split]):
                        last = min(last, pair.position)
        except TensorprobeError as err:
            # Without replays there are still distances.
            self.failures.update((name, str(err)) for name in left)

    def find_sender(
        self, pair: CallPair, uses: Sequence[Use], work: float
    ) -> tuple[str, float] | None:
        """Return who sent a gradient that its users' replays do not explain; see `senders`.

        Raises:
            RebuildError: that cannot be told without data, or a user cannot be replayed.
        """
        told = [[use.call, use.place] for use in uses]
        order = _order(pair, "sender", uses=told, work=work)
        try:
            with closing(self._answers([order])) as answers:
                _, found, problem = next(answers)
        except TensorprobeError as err:
            raise RebuildError(str(err)) from err
        if found is None:
            raise RebuildError(problem)
        sender = found["sender"]
        return None if sender is None else (sender[0], sender[1])

    def _answers(
        self, orders: Sequence[Order], is_wanted: Callable[[Order], bool] = lambda order: True
    ) -> Generator[tuple[str, dict[str, Any] | None, str], None, None]:
        """Yield, of each order, the call's name and what was found or why nothing was."""
        parts = [side.part for side in self._sides]
        answers = run_orders(
            orders,
            # The worker runs in a folder of its own.
            {
                "candidate": str(parts[0].path.absolute()),
                "reference": str(parts[1].path.absolute()),
            },
            devices=["cpu"],
            timeout=self._effort.timeout,
            module="tensorprobe.blame.worker",
            memory=self._effort.memory,
            ahead=1,
            is_wanted=is_wanted,
            may_wait=True,
        )
        with closing(answers):
            started = time.monotonic()
            for order, answer in answers:
                if answer.found is None:
                    # How long it computed went with its process.
                    note_computing(time.monotonic() - started)
                    started = time.monotonic()
                    yield order.name, None, answer.loss
                    continue
                note_computing(answer.found["seconds"])
                for part, problems in zip(parts, answer.found["unread"], strict=True):
                    for problem in problems:
                        part.note_gap(problem)
                yield order.name, answer.found.get("found"), answer.found.get("problem", "")
                started = time.monotonic()

    def _keep(self, name: str, found: dict[str, Any] | None, problem: str) -> None:
        if found is None:
            self.failures[name] = problem
            return
        split = self.splits[name] = CallSplit.from_json(found)
        if split.skipped and not split.outputs:
            self.failures[name] = split.skipped[0]


def _is_in_both(pair: CallPair) -> bool:
    return pair.candidate is not None and pair.reference is not None


def _order(pair: CallPair, kind: str, **more: Any) -> Order:
    assert pair.candidate is not None and pair.reference is not None
    names = {"candidate": pair.candidate.name, "reference": pair.reference.name}
    told = {"kind": kind, "position": pair.position, "phase": pair.phase, **names, **more}
    return Order("", pair.name, more=told)
