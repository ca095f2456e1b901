"""One online check while it is on: every operator through it, results out in the order of the run.

    operator ─► wanted? ─► inputs ─► the run's own call ─► results
                                                             └► check_call, here or in a thread
    what is checked, in order ─► table, data, lines on the screen ─► Tally ─► OnlineReport

An error of ours is counted and told and never reaches the run.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tensorprobe.capture.dispatch_modes import without_dispatch_modes
from tensorprobe.capture.process import current_rank
from tensorprobe.errors import ReportError
from tensorprobe.online.files import OnlineFiles
from tensorprobe.online.judging import CheckedOperator, check_call, find_misplaced, pass_view
from tensorprobe.online.options import Options
from tensorprobe.online.places import Places
from tensorprobe.online.report import Failure, OnlineReport, Tally, failure_of
from tensorprobe.online.selection import (
    NO_OPERATOR,
    OperatorFacts,
    facts_of,
    why_not_these_results,
    why_not_this_call,
)
from tensorprobe.online.snapshots import Call, begin_call, begin_view, end_call, find_touched
from tensorprobe.precheck.settled import SettledDoubts
from tensorprobe.replay.arguments import tensors_in
from tensorprobe.report.online_text import describe_failure
from tensorprobe.report.progress_line import ProgressLine
from tensorprobe.system.interrupts import is_raised_by_handler
from tensorprobe.system.standard_streams import complain
from tensorprobe.system.thread_pool import Pending, ThreadPool

__all__ = ["OnlineSession"]

# Of one operator so many failures are told; all are in the table.
_MOST_TOLD = 10
# torch asks whether a mode like this one is on when it computes the gradient of that input.
_OTHER_FORMULAS = {"prod": 0, "masked_fill": 2}
_OTHER_FORMULA = (
    "{name}: torch computes its gradient by another formula while operators are watched, so that "
    "its last digits may be others than without the check"
)


class OnlineSession:
    """Checks operators between its making and `close`.

    Args:
        options: how.

    Raises:
        ReportError: the files cannot be made.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        rank = current_rank() or 0
        self._files = OnlineFiles(options.path, options.tag, rank, options.disk_limit)
        self._tally = Tally()
        self._settled = SettledDoubts()
        self._pool = ThreadPool(options.jobs, "tensorprobe online") if options.jobs else None
        self._waiting: deque[tuple[Call, Pending[CheckedOperator]]] = deque()
        self._waiting_bytes = 0
        # Autograd runs a backward pass of several devices in several threads.
        self._lock = threading.RLock()
        self._counts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._places = Places()
        self._notes: dict[str, None] = {}
        self._unwritten = 0
        self._progress = ProgressLine()
        self._process = os.getpid()
        self.step = 0

    @property
    def is_own(self) -> bool:
        """Whether this is the process that began it, and no child that was forked since."""
        return os.getpid() == self._process

    # --- what the run does -------------------------------------------------------------------

    def watch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of the run as the run would, and check it."""
        call = self._begin(func, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException:
            if call is not None:
                with self._lock:
                    self._tally.skip(call.facts.name, "the run's own call raised an error")
            raise
        if call is not None:
            self._end(call, args, kwargs, result)
        return result

    def _begin(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Take what a call is given; None if it is not checked."""
        facts = facts_of(func)
        if facts.reason is NO_OPERATOR:
            return None
        try:
            with _unseen():
                return self._take(func, facts, args, kwargs)
        except Exception as err:  # noqa: BLE001 - counted and told
            self._note_trouble(facts, err)
            return None

    def _take(
        self, func: Any, facts: OperatorFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        is_backward = torch._C._current_graph_task_id() != -1
        tensors = tensors_in((args, kwargs))
        place = _OTHER_FORMULAS.get(facts.name, len(tensors))
        if place < len(tensors) and tensors[place].requires_grad:
            self.note(_OTHER_FORMULA.format(name=facts.name))
        stack = self._places.find(facts.name, tensors, is_backward=is_backward)
        with self._lock:
            self._counts[facts.name] += 1
            number, order = self._counts[facts.name], self._tally.seen
            self._tally.seen += 1
            if not self._is_asked_for(facts, number, tensors):
                self._tally.left_out += 1
                return None
            reason = facts.reason or why_not_this_call(func, facts, args, kwargs)
            if reason:
                self._tally.skip(facts.name, reason)
                return None
        make: Callable[..., Call] = partial(
            Call,
            func,
            number=number,
            order=order,
            step=self.step,
            is_backward=is_backward,
            stack=stack,
        )
        if self._is_quick(facts) and not all(tensor.is_cpu for tensor in tensors):
            # To say how memory lies is the host's work, whatever device it is of.
            return begin_view(make, facts)
        return begin_call(make, facts, args, kwargs)

    def _is_asked_for(
        self, facts: OperatorFacts, number: int, tensors: Sequence[torch.Tensor]
    ) -> bool:
        options = self._options
        if (number - 1) % options.every or not options.wants(facts.name):
            return False
        if options.steps is not None and self.step not in options.steps:
            return False
        if options.max_bytes is None:
            return True
        return sum(t.numel() * t.element_size() for t in tensors) <= options.max_bytes

    def _end(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take what a call gave, and check it here or have it checked."""
        try:
            with _unseen():
                reason = why_not_these_results(result)
                if reason:
                    with self._lock:
                        self._tally.skip(call.facts.name, reason)
                elif not (call.facts.is_view and self._pass_view(call, args, kwargs, result)):
                    if not call.is_kept:
                        # A view changes nothing, so that what it was given can still be taken.
                        call = begin_call(partial(replace, call), call.facts, args, kwargs)
                    self._take_results(call, result)
        except Exception as err:  # noqa: BLE001 - counted and told
            self._note_trouble(call.facts, err)

    def _is_quick(self, facts: OperatorFacts) -> bool:
        """Whether it is enough to see where a result lies."""
        return facts.is_view and not self._options.looks_at(facts.name)

    def _pass_view(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> bool:
        """Take a view that lies where it should, of a base that is as it was; else False."""
        call.misplaced = find_misplaced(call.func, args, kwargs, result) or ()
        is_right = bool(call.misplaced) and not any(call.misplaced)
        if not is_right or not self._is_quick(call.facts) or find_touched(call):
            return False
        checked = pass_view(call, result)
        if checked is not None:
            self._take_checked(call, _done(checked))
        return checked is not None

    def _take_results(self, call: Call, result: Any) -> None:
        options = self._options
        end_call(call, result, waits=self._pool is not None)
        check = partial(
            check_call,
            call,
            options.precision,
            self._settled,
            with_statistics=options.statistics,
        )
        # Random numbers that it draws can only be put back before the run draws others.
        pool = None if call.facts.stays_in_its_thread else self._pool
        self._take_checked(call, _done(check()) if pool is None else pool.submit(check))

    def _take_checked(self, call: Call, pending: Pending[CheckedOperator]) -> None:
        """Take what is found of a call, in the order of the run."""
        with self._lock:
            self._waiting.append((call, pending))
            self._waiting_bytes += call.nbytes
            self._settle_waiting(down_to=self._options.memory_limit)

    # --- what is found -----------------------------------------------------------------------

    def _settle_waiting(self, *, down_to: int) -> None:
        """Take what is checked, in the order of the run; wait while more than this waits."""
        while self._waiting:
            call, pending = self._waiting[0]
            if not pending.is_done and self._waiting_bytes <= down_to:
                return
            # Who is interrupted here finds it again at the end.
            checked = self._wait_for(call, pending)
            self._waiting.popleft()
            self._waiting_bytes -= call.nbytes
            if checked is None:
                continue
            try:
                self._settle(checked)
            except Exception as err:  # noqa: BLE001 - counted and told
                self._note_trouble(call.facts, err)

    def _wait_for(self, call: Call, pending: Pending[CheckedOperator]) -> CheckedOperator | None:
        try:
            return pending.result()
        except Exception as err:  # noqa: BLE001 - counted and told
            self._note_trouble(call.facts, err)
            return None

    def _settle(self, checked: CheckedOperator) -> None:
        """Count, write and tell what was found of one call."""
        failure = self._tally.add(checked)
        if failure is not None:
            self._tell(failure)
        elif checked.misses and self._options.older_rule:
            self._tell(failure_of(checked))
        elif self._options.debug:
            call = checked.call
            verdict = checked.message if checked.verdict == "SKIP" else "Passed"
            complain(f"{call.name} ({call.facts.operator}): {verdict}")
        self._progress.show(self._tally.seen, self._tally.failed, checked.call.facts.operator)
        # What is told comes first: the disk may be full.
        try:
            self._files.add(checked)
        finally:
            if self._wants_data(checked):
                self._files.keep_data(checked)

    def _wants_data(self, checked: CheckedOperator) -> bool:
        is_missed = self._options.mode == "auto" and checked.misses
        return is_missed or self._options.keeps_all_of(checked.call.facts.name)

    def _tell(self, failure: Failure) -> None:
        self._told[failure.operator] += 1
        told = self._told[failure.operator]
        if told > _MOST_TOLD:
            return
        self._progress.clear()
        complain(describe_failure(failure))
        if told == _MOST_TOLD:
            complain(f"further failures of {failure.operator} are told in the table alone")

    def _note_trouble(self, facts: OperatorFacts, err: Exception) -> None:
        """Count a call that could not be checked because of us or of the system; tell it once."""
        if is_raised_by_handler(err):
            raise err
        with self._lock:
            if isinstance(err, ReportError):
                self._note_unwritten(err)
            else:
                reason = f"{type(err).__name__}: {err}".splitlines()[0]
                self._tally.skip(facts.name, f"the check of it failed: {reason}")

    def _note_unwritten(self, err: ReportError) -> None:
        self._unwritten += 1
        # A full disk refuses every file that comes; the first is told, and how many at the end.
        if self._unwritten == 1:
            self._note(f"not everything could be written: {err}")

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes[text] = None
            self._progress.clear()
            complain(text)

    def note(self, text: str) -> None:
        """Tell something once, and keep it for the summary."""
        with self._lock:
            self._note(text)

    # --- the end -----------------------------------------------------------------------------

    def close(self) -> OnlineReport:
        """Wait until everything is checked, close the files, and return what was found."""
        with self._lock:
            try:
                self._settle_waiting(down_to=-1)
            finally:
                if self._pool is not None:
                    self._pool.close()
                self._progress.clear()
                try:
                    self._files.close()
                except ReportError as err:
                    self._note_unwritten(err)
            return self._report()

    def _report(self) -> OnlineReport:
        tally, files = self._tally, self._files
        notes = list(self._notes)
        if unused := self._options.find_unused(self._counts):
            notes.append(f"no operator that ran has the name {' or '.join(unused)}")
        if self._unwritten > 1:
            notes.append(f"{self._unwritten} writes have failed")
        if files.lost_rows:
            notes.append(f"the table lacks {files.lost_rows} rows")
        if files.left_out:
            notes.append(f"the data of {files.left_out} calls were not kept: disk_limit is reached")
        return OnlineReport(
            tally.seen,
            tally.checked,
            tally.failed,
            tally.explained,
            _with_examples(tally),
            tally.left_out,
            tuple(tally.failures),
            files.folder,
            files.table_path,
            files.kept_bytes,
            tuple(notes),
        )


def _done(checked: CheckedOperator) -> Pending[CheckedOperator]:
    """Return what is checked already in the form of what will be."""
    pending = Pending(lambda: checked)
    pending.do()
    return pending


@contextmanager
def _unseen() -> Iterator[None]:
    """Let nothing of what is on around the run (a capture, the user's modes) see our own work."""
    # What is copied in inference mode cannot be told from what is changed later.
    is_inference = torch.is_inference_mode_enabled()
    with (
        torch._C.DisableTorchFunction(),
        without_dispatch_modes(),
        torch.inference_mode(False) if is_inference else nullcontext(),
    ):
        yield


_SHOWN_EXAMPLES = 3


def _with_examples(tally: Tally) -> Mapping[str, int]:
    """Return how many calls were skipped, by reason and with the names of some operators."""
    found = {}
    for reason, count in tally.skipped.most_common():
        names = sorted(tally.examples[reason])
        more = ", …" if len(names) > _SHOWN_EXAMPLES else ""
        found[f"{reason} ({', '.join(names[:_SHOWN_EXAMPLES])}{more})"] = count
    return found
