"""The statistics of one array: kernel and numpy against exact arithmetic, and against torch."""

from __future__ import annotations

import logging
import math
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorprobe
from tensorprobe.dtypes import DTYPES, DType, widen
from tensorprobe.metrics.kernel import SWITCH, compiled, explain_absence, load_kernel
from tensorprobe.metrics.statistics import ArrayStatistics, count_into_bins, measure_array

FLOAT64, FLOAT32, INT64 = (DTYPES[f"torch.{name}"] for name in ("float64", "float32", "int64"))
REAL = [dtype for dtype in DTYPES.values() if dtype.kind != "complex"]
COMPLEX = [dtype for dtype in DTYPES.values() if dtype.kind == "complex"]
PATHS = [
    pytest.param("kernel", marks=pytest.mark.skipif(not compiled(), reason=str(explain_absence()))),
    "numpy",
]
both_paths = pytest.mark.parametrize("path", PATHS)


@contextmanager
def using(path: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "1" if path == "numpy" else "0")
        yield


def measure(path: str, array: npt.NDArray[Any], dtype: DType, **options: Any) -> ArrayStatistics:
    with using(path):
        return measure_array(array, dtype, **options)


def elements_of(array: npt.NDArray[Any], dtype: DType) -> list[Any]:
    """Return the elements as Python numbers, which hold every dtype exactly."""
    if dtype.kind == "bool":
        array = array.view(np.uint8) != 0
    return list(widen(array, dtype).tolist())


def assert_exact(got: ArrayStatistics, elements: list[Any]) -> None:
    """Compare with exact rational arithmetic."""
    finite = [x for x in elements if math.isfinite(x)]
    assert got.count == len(elements)
    assert got.nans == sum(math.isnan(x) for x in elements)
    assert got.positive_infinities == elements.count(math.inf)
    assert got.negative_infinities == elements.count(-math.inf)
    assert got.zeros == elements.count(0)
    assert got.finite_max == (max(finite) if finite else None)
    assert got.finite_min == (min(finite) if finite else None)

    exact = [(Fraction(x), times) for x, times in Counter(finite).items()]
    total = sum((x * times for x, times in exact), Fraction(0))
    squares = sum((x * x * times for x, times in exact), Fraction(0))
    tolerance = sum((abs(x) * times for x, times in exact), Fraction(0)) / 10**12
    if math.isinf(got.finite_sum):
        assert abs(total) + tolerance > Fraction(sys.float_info.max)
        assert (got.finite_sum > 0) == (total > 0)
    else:
        # A result below the normal range cannot be closer than the smallest float.
        assert abs(Fraction(got.finite_sum) - total) <= tolerance + Fraction(5e-324)
    scaled = Fraction(got.finite_sum_of_squares) * Fraction(got.scale) ** 2
    assert abs(scaled - squares) <= squares / 10**12


# --- values --------------------------------------------------------------------------------------

EDGES = [0.0, -0.0, 1.0, -1.0, 0.1, 5e-324, -5e-324, 2.2e-308, 1e-200, -1e-160, 1e160, -1e200]
EDGES += [sys.float_info.max, -sys.float_info.max, math.inf, -math.inf, math.nan]


@both_paths
@pytest.mark.parametrize("dtype", REAL, ids=lambda dtype: dtype.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_bits_of_any_dtype_are_measured_exactly(
    path: str, dtype: DType, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, 130))
    size = count * dtype.itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    array = np.frombuffer(raw, dtype.carrier)
    assert_exact(measure(path, array, dtype), elements_of(array, dtype))


@both_paths
@settings(max_examples=150, deadline=None)
@given(chosen=st.lists(st.sampled_from(EDGES), max_size=40), finite_only=st.booleans())
def test_edges_of_float64_in_any_mixture(path: str, chosen: list[float], finite_only: bool) -> None:
    elements = [x for x in chosen if math.isfinite(x) or not finite_only]
    assert_exact(measure(path, np.array(elements, np.float64), FLOAT64), elements)


