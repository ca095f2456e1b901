"""Measure the error of a result that was not replayed: by what the trusted run recorded there.

A comparison names most culprits by distances alone, without torch. What kind of fault it is must be
told in the same way as with a replay: from the elements. The trusted run's own result stands for
the replay, and what inputs and rounding explain for the floor.
"""

from __future__ import annotations

import math

from tensorprobe.blame.call_split import OutputSplit, OwnError
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.errors import DumpError
from tensorprobe.metrics.error_shape import measure_error_shape
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import Distance, largest_element

__all__ = ["measure_unreplayed"]

# Larger ones are not read again: what was measured of them has to do.
_LARGEST = 1 << 23


def measure_unreplayed(
    output: Distance,
    allowed: float,
    candidate: RecordedRun,
    reference: RecordedRun,
    *,
    is_exact: bool,
) -> OutputSplit | None:
    """Return the error of a result against the trusted run's, or None where its data are not there.

    Args:
        output: the result.
        allowed: how far off it may be, relative to its largest element.
        candidate: the run under test.
        reference: the trusted run.
        is_exact: whether the call only moves, picks or compares numbers.
    """
    mine, other = output.candidate, output.reference
    if output.basis != "data" or mine.shape != other.shape or math.prod(mine.shape) > _LARGEST:
        return None
    try:
        sides = (candidate.part.load(mine), reference.part.load(other))
    except DumpError:
        # That it cannot be read is told by the dump itself, as a gap.
        return None
    shape = measure_error_shape(*sides, tolerances.SPIKE * allowed)
    if shape is None:
        return None
    bound = allowed * largest_element(other)
    made = OwnError(
        relative=shape.relative,
        peaks=(shape.largest / bound if bound else math.inf,),
        levels=(math.inf,),
        scale=shape.scale,
        worst=shape.worst,
        got=shape.got,
        wanted=shape.wanted,
        nonfinite=shape.nonfinite,
        unequal=shape.unequal,
        spikes=shape.beyond,
        bits=shape.bits,
    )
    return OutputSplit(
        output.place,
        mine.dtype,
        mine.shape,
        is_exact,
        False,
        (0.0,),
        made,
        OwnError(bits=shape.reference_bits),
        0.0,
        shape.relative,
    )
