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

from tensorprobe.blame.call_split import CallSplit, OutputSplit, OwnError
from tensorprobe.blame.measure import measure_exact, measure_rounded, relative_distance
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.blame.replay import replay_backward, replay_forward
from tensorprobe.blame.rows import KEPT_ROWS, cut_inputs, rows_of
from tensorprobe.blame.ties import is_tie, may_tie
from tensorprobe.dtypes import EXACT_BITS, dtype_named, roundoff_of, significant_bits
from tensorprobe.errors import RebuildError
from tensorprobe.names import (
    ModuleCall,
    ParameterGradients,
    forward_of,
    is_parameter_gradients,
    parse_call,
)
from tensorprobe.operations.facts import MATRIX, PLACES_ALONE
from tensorprobe.operations.spelling import operation_of
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.records import CallRecord, TensorValue, flat_tensors, results_of
from tensorprobe.replay.modules import (
    describe_other_setting,
    find_setting,
    replay_module_backward,
    replay_module_forward,
)
from tensorprobe.replay.readings import Prepare, Readings
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import is_float
from tensorprobe.rounding.floor import (
    Floor,
    accumulation_roundoff,
    half_ulp,
    rounds_once,
    working_roundoffs,
)

__all__ = ["split_call"]

_DRAWS = 3
_MANY = 50_000
_CLOSE = 0.1
_SHAKE = 2.0**-24
_Replay = Callable[[str, int], Readings]

# A replay that the trusted side misses by this much is a replay of something else.
_FIT = 0.05


@dataclass(frozen=True, slots=True)
class _Reading:
    """One way to replay a call: how inputs are prepared, and which list of results is meant."""

    preparation: str
    key: str
    index: int


def split_call(pair: CallPair, candidate: RecordedRun, reference: RecordedRun) -> CallSplit:
    """Replay a call on both sides and split the errors of its results.

    Raises:
        RebuildError: the call cannot be replayed.
    """
    ours, theirs = pair.candidate, pair.aligned_reference()
    if ours is None or theirs is None:
        raise RebuildError(f"{pair.name}: only one run has it")
    if rows_of(pair):
        _cut_rows(ours, theirs, candidate, reference)
    operation = operation_of(pair.name)
    exact = pair.is_exact
    start, _ = _start_of(theirs, reference)
    setting = find_setting(start, reference.load) if _is_module(start) else 0
    replay_ours = _replayer(ours, candidate, setting, exact=exact)
    replay_theirs = _replayer(theirs, reference, setting, exact=exact)
    found, skipped = [], []
    sizes = _input_sizes(ours, candidate)
    shortest = max(_shortest_roundoff(ours, candidate), _shortest_roundoff(theirs, reference))
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
        job = _Job(operation, pair.phase, place, mine, other, sizes, shortest)
        got, wanted = candidate.load(mine), reference.load(other)
        if got.is_complex() and not exact:
            skipped.append(f"{place}: complex numbers are judged by distances")
            continue
        if exact or not got.is_floating_point():
            if may_tie(operation, ours, index):
                continue
            split = _split_exact(job, got, wanted, replay_ours, replay_theirs, index)
            if operation in PLACES_ALONE and is_tie(
                operation, ours, candidate, got, replay_ours("own", 0)["outputs"][0]
            ):
                continue
        else:
            split = _split_rounded(job, got, wanted, replay_ours, replay_theirs, index)
        if isinstance(split, str):
            skipped.append(f"{place}: {split}")
        else:
            found.append(split)
    settings = None
    if _is_module(ours) and any(max(o.candidate.peaks) > tolerances.PEAK for o in found):
        settings = describe_other_setting(ours, candidate.load, setting)
    return CallSplit(pair.name, tuple(found), tuple(skipped), settings)