@both_paths
@settings(max_examples=50, deadline=None)
@given(exponent=st.integers(-1074, 1023), seed=st.integers(0, 99), width=st.integers(0, 60))
def test_float64_of_any_magnitude_across_blocks(
    path: str, exponent: int, seed: int, width: int
) -> None:
    rng = np.random.default_rng(seed)
    exponents = np.clip(exponent + rng.integers(-width, width + 1, 300), -1074, 1023)
    few = np.ldexp(rng.uniform(-1, 1, 300), exponents)
    # Blocks of the kernel that need different units: huge, tiny, plain.
    array = np.concatenate([few, np.full(1024, 1e-170), np.full(1024, 2.0)])
    assert_exact(measure(path, array, FLOAT64), array.tolist())


@both_paths
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "int64", "uint8"])
def test_every_length_with_its_tail(path: str, name: str) -> None:
    dtype = DTYPES[f"torch.{name}"]
    raw = np.random.default_rng(0).integers(1, 250, 3000 * dtype.itemsize).astype(np.uint8)
    array = raw.view(dtype.carrier)
    elements = elements_of(array, dtype)
    for length in [*range(131), 1023, 1024, 1025, 2047, 2049, 3000]:
        got = measure(path, array[:length], dtype)
        finite = [x for x in elements[:length] if math.isfinite(x)]
        assert got.count - got.nans - got.positive_infinities - got.negative_infinities == len(
            finite
        )
        assert got.finite_max == max(finite, default=None)
        assert got.finite_min == min(finite, default=None)
        magnitude = math.fsum(map(abs, finite)) if name != "float64" else math.inf
        assert got.finite_sum == pytest.approx(math.fsum(finite), rel=0, abs=1e-12 * magnitude)


@both_paths
@pytest.mark.parametrize("place", [0, 7, 1023, 1024, 4999])
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_one_special_among_many(path: str, place: int, special: float) -> None:
    array = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    array[place] = special
    got = measure(path, array, FLOAT32)
    assert (got.nans, got.positive_infinities, got.negative_infinities) == (
        int(math.isnan(special)),
        int(special == math.inf),
        int(special == -math.inf),
    )
    kept = np.delete(array, place).astype(np.float64)
    assert got.finite_sum == pytest.approx(kept.sum(), abs=1e-12 * np.abs(kept).sum())
    assert got.finite_sum_of_squares == pytest.approx((kept**2).sum(), rel=1e-12)
    assert got.finite_max == kept.max()
    assert got.finite_min == kept.min()


@both_paths
def test_nothing_but_specials(path: str) -> None:
    got = measure(path, np.full(2000, -np.inf), FLOAT64)
    assert (got.max, got.min, got.mean, got.norm) == (-math.inf, -math.inf, -math.inf, math.inf)
    assert (got.finite_max, got.finite_min, got.finite_sum) == (None, None, 0.0)


@both_paths
def test_integers_beyond_2_to_the_53_keep_their_extremes(path: str) -> None:
    array = np.array([2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1, 2**53 + 1], np.int64)
    got = measure(path, array, INT64)
    assert (got.max, got.min) == (2**63 - 1, -(2**63))
    unsigned = measure(path, array[:2].astype(np.uint64) + 2**63, DTYPES["torch.uint64"])
    assert (unsigned.max, unsigned.min) == (2**64 - 1, 2**64 - 2)
    assert type(got.max) is int


@both_paths
def test_zero_has_no_sign(path: str) -> None:
    for elements in ([0.0, -0.0], [-0.0, 0.0], [-0.0]):
        got = measure(path, np.array(elements), FLOAT64)
        assert got.zeros == len(elements)
        assert math.copysign(1, got.max or 0) == math.copysign(1, got.min or 0) == 1.0


