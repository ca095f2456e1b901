"""Measure the error of one recorded result against its replay, in units of its floor."""

from __future__ import annotations

import math

import torch

from tensorprobe.blame.call_split import OwnError
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.floor import Floor

__all__ = ["measure_exact", "measure_rounded", "relative_distance"]

# So many elements do not end in zeros by chance.
_ENOUGH = 8


def measure_exact(got: torch.Tensor, wanted: torch.Tensor) -> OwnError:
    """Return the error of a result that must be what its replay is."""
    if got.dtype != wanted.dtype:
        wanted = wanted.to(got.dtype)
    has_nan = got.is_floating_point() or got.is_complex()
    both_nan = torch.isnan(got) & torch.isnan(wanted) if has_nan else None
    unequal = got != wanted
    if both_nan is not None:
        # Numbers too small to be normal may be flushed to zero; no operation is wrong for that.
        tiny = torch.finfo(got.dtype).tiny
        unequal &= ~both_nan & ~((got.abs() < tiny) & (wanted.abs() < tiny))
    count = int(unequal.sum())
    if not count:
        return OwnError()
    worst = int(unequal.reshape(-1).int().argmax())
    nonfinite = 0
    if has_nan:
        nonfinite = int((~torch.isfinite(got) & torch.isfinite(wanted)).sum())
    return OwnError(
        relative=relative_distance(got, wanted),
        peaks=(math.inf,),
        levels=(math.inf,),
        worst=worst,
        got=_number(got, worst),
        wanted=_number(wanted, worst),
        nonfinite=nonfinite,
        unequal=count,
        spikes=count,
    )


def measure_rounded(
    got: torch.Tensor, wanted: torch.Tensor, floor: Floor, roundoffs: tuple[float, ...]
) -> OwnError:
    """Return the error of a result that may be rounded."""
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
    return OwnError(
        relative=math.inf
        if bool(nonfinite.any())
        else _ratio(float(error.norm()), math.sqrt(squares)),
        peaks=tuple(peaks),
        levels=tuple(levels),
        scale=float((error * sizes).sum()) / squares if squares else 0.0,
        bias=float((error * sizes.sign() / rounding)[finite].mean()) if bool(finite.any()) else 0.0,
        worst=worst,
        got=_number(values, worst),
        wanted=_number(wanted, worst),
        nonfinite=int(nonfinite.sum()),
        overflowed=int(overflowed.sum()),
        spikes=int((error.abs() > tolerances.SPIKE * floor.bound(roundoffs[0])).sum()),
        bits=_kept_bits(got),
    )


def _kept_bits(got: torch.Tensor) -> int:
    """Return how many significant bits a float32 tensor uses if no more than a shorter type has."""
    if got.dtype != torch.float32 or int((got != 0).sum()) < _ENOUGH:
        return 0
    words = got.contiguous().view(torch.int32)
    for bits in (8, 11):
        if not bool((words & ((1 << (24 - bits)) - 1)).any()):
            return bits
    return 0


def relative_distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference over the norm; infinite where only one is finite."""
    if got.shape != wanted.shape:
        return math.inf
    if not got.numel():
        return 0.0
    wide = torch.complex128 if got.is_complex() or wanted.is_complex() else torch.float64
    a, b = got.to(wide), wanted.to(wide)
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
    if not 0 <= place < tensor.numel():
        return 0.0
    number = tensor.reshape(-1)[place]
    # Of a complex number its size.
    return float(number.abs() if number.is_complex() else number)
