"""Make one call again on the CPU and judge what it gave, as the pre-check judges.

    Call ─► reference (precheck's sides) ─► each output: older rule, rounding ─► CheckedOperator

The older rule looks at the cosine and the largest error alone, whatever the dtype and the size of
the numbers. Sound kernels miss it where rounding is all there is: the sum of what cancels has any
direction, and two neighbouring bfloat16 numbers may lie 4 apart. So a miss of that rule that
rounding explains is told as such and is no failure; what rounding does not explain is one, also
where that rule sees nothing.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tensorprobe.capture.dispatch_modes import without_dispatch_modes
from tensorprobe.compare.measure import NOT_MEASURED, Measured, metrics_of
from tensorprobe.metrics.pair import PairNumbers, equal_pair
from tensorprobe.metrics.statistics import measure_array
from tensorprobe.names import ApiCall, Direction
from tensorprobe.online.options import Precision
from tensorprobe.online.selection import DRAWS_RANDOM
from tensorprobe.online.snapshots import Call
from tensorprobe.precheck.check import check_made_call
from tensorprobe.precheck.checked_call import CheckedOutput
from tensorprobe.precheck.judge import Judgement, Verdict, worst_verdict
from tensorprobe.precheck.measure import measure_first
from tensorprobe.precheck.noise import keeps_numbers
from tensorprobe.precheck.settled import SettledDoubts
from tensorprobe.replay.arguments import map_leaves, tensors_in
from tensorprobe.replay.both_sides import BothSides
from tensorprobe.replay.rebuild import RebuiltCall
from tensorprobe.replay.refusals import REFUSALS
from tensorprobe.replay.side import Side, random_state, restore_random_state, share_memory
from tensorprobe.summary.host import fetch, have_equal_bits, to_host

__all__ = [
    "CheckedOperator",
    "JudgedOutput",
    "check_call",
    "find_misplaced",
    "pass_view",
    "plain_thread",
]

_NO_STATISTICS = (None, None, None)


@dataclass(frozen=True, slots=True)
class JudgedOutput:
    """One output of a call, and what both rules say of it.

    Attributes:
        place: `output`, `output.1` of several, or `written.0` for an input that was written into.
        candidate: what the run got, on the CPU; None where there is none.
        reference: what the CPU makes of it.
        measured: the metrics as cells, and what the older rule says.
        verdict: what rounding says: pass, warning, error or SKIP.
        judgement: why.
        candidate_statistics: maximum, minimum and mean, where they are wanted.
        reference_statistics: those of the reference.
    """

    place: str
    candidate: torch.Tensor | None
    reference: torch.Tensor | None
    measured: Measured
    verdict: Verdict
    judgement: Judgement
    candidate_statistics: tuple[Any, ...] = _NO_STATISTICS
    reference_statistics: tuple[Any, ...] = _NO_STATISTICS

    @property
    def has_failed(self) -> bool:
        """Whether it is wrong: rounding does not explain it."""
        return self.verdict == "error"

    @property
    def is_explained(self) -> bool:
        """Whether it misses the older rule, and rounding explains that."""
        return self.measured.verdict in ("failed", "unmatched") and self.verdict in (
            "pass",
            "warning",
        )


@dataclass(frozen=True, slots=True)
class CheckedOperator:
    """One call that was checked, or the reason why it was not.

    Attributes:
        call: the call.
        verdict: the worst of its outputs, or SKIP.
        message: why, for the whole call.
        outputs: every output.
    """

    call: Call
    verdict: Verdict
    message: str = ""
    outputs: tuple[JudgedOutput, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether something of it is wrong."""
        return self.verdict == "error"

    @property
    def misses(self) -> bool:
        """Whether something of it is wrong, or misses the older rule."""
        return self.has_failed or any(output.is_explained for output in self.outputs)