@both_paths
def test_squares_of_extremes_are_not_lost(path: str) -> None:
    assert measure(path, np.array([3e300, 4e300]), FLOAT64).norm == pytest.approx(5e300)
    assert measure(path, np.array([3e-300, 4e-300]), FLOAT64).norm == pytest.approx(5e-300)
    assert measure(path, np.array([5e-324]), FLOAT64).norm == 5e-324
    cancelling = np.array([1.7e308] * 40 + [-1.7e308] * 40 + [1.0])
    assert measure(path, cancelling, FLOAT64).mean == pytest.approx(0, abs=1e296)


@both_paths
def test_a_long_sum_stays_accurate(path: str) -> None:
    got = measure(path, np.full(3_000_000, 0.1, np.float32), FLOAT32)
    assert got.finite_sum == pytest.approx(3_000_000 * float(np.float32(0.1)), rel=1e-15)
    got = measure(path, np.tile([1e16, 1.0, -1e16], 100_000), FLOAT64)
    assert got.finite_sum == pytest.approx(100_000, abs=1e-12 * 2e21)


# --- torch's meaning -----------------------------------------------------------------------------


@both_paths
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "elements",
    [
        [1.0, -2.0, 0.5],
        [1.0, math.nan, -2.0],
        [math.nan, math.inf],
        [1.0, math.inf],
        [-math.inf, 1.0],
        [-math.inf, math.inf],
        [-math.inf],
        [0.0, -0.0],
    ],
    ids=str,
)
def test_four_numbers_as_torch_gives_them(
    path: str, dtype: torch.dtype, elements: list[float]
) -> None:
    tensor = torch.tensor(elements, dtype=dtype)
    known = DTYPES[str(dtype)]
    carried = tensor.view(torch.int16) if dtype == torch.bfloat16 else tensor
    got = measure(path, carried.numpy().view(known.carrier), known)
    wide = tensor.double()
    wanted = [wide.max(), wide.min(), wide.mean(), torch.linalg.vector_norm(wide)]
    assert [got.max, got.min, got.mean, got.norm] == pytest.approx(
        [value.item() for value in wanted], nan_ok=True
    )


@both_paths
def test_bools_are_any_and_all(path: str) -> None:
    dtype = DTYPES["torch.bool"]
    got = measure(path, np.array([True, False, True, True]), dtype)
    assert (got.max, got.min, got.mean, got.norm) == (True, False, 0.75, math.sqrt(3))
    assert type(got.max) is bool
    # torch can be given bytes that are neither 0 nor 1.
    odd = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    got = measure(path, odd, dtype)
    assert (got.zeros, got.finite_sum, got.min, got.max) == (1, 3.0, False, True)


@both_paths
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_empty_has_no_numbers(path: str, dtype: DType) -> None:
    got = measure(path, np.empty((3, 0), dtype.carrier), dtype)
    assert (got.count, got.max, got.min, got.mean, got.norm) == (0, None, None, None, None)
    assert (got.finite_sum, got.finite_sum_of_squares) == (0.0, 0.0)


@both_paths
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_a_scalar_array(path: str, dtype: DType) -> None:
    got = measure(path, np.zeros((), dtype.carrier), dtype)
    assert got.count == 1
    assert got.zeros == int(dtype.variant != "e8m0")


@both_paths
@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu"])
def test_eight_bit_floats_of_every_pattern(path: str, name: str) -> None:
    patterns = np.repeat(np.arange(256, dtype=np.uint8), np.arange(256))
    dtype = DTYPES[f"torch.{name}"]
    if not hasattr(torch, name):
        pytest.skip(f"torch {torch.__version__} has no {dtype.name}")
    wide = torch.from_numpy(patterns).view(getattr(torch, name)).double()
    got = measure(path, patterns, dtype)
    finite = wide[wide.isfinite()]
    assert got.nans == int(wide.isnan().sum())
    assert got.zeros == int((wide == 0).sum())
    assert got.positive_infinities == int((wide == math.inf).sum())
    assert (got.finite_max, got.finite_min) == (finite.max().item(), finite.min().item())
    assert got.finite_sum == pytest.approx(
        finite.sum().item(), abs=1e-12 * finite.abs().sum().item()
    )
    assert got.finite_sum_of_squares == pytest.approx((finite**2).sum().item(), rel=1e-12)


