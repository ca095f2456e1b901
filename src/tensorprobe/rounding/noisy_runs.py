"""Whether a result lies as near to the precise one as runs with rounding noise do.

    pieces ─► sums of squares and products ─► drift, distance ─► pieces ─► single elements

Tensors are read in pieces, by as many threads as torch uses: what is in doubt may be large, and a
copy in float64 is four times as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from tensorprobe.rounding import tolerances
from tensorprobe.system.thread_pool import ThreadPool

__all__ = ["NoiseLimits", "lies_within_noise"]

Found = TypeVar("Found")

# torch leaves pieces of this size to one thread.
_PIECE = 1 << 15
# More threads than these would wait for each other in Python: there torch shares out each step.
_FEW_THREADS = 4
_LARGE_PIECE = 1 << 22
_FEW_PIECES = 8


@dataclass(frozen=True, slots=True)
class NoiseLimits:
    """What the candidate's distance from the precise result is held against.

    Attributes:
        unit: the rounding error of the dtype that the call was computed in.
        factor: how many times as far as the noisy runs the candidate may be.
        least_drift: a smaller drift is none.
        may_drift: whether a drift is none either that is about as large as the runs'.
    """

    unit: float
    factor: float
    least_drift: float
    may_drift: bool = True


def lies_within_noise(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    runs: Sequence[torch.Tensor],
    limits: NoiseLimits,
) -> bool:
    """Whether a candidate is about as far from the precise result as noisy runs are.

    Args:
        candidate: the device's result, on the CPU.
        reference: the precise result.
        runs: precise results with rounding noise; of the same shape.
        limits: what the distances are held against.
    """
    if not runs:
        return False
    sides = [side.detach().reshape(-1) for side in (candidate, reference, *runs)]
    if not sides[0].numel():
        return True
    finfo = torch.finfo(candidate.dtype)
    # The candidate was rounded once more on its way out.
    tiniest = float(finfo.smallest_normal * finfo.eps)

    size = _PIECE if torch.get_num_threads() <= _FEW_THREADS else _LARGE_PIECE

    def sum_up(start: int) -> _Sums | None:
        piece = _piece_of(sides, start, size)
        if not piece.is_explained(finfo.max, limits.unit):
            return None
        return piece.sum_up()

    parts = _over_pieces(sum_up, sides[0].numel(), size)
    sums = _add_up([part for part in parts if part is not None])
    if len(parts) != sum(part is not None for part in parts) or sums is None:
        return False
    if _drifts(sums, limits):
        return False
    count = sides[0].numel()
    rounding = limits.unit * math.sqrt(sums.squares) + tiniest * math.sqrt(count)
    spread = math.sqrt(max(sums.moved))
    # Its own last rounding is no matter of chance: it is not larger than that.
    if math.sqrt(sums.error) > rounding + limits.factor * spread:
        return False
    room = _Room(
        max(tolerances.NOISY_ELEMENT, limits.factor),
        spread / math.sqrt(count),
        limits.unit,
        tiniest,
    )
    found = _over_pieces(lambda start: _piece_of(sides, start, size).find_beyond(room), count, size)
    beyond, largest, moved = zip(*found, strict=True)
    # A few runs do not move every element that may jump; but somewhere they move one as far.
    return bool(
        sum(beyond) <= max(1, int(tolerances.FEW_BEYOND * count))
        and max(largest) <= tolerances.FURTHEST * max(moved)
    )


def _over_pieces(look: Callable[[int], Found], count: int, size: int) -> list[Found]:
    starts = range(0, count, size)
    threads = torch.get_num_threads()
    if len(starts) <= _FEW_PIECES or threads == 1 or size == _LARGE_PIECE:
        return [look(start) for start in starts]
    with ThreadPool(threads) as pool:
        return list(pool.map(look, starts))


@dataclass(frozen=True, slots=True)
class _Sums:
    """What adds up: squares of the truth, of the error and of each run's, and products with it."""

    count: int
    squares: float
    error: float
    moved: tuple[float, ...]
    dot: float
    dots: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Room:
    """How far off a single element may be."""

    factor: float
    typical: float
    unit: float
    tiniest: float


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of all sides as wide numbers; `finite` is None where all of them are."""

    ours: torch.Tensor
    truth: torch.Tensor
    runs: list[torch.Tensor]
    finite: torch.Tensor | None

    def is_explained(self, largest: float, unit: float) -> bool:
        """Whether NaN and infinities stand where the truth or a noisy run has them, too."""
        if self.finite is None:
            return True
        ours, truth = _kinds_of(self.ours), _kinds_of(self.truth)
        odd = ours != truth
        for run in self.runs:
            kinds = _kinds_of(run)
            odd &= (kinds == truth) | (kinds * ours == -_INFINITE)
            # A result at the edge of the dtype's range overflows or not by one rounding, but to
            # its own side.
            is_edge = (run.abs() * (1 + 4 * unit) > largest) & torch.isfinite(run)
            if not run.is_complex():
                is_edge &= (ours != _INFINITE) | (run > 0)
                is_edge &= (ours != -_INFINITE) | (run < 0)
            odd &= ~is_edge
        return not bool(odd.any())

    def sum_up(self) -> _Sums:
        ours, truth, runs = self._kept()
        error = ours - truth
        moved = [run - truth for run in runs]
        return _Sums(
            truth.numel() if self.finite is None else int(self.finite.sum()),
            _dot(truth, truth),
            _dot(error, error),
            tuple(_dot(move, move) for move in moved),
            _dot(truth, ours),
            tuple(_dot(truth, run) for run in runs),
        )

    def find_beyond(self, room: _Room) -> tuple[int, float, float]:
        """Return how many elements are too far off, the furthest of them, and how far runs move."""
        ours, truth, runs = self._kept()
        error = (ours - truth).abs()
        moved = (runs[0] - truth).abs()
        for run in runs[1:]:
            moved = torch.maximum(moved, (run - truth).abs())
        furthest = float(moved.max())
        allowed = moved.add_(room.typical).mul_(room.factor)
        allowed.add_(truth.abs(), alpha=2 * room.unit).add_(2 * room.tiniest)
        beyond = error[error > allowed]
        return beyond.numel(), float(beyond.max()) if beyond.numel() else 0.0, furthest

    def _kept(self) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Return all sides; what is not finite somewhere is 0 everywhere."""
        if self.finite is None:
            return self.ours, self.truth, self.runs
        kept = [torch.where(self.finite, side, 0.0) for side in (self.ours, self.truth, *self.runs)]
        return kept[0], kept[1], kept[2:]


