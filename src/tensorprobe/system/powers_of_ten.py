"""The powers of ten that `_digits.h` multiplies with, for whatever compiled part includes it."""

from __future__ import annotations

import struct
from functools import cache

__all__ = ["powers_of_ten"]


@cache
def powers_of_ten() -> bytes:
    """Return 10**k for k from -292 to 324, as 128 bits of which the first is set, rounded up.

    >>> len(powers_of_ten()) // 16
    617
    """
    table = bytearray()
    for exponent in range(-292, 325):
        above, below = (10**exponent, 1) if exponent >= 0 else (1, 10**-exponent)
        shift = 127 - (exponent * 1741647 >> 19)  # 127 less the whole part of log2(10**exponent)
        numerator = above << max(shift, 0)
        denominator = below << max(-shift, 0)
        table += struct.pack("=QQ", *divmod(-(-numerator // denominator), 1 << 64))
    return bytes(table)
