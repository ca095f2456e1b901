"""What the table writers put into files, read back by other means."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import openpyxl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorprobe.errors import ReportError
from tensorprobe.report import xlsx
from tensorprobe.report.csv_table import write_csv
from tensorprobe.report.json_table import write_json
from tensorprobe.report.table import Cell, Lines, Table
from tensorprobe.report.xlsx import write_xlsx
from tensorprobe.report.xlsx_cells import LONGEST_TEXT

HEADER = ("NPU Name", "Max diff", "Result")
WRITERS = {
    "xlsx": lambda path, table: write_xlsx(path, [table]),
    "csv": write_csv,
    "json": write_json,
}


def sheet_of(path: Path, name: str | None = None) -> Any:
    book = openpyxl.load_workbook(path)
    return book.active if name is None else book[name]


def cells_of(path: Path) -> list[list[Any]]:
    return [list(row) for row in sheet_of(path).iter_rows(min_row=2, values_only=True)]


def csv_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def member(path: Path, name: str = "xl/worksheets/sheet1.xml") -> str:
    with zipfile.ZipFile(path) as archive:
        return archive.read(name).decode()


def test_cells_keep_their_kind(tmp_path: Path) -> None:
    row: list[Cell] = ["a", 0.1, 3, True, False, None, "", "5", 1e-300, -7]
    write_xlsx(tmp_path / "a.xlsx", [Table("t", tuple("abcdefghij"), [row, row])])
    (read, again) = cells_of(tmp_path / "a.xlsx")
    assert read == again == ["a", 0.1, 3, True, False, None, None, "5", 1e-300, -7]
    assert [type(cell) for cell in read[2:5]] == [int, bool, bool]


def test_numbers_that_a_sheet_cannot_hold_are_texts(tmp_path: Path) -> None:
    row = [math.nan, math.inf, -math.inf, 2**53 + 1, 10**400, 2**53, -(2**53), 1.7e308]
    write_xlsx(tmp_path / "a.xlsx", [Table("t", tuple("abcdefgh"), [row])])
    expected = ["nan", "inf", "-inf", str(2**53 + 1), str(10**400), 2**53, -(2**53), 1.7e308]
    assert cells_of(tmp_path / "a.xlsx") == [expected]


@pytest.mark.parametrize("text", ["=1+1", '=HYPERLINK("x")', "+1+1", "-1+cmd", "@SUM(A1)", "{=1}"])
def test_no_text_is_a_formula(tmp_path: Path, text: str) -> None:
    table = Table(text, (text, "b"), [(text, 1.0)])
    write_xlsx(tmp_path / "a.xlsx", [table])
    sheet = sheet_of(tmp_path / "a.xlsx")
    for place in ("A1", "A2"):
        assert sheet[place].value == text
    assert "<f" not in member(tmp_path / "a.xlsx")
    write_csv(tmp_path / "a.csv", table)
    title, row = csv_rows(tmp_path / "a.csv")
    wanted = text if text.startswith("{") else f"'{text}"
    assert (title[0], row) == (wanted, [wanted, "1.0"])


@pytest.mark.parametrize("text", ["-inf", "+0.5", "-3.25%", "-1e-05"])
def test_numbers_in_texts_stay_as_they_are_in_csv(tmp_path: Path, text: str) -> None:
    write_csv(tmp_path / "a.csv", Table("t", ("a",), [(text,)]))
    assert csv_rows(tmp_path / "a.csv")[1] == [text]


HOSTILE = {
    "\0\x01\x1f|\ud800|\uffff": "���|�|�",
    "<b>&amp;]]>": "<b>&amp;]]>",
    " two  spaces ": " two  spaces ",
    "tab\t": "tab�",
    "line\nline": "line�line",
    "\x1b[2J\x9b\u202e\u061c\u200b\ufeff": "�[2J�����",
    "\U0001f600": "\U0001f600",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_come_back(tmp_path: Path, text: str) -> None:
    write_xlsx(tmp_path / "a.xlsx", [Table(text, (text,), [(text,)])])
    assert cells_of(tmp_path / "a.xlsx") == [[HOSTILE[text]]]


def test_a_workbook_tells_no_time(tmp_path: Path) -> None:
    """A zip counts from 1980, and a clock that was never set stands before that."""
    write_xlsx(tmp_path / "a.xlsx", [Table("t", ("a",), [("b",)])])
    with zipfile.ZipFile(tmp_path / "a.xlsx") as archive:
        assert {part.date_time for part in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_text_that_looks_like_an_escape_is_escaped(tmp_path: Path) -> None:
    write_xlsx(tmp_path / "a.xlsx", [Table("t", ("a",), [("a_x0041_b",), ("_x00",)])])
    xml = member(tmp_path / "a.xlsx")
    assert "<t>a_x005F_x0041_b</t>" in xml
    assert "<t>_x00</t>" in xml


@pytest.mark.parametrize("letter", ["a", "\U0001f600"])
def test_a_text_too_long_for_a_cell_is_cut_with_a_mark(tmp_path: Path, letter: str) -> None:
    write_xlsx(
        tmp_path / "a.xlsx", [Table("t", ("a",), [(letter * 40_000,), ("b" * LONGEST_TEXT,)])]
    )
    (cut,), (whole,) = cells_of(tmp_path / "a.xlsx")
    assert cut.endswith(" … (cut)")
    assert LONGEST_TEXT - 1 <= len(cut.encode("utf-16-le")) // 2 <= LONGEST_TEXT
    assert cut.removesuffix(" … (cut)").strip(letter) == ""
    assert whole == "b" * LONGEST_TEXT


def test_rows_and_cells_are_filled(tmp_path: Path) -> None:
    rows = [["a", 0.5, None], ["b", math.nan, "x"], ["c", 1, ""], ["d", 2, "y"]]
    fills: dict[Any, Any] = {0: "red", 1: "yellow", (1, 0): "red", (2, 2): "yellow"}
    write_xlsx(tmp_path / "a.xlsx", [Table("t", HEADER, rows, fills)])
    sheet = sheet_of(tmp_path / "a.xlsx")
    colours = [
        [cell.fill.fgColor.rgb if cell.fill.patternType else None for cell in row]
        for row in sheet.iter_rows(min_row=2)
    ]
    red, yellow = "FFFF0000", "00FFFF00"
    assert colours == [
        [red] * 3,
        [red, yellow, yellow],
        [None, None, yellow],
        [None] * 3,
    ]


def test_fills_may_grow_while_the_rows_are_made(tmp_path: Path) -> None:
    fills: dict[Any, Any] = {}

    def rows() -> Iterator[list[Cell]]:
        for number in range(500):
            if number % 100 == 0:
                fills[number] = "red"
            yield [number]

    write_xlsx(tmp_path / "a.xlsx", [Table("t", ("n",), rows(), fills)])
    sheet = sheet_of(tmp_path / "a.xlsx")
    filled = [row[0].value for row in sheet.iter_rows(min_row=2) if row[0].fill.patternType]
    assert filled == [0, 100, 200, 300, 400]


def test_a_sheet_has_a_frozen_header_a_filter_and_readable_widths(tmp_path: Path) -> None:
    rows = [["Functional.linear.0.forward.input.0", 1.0, "x" * 500], ["b", 2.0, "y\nz"]]
    write_xlsx(tmp_path / "a.xlsx", [Table("t", HEADER, rows)])
    sheet = sheet_of(tmp_path / "a.xlsx")
    assert sheet.freeze_panes == "A2"
    assert sheet.auto_filter.ref == "A1:C3"
    assert sheet["A1"].font.bold
    assert 35 <= sheet.column_dimensions["A"].width <= 40
    assert sheet.column_dimensions["B"].width >= len("Max diff")
    assert sheet.column_dimensions["C"].width == 60
    write_xlsx(tmp_path / "b.xlsx", [Table("t", HEADER, rows, widths=(10, 20.5, 30))])
    assert sheet_of(tmp_path / "b.xlsx").column_dimensions["B"].width == 20.5


def test_what_one_sheet_cannot_hold_goes_on_in_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xlsx, "ROWS_PER_SHEET", 100)
    fills: dict[Any, Any] = {150: "red"}
    tables = [
        Table("first", ("n",), ([number] for number in range(200)), fills),
        Table("second", ("n",), ([number] for number in range(99))),
    ]
    write_xlsx(tmp_path / "a.xlsx", tables)
    book = openpyxl.load_workbook(tmp_path / "a.xlsx")
    assert book.sheetnames == ["first", "first (2)", "first (3)", "second"]
    assert [sheet.max_row for sheet in book] == [100, 100, 3, 100]
    numbers = [row[0] for sheet in book for row in sheet.iter_rows(min_row=2, values_only=True)]
    assert numbers == [*range(200), *range(99)]
    assert all(sheet["A1"].value == "n" for sheet in book)
    assert book["first (2)"]["A53"].fill.patternType == "solid"


def test_a_sheet_that_would_grow_too_large_goes_on_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xlsx, "_BYTES_PER_SHEET", 3_000_000)
    rows = (["x" * 10_000, number] for number in range(600))
    write_xlsx(tmp_path / "a.xlsx", [Table("t", ("a", "b"), rows)])
    book = openpyxl.load_workbook(tmp_path / "a.xlsx")
    assert len(book.sheetnames) == 2
    assert [row[1] for sheet in book for row in sheet.iter_rows(min_row=2, values_only=True)] == [
        *range(600)
    ]


def test_titles_are_made_valid_and_distinct(tmp_path: Path) -> None:
    titles = ["a/b[c]:*?\\", "x" * 40, "X" * 40, "'quoted'", "", "History", "it's"]
    write_xlsx(tmp_path / "a.xlsx", [Table(title, ("a",), []) for title in titles])
    names = openpyxl.load_workbook(tmp_path / "a.xlsx").sheetnames
    assert names == [
        "a_b_c_____",
        "x" * 31,
        "X" * 27 + " (2)",
        "quoted",
        "Sheet",
        "History (2)",
        "it's",
    ]


def test_an_empty_table_still_has_its_header(tmp_path: Path) -> None:
    table = Table("t", HEADER, [])
    for kind, write in WRITERS.items():
        write(tmp_path / f"a.{kind}", table)
    assert [cell.value for cell in sheet_of(tmp_path / "a.xlsx")[1]] == list(HEADER)
    assert (tmp_path / "a.csv").read_text() == "NPU Name,Max diff,Result\n"
    assert json.loads((tmp_path / "a.json").read_text()) == []


def test_json_is_strict_and_keeps_every_column(tmp_path: Path) -> None:
    rows = [["a\ud800", math.nan, True], ["b", -math.inf, None]]
    write_json(tmp_path / "a.json", Table("t", ("x", "x", "y"), rows))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    read = json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)
    assert read == [
        {"x": "a\ud800", "x (2)": "NaN", "y": True},
        {"x": "b", "x (2)": "-Infinity", "y": None},
    ]


def test_csv_has_numbers_as_python_prints_them(tmp_path: Path) -> None:
    row = [0.1, 1e-05, 3, 1.0, True, None, math.nan, -math.inf, 'say "x", y', "a\nb", "\ud800\0"]
    write_csv(tmp_path / "a.csv", Table("t", tuple("abcdefghijk"), [row] * 3))
    text = (tmp_path / "a.csv").read_text(encoding="utf-8")
    line = '0.1,1e-05,3,1.0,True,,nan,-inf,"say ""x"", y",a�b,��\n'
    assert text == "a,b,c,d,e,f,g,h,i,j,k\n" + line * 3


texts = st.text(st.characters(exclude_categories=()), max_size=30)
cells = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), texts, st.sampled_from(["N/A", "a"])
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(st.lists(cells, min_size=3, max_size=3), max_size=8), data=st.data())
def test_any_table_is_well_formed(tmp_path: Path, rows: list[list[Any]], data: Any) -> None:
    places = st.one_of(st.integers(0, 8), st.tuples(st.integers(0, 8), st.integers(0, 2)))
    fills = data.draw(st.dictionaries(places, st.sampled_from(["red", "yellow"]), max_size=4))
    path = tmp_path / "a.xlsx"
    write_xlsx(path, [Table(data.draw(texts), HEADER, rows, fills)])
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            ElementTree.fromstring(archive.read(name))
    sheet = sheet_of(path)
    for number, row in enumerate(rows, start=2):
        read = [sheet.cell(number, column).value for column in (1, 2, 3)]
        for got, cell in zip(read, row, strict=True):
            if isinstance(cell, float) and math.isfinite(cell):
                assert got == cell
            elif isinstance(cell, bool) or cell is None:
                assert got is cell
    write_csv(tmp_path / "a.csv", Table("t", HEADER, rows))
    assert len(csv_rows(tmp_path / "a.csv")) == len(rows) + 1
    write_json(tmp_path / "a.json", Table("t", HEADER, rows))
    assert len(json.loads((tmp_path / "a.json").read_text())) == len(rows)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_table_that_fails_leaves_nothing_and_spares_what_was_there(
    tmp_path: Path, kind: str
) -> None:
    def rows() -> Iterator[list[Cell]]:
        yield from ([number] for number in range(5000))
        raise KeyboardInterrupt

    path = tmp_path / f"a.{kind}"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        WRITERS[kind](path, Table("t", ("n",), rows()))
    assert os.listdir(tmp_path) == [path.name]
    assert path.read_text() == "old"


@pytest.mark.parametrize("kind", WRITERS)
def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    table = Table("t", ("n",), [[1]])
    for path in (tmp_path / "none" / "a", Path("/dev/full/a"), tmp_path / "nul\0"):
        with pytest.raises(ReportError, match=r"cannot be written: .*; check the folder"):
            WRITERS[kind](path, table)


def test_too_many_columns_for_a_sheet_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"16385 columns .* write csv instead"):
        write_xlsx(tmp_path / "a.xlsx", [Table("t", ("c",) * 16385, [])])


@pytest.mark.parametrize("kind", WRITERS)
def test_an_interrupted_process_leaves_nothing(tmp_path: Path, kind: str) -> None:
    program = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from test_tables import WRITERS\n"
        "from tensorprobe.report.table import Table\n"
        "def rows():\n"
        "    print('started', flush=True)\n"
        "    while True:\n"
        "        yield ['name', 0.5]\n"
        "WRITERS[sys.argv[1]]('a.file', Table('t', ('a', 'b'), rows()))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, kind, str(Path(__file__).parent)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A shell that starts tests in the background lets its children ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    process.stdout.close()
    assert os.listdir(tmp_path) == []


def test_only_lines_of_ours_end_inside_a_cell(tmp_path: Path) -> None:
    lines = Lines.of(["far off", "name\n\x1b[2J"])
    table = Table("t", ("a", "b"), [(lines, "name\nforged"), ("=1", lines)])
    write_csv(tmp_path / "a.csv", table)
    write_xlsx(tmp_path / "a.xlsx", [table])
    wanted = [["far off\nname��[2J", "name�forged"], ["=1", "far off\nname��[2J"]]
    assert cells_of(tmp_path / "a.xlsx") == wanted
    assert csv_rows(tmp_path / "a.csv")[1:] == [wanted[0], ["'=1", wanted[1][1]]]