_INFINITE = 1.0
_NAN = 2.0


def _kinds_of(side: torch.Tensor) -> torch.Tensor:
    """Return of each number whether it is finite, infinite to one side or the other, or NaN."""
    if side.is_complex():
        kinds = (~torch.isfinite(side)).double() * _INFINITE
    else:
        kinds = torch.where(torch.isinf(side), side.sign() * _INFINITE, 0.0)
    return kinds.masked_fill_(torch.isnan(side), _NAN)


def _piece_of(sides: Sequence[torch.Tensor], start: int, size: int) -> _Piece:
    wide = torch.complex128 if sides[1].is_complex() else torch.float64
    ours, truth, *runs = (side[start : start + size].to(wide) for side in sides)
    # The sum shows it at once; where it is infinite for another reason, the flags say so.
    total = ours + truth
    for run in runs:
        total += run
    summed = total.sum().abs().item()
    if math.isfinite(summed):
        return _Piece(ours, truth, runs, None)
    finite = torch.isfinite(ours) & torch.isfinite(truth)
    for run in runs:
        finite &= torch.isfinite(run)
    return _Piece(ours, truth, runs, finite)


def _dot(left: torch.Tensor, right: torch.Tensor) -> float:
    product = torch.vdot(left, right)
    return float(product.real if product.is_complex() else product)


def _add_up(parts: Sequence[_Sums]) -> _Sums | None:
    if not parts:
        return None
    return _Sums(
        sum(part.count for part in parts),
        sum(part.squares for part in parts),
        sum(part.error for part in parts),
        tuple(map(sum, zip(*(part.moved for part in parts), strict=True))),
        sum(part.dot for part in parts),
        tuple(map(sum, zip(*(part.dots for part in parts), strict=True))),
    )


def _drifts(sums: _Sums, limits: NoiseLimits) -> bool:
    """Whether the candidate as a whole is larger or smaller than the truth.

    Rounding errors point both ways and cancel in this; a wrong factor does not. But where a result
    is what is left of larger numbers, a kernel that errs in one of these, as in a variance, errs in
    all of it alike: a drift is none if it is smaller than what noise moves the whole result by. And
    a truth that is smaller than that has no direction along which to look.
    """
    if max(sums.moved) >= sums.squares:
        return False
    if (
        sums.count < tolerances.ENOUGH_TO_CANCEL
        or not sums.squares
        or not math.isfinite(sums.squares)
    ):
        return False
    noisy = moved = 0.0
    if limits.may_drift:
        noisy = max(abs(dot / sums.squares - 1) for dot in sums.dots)
        moved = math.sqrt(max(sums.moved) / sums.squares)
    allowed = max(
        limits.least_drift, tolerances.NOISY_DRIFT * noisy, tolerances.DRIFT_SHARE * moved
    )
    return abs(sums.dot / sums.squares - 1) > allowed
