"""The numbers of a pair: every variant of the kernel and numpy against plain Python arithmetic.

Past 500 lines, since every case is held against the same arithmetic, which stands here once.
"""

from __future__ import annotations

import itertools
import math
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.dtypes import DTYPES, DType, widen
from tensorprobe.metrics import pair as pair_module
from tensorprobe.metrics.kernel import SWITCH, explain_absence, load_kernel
from tensorprobe.metrics.pair import PairNumbers, measure_arrays, measure_pair
from tensorprobe.metrics.pair_numpy import EPSILON, THRESHOLDS
from tensorprobe.tensor_data import TensorData

Array = npt.NDArray[Any]
FLOAT64, FLOAT32, INT64 = (DTYPES[f"torch.{name}"] for name in ("float64", "float32", "int64"))
REAL = [dtype for dtype in DTYPES.values() if dtype.kind != "complex"]
COMPLEX = [dtype for dtype in DTYPES.values() if dtype.kind == "complex"]

_kernel = load_kernel()
PATHS = ["numpy", *(_kernel.pair_variants() if _kernel is not None else [])]
all_paths = pytest.mark.parametrize("path", PATHS)
needs_kernel = pytest.mark.skipif(_kernel is None, reason=str(explain_absence()))


@contextmanager
def using(path: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "1" if path == "numpy" else "0")
        patch.setattr(pair_module, "VARIANT", "" if path == "numpy" else path)
        yield


def measure(path: str, a: TensorData, b: TensorData, **options: Any) -> PairNumbers:
    with using(path):
        return measure_pair(a, b, **options)


def data_of(values: Any, dtype: DType) -> TensorData:
    return TensorData(dtype, np.asarray(values, dtype.carrier))


def random_bits(dtype: DType, count: int, seed: int) -> Array:
    raw = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize).astype(np.uint8)
    return raw.view(dtype.carrier)


def elements_of(data: TensorData) -> list[Any]:
    """Return the elements as Python numbers, which hold every dtype exactly."""
    array = data.array.view(np.uint8) != 0 if data.dtype.kind == "bool" else data.array
    return list(widen(array, data.dtype).reshape(-1).tolist())


def assert_right(got: PairNumbers, left: list[Any], right: list[Any]) -> None:
    """Compare with arithmetic that looks at one pair after the other."""
    finite = [(float(x), float(y)) for x, y in zip(left, right, strict=True) if _finite(x, y)]
    odd = [(x, y) for x, y in zip(left, right, strict=True) if not _finite(x, y)]
    errors = [abs(x - y) for x, y in finite]
    ratios = [e / (abs(y) or EPSILON) for e, (_, y) in zip(errors, finite, strict=True)]
    one_nan = sum(math.isnan(x) != math.isnan(y) for x, y in odd)
    agree = sum(x == y or (math.isnan(x) and math.isnan(y)) for x, y in odd)
    assert got.count == len(left)
    assert got.nan_mismatch == one_nan
    assert got.inf_mismatch == len(odd) - agree - one_nan
    assert got.opposite_infinities == sum(x == -y for x, y in odd)
    assert got.candidate_nonfinite == sum(not math.isfinite(x) for x, _ in odd)
    assert got.reference_nonfinite == sum(not math.isfinite(y) for _, y in odd)
    assert got.unequal == len(odd) - agree + sum(
        x != y for x, y in zip(left, right, strict=True) if _finite(x, y)
    )
    assert got.within == tuple(agree + sum(r < t for r in ratios) for t in THRESHOLDS)
    assert got.max_abs_error == max(errors, default=0.0)
    assert got.max_relative_error == max(ratios, default=0.0)
    if got.max_abs_error:
        place = got.max_abs_index
        assert abs(float(left[place]) - float(right[place])) == got.max_abs_error
    else:
        assert got.max_abs_index == -1
    scales = got.scales
    xs, ys = [x / scales.candidate for x, _ in finite], [y / scales.reference for _, y in finite]
    near(got.dot, [x * y for x, y in zip(xs, ys, strict=True)])
    near(got.candidate_squares, [x * x for x in xs])
    near(got.reference_squares, [y * y for y in ys])
    if math.isfinite(got.max_abs_error):
        near(got.difference_squares, [(e / scales.difference) ** 2 for e in errors])


