"""Numbers as people read them."""

from __future__ import annotations

import math

__all__ = ["distance_words", "share_words"]


def distance_words(value: float) -> str:
    """Return a distance as people read it."""
    if math.isnan(value):
        return "an unknown amount"
    return "more than can be measured" if math.isinf(value) else f"{value:.1e}"


def share_words(value: float, whole: str) -> str:
    """Return a distance as a share of something.

    >>> share_words(0.5, "norm")
    '5.0e-01 of the norm'
    """
    words = distance_words(value)
    return f"{words} of the {whole}" if math.isfinite(value) else words