def check_call(
    call: Call, precision: Precision, settled: SettledDoubts, *, with_statistics: bool = False
) -> CheckedOperator:
    """Make a call again on the CPU, and judge what the run got.

    Args:
        call: the call, with all that it left; nothing of it is changed.
        precision: what the reference computes in.
        settled: what was found out of calls before.
        with_statistics: whether those of outputs that pass are wanted, too.
    """
    facts = call.facts
    call.arrive()
    results = call.results.tensors if call.results is not None else []
    if not results and not facts.written and not facts.writes_unseen:
        return CheckedOperator(call, "SKIP", "returned no tensor")
    is_quick = not with_statistics and keeps_numbers(call.func)
    is_quick &= not (facts.written or facts.writes_unseen)
    if is_quick and not (call.touched or any(call.misplaced)):
        moved = _check_moved(call, results)
        if moved is not None:
            return moved
    direction: Direction = "backward" if call.is_backward else "forward"
    name = ApiCall("Aten" if facts.is_torchs else "Custom", facts.name, call.number, direction)
    with (
        plain_thread(),
        _KeptRandomState(call.device, is_needed=facts.stays_in_its_thread) as drawn,
    ):
        sides = BothSides(
            RebuiltCall(call.func, call.args, call.kwargs),
            name,
            lambda: call.given.tensors,
            call.device,
            None,
            is_live=True,
            # What is only moved is as exact in its own dtype, which takes half the memory.
            may_raise=precision == "higher" and not keeps_numbers(call.func),
            writes_unseen=facts.writes_unseen,
        )
        checked = check_made_call(
            name,
            sides,
            Side(
                list(results),
                # A user's operator may copy or not, as it comes.
                shared=call.shared if facts.is_torchs and not facts.is_composite else (),
                misplaced=call.misplaced,
            ),
            call.find_left,
            settled,
            touched=call.touched,
            default_dtype=call.default_dtype,
        )
        outputs = tuple(
            _judged(output, len(results), with_statistics=with_statistics)
            for output in checked.outputs
        )
        is_doubtful = not facts.is_torchs and checked.forward != "pass"
        is_fickle = is_doubtful and not _gives_the_same(sides)
    if drawn.was_drawn and not facts.is_torchs:
        return CheckedOperator(call, "SKIP", DRAWS_RANDOM)
    if is_fickle:
        return CheckedOperator(call, "SKIP", "gives something else each time")
    verdict = worst_verdict([checked.forward, *(output.verdict for output in outputs)])
    return CheckedOperator(call, verdict, checked.message, outputs)


def find_misplaced(
    func: Any, args: Sequence[Any], kwargs: Any, result: Any
) -> tuple[bool, ...] | None:
    """Say of each result of a view whether it lies where the same view lies that is made once more.

    Nothing of its numbers is looked at: they are those of its base.

    Args:
        func: the operator.
        args: its arguments as the run has them.
        kwargs: those by name.
        result: what the run got.

    Returns:
        None if no other can be made.
    """
    with plain_thread():
        try:
            references = tensors_in(func(*map_leaves(tuple(args), _plain), **kwargs))
        except REFUSALS:
            return None
        ours = list(map(_plain, tensors_in(result)))
    if len(ours) != len(references):
        return None
    return tuple(not _lie_alike(*pair) for pair in zip(ours, references, strict=True))


def pass_view(call: Call, result: Any) -> CheckedOperator | None:
    """Pass a view all of whose results lie where they should; None where one has no dimensions."""
    ours = [tensor.detach() for tensor in tensors_in(result)]
    # A number is shown with its own metrics.
    return _passed(call, ours, ours) if all(tensor.dim() for tensor in ours) else None


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _lie_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of the same memory."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype is other.dtype
        and one.is_conj() is other.is_conj()
        and one.is_neg() is other.is_neg()
    )


def _check_moved(call: Call, results: list[torch.Tensor]) -> CheckedOperator | None:
    """Pass a call that only moves numbers, if every bit is where it belongs; None if one is not."""
    with plain_thread():
        try:
            references = tensors_in(call.func(*call.args, **call.kwargs))
        except REFUSALS:
            return None
        ours = [fetch(tensor.detach()) for tensor in results]
    if len(ours) != len(references) or not all(map(have_equal_bits, ours, references)):
        return None
    if share_memory(references, call.given.tensors) != call.shared:
        return None
    return _passed(call, ours, references)


def _passed(
    call: Call, ours: Sequence[torch.Tensor], references: Sequence[torch.Tensor]
) -> CheckedOperator:
    """Return a call all of whose results are what they should be, bit by bit."""
    equal = Judgement("pass", unequal=0.0)
    pairs = enumerate(zip(ours, references, strict=True))
    outputs = [CheckedOutput(f"forward.output.{i}", *pair, equal) for i, pair in pairs]
    judged = tuple(_judged(output, len(outputs), with_statistics=False) for output in outputs)
    return CheckedOperator(call, "pass", "", judged)


