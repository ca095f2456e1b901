"""What each torch dtype is in bytes, in numpy and in bits, known without importing torch.

This is the only table of significant bits, roundoffs and largest and smallest numbers.

numpy has no bfloat16 and no float8. Such data are carried as the unsigned integers that hold their
bits (the *carrier*), so nothing is rounded on the way, and `widen` gives the values when a number
is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "DTYPES",
    "EXACT_BITS",
    "TF32_ROUNDOFF",
    "DType",
    "dtype_named",
    "dtype_of_numpy",
    "is_rounded",
    "roundoff_of",
    "significant_bits",
    "widen",
]

Kind = Literal["bool", "int", "float", "complex"]

EXACT_BITS = 53
"""The bits of what is not rounded: as many as the float64 has in which it is measured."""


@dataclass(frozen=True, slots=True)
class DType:
    """One torch dtype.

    Attributes:
        name: as torch prints it, `torch.bfloat16`.
        kind: bool, int, float or complex.
        itemsize: bytes of one element.
        carrier: the numpy dtype that holds its bits.
        exponent_bits: of floats and of the parts of complex numbers: how wide the exponent is.
        mantissa_bits: how wide the mantissa is, without the leading one that is not stored.
        variant: of those that numpy lacks: "ieee" (has infinities), "fn" (finite, NaN is all ones),
            "fnuz" (finite, no negative zero, NaN is the sign bit alone), "e8m0" (powers of two);
            "" for the others.
    """

    name: str
    kind: Kind
    itemsize: int
    carrier: np.dtype[Any]
    exponent_bits: int = 0
    mantissa_bits: int = 0
    variant: str = ""

    @property
    def native(self) -> bool:
        """Whether the carrier's values are the dtype's values."""
        return not self.variant

    @property
    def is_rounded(self) -> bool:
        """Whether results of this dtype are rounded to it."""
        return self.kind in ("float", "complex")

    @property
    def significant_bits(self) -> int:
        """The digits of a number in base two, the leading one included."""
        return self.mantissa_bits + 1 if self.is_rounded else EXACT_BITS

    @property
    def roundoff(self) -> float:
        """The largest relative error of rounding a number to this dtype, to nearest."""
        return 2.0**-self.significant_bits

    @property
    def largest(self) -> float:
        """The largest finite number of a float, or of a part of a complex number."""
        top = (1 << self.exponent_bits) // 2
        fraction = 2.0 - 2.0**-self.mantissa_bits
        if self.variant == "fn":
            # The topmost pattern is the NaN.
            return (fraction - 2.0**-self.mantissa_bits) * 2.0**top
        # Without infinities the topmost exponent is one of numbers.
        return fraction * 2.0 ** (top - 1)

    @property
    def smallest(self) -> float:
        """The smallest number above 0 of an IEEE float, and the step between the small ones."""
        return 2.0 ** (2 - (1 << self.exponent_bits) // 2 - self.mantissa_bits)


def _exact(name: str, kind: Kind) -> DType:
    carrier = np.dtype(name)
    return DType(f"torch.{name}", kind, carrier.itemsize, carrier)


def _native_float(name: str, kind: Kind, exponent_bits: int, mantissa_bits: int) -> DType:
    carrier = np.dtype(name)
    return DType(f"torch.{name}", kind, carrier.itemsize, carrier, exponent_bits, mantissa_bits)


def _small_float(name: str, exponent_bits: int, mantissa_bits: int, variant: str) -> DType:
    return DType(
        f"torch.{name}", "float", 1, np.dtype("uint8"), exponent_bits, mantissa_bits, variant
    )


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        _exact("bool", "bool"),
        _exact("uint8", "int"),
        _exact("int8", "int"),
        _exact("int16", "int"),
        _exact("uint16", "int"),
        _exact("int32", "int"),
        _exact("uint32", "int"),
        _exact("int64", "int"),
        _exact("uint64", "int"),
        _native_float("float16", "float", 5, 10),
        _native_float("float32", "float", 8, 23),
        _native_float("float64", "float", 11, 52),
        _native_float("complex64", "complex", 8, 23),
        _native_float("complex128", "complex", 11, 52),
        DType("torch.bfloat16", "float", 2, np.dtype("uint16"), 8, 7, "ieee"),
        # Two float16 in a row: numpy has no such type, a uint32 keeps the bits.
        DType("torch.complex32", "complex", 4, np.dtype("uint32"), 5, 10, "ieee"),
        _small_float("float8_e5m2", 5, 2, "ieee"),
        _small_float("float8_e4m3fn", 4, 3, "fn"),
        _small_float("float8_e5m2fnuz", 5, 2, "fnuz"),
        _small_float("float8_e4m3fnuz", 4, 3, "fnuz"),
        _small_float("float8_e8m0fnu", 8, 0, "e8m0"),
    )
}

_BY_NUMPY = {dtype.carrier: dtype for dtype in DTYPES.values() if dtype.native}


def dtype_named(name: str) -> DType | None:
    """Return the dtype that torch calls `name`, or None for one that is not known here.

    >>> dtype_named("torch.bfloat16").itemsize
    2
    >>> dtype_named("torch.qint8") is None
    True
    """
    return DTYPES.get(name)


def is_rounded(dtype: object) -> bool:
    """Whether results of a dtype, or of a dtype that torch calls so, are rounded to it.

    >>> is_rounded("torch.complex64"), is_rounded("torch.int64"), is_rounded("torch.qint8")
    (True, False, False)
    """
    known = DTYPES.get(str(dtype))
    return known is not None and known.is_rounded


def significant_bits(dtype: object) -> int:
    """Return the significant bits of a dtype, or of the name that torch has for one.

    >>> significant_bits("torch.bfloat16"), significant_bits("torch.complex64")
    (8, 24)
    >>> significant_bits("torch.int64")
    53
    """
    known = DTYPES.get(str(dtype))
    return EXACT_BITS if known is None else known.significant_bits


def roundoff_of(dtype: object) -> float:
    """Return the largest relative error of one rounding to a dtype, or to one of that name.

    >>> roundoff_of("torch.bfloat16")
    0.00390625
    """
    return 2.0 ** -significant_bits(dtype)


TF32_ROUNDOFF = roundoff_of("torch.float16")
"""Matrix units may round operands of float32: NVIDIA's TF32 keeps the bits of float16."""