def _finite(x: float, y: float) -> bool:
    return math.isfinite(x) and math.isfinite(y)


def near(got: float, terms: list[float]) -> None:
    assert got == pytest.approx(math.fsum(terms), rel=0, abs=1e-12 * math.fsum(map(abs, terms)))


# --- values --------------------------------------------------------------------------------------

EDGES = [0.0, -0.0, 1.0, -1.0, 0.1, 1e-40, -1e-40, 5e-324, -5e-324, 2.2e-308, 1e-200, -1e160, 1e200]
EDGES += [3e38, -3e38, sys.float_info.max, -sys.float_info.max, math.inf, -math.inf, math.nan]


@all_paths
@pytest.mark.parametrize("dtype", REAL, ids=lambda dtype: dtype.name)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_bits_of_one_dtype(path: str, dtype: DType, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 70)) * dtype.itemsize
    sides = [
        TensorData(
            dtype,
            np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), dtype.carrier),
        )
        for _ in range(2)
    ]
    assert_right(measure(path, *sides), *map(elements_of, sides))


@all_paths
@pytest.mark.parametrize("seed", range(2))
def test_any_bits_of_any_two_dtypes(path: str, seed: int) -> None:
    for first, second in itertools.product(REAL, REAL):
        sides = [
            TensorData(dtype, random_bits(dtype, 90, seed + place))
            for place, dtype in enumerate((first, second))
        ]
        got = measure(path, *sides)
        left, right = map(elements_of, sides)
        if {first.kind, second.kind} == {"int", "float"}:
            # Between integers and floats, float64 says what is equal.
            left, right = map(float, left), map(float, right)
        assert_right(got, list(left), list(right))


@all_paths
@settings(max_examples=150, deadline=None)
@given(
    chosen=st.lists(st.tuples(st.sampled_from(EDGES), st.sampled_from(EDGES)), max_size=40),
    finite_only=st.booleans(),
    dtype=st.sampled_from([FLOAT64, FLOAT32]),
)
def test_edges_in_any_mixture(
    path: str, chosen: list[tuple[float, float]], finite_only: bool, dtype: DType
) -> None:
    kept = [pair for pair in chosen if _finite(*pair) or not finite_only]
    with np.errstate(over="ignore"):
        columns = np.array(kept, np.float64).reshape(-1, 2).astype(dtype.carrier)
    sides = [TensorData(dtype, np.ascontiguousarray(columns[:, side])) for side in range(2)]
    assert_right(measure(path, *sides), *map(elements_of, sides))