@both_paths
@pytest.mark.parametrize("dtype", COMPLEX, ids=lambda dtype: dtype.name)
def test_complex_numbers_by_magnitude(path: str, dtype: DType) -> None:
    half = dtype.name == "torch.complex32"
    parts = np.array([3, 4, -6, 8, 0, 0], np.float16 if half else np.float64)
    array = parts.view(np.uint32) if half else parts.view(np.complex128).astype(dtype.carrier)
    got = measure(path, array, dtype)
    assert (got.max, got.min, got.mean, got.zeros) == (10.0, 0.0, 5.0, 1)
    assert got.norm == pytest.approx(math.sqrt(125))


@both_paths
def test_complex_nan_does_not_hide_behind_infinity(path: str) -> None:
    array = np.array([complex(math.inf, math.nan), complex(0, -math.inf), 1], np.complex64)
    got = measure(path, array, DTYPES["torch.complex64"])
    assert (got.nans, got.positive_infinities) == (1, 1)
    large = np.array([3e38 + 3e38j], np.complex64)
    got = measure(path, large, DTYPES["torch.complex64"])
    assert got.max == pytest.approx(math.hypot(3e38, 3e38), rel=1e-6)


@pytest.mark.skipif(not compiled(), reason="the kernel alone promises this")
def test_denormals_count_when_torch_flushes_them() -> None:
    array = np.full(100, 1e-40, np.float32)
    wanted = measure("kernel", array, FLOAT32)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        got = measure("kernel", array, FLOAT32)
    finally:
        torch.set_flush_denormal(False)
    assert got == wanted
    assert got.zeros == 0
    assert got.finite_sum > 0


# --- layouts -------------------------------------------------------------------------------------


def assert_same(got: ArrayStatistics, wanted: ArrayStatistics) -> None:
    for field in ("count", "nans", "zeros", "finite_max", "finite_min", "scale"):
        assert getattr(got, field) == getattr(wanted, field), field
    magnitude = math.sqrt(wanted.finite_sum_of_squares * wanted.count) * wanted.scale
    assert got.finite_sum == pytest.approx(wanted.finite_sum, abs=1e-12 * magnitude)
    assert got.finite_sum_of_squares == pytest.approx(wanted.finite_sum_of_squares, rel=1e-12)


@both_paths
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_strides_do_not_matter(path: str, dtype: DType) -> None:
    raw = np.random.default_rng(3).integers(1, 99, 6 * 70 * 8 * dtype.itemsize).astype(np.uint8)
    cube = raw.view(dtype.carrier).reshape(6, 70, 8)
    views = [cube[::2], cube[:, ::-3], cube.T, cube.transpose(1, 0, 2)[::-1, :, 1:5], cube[..., 3]]
    for view in views:
        assert_same(
            measure(path, view, dtype), measure(path, np.ascontiguousarray(view).reshape(-1), dtype)
        )


@both_paths
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_unaligned_memory(path: str, dtype: DType) -> None:
    raw = np.random.default_rng(4).integers(1, 99, 1500 * dtype.itemsize).astype(np.uint8).tobytes()
    unaligned = np.frombuffer(b"x" + raw, dtype.carrier, offset=1)
    assert measure(path, unaligned, dtype) == measure(
        path, np.frombuffer(raw, dtype.carrier), dtype
    )


@both_paths
def test_other_byte_orders_are_converted(path: str) -> None:
    for letter, name in [
        ("f8", "float64"),
        ("f2", "float16"),
        ("i4", "int32"),
        ("c8", "complex64"),
    ]:
        native = np.arange(-3, 9).astype(letter)
        dtype = DTYPES[f"torch.{name}"]
        swapped = native.astype(native.dtype.newbyteorder())
        assert measure(path, swapped, dtype) == measure(path, native, dtype)