def dtype_of_numpy(dtype: np.dtype[Any]) -> DType | None:
    """Return the torch dtype with the values of a numpy dtype, or None.

    >>> dtype_of_numpy(np.dtype(">f4")).name
    'torch.float32'
    """
    return _BY_NUMPY.get(dtype.newbyteorder("="))


def widen(array: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Return the values of carried data in the smallest numpy type that holds them all.

    Native data come back as they are, without a copy. The others come back bit for bit as torch
    converts them to float32 or complex64, also the sign and payload of a NaN.

    >>> widen(np.array([0x3F80, 0x7F80], dtype=np.uint16), DTYPES["torch.bfloat16"])
    array([ 1., inf], dtype=float32)
    """
    if dtype.native:
        return array
    if dtype.name == "torch.bfloat16":
        bits = array.astype(np.uint32)
        # In place: numpy's operators turn arrays of no dimension into scalars.
        bits <<= np.uint32(16)
        return bits.view(np.float32)
    if dtype.name == "torch.complex32":
        return _widen_complex32(array)
    return np.asarray(_small_float_values(dtype.name)[array])


def _widen_complex32(array: npt.NDArray[Any]) -> npt.NDArray[np.complex64]:
    halves = np.ascontiguousarray(array).reshape(-1).view(np.float16)
    floats = halves.astype(np.float32)
    # Processors quiet a signalling NaN as they widen it, and so torch does; numpy keeps it.
    floats.view(np.uint32)[np.isnan(floats)] |= np.uint32(_QUIET_BIT)
    values: npt.NDArray[np.complex64] = floats.view(np.complex64).reshape(array.shape)
    return values


_QUIET_BIT = 0x00400000
_INFINITY_BITS = 0x7F800000
# What torch makes of the NaN of a format that has only one.
_LONE_NAN_BITS = 0x7F800001


@cache
def _small_float_values(name: str) -> npt.NDArray[np.float32]:
    """Return the value of each of the 256 bit patterns of an 8-bit float."""
    dtype = DTYPES[name]
    patterns = np.arange(256, dtype=np.int64)
    if dtype.variant == "e8m0":
        powers = np.exp2(patterns.astype(np.float64) - 127)
        return _with_nans(powers, patterns == 0xFF, np.uint32(_LONE_NAN_BITS))
    mantissa_count = 1 << dtype.mantissa_bits
    exponent_count = 1 << dtype.exponent_bits
    mantissa = patterns % mantissa_count
    exponent = (patterns // mantissa_count) % exponent_count
    sign = np.where(patterns >= 128, -1.0, 1.0)
    bias = exponent_count // 2 - (0 if dtype.variant == "fnuz" else 1)
    # Exponent 0 holds the subnormals: no leading one, the exponent of 1.
    leading = np.where(exponent == 0, 0.0, 1.0)
    scale = np.exp2(np.maximum(exponent, 1).astype(np.float64) - bias)
    values = sign * (leading + mantissa / mantissa_count) * scale
    if dtype.variant == "fnuz":
        return _with_nans(values, patterns == 0x80, np.uint32(_LONE_NAN_BITS))
    if dtype.variant == "fn":
        is_nan = (patterns & 0x7F) == 0x7F
    else:
        top = exponent == exponent_count - 1
        values[top & (mantissa == 0)] *= np.inf
        is_nan = top & (mantissa != 0)
    nan_bits = (patterns >> 7) << 31 | _INFINITY_BITS | _QUIET_BIT
    nan_bits |= mantissa << (23 - dtype.mantissa_bits)
    return _with_nans(values, is_nan, nan_bits[is_nan].astype(np.uint32))


def _with_nans(
    values: npt.NDArray[np.float64],
    is_nan: npt.NDArray[np.bool_],
    nan_bits: np.uint32 | npt.NDArray[np.uint32],
) -> npt.NDArray[np.float32]:
    """Return values as float32 with NaNs of these bits where there are any."""
    floats = np.where(is_nan, 0.0, values).astype(np.float32)
    floats.view(np.uint32)[is_nan] = nan_bits
    return floats