@all_paths
@pytest.mark.parametrize("count", [2, 9, 1030])
@pytest.mark.parametrize("place", [0, -1])
def test_a_difference_beyond_float_hides_no_larger_ratio(path: str, count: int, place: int) -> None:
    left, right = np.zeros((2, count), np.float32)
    left[place], right[place] = 3e38, -3e38
    left[count // 2], right[count // 2] = 3e38, 1.0
    sides = [TensorData(FLOAT32, left), TensorData(FLOAT32, right)]
    assert_right(measure(path, *sides), *map(elements_of, sides))


@all_paths
@settings(max_examples=60, deadline=None)
@given(
    exponent=st.integers(-149, 126),
    steps=st.lists(st.integers(-(2**14), 2**14), min_size=1, max_size=60),
    threshold=st.sampled_from(THRESHOLDS),
    seed=st.integers(0, 99),
)
def test_relative_errors_on_both_sides_of_a_threshold(
    path: str, exponent: int, steps: list[int], threshold: float, seed: int
) -> None:
    reference = np.ldexp(np.random.default_rng(seed).uniform(1, 2, len(steps)), exponent)
    reference = reference.astype(np.float32)
    edge = (reference.astype(np.float64) * (1 + threshold)).astype(np.float32)
    # So many floats away from the edge: some are nearer to it than float can tell.
    candidate = (edge.view(np.int32) + np.array(steps, np.int32) // 512).view(np.float32)
    sides = [TensorData(FLOAT32, candidate), TensorData(FLOAT32, reference)]
    assert_right(measure(path, *sides), *map(elements_of, sides))


@all_paths
@pytest.mark.parametrize("name", ["bfloat16", "float16", "uint8", "int8", "float8_e4m3fn"])
def test_every_short_fraction_is_on_its_side_of_the_thresholds(path: str, name: str) -> None:
    dtype = DTYPES[f"torch.{name}"]
    # bfloat16 and float16 from 1 to 4, where the fractions differ; all patterns of a byte.
    low, high = {"bfloat16": (0x3F80, 0x4080), "float16": (0x3C00, 0x3E00)}.get(name, (0, 256))
    patterns = np.arange(low, high).astype(np.uint16 if dtype.itemsize == 2 else np.uint8)
    left, right = (side.reshape(-1).view(dtype.carrier) for side in np.meshgrid(patterns, patterns))
    a, b = TensorData(dtype, left.copy()), TensorData(dtype, right.copy())
    got = measure(path, a, b)
    x, y = widen(a.array, dtype).astype(np.float64), widen(b.array, dtype).astype(np.float64)
    agree = np.isnan(x) & np.isnan(y)
    with np.errstate(invalid="ignore"):
        ratios = np.abs(x - y) / np.where(y == 0, EPSILON, np.abs(y))
    wanted = tuple(int(np.count_nonzero((ratios < limit) | agree)) for limit in THRESHOLDS)
    assert got.within == wanted
    assert got.max_relative_error == np.nanmax(ratios)


@all_paths
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "int64", "uint8"])
def test_every_length_and_address(path: str, name: str) -> None:
    dtype = DTYPES[f"torch.{name}"]
    count = 2 * 2048 + 40
    values = np.random.default_rng(0).integers(1, 100, count)
    other = values + (np.arange(count) % 7 == 0)
    tensors = [torch.from_numpy(side).to(getattr(torch, name)) for side in (values, other)]
    wide = [np.asarray(tensor.double()) for tensor in tensors]
    raw = [bytes(3) + tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors]
    arrays = [np.frombuffer(side, np.uint8)[3:].view(dtype.carrier) for side in raw]
    for length in [*range(34), 2047, 2048, 2049, 2056, 4095, 4096, 4097, count]:
        for first in (0, 1):
            part = slice(first, max(first, length))
            got = measure(path, *(TensorData(dtype, side[part]) for side in arrays))
            a, b = (side[part] for side in wide)
            assert got.unequal == np.count_nonzero(a != b)
            assert got.dot == pytest.approx(float(a @ b), rel=1e-13)
            assert got.max_abs_error == np.abs(a - b).max(initial=0)
            assert got.within[3] == np.count_nonzero(np.abs(a - b) / b < 1e-2)
            assert got.count == len(a)


@all_paths
@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32, DTYPES["torch.float16"]])
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 7, 2047, 2048, 4999])
def test_one_special_among_many(path: str, dtype: DType, special: float, place: int) -> None:
    rng = np.random.default_rng(1)
    b = rng.standard_normal(5000).astype(dtype.carrier)
    a = (b * (1 + 1e-3 * rng.standard_normal(5000))).astype(dtype.carrier)
    wanted = measure(path, data_of(np.delete(a, place), dtype), data_of(np.delete(b, place), dtype))
    a[place] = special
    alone = measure(path, data_of(a, dtype), data_of(b, dtype))
    assert alone.nan_mismatch + alone.inf_mismatch == 1
    assert (alone.within, alone.unequal) == (wanted.within, wanted.unequal + 1)
    b[place] = special
    both = measure(path, data_of(a, dtype), data_of(b, dtype))
    assert both.nan_mismatch + both.inf_mismatch == 0
    assert both.unequal == wanted.unequal
    assert both.within == tuple(count + 1 for count in wanted.within)
    for got in (alone, both):
        assert got.max_abs_error == wanted.max_abs_error
        assert got.max_relative_error == wanted.max_relative_error
        assert got.dot == pytest.approx(wanted.dot, rel=1e-12)
        assert got.difference_squares == pytest.approx(wanted.difference_squares, rel=1e-12)