@contextmanager
def plain_thread() -> Iterator[None]:
    """Let operators run as in a new thread: no mode, no autograd and no autocast is on."""
    with (
        torch._C.DisableTorchFunction(),
        without_dispatch_modes(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._ForceDispatchKeyGuard(*_plain_keys()),
    ):
        yield


_found_keys: list[Any] = []


def _plain_keys() -> tuple[Any, Any]:
    """Return which keys of the dispatcher a new thread has on and off."""
    if not _found_keys:

        def look() -> None:
            _found_keys.append(
                (
                    torch._C._dispatch_tls_local_include_set(),
                    torch._C._dispatch_tls_local_exclude_set(),
                )
            )

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    keys: tuple[Any, Any] = _found_keys[0]
    return keys


def _gives_the_same(sides: BothSides) -> bool:
    """Whether the CPU gives the same twice for the same inputs; what does not run does."""
    try:
        first, second = (sides.candidate(torch.device("cpu")).outputs for _ in range(2))
    except REFUSALS:
        return True
    return all(map(have_equal_bits, first, second))


class _KeptRandomState:
    """Leaves random numbers as they are: nobody knows what a user's operator draws.

    Attributes:
        was_drawn: whether any were drawn, once the block has ended.
    """

    def __init__(self, device: torch.device, *, is_needed: bool) -> None:
        self._device = device
        self._before = random_state(device) if is_needed else []
        self._others = (random.getstate(), np.random.get_state()) if is_needed else None
        self.was_drawn = False

    def __enter__(self) -> _KeptRandomState:
        return self

    def __exit__(self, *_: object) -> None:
        if self._others is None:
            return
        after = random_state(self._device)
        if not all(map(torch.equal, self._before, after)):
            self.was_drawn = True
            restore_random_state(self._before, self._device)
        ours, numpys = self._others
        if random.getstate() != ours or not _are_equal_states(np.random.get_state(), numpys):
            self.was_drawn = True
            random.setstate(ours)
            np.random.set_state(numpys)


def _are_equal_states(one: Any, other: Any) -> bool:
    return all(np.array_equal(part, that) for part, that in zip(one, other, strict=True))


def _judged(output: CheckedOutput, count: int, *, with_statistics: bool) -> JudgedOutput:
    judgement = output.judgement
    ours, theirs = output.candidate, output.reference
    place = output.place.partition(".")[2].replace("input.", "written.")
    if count == 1 and place == "output.0":
        place = "output"
    if judgement.verdict == "SKIP" or ours is None or theirs is None:
        is_skipped = judgement.verdict == "SKIP"
        measured = NOT_MEASURED if is_skipped else NOT_MEASURED._replace(verdict="unmatched")
        return JudgedOutput(place, ours, theirs, measured, judgement.verdict, judgement)
    numbers = _numbers_of(ours, theirs, judgement)
    measured = metrics_of(numbers, tuple(ours.shape))
    judged = JudgedOutput(place, ours, theirs, measured, judgement.verdict, judgement)
    if not (with_statistics or judged.has_failed or judged.is_explained):
        # Two passes more, for numbers at which nobody looks.
        return judged
    statistics = _statistics_of(ours)
    is_equal = numbers is not None and not numbers.was_read
    return replace(
        judged,
        candidate_statistics=statistics,
        reference_statistics=statistics if is_equal else _statistics_of(theirs),
    )


def _numbers_of(
    ours: torch.Tensor, theirs: torch.Tensor, judgement: Judgement
) -> PairNumbers | None:
    if ours.shape != theirs.shape:
        return None
    if judgement.pair is not None:
        return judgement.pair
    if judgement.numbers is not None:
        return judgement.numbers.pair
    if judgement.unequal == 0 and ours.dim():
        return equal_pair(ours.numel())
    if ours.dtype.is_complex is not theirs.dtype.is_complex:
        return None
    return measure_first(ours, theirs).pair


def _statistics_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the maximum, minimum and mean of a tensor."""
    if tensor.dtype in _QUICK and tensor.numel():
        # Two passes of torch, which take half the time of one that counts what is not finite, too.
        low, high = torch.aminmax(tensor)
        return high.item(), low.item(), tensor.mean().item()
    data = to_host(tensor.reshape(-1) if tensor.dim() > _MOST_DIMENSIONS else tensor)
    found = measure_array(data.array, data.dtype, threads=torch.get_num_threads())
    return found.max, found.min, found.mean


_QUICK = frozenset((torch.float32, torch.float64))
# numpy has no more of them before its second version.
_MOST_DIMENSIONS = 32