@both_paths
def test_expanded_arrays_of_enormous_size(path: str) -> None:
    got = measure(path, np.broadcast_to(np.float32(0.5), (10**6, 10**6)), FLOAT32)
    assert (got.count, got.finite_sum, got.norm) == (10**12, 5e11, 5e5)
    rows = np.broadcast_to(np.array([1.0, np.nan, 0.0, -np.inf])[:, None, None], (4, 10**9, 3))
    got = measure(path, rows, FLOAT64)
    assert got.nans == got.zeros == got.negative_infinities == 3 * 10**9
    assert (got.count, got.finite_sum) == (12 * 10**9, 3e9)
    with using(path):
        assert count_into_bins(rows, FLOAT64, 0, 1, 2).tolist() == [3 * 10**9, 3 * 10**9]


@both_paths
def test_overlapping_windows_use_bounded_memory(path: str) -> None:
    line = np.random.default_rng(5).standard_normal(4000)
    windows = np.lib.stride_tricks.sliding_window_view(line, 2000)
    tracemalloc.start()
    try:
        got = measure(path, windows, FLOAT64, threads=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert windows.nbytes > 30 << 20
    assert peak < 8 << 20
    assert got.finite_sum == pytest.approx(windows.sum(), rel=1e-9)


@both_paths
def test_threads_change_nothing(path: str) -> None:
    array = np.random.default_rng(6).standard_normal((1500, 2003))
    array[700, 3] = np.inf
    for view in (array, array.T, array[:, ::2]):
        alone = measure(path, view, FLOAT64, threads=1)
        assert measure(path, view, FLOAT64, threads=2) == alone
        assert measure(path, view, FLOAT64, threads=5) == alone
        with using(path):
            counts = [
                count_into_bins(view, FLOAT64, -1, 1, 20, threads=threads).tolist()
                for threads in (1, 3)
            ]
        assert counts[0] == counts[1]


def test_a_wrong_carrier_is_refused() -> None:
    with pytest.raises(TypeError, match=r"got .* of float64, wanted uint16 for torch\.bfloat16"):
        measure_array(np.zeros(3), DTYPES["torch.bfloat16"])
    with pytest.raises(TypeError, match="wanted float32"):
        count_into_bins(np.zeros(3), FLOAT32, 0, 1, 2)


# --- histograms ----------------------------------------------------------------------------------


@both_paths
def test_bins_as_numpy_has_them(path: str) -> None:
    array = np.random.default_rng(7).standard_normal(20_000)
    with using(path):
        got = count_into_bins(array, FLOAT64, -1.5, 2.0, 37)
    assert got.tolist() == np.histogram(array, 37, (-1.5, 2.0))[0].tolist()
    assert got.dtype == np.int64


@both_paths
def test_bins_hold_their_lower_edge_and_the_last_its_upper(path: str) -> None:
    array = np.array([0.0, 1.0, 2.0, 3.0, 4.0, -0.1, 4.1, np.nan, np.inf, -np.inf])
    with using(path):
        assert count_into_bins(array, FLOAT64, 0, 4, 4).tolist() == [1, 1, 1, 2]
        assert count_into_bins(array, FLOAT64, 2, 2, 3).tolist() == [1, 0, 0]


@both_paths
def test_bins_over_the_whole_range_of_float64(path: str) -> None:
    most = sys.float_info.max
    with using(path):
        wide = count_into_bins(np.array([-most, -1.0, 1.0, most]), FLOAT64, -most, most, 4)
        tiny = count_into_bins(np.array([0.0, 5e-324, 1e-323]), FLOAT64, 0, 1e-323, 2)
    assert wide.tolist() == [1, 0, 2, 1]
    assert tiny.tolist() == [1, 2]


@pytest.mark.skipif(not compiled(), reason="needs both")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_both_paths_bin_alike(dtype: DType, data: st.DataObject) -> None:
    raw = data.draw(st.binary(max_size=60 * dtype.itemsize))
    array = np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype.carrier)
    statistics = measure("kernel", array, dtype)
    low, high = statistics.finite_min or 0, statistics.finite_max or 0
    bins = data.draw(st.integers(1, 300))
    with using("kernel"):
        got = count_into_bins(array, dtype, low, high, bins)
    with using("numpy"):
        wanted = count_into_bins(array, dtype, low, high, bins)
    assert got.tolist() == wanted.tolist()
    # Between the extremes nothing finite is left out.
    outside = statistics.nans + statistics.positive_infinities + statistics.negative_infinities
    if statistics.finite_max is not None:
        assert got.sum() == statistics.count - outside