@all_paths
@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32, DTYPES["torch.bfloat16"]])
def test_large_pairs_against_numpy(path: str, dtype: DType) -> None:
    rng = np.random.default_rng(2)
    b = (rng.standard_normal(30_000) * np.exp2(rng.integers(-40, 40, 30_000))).astype(np.float32)
    a = (b * (1 + 1e-2 * rng.standard_normal(30_000) ** 5)).astype(np.float32)
    a[::97], b[::89], a[::1000], b[5000:9000] = b[::97], 0, np.inf, np.nan
    sides = [
        TensorData(dtype, (x.view(np.uint32) >> 16).astype(np.uint16))
        if dtype.itemsize == 2
        else TensorData(dtype, x.astype(dtype.carrier))
        for x in (a, b)
    ]
    got = measure(path, *sides)
    assert_right(got, *map(elements_of, sides))
    again = measure(path, *sides, threads=1)
    assert again == got


@all_paths
@pytest.mark.parametrize("ratio", [1e-3, 0.25])
def test_the_same_error_everywhere(path: str, ratio: float) -> None:
    b = np.random.default_rng(3).standard_normal(10_000).astype(np.float32)
    a = (b * np.float32(1 + ratio)).astype(np.float32)
    sides = [TensorData(FLOAT32, a), TensorData(FLOAT32, b)]
    assert_right(measure(path, *sides), *map(elements_of, sides))


@all_paths
def test_integers_beyond_2_to_the_53_differ(path: str) -> None:
    big = np.array([2**53, 2**62, -(2**63), 5], np.int64)
    got = measure(path, data_of(big, INT64), data_of(big + np.array([1, 1, 1, 0]), INT64))
    assert (got.unequal, got.max_abs_error) == (3, 0.0)
    unsigned = DTYPES["torch.uint64"]
    mixed = measure(
        path, data_of(np.array([-1, 7, 3]), INT64), data_of([2**64 - 1, 7, 4], unsigned)
    )
    assert mixed.unequal == 2


@all_paths
def test_bools_may_hold_any_byte(path: str) -> None:
    dtype = DTYPES["torch.bool"]
    odd = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    got = measure(
        path, TensorData(dtype, odd), TensorData(dtype, np.array([False, True, True, False]))
    )
    assert (got.unequal, got.dot, got.max_abs_index) == (1, 2.0, 3)


@all_paths
def test_extreme_float64_keep_their_squares(path: str) -> None:
    huge, tiny = np.array([3e300, 4e300]), np.array([3e-300, 4e-300])
    for side in (huge, tiny):
        assert pair_module.cosine(measure_paths(path, side, side / 2)) == pytest.approx(1.0)
    least = np.array([0.0, 5e-324])
    assert pair_module.cosine(measure_paths(path, least, 2 * least)) == 1.0
    assert pair_module.euclidean_distance(measure_paths(path, least, 2 * least)) == 5e-324
    assert pair_module.cosine(measure_paths(path, huge, tiny)) == pytest.approx(1.0)
    assert pair_module.euclidean_distance(measure_paths(path, 2 * huge, huge)) == pytest.approx(
        5e300
    )
    assert pair_module.euclidean_distance(measure_paths(path, 2 * tiny, tiny)) == pytest.approx(
        5e-300
    )
    top = np.array([sys.float_info.max, 1.0])
    overflown = measure_paths(path, top, -top)
    assert (overflown.max_abs_error, overflown.max_abs_index) == (math.inf, 0)
    assert pair_module.euclidean_distance(overflown) == math.inf
    assert pair_module.cosine(overflown) == -1.0


def measure_paths(path: str, a: Array, b: Array) -> PairNumbers:
    with using(path):
        return measure_arrays(a, b)


@needs_kernel
def test_all_variants_give_the_same_bits() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(9999).astype(np.float32) for _ in range(2))
    for dtype in (np.float32, np.float64, np.float16):
        known = DTYPES[f"torch.{np.dtype(dtype).name}"]
        sides = TensorData(known, a.astype(dtype)), TensorData(known, b.astype(dtype))
        results = {measure(path, *sides) for path in PATHS if path != "numpy"}
        assert len(results) == 1


