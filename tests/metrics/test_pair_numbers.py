"""The metrics that follow from a pair's numbers, and what the older tools wrote for real pairs."""

from __future__ import annotations

import ast
import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import peer_root
from tensorprobe.metrics.pair import (
    PairNumbers,
    Unavailable,
    cosine,
    equal_pair,
    error_ratio,
    euclidean_distance,
    max_absolute_error,
    max_relative_error,
    measure_arrays,
    measure_pair,
    relative_distance,
    scalar_errors,
)
from tensorprobe.store.tensor_file import load_tensor

PEER_DUMPS = peer_root()
METRICS = [
    cosine,
    euclidean_distance,
    max_absolute_error,
    max_relative_error,
    lambda numbers: error_ratio(numbers, 1e-3),
    lambda numbers: error_ratio(numbers, 5e-3),
]
TITLES = ["Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr"]
TITLES += ["One Thousandth Err Ratio", "Five Thousandths Err Ratio"]


def numbers_of(candidate: object, reference: object) -> PairNumbers:
    return measure_arrays(np.array(candidate, np.float32), np.array(reference, np.float32))


def test_metrics_against_torch_in_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(5000, generator=generator)
    candidate = reference + 1e-3 * torch.randn(5000, generator=generator)
    numbers = measure_arrays(candidate.numpy(), reference.numpy())
    a, b = candidate.double(), reference.double()
    relative = ((a - b) / b).abs()
    wanted = [
        torch.nn.functional.cosine_similarity(a, b, dim=0),
        torch.linalg.vector_norm(a - b),
        (a - b).abs().max(),
        relative.max(),
        (relative < 1e-3).double().mean(),
        (relative < 5e-3).double().mean(),
    ]
    got = [metric(numbers) for metric in METRICS]
    assert got == pytest.approx([value.item() for value in wanted], rel=1e-12)
    distance = torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b)
    assert relative_distance(numbers) == pytest.approx(distance.item(), rel=1e-12)


def test_zeros_have_no_direction_but_agree_with_each_other() -> None:
    assert cosine(numbers_of([0, 0], [0, -0.0])) == 1.0
    assert cosine(numbers_of([0, 0], [1, 0])) is Unavailable.CANDIDATE_ZERO
    assert cosine(numbers_of([0, 1], [0, 0])) is Unavailable.REFERENCE_ZERO
    assert cosine(numbers_of([1e-30, 0], [1e-30, 1e-38])) == pytest.approx(1.0)
    assert relative_distance(numbers_of([0, 0], [0, 0])) == 0.0
    assert relative_distance(numbers_of([0, 1], [0, 0])) == math.inf


def test_one_element_has_no_cosine() -> None:
    assert cosine(numbers_of([2], [3])) is Unavailable.ONE_ELEMENT
    assert cosine(equal_pair(1)) is Unavailable.ONE_ELEMENT
    assert max_absolute_error(numbers_of([2], [3])) == 1.0


def test_rounding_does_not_lead_past_one() -> None:
    for seed in range(50):
        values = np.random.default_rng(seed).standard_normal(37)
        got = cosine(measure_arrays(values, values * 3))
        assert isinstance(got, float)
        assert 1 - 1e-15 <= got <= 1.0


def test_specials_in_the_same_places_count_as_zeros() -> None:
    numbers = numbers_of([math.nan, math.inf, -math.inf, 2], [math.nan, math.inf, -math.inf, 1])
    assert [metric(numbers) for metric in METRICS] == [1.0, 1.0, 1.0, 1.0, 0.75, 0.75]


@pytest.mark.parametrize(
    ("candidate", "reference"),
    [(math.nan, 1), (1, math.nan), (math.inf, 1), (1, -math.inf), (math.nan, math.inf)],
)
def test_specials_in_other_places_leave_no_metric(candidate: float, reference: float) -> None:
    numbers = numbers_of([candidate, 5, 6], [reference, 5, 6])
    assert [metric(numbers) for metric in METRICS] == [Unavailable.NONFINITE_PLACES] * 6


def test_infinities_of_opposite_sign_do_not_agree() -> None:
    numbers = numbers_of([math.inf, 1], [-math.inf, 1])
    assert numbers.opposite_infinities == 1
    assert cosine(numbers) is Unavailable.NONFINITE_PLACES