@pytest.mark.parametrize(
    ("low", "high", "bins"), [(1, 0, 3), (0, math.inf, 3), (math.nan, 1, 3), (0, 1, 0)]
)
def test_impossible_bins_are_refused(low: float, high: float, bins: int) -> None:
    with pytest.raises(ValueError, match=f"got {bins} bins from"):
        count_into_bins(np.zeros(3), FLOAT64, low, high, bins)


# --- the kernel's own doors ----------------------------------------------------------------------


@pytest.mark.skipif(not compiled(), reason="needs the kernel")
def test_the_kernel_refuses_nonsense() -> None:
    kernel: Any = load_kernel()
    for arguments in [(), (1, 2), (1, 2, 3, 4)]:
        with pytest.raises(TypeError, match="wanted 3"):
            kernel.measure(*arguments)
    with pytest.raises(ValueError, match="no element type 'float8'"):
        kernel.measure(0, 0, "float8")
    with pytest.raises(ValueError, match="got -1 elements"):
        kernel.measure(0, -1, "float32")
    with pytest.raises(ValueError, match="got 5 elements"):
        kernel.measure(0, 5, "float32")
    with pytest.raises(TypeError):
        kernel.measure("0", 1, "float32")
    with pytest.raises(ValueError, match="finite low <= high"):
        kernel.histogram(0, 0, "float32", 1.0, 0.0, 3, 0)
    with pytest.raises(ValueError, match="room for the counts"):
        kernel.count_bytes(0, 0, 0)


# --- with and without ----------------------------------------------------------------------------

PROGRAM = """
import logging, sys
import numpy as np
from tensorprobe.dtypes import DTYPES
from tensorprobe.metrics.kernel import compiled
from tensorprobe.metrics.statistics import count_into_bins, measure_array
logging.basicConfig(level=sys.argv[1])
for _ in range(3):
    norm = measure_array(np.array([3.0, 4.0]), DTYPES["torch.float64"]).norm
    counts = count_into_bins(np.array([3.0, 4.0]), DTYPES["torch.float64"], 0, 4, 2)
print(compiled(), norm, counts.tolist())
"""


def run_program(level: str, **environment: str) -> tuple[str, list[str]]:
    """Run PROGRAM in a process of its own; return its answer and its log."""
    kept = {name: value for name, value in os.environ.items() if name != SWITCH}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, level],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr.splitlines()


def test_the_switch_turns_the_kernel_off_and_says_so_once() -> None:
    answer, log = run_program("INFO", **{SWITCH: "1"})
    assert answer == "False 5.0 [0, 2]"
    assert log == [
        f"INFO:tensorprobe:The compiled kernel is not used, because {SWITCH} is set; numpy "
        "computes the same numbers more slowly. `tensorprobe doctor` shows this, too."
    ]


def test_an_install_without_compiler_works_and_warns_once(tmp_path: Path) -> None:
    package = Path(tensorprobe.__file__).parent
    shutil.copytree(package, tmp_path / "tensorprobe", ignore=shutil.ignore_patterns("*.so"))
    answer, log = run_program("WARNING", PYTHONPATH=str(tmp_path))
    assert answer == "False 5.0 [0, 2]"
    (line,) = log
    assert line.startswith("WARNING:tensorprobe:The compiled kernel is not used, because there was")
    assert "no C compiler when tensorprobe was installed" in line


@pytest.mark.skipif(not compiled(), reason="needs the kernel")
def test_with_the_kernel_there_is_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "tensorprobe"):
        assert load_kernel() is not None
    assert not caplog.records