@needs_kernel
def test_denormals_count_when_torch_flushes_them() -> None:
    a, b = np.full(100, 2e-40, np.float32), np.full(100, 1e-40, np.float32)
    wanted = measure_arrays(a, b)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        assert measure_arrays(a, b) == wanted
    finally:
        torch.set_flush_denormal(False)
    assert wanted.max_relative_error == pytest.approx(1.0, rel=1e-4)


# --- complex numbers -----------------------------------------------------------------------------


@all_paths
@pytest.mark.parametrize("dtype", COMPLEX, ids=lambda dtype: dtype.name)
def test_complex_numbers_by_their_moduli(path: str, dtype: DType) -> None:
    a, b = np.array([3 + 4j, 1, 0, 2j]), np.array([0, 1, 0, 2j])
    sides = []
    for values in (a, b):
        if dtype.name == "torch.complex32":
            array = values.view(np.float64).astype(np.float16).view(np.uint32)
        else:
            array = values.astype(dtype.carrier)
        sides.append(TensorData(dtype, array))
    got = measure(path, *sides)
    assert (got.max_abs_error, got.max_abs_index, got.unequal) == (5.0, 0, 1)
    assert (got.dot, got.candidate_squares, got.reference_squares) == (5.0, 30.0, 5.0)
    assert (got.difference_squares, got.within[1]) == (25.0, 3)


@all_paths
def test_complex_against_real_and_not_finite(path: str) -> None:
    a = np.array([1 + 1j, complex(math.nan, 1), complex(math.inf, 0), complex(math.inf, math.nan)])
    got = measure_paths(path, a, np.array([1.0, math.nan, math.inf, 3.0]))
    assert (got.max_abs_error, got.nan_mismatch, got.inf_mismatch) == (1.0, 1, 0)
    assert got.within == (2, 2, 2, 2)


# --- layouts -------------------------------------------------------------------------------------


def assert_same(got: PairNumbers, wanted: PairNumbers) -> None:
    for name in ("count", "max_abs_error", "max_relative_error", "within", "unequal"):
        assert getattr(got, name) == getattr(wanted, name), name
    for name in ("nan_mismatch", "inf_mismatch", "candidate_nonfinite", "reference_nonfinite"):
        assert getattr(got, name) == getattr(wanted, name), name
    assert got.difference_squares == pytest.approx(wanted.difference_squares, rel=1e-12)
    size = math.sqrt(wanted.candidate_squares * wanted.reference_squares)
    assert got.dot == pytest.approx(wanted.dot, rel=0, abs=1e-12 * size + 1e-300)


VIEWS: dict[str, Any] = {
    "every second": lambda x: x[::2],
    "backwards": lambda x: x[::-1, ::-1, ::-1],
    "backwards in steps": lambda x: x[:, ::-3],
    "transposed": lambda x: x.T,
    "turned and cut": lambda x: x.transpose(1, 0, 2)[::-1, :, 1:5],
    "one column": lambda x: x[..., 3],
    "expanded": lambda x: np.broadcast_to(x[:1, :, :1], x.shape),
    "plain": lambda x: x,
}


@all_paths
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "bool", "complex64"])
def test_strides_do_not_matter(path: str, view: str, name: str) -> None:
    dtype = DTYPES[f"torch.{name}"]
    cubes = [random_bits(dtype, 6 * 70 * 8, seed).reshape(6, 70, 8) for seed in (1, 2)]
    cubes[0][1:3] = cubes[1][1:3]
    a, b = (VIEWS[view](cube) for cube in cubes)
    flat = [TensorData(dtype, np.ascontiguousarray(side).reshape(-1)) for side in (a, b)]
    wanted = measure(path, *flat)
    same = measure(path, TensorData(dtype, a), TensorData(dtype, b))
    mixed = measure(path, TensorData(dtype, a), TensorData(dtype, np.ascontiguousarray(b)))
    other_shape = measure(path, TensorData(dtype, a), TensorData(dtype, b.copy().reshape(-1)))
    for got in (same, mixed, other_shape):
        assert_same(got, wanted)
        if got.max_abs_index >= 0:
            with np.errstate(all="ignore"):
                x, y = (widen(side.array[[got.max_abs_index]], dtype) for side in flat)
                wide = np.complex128 if dtype.kind == "complex" else np.float64
                assert abs(x.astype(wide) - y.astype(wide))[0] == got.max_abs_error


