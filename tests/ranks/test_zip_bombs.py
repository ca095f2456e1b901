"""Small workbooks that unpack to much: they are refused, or read, in little memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from result_tables import LINEAR, REDUCE, TIME, row, write_result
from test_read_tables import MAIN, cells_of, row_xml, sheet_xml, text_xml, write_book

from tensorprobe.errors import TableError
from tensorprobe.ranks.result_file import read_head

NAME = f"compare_result_rank0_{TIME}.xlsx"
LIMIT = 4 << 20
REFUSED = (
    f"{NAME}: the rows that are wanted hold more than 4 MiB of text; with longer names in 'api'"
)


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorprobe.ranks.text_budget._MOST_BYTES", LIMIT)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def write_rows(folder: Path, count: int, cells: str, **others: str) -> Path:
    """Write rows with names of their own; # in a cell is the number of its row."""
    rows = (
        f'<row><c r="A1" t="inlineStr"><is><t>Distributed.a.{number}</t></is></c>'
        f"{cells.replace('#', str(number))}</row>"
        for number in range(count)
    )
    return write_book(folder, sheet_xml(*rows), **others)


@pytest.mark.usefixtures("small_budget")
def test_long_texts_in_wanted_rows_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    text = "x" * 30_000
    path = write_rows(tmp_path, 1000, f'<c r="B1" t="inlineStr"><is><t>#{text}</t></is></c>')
    assert path.stat().st_size < 200_000
    with at_most(3 * LIMIT), pytest.raises(TableError) as caught:
        cells_of(path)
    assert str(caught.value).startswith(REFUSED)


@pytest.mark.usefixtures("small_budget")
def test_long_texts_in_a_list_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    items = "".join(f"<si><t>Distributed.{number}{'x' * 30_000}</t></si>" for number in range(1000))
    path = write_book(tmp_path, sheet_xml(), sharedStrings=f'<sst xmlns="{MAIN}">{items}</sst>')
    with at_most(3 * LIMIT), pytest.raises(TableError) as caught:
        cells_of(path)
    assert str(caught.value).startswith(REFUSED)


@pytest.mark.usefixtures("small_budget")
def test_texts_that_are_put_together_of_a_list_are_refused_too(tmp_path: Path) -> None:
    """Twenty texts, four hundred pairs of them."""
    items = "".join(f"<si><t>{number}{'x' * 30_000}</t></si>" for number in range(20))
    rows = [
        f'<row><c r="A1" t="inlineStr"><is><t>Distributed.a.{number}</t></is></c>'
        f'<c r="B1" t="str"><v>N/A</v></c><c r="C1" t="s"><v>{number % 20}</v></c>'
        f'<c r="D1" t="s"><v>{number // 20}</v></c></row>'
        for number in range(400)
    ]
    sheet = sheet_xml(*rows).replace(">x<", ">Bench max<")
    path = write_book(tmp_path, sheet, sharedStrings=f'<sst xmlns="{MAIN}">{items}</sst>')
    with at_most(3 * LIMIT), pytest.raises(TableError) as caught:
        cells_of(path)
    assert str(caught.value).startswith(REFUSED)


@pytest.mark.usefixtures("small_budget")
def test_a_text_that_stands_in_every_row_counts_once(tmp_path: Path) -> None:
    rows = [row(f"{REDUCE}.{number}", "N/A", NPU_max="x" * 5000) for number in range(2000)]
    path = write_result(tmp_path, 0, rows)
    assert len(set(cells_of(path).values())) == 1


def test_rows_behind_the_header_are_not_made_as_wide_as_their_last_cell(tmp_path: Path) -> None:
    path = write_book(tmp_path, sheet_xml('<row><c r="XFD1"/></row>' * 2500))
    with at_most(4 << 20):
        assert read_head(path).mode == "statistics"


def test_a_header_keeps_no_more_of_a_text_than_a_title_has(tmp_path: Path) -> None:
    cell = f'<c t="inlineStr"><is><t>{"x" * 30_000}</t></is></c>'
    sheet = sheet_xml().replace("</row>", f"{cell * 1000}</row>")
    path = write_book(tmp_path, sheet)
    with at_most(4 << 20):
        assert read_head(path).mode == "statistics"


def test_what_unpacks_to_much_takes_little_memory(tmp_path: Path) -> None:
    """A text of 64 MiB in a cell is cut as a spreadsheet would have cut it."""
    path = tmp_path / NAME
    start, end = sheet_xml(row_xml(2, text_xml("A2", REDUCE), text_xml("B2", "|"))).split("|")
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("xl/worksheets/sheet1.xml", "w") as file,
    ):
        file.write(start.encode())
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(end.encode())
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    try:
        ((cell,),) = cells_of(path).values()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert cell == "x" * 32_767


def test_a_process_that_reads_a_bomb_stays_small(tmp_path: Path) -> None:
    """With the limit as it is: 300 MB of text in wanted rows, in a file of half a megabyte."""
    path = tmp_path / NAME
    start, end = sheet_xml("|").split("|")
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("xl/worksheets/sheet1.xml", "w") as file,
    ):
        file.write(start.encode())
        for number in range(10_000):
            cells = (f"Distributed.a.{number}", f"{number}{'x' * 32_000}")
            texts = (f'<c t="inlineStr"><is><t>{text}</t></is></c>' for text in cells)
            file.write(f"<row>{''.join(texts)}</row>".encode())
        file.write(end.encode())
    script = """
        import resource, sys
        from tensorprobe.errors import TableError
        from tensorprobe.ranks.api_filter import ApiFilter
        from tensorprobe.ranks.result_file import read_head, read_rows
        from pathlib import Path

        used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        head = read_head(Path(sys.argv[1]))
        before = used()
        try:
            read_rows(head, ["Max diff"], ApiFilter(["Distributed"]))
        except TableError as err:
            print(err)
        print(used() - before)
    """
    told, grown = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert told.startswith(f"{NAME}: the rows that are wanted hold more than 256 MiB of text")
    assert int(grown) < 320 << 10


def test_rows_without_end_are_refused_though_nobody_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorprobe.ranks.row_sieve._MOST_ROWS", 1000)
    monkeypatch.setattr("tensorprobe.ranks.sheet_cells._MOST_ROWS", 1000)
    few, many = (
        sheet_xml(*(row_xml(at, text_xml(f"A{at}", LINEAR)) for at in range(2, count)))
        for count in (500, 10_000)
    )
    assert cells_of(write_book(tmp_path, few)) == {}
    with pytest.raises(TableError, match="has more than 1000 rows; it is not read"):
        cells_of(write_book(tmp_path, many))
