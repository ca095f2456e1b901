"""Split the error of a call's results: what it inherited from its inputs, what was made in it.

    candidate's inputs ─► float64 replay ─┐ made here by the candidate = recorded - replay
                                          ├ inherited = replay - replay
    reference's inputs ─► float64 replay ─┘ made here by the reference = recorded - replay

Each side is measured against a replay of its own inputs, in units of what rounding explains there
(`noise.Floor`). Exact operations are replayed in their own types and must agree bit for bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tensorprobe.blame.agreement import is_float, significant_bits
from tensorprobe.blame.module_replay import replay_module_backward, replay_module_forward
from tensorprobe.blame.noise import (
    SIGNIFICANT_BITS,
    Floor,
    accumulation_roundoff,
    half_ulp,
    rounds_once,
    working_roundoffs,
)
from tensorprobe.blame.operations import EXACT, MATRIX, operation_of
from tensorprobe.blame.order import CallPair
from tensorprobe.blame.replay import (
    Prepare,
    Readings,
    flat_tensors,
    replay_backward,
    replay_forward,
)
from tensorprobe.blame.sides import Side
from tensorprobe.errors import RebuildError
from tensorprobe.names import (
    ModuleCall,
    ParameterGradients,
    forward_of,
    is_parameter_gradients,
    parse_call,
)
from tensorprobe.records import CallRecord, TensorValue

__all__ = ["CallSplit", "MadeHere", "OutputSplit", "results_of", "split_call"]

_DRAWS = 3
_SHAKE = 2.0**-24
# A replay that the trusted side misses by this much is a replay of something else.
_FIT = 0.05


@dataclass(frozen=True, slots=True)
class MadeHere:
    """The error that one side made in one result, against a replay of its own inputs.

    Attributes:
        relative: its norm over that of the replay.
        peaks: the largest error of an element over what rounding explains there, for each roundoff
            that the operation may work in.
        levels: the norm of the error over that of the error to expect, likewise.
        scale: the part of the error that is a multiple of the result, (a * result).
        bias: the mean error towards larger size, in halves of the unit in the last place.
        worst: the place of the element with the largest peak, in C order.
        got: what was recorded there.
        wanted: what the replay gives there.
        nonfinite: elements that are NaN or infinite though their replay is a number of that type.
        overflowed: elements that are infinite because their replay is too large for the type.
        unequal: elements of an exact operation that are not what they must be.
        spikes: elements whose error is beyond what rounding explains.
    """

    relative: float = 0.0
    peaks: tuple[float, ...] = (0.0,)
    levels: tuple[float, ...] = (0.0,)
    scale: float = 0.0
    bias: float = 0.0
    worst: int = -1
    got: float = 0.0
    wanted: float = 0.0
    nonfinite: int = 0
    overflowed: int = 0
    unequal: int = 0
    spikes: int = 0


@dataclass(frozen=True, slots=True)
class OutputSplit:
    """One result of a call on both sides.

    Attributes:
        place: `output.0`.
        dtype: of the candidate's result.
        count: its elements.
        exact: whether it must agree bit for bit.
        once: whether a sound kernel rounds it once, at the end.
        roundoffs: what the operation may work in; `peaks` and `levels` are in this order.
        candidate: the error that the candidate made here.
        reference: the error that the reference made here.
        inherited: the distance between both replays, relative to the reference's.
        total: the distance between both recorded results, likewise.
    """

    place: str
    dtype: str
    count: int
    exact: bool
    once: bool
    roundoffs: tuple[float, ...]
    candidate: MadeHere
    reference: MadeHere
    inherited: float
    total: float


@dataclass(frozen=True, slots=True)
class CallSplit:
    """A call whose results were split; `skipped` says why results are missing."""

    name: str
    outputs: tuple[OutputSplit, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Reading:
    """One way to replay a call: how inputs are prepared, and which list of results is meant."""

    preparation: str
    key: str
    index: int


def split_call(pair: CallPair, candidate: Side, reference: Side) -> CallSplit:
    """Replay a call on both sides and split the errors of its results.

    Raises:
        RebuildError: the call cannot be replayed.
    """
    ours, theirs = pair.candidate, pair.reference
    if ours is None or theirs is None:
        raise RebuildError(f"{pair.name}: only one run has it")
    operation = operation_of(pair.name)
    exact = operation in EXACT and pair.phase == "forward"
    replay_ours = _replayer(ours, candidate, exact=exact)
    replay_theirs = _replayer(theirs, reference, exact=exact)
    found, skipped = [], []
    sizes = _input_sizes(ours, candidate)
    for index, (mine, other) in enumerate(zip(results_of(ours), results_of(theirs), strict=False)):
        place = _place(ours, index)
        if mine is None or other is None:
            continue
        if mine.shape != other.shape and exact:
            shaped = _split_shapes(place, mine, other, replay_ours, replay_theirs, index)
            if shaped is not None:
                found.append(shaped)
                continue
        if mine.shape != other.shape:
            skipped.append(f"{place}: shape {list(mine.shape)} against {list(other.shape)}")
            continue
        if not math.prod(mine.shape):
            continue
        job = _Job(operation, pair.phase, place, mine, other, sizes)
        got, wanted = candidate.load(mine), reference.load(other)
        if exact or not got.is_floating_point():
            split = _split_exact(job, got, wanted, replay_ours, replay_theirs, index)
        else:
            split = _split_rounded(job, got, wanted, replay_ours, replay_theirs, index)
        if isinstance(split, str):
            skipped.append(f"{place}: {split}")
        else:
            found.append(split)
    return CallSplit(pair.name, tuple(found), tuple(skipped))


_Replay = Callable[[str, int], Readings]


@dataclass(frozen=True, slots=True)
class _Job:
    operation: str
    phase: str
    place: str
    mine: TensorValue
    other: TensorValue
    sizes: tuple[tuple[int, ...], ...]


def _replayer(call: CallRecord, side: Side, *, exact: bool) -> _Replay:
    """Return a function that replays a call in one preparation, shaken by the n-th draw."""
    start = _start_of(call, side)
    forward, backward = start
    output = next((v for v in flat_tensors(forward.outputs) if v is not None), None)
    short = None if output is None else getattr(torch, output.dtype.removeprefix("torch."), None)
    is_module = isinstance(parse_call(forward.name), ModuleCall)
    casts = short in SIGNIFICANT_BITS and any(
        significant_bits(value.dtype) > SIGNIFICANT_BITS[short]
        for value in flat_tensors(forward.inputs)
        if value is not None and is_float(value)
    )

    @functools.cache
    def replay(preparation: str, draw: int) -> Readings:
        if preparation == "cast" and not casts:
            raise RebuildError("nothing is cast")
        prepare = _preparation(preparation, short, draw)
        if is_module:
            if backward is None:
                return replay_module_forward(forward, side.load, prepare)
            readings = replay_module_backward(backward, forward, side.load, prepare)
            return {_wanted_reading(call): readings[_wanted_reading(call)]}
        if backward is None:
            return replay_forward(forward, side.load, prepare, exact=exact)
        return replay_backward(backward, forward, side.load, prepare)

    return replay


def _wanted_reading(call: CallRecord) -> str:
    return "parameters" if is_parameter_gradients(call.name) else "arguments"


def _start_of(call: CallRecord, side: Side) -> tuple[CallRecord, CallRecord | None]:
    """Return the forward call and, for gradients, the backward call that a replay starts from.

    Raises:
        RebuildError: one of them was not recorded, or a module ran more than once, so that its
            parameters' gradients are a sum.
    """
    name = parse_call(call.name)
    if isinstance(name, ParameterGradients):
        number = name.number or 0
        calls = [
            side.calls.get(str(ModuleCall(name.path, name.class_name, direction, number)))
            for direction in ("forward", "backward")
        ]
        again = str(ModuleCall(name.path, name.class_name, "forward", 1))
        if calls[0] is None or calls[1] is None or again in side.calls:
            raise RebuildError(f"{call.name}: the calls that it sums up are not one")
        return calls[0], calls[1]
    start = forward_of(call.name)
    if start == call.name:
        return call, None
    forward = side.calls.get(start)
    if forward is None:
        raise RebuildError(f"{call.name}: its forward call was not recorded")
    return forward, call


def _preparation(kind: str, short: torch.dtype | None, draw: int) -> Prepare:
    if kind == "own":
        return lambda tensor: tensor
    generator = torch.Generator().manual_seed(draw)

    def prepare(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        if kind == "cast" and short is not None and short in SIGNIFICANT_BITS:
            tensor = tensor.to(short)
        wide = tensor.to(torch.float64)
        if draw:
            noise = torch.rand(wide.shape, generator=generator, dtype=torch.float64)
            wide = wide * (1 + _SHAKE * (2 * noise - 1) * math.sqrt(3))
        return wide

    return prepare


def _input_sizes(call: CallRecord, side: Side) -> tuple[tuple[int, ...], ...]:
    forward, backward = _start_of(call, side)
    values = [
        *flat_tensors(forward.inputs),
        *flat_tensors(list((forward.parameters or {}).values())),
    ]
    if backward is not None:
        values += flat_tensors(backward.inputs)
    return tuple(value.shape for value in values if value is not None and is_float(value))


def results_of(call: CallRecord) -> list[TensorValue | None]:
    """Return the tensors that a call gave: its outputs, or the gradients of its parameters."""
    if is_parameter_gradients(call.name):
        return list(flat_tensors(list((call.parameters or {}).values())))
    return list(flat_tensors(call.outputs))


def _place(call: CallRecord, index: int) -> str:
    if is_parameter_gradients(call.name):
        return list(call.parameters or {})[index]
    return f"output.{index}"


def _terms(job: _Job, count: int) -> float:
    """Return how many terms one element of the result sums, from the sizes of what goes in."""
    sizes = sorted((math.prod(shape) for shape in job.sizes), reverse=True)
    if not sizes:
        return 1.0
    reduced = sizes[0] / count
    if job.operation in MATRIX and len(sizes) > 1:
        # (m, k) times (k, n) gives (m, n): k is the root of mk * kn / mn.
        return max(1.0, reduced, math.sqrt(sizes[0] * sizes[1] / count))
    longest = max((max(shape, default=1) for shape in job.sizes), default=1)
    return max(1.0, reduced, float(longest))


# --- exact results -------------------------------------------------------------------------------


def _split_exact(
    job: _Job,
    got: torch.Tensor,
    wanted: torch.Tensor,
    replay_ours: _Replay,
    replay_theirs: _Replay,
    index: int,
) -> OutputSplit | str:
    ours, theirs = replay_ours("own", 0)["outputs"], replay_theirs("own", 0)["outputs"]
    mine = ours[index] if index < len(ours) else None
    other = theirs[index] if index < len(theirs) else None
    if mine is None or other is None or mine.shape != got.shape or other.shape != wanted.shape:
        return "the replay has another shape"
    distance = _distance(got, wanted)
    return OutputSplit(
        job.place,
        str(got.dtype),
        got.numel(),
        True,
        True,
        (0.0,),
        _measure_exact(got, mine),
        _measure_exact(wanted, other),
        _distance(mine, other),
        distance,
    )


def _split_shapes(
    place: str,
    mine: TensorValue,
    other: TensorValue,
    replay_ours: _Replay,
    replay_theirs: _Replay,
    index: int,
) -> OutputSplit | None:
    """Return a split where an exact operation gave a shape that its own inputs do not."""
    fits = []
    for replay, value in ((replay_ours, mine), (replay_theirs, other)):
        results = replay("own", 0)["outputs"]
        replayed = results[index] if index < len(results) else None
        if replayed is None:
            return None
        fits.append(tuple(replayed.shape) == value.shape)
    if not fits[1]:
        return None
    count = math.prod(mine.shape)
    wrong = MadeHere(math.inf, (math.inf,), (math.inf,), unequal=count or 1, spikes=count)
    made = MadeHere() if fits[0] else wrong
    return OutputSplit(
        place, mine.dtype, count, True, True, (0.0,), made, MadeHere(), math.inf, math.inf
    )


def _measure_exact(got: torch.Tensor, wanted: torch.Tensor) -> MadeHere:
    if got.dtype != wanted.dtype:
        wanted = wanted.to(got.dtype)
    both_nan = torch.isnan(got) & torch.isnan(wanted) if got.is_floating_point() else None
    unequal = got != wanted
    if both_nan is not None:
        # Numbers too small to be normal may be flushed to zero; no operation is wrong for that.
        tiny = torch.finfo(got.dtype).tiny
        unequal &= ~both_nan & ~((got.abs() < tiny) & (wanted.abs() < tiny))
    count = int(unequal.sum())
    if not count:
        return MadeHere()
    worst = int(unequal.reshape(-1).int().argmax())
    nonfinite = 0
    if got.is_floating_point():
        nonfinite = int((~torch.isfinite(got) & torch.isfinite(wanted)).sum())
    return MadeHere(
        relative=_distance(got, wanted),
        peaks=(math.inf,),
        levels=(math.inf,),
        worst=worst,
        got=_number(got, worst),
        wanted=_number(wanted, worst),
        nonfinite=nonfinite,
        unequal=count,
        spikes=count,
    )


# --- rounded results -----------------------------------------------------------------------------


def _split_rounded(
    job: _Job,
    got: torch.Tensor,
    wanted: torch.Tensor,
    replay_ours: _Replay,
    replay_theirs: _Replay,
    index: int,
) -> OutputSplit | str:
    reading = _choose_reading(wanted, replay_theirs, index)
    if reading is None:
        return "no reading of the replay fits what the trusted run recorded"
    mine, other = _read(replay_ours, reading, got), _read(replay_theirs, reading, wanted)
    if mine is None or other is None:
        return "the replay has another shape"
    roundoffs = working_roundoffs(job.operation, job.phase, got.dtype)
    terms = _terms(job, got.numel())
    return OutputSplit(
        job.place,
        str(got.dtype),
        got.numel(),
        False,
        rounds_once(job.operation, job.phase),
        roundoffs,
        _measure_rounded(got, mine, _floor(got, mine, replay_ours, reading, terms), roundoffs),
        _measure_rounded(
            wanted,
            other,
            _floor(wanted, other, replay_theirs, reading, terms),
            working_roundoffs(job.operation, job.phase, wanted.dtype),
        ),
        _distance(mine, other),
        _distance(got, wanted),
    )


def _choose_reading(wanted: torch.Tensor, replay: _Replay, index: int) -> _Reading | None:
    """Return the reading that the trusted side agrees with best, if it agrees at all."""
    best: tuple[float, _Reading] | None = None
    for preparation in ("wide", "cast"):
        try:
            readings = replay(preparation, 0)
        except RebuildError:
            if preparation == "wide":
                raise
            continue
        for key, results in readings.items():
            # Results are in the recorded order, or the record left out those that are missing.
            for place in (index, *range(len(results))):
                reading = _Reading(preparation, key, place)
                found = _read(replay, reading, wanted)
                if found is None:
                    continue
                error = _distance(wanted, found)
                if error <= _FIT and (best is None or error < 0.7 * best[0]):
                    best = (error, reading)
                if place == index and error <= _FIT:
                    break
    return None if best is None else best[1]


def _read(
    replay: _Replay, reading: _Reading, like: torch.Tensor, draw: int = 0
) -> torch.Tensor | None:
    """Return the result that a reading means, in the shape in which it was recorded."""
    results = replay(reading.preparation, draw).get(reading.key, [])
    found = results[reading.index] if reading.index < len(results) else None
    if found is None or not found.is_floating_point():
        return None
    if found.shape == like.shape:
        return found
    if found.numel() == like.numel():
        if found.dim() == 2 and found.T.shape == like.shape:
            return found.T
        return found.reshape(like.shape)
    if found.numel() > like.numel() and found.dim() >= like.dim():
        # Autograd sums a gradient over what was broadcast after the node that we look at.
        try:
            return found.sum_to_size(like.shape)
        except RuntimeError:
            return None
    return None


def _floor(
    got: torch.Tensor, replayed: torch.Tensor, replay: _Replay, reading: _Reading, terms: float
) -> Floor:
    squares = torch.zeros_like(replayed)
    for draw in range(1, _DRAWS + 1):
        shaken = _read(replay, reading, got, draw)
        if shaken is not None:
            squares += torch.nan_to_num(shaken - replayed, nan=0.0, posinf=0.0, neginf=0.0) ** 2
    spread = torch.sqrt(squares / _DRAWS) / _SHAKE
    sizes = replayed.abs()
    sizes = sizes[torch.isfinite(sizes) & (sizes > 0)]
    spreads = spread[spread > 0]
    # A few draws may miss what an element owes to others, and steps of the size of the neighbours
    # (1 + erf, a mean that is taken off) leave their rounding on small results.
    background = 0.0
    if sizes.numel():
        background += 0.5 * float(sizes.median())
    if spreads.numel():
        background += 0.1 * float(spreads.median())
    return Floor(
        half_ulp(replayed.nan_to_num(0.0, 0.0, 0.0), got.dtype),
        spread,
        background,
        terms,
        accumulation_roundoff(got.dtype),
    )


def _measure_rounded(
    got: torch.Tensor, wanted: torch.Tensor, floor: Floor, roundoffs: tuple[float, ...]
) -> MadeHere:
    values = got.to(torch.float64)
    finite = torch.isfinite(values) & torch.isfinite(wanted)
    largest = torch.finfo(got.dtype).max
    overflowed = torch.isinf(values) & (wanted.abs() > largest * (1 - 2.0**-12))
    nonfinite = ~torch.isfinite(values) & torch.isfinite(wanted) & ~overflowed
    error = torch.where(finite, values - wanted, torch.zeros_like(wanted))
    sizes = torch.where(finite, wanted, torch.zeros_like(wanted))
    peaks, levels = [], []
    worst = int(nonfinite.reshape(-1).int().argmax()) if bool(nonfinite.any()) else -1
    for work in roundoffs:
        ratios = (error.abs() / floor.bound(work)).nan_to_num(0.0)
        peaks.append(float(ratios.max()))
        levels.append(_ratio(float(error.norm()), float(floor.typical(work)[finite].norm())))
        if worst < 0:
            worst = int(ratios.reshape(-1).argmax())
    squares = float((sizes * sizes).sum())
    rounding = floor.rounding
    return MadeHere(
        relative=_ratio(float(error.norm()), math.sqrt(squares)),
        peaks=tuple(peaks),
        levels=tuple(levels),
        scale=float((error * sizes).sum()) / squares if squares else 0.0,
        bias=float((error * sizes.sign() / rounding)[finite].mean()) if bool(finite.any()) else 0.0,
        worst=worst,
        got=_number(values, worst),
        wanted=_number(wanted, worst),
        nonfinite=int(nonfinite.sum()),
        overflowed=int(overflowed.sum()),
        spikes=int((error.abs() > 8 * floor.bound(roundoffs[0])).sum()),
    )


def _distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    if got.shape != wanted.shape:
        return math.inf
    if not got.numel():
        return 0.0
    a, b = got.to(torch.float64), wanted.to(torch.float64)
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    difference = torch.where(same, torch.zeros_like(a), a - b)
    sizes = torch.where(torch.isfinite(b), b, torch.zeros_like(b))
    return _ratio(float(difference.norm()), float(sizes.norm()))


def _ratio(part: float, whole: float) -> float:
    if math.isnan(part):
        return math.inf
    if not whole:
        return math.inf if part else 0.0
    return part / whole


def _number(tensor: torch.Tensor, place: int) -> float:
    return float(tensor.reshape(-1)[place]) if 0 <= place < tensor.numel() else 0.0
