"""The compiled row writer writes what Python writes, or leaves the row to Python."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorprobe.report.csv_table import write_csv
from tensorprobe.report.row_text import RowText, load_row_text
from tensorprobe.report.table import Table
from tensorprobe.report.xlsx_cells import RowWriter

needs_compiled = pytest.mark.skipif(load_row_text() is None, reason="nothing was compiled")

texts = st.text(st.characters(exclude_categories=()), max_size=20) | st.text(
    st.sampled_from(" ,\"'\r\n\t=+-@<>&_x0041\0é\x1b\x7f\x85\u061c\u180e\u202e\ufeff＝中…"),
    max_size=12,
)
cells = st.none() | st.booleans() | st.integers() | st.floats() | texts
rows = st.lists(cells, max_size=40) | st.lists(cells, max_size=6).map(tuple)


def compiled() -> RowText:
    writer = load_row_text()
    assert writer is not None
    return writer


@needs_compiled
@settings(max_examples=2000, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
@example(5e-324)
@example(2.2250738585072014e-308)
@example(1.7976931348623157e308)
@example(9007199254740993.0)
@example(1e16)
@example(9999999999999998.0)
@example(0.0001)
@example(0.00001)
@example(-0.0)
@example(2.0**-1022)
@example(9.5e-05)
def test_a_float_is_written_as_python_writes_it(number: float) -> None:
    assert compiled().csv_row((number, -number)) == f"{number},{-number}\n".encode()


@needs_compiled
def test_every_power_of_two_and_ten_and_their_neighbours_are_written_as_python_writes_them() -> (
    None
):
    numbers = [math.ldexp(1.0, exponent) for exponent in range(-1074, 1024)]
    numbers += [
        float(f"{digits}e{exponent}") for digits in (1, 5, 123) for exponent in range(-323, 306)
    ]
    for number in numbers:
        (bits,) = struct.unpack("q", struct.pack("d", number))
        for near in (bits - 1, bits, bits + 1):
            value = struct.unpack("d", struct.pack("q", near))[0]
            if math.isfinite(value):
                assert compiled().csv_row((value, None)) == f"{value},\n".encode()


@needs_compiled
@settings(max_examples=500, deadline=None)
@given(row=rows)
def test_csv_is_the_same_with_and_without_it(
    tmp_path_factory: pytest.TempPathFactory, row: Any
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    table = Table("t", ("a", "b"), [row])
    assert _written(folder / "a.csv", table) == _written(folder / "b.csv", table, by_python=True)


def _written(path: Path, table: Table, *, by_python: bool = False) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORPROBE_NO_KERNEL", str(int(by_python)))
        write_csv(path, table)
    return path.read_bytes()


@needs_compiled
@settings(max_examples=500, deadline=None)
@given(row=rows, style=st.integers(0, 3), number=st.integers(1, 1_048_576))
def test_sheet_rows_are_the_same_with_and_without_it(row: Any, style: int, number: int) -> None:
    ours = RowWriter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORPROBE_NO_KERNEL", "1")
        theirs = RowWriter()
    assert ours.row(number, row, style) == theirs.row(number, row, style)
    assert theirs.row(number, row, style) == theirs.styled_row(number, row, [style] * len(row))


@needs_compiled
def test_what_it_does_not_know_is_left_to_python() -> None:
    class Number(float):
        pass

    writer = compiled()
    for row in ([Number(1.0), 2.0], [10**30, 1.0], ["=1", 1.0], [math.nan, object()], {1: 2}, "ab"):
        assert writer.csv_row(row) is None
    for row in ([Number(1.0)], [2**53 + 1], [math.inf], [b"a"], range(3)):
        assert writer.sheet_row(1, row, 0, {}) is None


@needs_compiled
def test_a_failing_lookup_is_passed_on() -> None:
    with pytest.raises(KeyError):
        compiled().sheet_row(1, ["<"], 0, {})
