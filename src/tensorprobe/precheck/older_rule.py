"""The rule of the older tools: which outputs they call right, beside our own verdict.

A cosine over 0.99; and of float16 and bfloat16 99.9 % of the elements within 1/1000 (双千), of
wider types 99.99 % within 1/10000 (双万). A user of these tools knows its answer. Here it decides
nothing: two neighbouring bfloat16 numbers lie up to 1/128 apart, so that one rounding that differs
misses 1/1000, and one wrong element in a million meets it all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from tensorprobe.metrics.pair import Unavailable, cosine
from tensorprobe.precheck.measure import OutputNumbers

__all__ = ["OlderAnswer", "OlderVerdict", "hold_against_older_rule", "worst_older_verdict"]

OlderVerdict = Literal["pass", "fail"]

_COSINE_LIMIT = 0.99
# Of each dtype: the share that must lie within, the bound, its place in OutputNumbers.within.
_RATIO_LIMITS = {
    torch.float16: (0.999, "双千", 1),
    torch.bfloat16: (0.999, "双千", 1),
    torch.float32: (0.9999, "双万", 2),
    torch.float64: (0.9999, "双万", 2),
    torch.complex64: (0.9999, "双万", 2),
    torch.complex128: (0.9999, "双万", 2),
}
# One element has no direction, and none have nothing to miss: the share alone decides.
_NO_DIRECTION = (Unavailable.ONE_ELEMENT, Unavailable.EMPTY)


@dataclass(frozen=True, slots=True)
class OlderAnswer:
    """What the older rule says of one output.

    Attributes:
        verdict: pass or fail; None for a dtype that the rule does not know.
        missed: which limits were missed, in words; blank if none was.
    """

    verdict: OlderVerdict | None
    missed: str = ""


def hold_against_older_rule(dtype: torch.dtype, numbers: OutputNumbers) -> OlderAnswer:
    """Hold what was measured of an output of some dtype against the limits of the older tools."""
    missed = []
    angle = cosine(numbers.pair)
    if isinstance(angle, Unavailable):
        if angle not in _NO_DIRECTION:
            missed.append(f"there is no cosine: {angle.value}")
    elif angle <= _COSINE_LIMIT:
        missed.append(f"cosine {angle:.6g} is not over {_COSINE_LIMIT}")
    if dtype not in _RATIO_LIMITS:
        return OlderAnswer(None, ", ".join(missed))
    limit, title, place = _RATIO_LIMITS[dtype]
    share = numbers.within[place]
    if share < limit:
        missed.append(f"{title} {share:.6g} is below {limit}")
    return OlderAnswer("fail" if missed else "pass", ", ".join(missed))


def worst_older_verdict(verdicts: Iterable[OlderVerdict | None]) -> OlderVerdict | None:
    """Return fail if there is one, else pass if there is one, else None.

    >>> worst_older_verdict(["pass", None, "fail"])
    'fail'
    """
    found = set(verdicts)
    return "fail" if "fail" in found else "pass" if "pass" in found else None
