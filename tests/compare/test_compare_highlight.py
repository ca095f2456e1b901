"""Suspicious rows are coloured by the manual's rules, each with its reason."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from small_dumps import call, compare_rows, tensor, write_dump

from tensorprobe.compare.call_rows import CallRows, Row
from tensorprobe.compare.highlight import Highlighter
from tensorprobe.pairing.match import Pair
from tensorprobe.report.compare_columns import Mode, columns_of
from tensorprobe.report.verdict_text import Verdict
from tensorprobe.store import Leaf


def leaf(largest: Any, smallest: Any = 0.0) -> Leaf:
    numbers = (largest, smallest, 0.0, 1.0)
    return Leaf("output.0", "tensor", "torch.float32", (2,), *numbers, True, None, None)


def row(mode: Mode, state: str, verdict: Verdict = "passed", **cells: Any) -> Row:
    """A row that is harmless but for extremes, and cells by title (with _ for spaces)."""
    titles = columns_of(mode, with_stack=False)
    ours = leaf(cells.pop("NPU_max", 1.0), cells.pop("NPU_min", 0.0))
    pair = Pair(ours, leaf(cells.pop("Bench_max", 1.0)), "Torch.a.0.forward")
    usual: dict[str, Any] = {"Err_message": ""}
    usual |= {"Requires_grad Consistent": True, "Max diff": 0.0, "MaxAbsErr": 0.0}
    usual |= {"One Thousandth Err Ratio": 1.0, "Cosine": 1.0}
    titles_of = {title.replace(" ", "_"): title for title in titles}
    usual |= {titles_of[key]: value for key, value in cells.items()}
    return Row([usual.get(title, "") for title in titles], state, verdict, pair)


def mark(mode: Mode, *rows: Row) -> list[tuple[str | None, str]]:
    message = columns_of(mode, with_stack=False).index("Err_message")
    fills = Highlighter(mode).mark(CallRows("Torch.a.0.forward", list(rows)))
    return [(fill, str(r.cells[message])) for fill, r in zip(fills, rows, strict=True)]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["tensor", "statistics"])
def test_red_where_the_candidate_is_not_finite(mode: Mode, number: Any) -> None:
    reason = "maximum or minimum is nan, -inf, or inf"
    assert mark(mode, row(mode, "input", NPU_max=number)) == [("red", reason)]
    assert mark(mode, row(mode, "input", NPU_min=number)) == [("red", reason)]
    assert mark(mode, row(mode, "input", Bench_max=number)) == [(None, "")]


@pytest.mark.parametrize(("mode", "title"), [("tensor", "MaxAbsErr"), ("statistics", "Max_diff")])
def test_red_where_the_absolute_error_is_huge(mode: Mode, title: str) -> None:
    reason = "maximum absolute error exceeds 1e+10"
    assert mark(mode, row(mode, "input", **{title: -1.1e10})) == [("red", reason)]
    assert mark(mode, row(mode, "input", **{title: 1e10})) == [(None, "")]


@pytest.mark.parametrize(
    ("before", "after", "fill"),
    [(0.91, 0.59, "red"), (0.9, 0.59, "yellow"), (1.0, 0.6, "yellow"), (1.0, 0.9, None)],
)
def test_an_output_with_fewer_exact_elements_than_an_input(
    before: float, after: float, fill: str | None
) -> None:
    given = row("tensor", "parameters", One_Thousandth_Err_Ratio=before)
    out = row("tensor", "output", One_Thousandth_Err_Ratio=after)
    assert [found for found, _ in mark("tensor", given, out)] == [None, fill]


@pytest.mark.parametrize(
    ("ours", "theirs", "fill"),
    [
        (1.6, 1.0, "red"),
        (-0.6, 0.0, "red"),  # over 0.01, since the reference is 0
        (0.0009, 0.0, None),
        (1.2, 1.0, "yellow"),
        (1.05, 1.0, None),
    ],
)
def test_an_output_whose_maximum_is_off_in_statistics(
    ours: float, theirs: float, fill: str | None
) -> None:
    out = row("statistics", "output", NPU_max=ours, Bench_max=theirs, Max_diff=ours - theirs)
    assert mark("statistics", row("statistics", "input"), out)[1][0] == fill


def test_an_output_that_is_far_off_is_red_also_where_nothing_went_in() -> None:
    out = row("statistics", "output", NPU_max=1.6, Max_diff=0.6)
    assert mark("statistics", out) == [("red", "maximum relative error exceeds 0.5")]
    assert mark("tensor", row("tensor", "output", NPU_max=1.6)) == [(None, "")]


def test_an_output_whose_input_is_off_as_well_is_not_yellow() -> None:
    given = row("statistics", "input", NPU_max=1.2, Max_diff=0.2)
    out = row("statistics", "output", NPU_max=1.2, Max_diff=0.2)
    assert mark("statistics", given, out) == [(None, ""), (None, "")]


def test_an_error_that_grows_by_an_order_of_magnitude_is_yellow() -> None:
    given, out = row("tensor", "input", MaxAbsErr=1.5), row("tensor", "output", MaxAbsErr=15.0)
    assert [fill for fill, _ in mark("tensor", given, out)] == [None, "yellow"]
    given, out = row("tensor", "input", MaxAbsErr=0.9), row("tensor", "output", MaxAbsErr=15.0)
    assert [fill for fill, _ in mark("tensor", given, out)] == [None, None]


def test_a_cosine_that_drops_is_yellow() -> None:
    given, out = row("tensor", "input"), row("tensor", "output", Cosine=0.89)
    assert mark("tensor", given, out)[1] == (
        "yellow",
        "The output's cosine decreases by more than 0.1 compared to the input/parameter's",
    )


def test_requires_grad_that_differs_is_yellow_and_red_hides_it() -> None:
    reason = "requires_grad is inconsistent"
    unequal = row("statistics", "input", Requires_grad_Consistent=False, Err_message="so ")
    assert mark("statistics", unequal) == [("yellow", f"so \n{reason}")]
    both = row("statistics", "input", Requires_grad_Consistent=False, NPU_max=math.nan)
    assert mark("statistics", both)[0][0] == "red"
    assert reason not in mark("statistics", both)[0][1]


def test_checksums_have_no_colours() -> None:
    cells = CallRows(
        "Torch.a.0.forward", [Row(["x"] * 12, "output", "failed", Pair(leaf(1.0), None, ""))]
    )
    assert Highlighter("md5").mark(cells) == [None]


def test_no_colours_where_the_table_needs_another_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tensorprobe.compare import part

    calls = [call(f"Torch.a.{n}.forward", [tensor(math.nan)]) for n in range(5)]
    dump = write_dump(tmp_path / "a", calls)
    _, rows = compare_rows(dump, dump, tmp_path / "1", highlight=True)
    assert all(row["Err_message"] for row in rows)
    monkeypatch.setattr(part, "_CALLS_PER_SHEET", 2)
    monkeypatch.setattr(part, "ROWS_PER_SHEET", 5)
    _, rows = compare_rows(dump, dump, tmp_path / "2", highlight=True)
    assert not any(row["Err_message"] for row in rows)
    assert caplog.messages == ["rank needs more than one sheet, so its rows get no colours"]


@pytest.mark.parametrize("verdict", ["uninitialised", "overwritten"])
def test_what_means_nothing_has_no_colour_and_is_no_yardstick(verdict: Verdict) -> None:
    assert mark("tensor", row("tensor", "output", verdict, NPU_max=math.nan)) == [(None, "")]
    given = row("tensor", "input", verdict, One_Thousandth_Err_Ratio=1.0)
    out = row("tensor", "output", One_Thousandth_Err_Ratio=0.1)
    assert [fill for fill, _ in mark("tensor", given, out)] == [None, None]
    assert mark("tensor", row("tensor", "input"), out)[1][0] == "red"


def test_a_text_that_reads_nan_is_no_number() -> None:
    assert mark("statistics", row("statistics", "input", NPU_max="Nan")) == [(None, "")]
