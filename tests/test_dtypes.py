"""The dtype table and its widening, against torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensorprobe.dtypes import (
    DTYPES,
    DType,
    dtype_named,
    dtype_of_numpy,
    is_rounded,
    roundoff_of,
    significant_bits,
    widen,
)

CARRIED = [dtype for dtype in DTYPES.values() if not dtype.native]


# What the table has and the oldest torch that tensorprobe runs with does not.
ARRIVED = {
    "torch.float8_e5m2fnuz": (2, 2),
    "torch.float8_e4m3fnuz": (2, 2),
    "torch.uint16": (2, 3),
    "torch.uint32": (2, 3),
    "torch.uint64": (2, 3),
    "torch.float8_e8m0fnu": (2, 7),
}


def torch_dtype(dtype: DType) -> torch.dtype:
    found = getattr(torch, dtype.name.removeprefix("torch."), None)
    if found is None:
        pytest.skip(f"torch {torch.__version__} has no {dtype.name}")
    assert isinstance(found, torch.dtype)
    return found


def all_patterns(dtype: DType) -> np.ndarray:
    """Every bit pattern; of a complex number every pattern in each half."""
    if dtype.itemsize < 4:
        return np.arange(1 << 8 * dtype.itemsize).astype(dtype.carrier)
    half = np.arange(1 << 16, dtype=np.uint32)
    return np.concatenate([half, half << 16, half | half[::-1] << 16])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_the_table_says_what_torch_says(dtype: DType) -> None:
    theirs = torch_dtype(dtype)
    assert str(theirs) == dtype.name
    assert theirs.itemsize == dtype.itemsize == dtype.carrier.itemsize
    assert theirs.is_floating_point == (dtype.kind == "float")
    assert theirs.is_complex == (dtype.kind == "complex")


@pytest.mark.parametrize(
    "dtype", [d for d in DTYPES.values() if d.is_rounded], ids=lambda dtype: dtype.name
)
def test_bits_and_limits_are_torchs(dtype: DType) -> None:
    limits = torch.finfo(torch_dtype(dtype))
    assert dtype.largest == limits.max
    assert dtype.roundoff == 2.0**-dtype.significant_bits
    if dtype.itemsize > 1:
        assert dtype.roundoff * 2 == limits.eps
        assert dtype.smallest == limits.smallest_normal * limits.eps
        return
    # torch does not know the epsilon of each 8-bit float, but their values.
    values = np.unique(widen(all_patterns(dtype), dtype))
    assert dtype.roundoff * 2 == values[values > 1][0] - 1


def test_eight_bit_floats_are_told_apart_and_complex_numbers_are_rounded_as_their_parts() -> None:
    """One table had three bits for all of them, and another one took complex64 for exact."""
    assert significant_bits("torch.float8_e4m3fn") == significant_bits(torch.float8_e4m3fn) == 4
    assert significant_bits("torch.float8_e5m2") == 3
    assert significant_bits("torch.float8_e8m0fnu") == 1
    assert roundoff_of("torch.complex64") == roundoff_of(torch.float32) == 2.0**-24
    assert is_rounded(torch.complex64)
    assert not is_rounded(torch.int8)


def test_every_dtype_that_holds_single_numbers_is_in_the_table() -> None:
    theirs = {str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)}
    packed = ("torch.bits", "torch.q", "torch.float4")
    narrow = {f"torch.{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}
    wanted = {name for name in theirs if not name.startswith(packed)} - narrow
    younger = {name for name, version in ARRIVED.items() if torch.__version__ < version}
    assert set(DTYPES) - younger == wanted


@pytest.mark.parametrize("dtype", CARRIED, ids=lambda dtype: dtype.name)
def test_widen_gives_every_pattern_bit_for_bit_as_torch_does(dtype: DType) -> None:
    patterns = all_patterns(dtype)
    wide = torch.complex64 if dtype.kind == "complex" else torch.float32
    # As bytes, which every torch takes; of wider integers an old one takes the signed alone.
    raw = torch.from_numpy(patterns.view(np.uint8).copy())
    theirs = raw.view(torch_dtype(dtype)).to(wide).numpy()
    ours = widen(patterns, dtype)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_widen_keeps_the_shape(dtype: DType, shape: tuple[int, ...]) -> None:
    values = widen(np.zeros(shape, dtype.carrier), dtype)
    assert isinstance(values, np.ndarray)
    assert values.shape == shape


@pytest.mark.parametrize("dtype", CARRIED, ids=lambda dtype: dtype.name)
def test_widen_reads_strided_and_read_only_data(dtype: DType) -> None:
    patterns = all_patterns(dtype)[:240].reshape(4, 60)
    patterns.flags.writeable = False
    strided = patterns.T[::2, ::-1]
    expected = widen(np.ascontiguousarray(strided), dtype)
    np.testing.assert_array_equal(widen(strided, dtype), expected)


def test_widen_gives_native_data_back_without_a_copy() -> None:
    array = np.arange(3, dtype=np.float32)
    assert widen(array, DTYPES["torch.float32"]) is array


def test_names_and_numpy_dtypes_are_found() -> None:
    assert dtype_named("torch.int8") is DTYPES["torch.int8"]
    assert dtype_named("torch.quint8") is None
    for dtype in DTYPES.values():
        if dtype.native:
            assert dtype_of_numpy(dtype.carrier) is dtype
            assert dtype_of_numpy(dtype.carrier.newbyteorder()) is dtype
    assert dtype_of_numpy(np.dtype("U3")) is None
    assert dtype_of_numpy(np.dtype(np.longdouble)) is None