def _cut_rows(
    ours: CallRecord, theirs: CallRecord, candidate: RecordedRun, reference: RecordedRun
) -> None:
    """Let both sides load the rows of the result that differ most, and some spread over all."""
    mine, other = results_of(ours)[0], results_of(theirs)[0]
    assert mine is not None and other is not None
    got, wanted = candidate.load(mine), reference.load(other)
    width = got.shape[-1]
    difference = (got.reshape(-1, width) - wanted.reshape(-1, width)).abs()
    worst = torch.nan_to_num(difference.to(torch.float32), nan=math.inf).amax(1)
    spread = torch.linspace(0, len(worst) - 1, KEPT_ROWS // 2).long()
    chosen = {*worst.topk(KEPT_ROWS // 2).indices.tolist(), *spread.tolist()}
    rows = torch.tensor(sorted(chosen))
    for side, call, result in ((candidate, ours, mine), (reference, theirs, other)):
        files = cut_inputs(call)
        assert files is not None and result.data_name is not None
        side.cut(files | {result.data_name}, rows)


@dataclass(frozen=True, slots=True)
class _Job:
    operation: str
    phase: str
    place: str
    mine: TensorValue
    other: TensorValue
    sizes: tuple[tuple[int, ...], ...]
    shortest: float


def _is_module(forward: CallRecord) -> bool:
    name = parse_call(forward.name)
    return isinstance(name, ModuleCall) and name.direction == "forward"


def _replayer(call: CallRecord, side: RecordedRun, setting: int, *, exact: bool) -> _Replay:
    """Return a function that replays a call in one preparation, shaken by the n-th draw."""
    forward, backward = _start_of(call, side)
    output = next((v for v in flat_tensors(forward.outputs) if v is not None), None)
    short = None if output is None else getattr(torch, output.dtype.removeprefix("torch."), None)
    is_module = _is_module(forward)
    casts = _is_float(short) and any(
        significant_bits(value.dtype) > significant_bits(short)
        for value in flat_tensors(forward.inputs)
        if value is not None and is_float(value)
    )

    @functools.cache
    def replay(preparation: str, draw: int) -> Readings:
        if preparation == "cast" and not casts:
            return replay("wide", draw)
        prepare = _preparation(preparation, short, draw)
        if is_module:
            if backward is None:
                return replay_module_forward(forward, side.load, prepare, setting)
            readings = replay_module_backward(backward, forward, side.load, prepare, setting)
            return {_wanted_reading(call): readings[_wanted_reading(call)]}
        if backward is None:
            return replay_forward(forward, side.load, prepare, exact=exact)
        return replay_backward(backward, forward, side.load, prepare)

    return replay


def _wanted_reading(call: CallRecord) -> str:
    return "parameters" if is_parameter_gradients(call.name) else "arguments"


def _start_of(call: CallRecord, side: RecordedRun) -> tuple[CallRecord, CallRecord | None]:
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


def _is_float(dtype: torch.dtype | None) -> bool:
    known = dtype_named(str(dtype))
    return known is not None and known.kind == "float"


def _preparation(kind: str, short: torch.dtype | None, draw: int) -> Prepare:
    if kind == "own":
        return lambda tensor: tensor
    generator = torch.Generator().manual_seed(draw)

    def prepare(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        if kind == "cast" and short is not None and _is_float(short):
            tensor = tensor.to(short)
        wide = tensor.to(torch.float64)
        if draw:
            # Single precision is enough for noise, and half the time.
            noise = torch.rand(wide.shape, generator=generator)
            wide = wide * (1 + (noise.to(torch.float64) * 2 - 1) * (_SHAKE * math.sqrt(3)))
        return wide

    return prepare


def _input_sizes(call: CallRecord, side: RecordedRun) -> tuple[tuple[int, ...], ...]:
    forward, backward = _start_of(call, side)
    values = [
        *flat_tensors(forward.inputs),
        *flat_tensors(list((forward.parameters or {}).values())),
    ]
    if backward is not None:
        values += flat_tensors(backward.inputs)
    return tuple(value.shape for value in values if value is not None and is_float(value))


def _shortest_roundoff(call: CallRecord, side: RecordedRun) -> float:
    """Return the largest unit roundoff among the tensors that a gradient is computed from."""
    forward, backward = _start_of(call, side)
    values = [*flat_tensors(forward.inputs), *flat_tensors(forward.outputs)]
    if backward is not None:
        values += flat_tensors(backward.inputs)
    bits = [significant_bits(value.dtype) for value in values if value and is_float(value)]
    return 2.0 ** -min(bits, default=EXACT_BITS)


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
    ours = replay_ours("own", 0).get("outputs", [])
    theirs = replay_theirs("own", 0).get("outputs", [])
    mine = ours[index] if index < len(ours) else None
    other = theirs[index] if index < len(theirs) else None
    if mine is None or other is None or mine.shape != got.shape or other.shape != wanted.shape:
        return "the replay has another shape"
    distance = relative_distance(got, wanted)
    return OutputSplit(
        job.place,
        str(got.dtype),
        tuple(got.shape),
        True,
        True,
        (0.0,),
        measure_exact(got, mine),
        measure_exact(wanted, other),
        relative_distance(mine, other),
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
    wrong = OwnError(math.inf, (math.inf,), (math.inf,), unequal=count or 1, spikes=count)
    made = OwnError() if fits[0] else wrong
    return OutputSplit(
        place, mine.dtype, mine.shape, True, True, (0.0,), made, OwnError(), math.inf, math.inf
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
    roundoffs = _roundoffs(job, got.dtype)
    terms = _terms(job, math.prod(job.mine.shape))
    inherited = relative_distance(mine, other)
    spread = _spread(got, mine, replay_ours, reading)
    # Nearly the same inputs spread in nearly the same way.
    is_close = inherited < _CLOSE
    other_spread = spread if is_close else _spread(wanted, other, replay_theirs, reading)
    return OutputSplit(
        job.place,
        str(got.dtype),
        tuple(got.shape),
        False,
        rounds_once(job.operation, job.phase),
        roundoffs,
        measure_rounded(got, mine, _floor(got, mine, spread, terms), roundoffs),
        measure_rounded(
            wanted,
            other,
            _floor(wanted, other, other_spread, terms),
            _roundoffs(job, wanted.dtype),
        ),
        inherited,
        relative_distance(got, wanted),
    )


def _roundoffs(job: _Job, dtype: torch.dtype) -> tuple[float, ...]:
    """Return what a result may have been rounded to on its way, the one to expect first.

    Under autocast a gradient of float32 is one of 16 bits that was cast.
    """
    roundoffs = working_roundoffs(job.operation, job.phase, dtype)
    if job.phase == "backward" and job.shortest > roundoff_of(dtype):
        return (job.shortest, *(item for item in roundoffs if item > job.shortest))
    return roundoffs


def _choose_reading(wanted: torch.Tensor, replay: _Replay, index: int) -> _Reading | None:
    """Return the reading that the trusted side agrees with best, if it agrees at all."""
    best: tuple[float, _Reading] | None = None
    for preparation in ("wide", "cast"):
        for key, results in replay(preparation, 0).items():
            # Results are in the recorded order, or the record left out those that are missing.
            for place in (index, *range(len(results))):
                reading = _Reading(preparation, key, place)
                found = _read(replay, reading, wanted)
                if found is None:
                    continue
                error = relative_distance(wanted, found)
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


def _spread(
    got: torch.Tensor, replayed: torch.Tensor, replay: _Replay, reading: _Reading
) -> torch.Tensor:
    """Return the standard deviation of each element when inputs are shaken by a roundoff of 1."""
    # Of many elements one draw each tells enough.
    draws = _DRAWS if replayed.numel() < _MANY else 1
    squares = torch.zeros_like(replayed)
    for draw in range(1, draws + 1):
        shaken = _read(replay, reading, got, draw)
        if shaken is not None:
            squares += torch.nan_to_num(shaken - replayed, nan=0.0, posinf=0.0, neginf=0.0) ** 2
    return torch.sqrt(squares / draws) / _SHAKE


def _floor(got: torch.Tensor, replayed: torch.Tensor, spread: torch.Tensor, terms: float) -> Floor:
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