def test_nothing_has_no_metric() -> None:
    assert [metric(numbers_of([], [])) for metric in METRICS] == [Unavailable.EMPTY] * 6
    assert cosine(equal_pair(0)) is Unavailable.EMPTY


def test_data_known_to_be_equal_have_the_metrics_of_equal_data() -> None:
    for values in ([1, 2, 3], [0, 0], [math.nan, 1], [math.inf, -math.inf]):
        known, measured = equal_pair(len(values)), numbers_of(values, values)
        assert [metric(known) for metric in METRICS] == [metric(measured) for metric in METRICS]
        assert relative_distance(known) == relative_distance(measured)
        assert known.equal
        assert measured.equal


def test_scalars_follow_plain_arithmetic() -> None:
    specials = [0.0, 2.0, -3.0, math.inf, -math.inf, math.nan]
    for a in specials:
        for b in specials:
            got = scalar_errors(numbers_of(a, b))
            with np.errstate(invalid="ignore"):
                error = abs(np.float64(a) - np.float64(b))
                ratio = error / (abs(np.float64(b)) or 2.0**-52)
            assert got == pytest.approx((error, ratio), nan_ok=True), (a, b)
    for numbers in (numbers_of([1, 2], [1, 2]), equal_pair(1)):
        with pytest.raises(ValueError, match="wanted one that was read"):
            scalar_errors(numbers)


def test_only_counted_thresholds_can_be_asked_for() -> None:
    with pytest.raises(ValueError, match=r"got the threshold 0\.02"):
        error_ratio(equal_pair(3), 0.02)


# --- what msprobe wrote for the same files -------------------------------------------------------

# The peer divides float16 by float16, which rounds to 11 bits and has no epsilon beside 0.
PEER_ROUNDS_TO_HALF = {"MaxRelativeErr": 2e-3}


def golden_tables() -> list[Path]:
    tables = sorted(PEER_DUMPS.glob("compare-*/**/*compare_result*.csv"))
    return [path for path in tables if "Cosine," in path.read_text().partition("\n")[0]]


@pytest.mark.parametrize(
    "table", golden_tables(), ids=lambda path: "-".join(path.parent.parts[-2:]) + path.name[-10:-4]
)
def test_real_pairs_as_in_the_golden_tables(table: Path) -> None:
    config_path = table.parent / "compare.json"
    if not config_path.exists():
        pytest.skip("this table does not say what was compared")
    config = json.loads(config_path.read_text())
    folders = [PEER_DUMPS / config[side] for side in ("npu_path", "bench_path")]
    for place, folder in enumerate(folders):
        rank = table.name.removeprefix("compare_result_").rpartition("_")[0]
        folders[place] = (folder / rank if folder.is_dir() else folder.parent) / "dump_tensor_data"
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if "-1" not in row["Data_name"]]
    for row in rows:
        names = ast.literal_eval(row["Data_name"])
        if "N/A" not in names:
            candidate, reference = (
                load_tensor(folder / name) for folder, name in zip(folders, names, strict=True)
            )
            if candidate.shape == reference.shape:
                assert_as_peer(row, measure_pair(candidate, reference), candidate.shape == ())


def assert_as_peer(row: dict[str, str], numbers: PairNumbers, is_scalar: bool) -> None:
    half = row["NPU Dtype"] == row["Bench Dtype"] == "torch.float16"
    got: list[float | Unavailable | None] = [metric(numbers) for metric in METRICS]
    if is_scalar:
        got = [None, None, *scalar_errors(numbers), None, None]
    for title, value in zip(TITLES, got, strict=True):
        wanted = row[title]
        if half and numbers.candidate_nonfinite and title != "MaxAbsErr" and title != "EucDist":
            continue
        if wanted == "N/A":
            assert value is Unavailable.NONFINITE_PLACES, row
        elif wanted == "unsupported":
            assert value in (None, Unavailable.EMPTY, Unavailable.ONE_ELEMENT), row
        elif wanted == "Nan":
            zeros = (Unavailable.CANDIDATE_ZERO, Unavailable.REFERENCE_ZERO)
            assert value in zeros or (isinstance(value, float) and math.isnan(value)), row
        else:
            rel = PEER_ROUNDS_TO_HALF.get(title, 1e-6) if half else 1e-6
            # The peer writes 12 decimals, of a cosine above 0.9999 six.
            decimals = 1e-6 if title == "Cosine" else 1e-12
            assert value == pytest.approx(float(wanted), rel=rel, abs=decimals), (title, row)