@all_paths
def test_pieces_of_large_strided_arrays(path: str) -> None:
    rng = np.random.default_rng(6)
    square = rng.standard_normal((1100, 1000)).astype(np.float32)
    other = square.copy()
    other[700, 300] += 50
    wanted = measure_paths(path, square, other)
    assert wanted.max_abs_index == 700 * 1000 + 300
    turned = measure_paths(path, square.T, other.T)
    assert turned.max_abs_index == 300 * 1100 + 700
    apart = measure_paths(path, square.T, np.ascontiguousarray(other.T))
    assert apart.max_abs_index == 300 * 1100 + 700
    for got in (turned, apart):
        assert_same(got, wanted)


@all_paths
def test_expanded_scalars_take_no_time(path: str) -> None:
    a = np.broadcast_to(np.float32(3), (10**6, 10**6))
    b = np.broadcast_to(np.float32(2), (10**6, 10**6))
    got = measure_paths(path, a, b)
    assert (got.count, got.unequal, got.dot) == (10**12, 10**12, 6e12)
    assert (got.max_relative_error, got.max_abs_index) == (0.5, 0)


@all_paths
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_empty_and_without_dimensions(path: str, dtype: DType) -> None:
    empty = TensorData(dtype, np.empty((3, 0), dtype.carrier))
    got = measure(path, empty, empty)
    assert (got.count, got.unequal, got.max_abs_error, got.within) == (0, 0, 0.0, (0, 0, 0, 0))
    scalar = TensorData(dtype, np.zeros((), dtype.carrier))
    got = measure(path, scalar, scalar)
    assert (got.count, got.unequal, got.within) == (1, 0, (1, 1, 1, 1))


def test_different_numbers_of_elements_are_refused() -> None:
    with pytest.raises(ValueError, match="got 3 and 4 elements"):
        measure_arrays(np.zeros(3), np.zeros(4))
    with pytest.raises(TypeError, match="torch has no dtype"):
        measure_arrays(np.zeros(3, "U3"), np.zeros(3))


def test_a_mapped_file_gives_its_pages_back(tmp_path: Path) -> None:
    count = 48 << 18
    values = np.arange(count, dtype=np.float32)
    values.tofile(tmp_path / "a")
    sides = []
    for _ in range(2):
        with (tmp_path / "a").open("rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        sides.append(TensorData(FLOAT32, np.ndarray((count,), np.float32, buffer)))
    before = resident_bytes()
    got = measure_pair(*sides)
    assert resident_bytes() - before < 24 << 20
    assert (got.unequal, got.count) == (0, count)
    assert sides[0].array[-1] == count - 1


def resident_bytes() -> int:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


# --- the kernel's own doors ----------------------------------------------------------------------


@needs_kernel
def test_the_kernel_refuses_nonsense() -> None:
    kernel: Any = load_kernel()
    with pytest.raises(TypeError, match="wanted 9"):
        kernel.measure_pair(1, 2)
    tail = (1.0, 1.0, 1.0, "")
    with pytest.raises(ValueError, match="no element type 'float8'"):
        kernel.measure_pair(0, "float8", 0, "float32", 0, *tail)
    with pytest.raises(ValueError, match="got -1 elements"):
        kernel.measure_pair(0, "float32", 0, "float32", -1, *tail)
    with pytest.raises(ValueError, match="got 5 elements at address 0"):
        kernel.measure_pair(0, "float32", 0, "float32", 5, *tail)
    with pytest.raises(ValueError, match="table of 256 floats"):
        kernel.measure_pair(0, 0, 0, "float32", 0, *tail)
    with pytest.raises(ValueError, match="no variant 'avx9'"):
        kernel.measure_pair(0, "float32", 0, "float32", 0, 1.0, 1.0, 1.0, "avx9")
    with pytest.raises(TypeError):
        kernel.measure_pair("0", "float32", 0, "float32", 0, *tail)
