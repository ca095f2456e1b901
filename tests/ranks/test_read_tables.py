"""Workbooks and csv as anybody writes them: what is read, and what is refused in one line."""

from __future__ import annotations

import os
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from result_tables import LINEAR, REDUCE, TIME, row, sheets_of, write_result

from tensorprobe import merge_results
from tensorprobe.errors import TableError
from tensorprobe.ranks.api_filter import ApiFilter
from tensorprobe.ranks.result_file import read_head, read_rows
from tensorprobe.report.compare_columns import columns_of
from tensorprobe.report.table import Table
from tensorprobe.report.xlsx import write_xlsx

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
TITLES = columns_of("statistics", with_stack=False)
NAME = f"compare_result_rank0_{TIME}.xlsx"


def cells_of(path: Path, *apis: str, metrics: tuple[str, ...] = ("Max diff",)) -> Any:
    """Read the rows of a result that are wanted: cells by name."""
    return read_rows(read_head(path), metrics, ApiFilter(apis or ["Distributed"])).cells


def write_book(folder: Path, sheet: str | bytes, **others: str) -> Path:
    """Write a workbook whose sheet has this XML."""
    path = folder / NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", sheet)
        for name, text in others.items():
            archive.writestr(f"xl/{name}.xml", text)
    return path


def sheet_xml(*rows: str, prefix: str = "") -> str:
    """Return a sheet with a header of three columns and these rows."""
    p = prefix
    names = "".join(
        f'<{p}c r="{column}1" t="inlineStr"><{p}is><{p}t>{title}</{p}t></{p}is></{p}c>'
        for column, title in zip("ABCD", ("NPU Name", "Max diff", "NPU max", "x"), strict=True)
    )
    space = f' xmlns:{p[:-1]}="{MAIN}"' if p else f' xmlns="{MAIN}"'
    return (
        f'<?xml version="1.0"?><{p}worksheet{space}><{p}sheetData><{p}row r="1">{names}</{p}row>'
        + "".join(rows)
        + f"</{p}sheetData></{p}worksheet>"
    )


def row_xml(number: int, *cells: str) -> str:
    return f'<row r="{number}">{"".join(cells)}</row>'


def text_xml(place: str, text: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'


def save_anew(path: Path) -> None:
    """Write a workbook as spreadsheets do: its texts stand in a list of their own, each once."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist()}
    texts: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f' t="s"><v>{texts.setdefault(found[1], len(texts))}</v></c>'

    sheet = "xl/worksheets/sheet1.xml"
    inline = re.compile(r' t="inlineStr"><is>(<t[^>]*>[^<]*</t>)</is></c>')
    members[sheet] = inline.sub(number, members[sheet])
    items = "".join(f"<si>{text}</si>" for text in texts)
    members["xl/sharedStrings.xml"] = f'<sst xmlns="{MAIN}">{items}</sst>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)


# --- What is read. --------------------------------------------------------------------------------


def test_a_workbook_that_a_spreadsheet_saved_is_read_alike(tmp_path: Path) -> None:
    rows = [row(REDUCE, "N/A", NPU_max="[0, 1]", Bench_max=True), row(LINEAR, 7), row("", None)]
    path = write_result(tmp_path, 0, rows)
    before = cells_of(path, "Distributed", "Functional", metrics=("Max diff", "Min diff"))
    save_anew(path)
    with zipfile.ZipFile(path) as archive:
        assert b"Distributed" in archive.read("xl/sharedStrings.xml")
        assert b"Distributed" not in archive.read("xl/worksheets/sheet1.xml")
    assert cells_of(path, "Distributed", "Functional", metrics=("Max diff", "Min diff")) == before
    assert before == {REDUCE: ("NPU:[0, 1]  Bench:True", None), LINEAR: (7, None)}


@pytest.mark.parametrize(
    "name", ["Module.my block.Linear.0.forward", "_ops.add.0.forward", "0.a", " b.c", "é", "'q' x"]
)
def test_any_name_is_found_in_a_list_of_texts(name: str, tmp_path: Path) -> None:
    rows = [row(LINEAR, name), row(name, 7)]
    path = write_result(tmp_path, 0, rows)
    assert cells_of(path, name) == {name: (7,)}
    save_anew(path)
    assert cells_of(path, name) == {name: (7,)}


def test_a_text_that_is_no_name_does_not_count_as_one(tmp_path: Path) -> None:
    path = write_result(tmp_path, 0, [row(LINEAR, REDUCE)])
    for _ in range(2):
        wanted = ApiFilter(["Distributed"])
        assert read_rows(read_head(path), ["Max diff"], wanted).cells == {}
        assert [api for api, _ in wanted.unmet()] == ["Distributed"]
        save_anew(path)


def test_truth_values_that_are_texts_in_coloured_tables_are_truth_values(tmp_path: Path) -> None:
    title = "Requires_grad Consistent"
    path = write_result(tmp_path, 0, [{"NPU Name": REDUCE, title: "False"}])
    assert sheets_of(path)["compare_result"][1][TITLES.index(title)] == "False"
    assert cells_of(path, metrics=(title,)) == {REDUCE: (False,)}


def test_a_tab_behind_an_infinity_is_dropped(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["NPU Name", "Max diff", "NPU max", "Bench max"])
    book.active.append([REDUCE, "-inf\t", 1, 2])
    book.active.append([REDUCE + ".1", "N/A", "inf\t", "-inf\t"])
    path = tmp_path / NAME
    book.save(path)
    assert list(cells_of(path).values()) == [("-inf",), ("NPU:inf  Bench:-inf",)]


def test_formatted_text_is_text(tmp_path: Path) -> None:
    book = openpyxl.Workbook(write_only=False)
    book.active.append(["NPU Name", "Max diff", "NPU max", "Bench max"])
    bold = CellRichText("N", TextBlock(InlineFont(b=True), "/A"))
    book.active.append([REDUCE, bold, 1, 2])
    path = tmp_path / NAME
    book.save(path)
    assert cells_of(path) == {REDUCE: ("NPU:1  Bench:2",)}


def test_how_a_text_is_pronounced_is_no_part_of_it(tmp_path: Path) -> None:
    text = f"<t>{REDUCE}</t><rPh sb='0' eb='1'><t>zz</t></rPh><r><t>.1</t></r><phoneticPr/>"
    name = f'<c r="A2" t="inlineStr"><is>{text}</is></c>'
    cell = '<c r="B2"><v>1</v></c>'
    path = write_book(tmp_path, sheet_xml(row_xml(2, name, cell)))
    assert cells_of(path) == {f"{REDUCE}.1": (1,)}
    items = f'<sst xmlns="{MAIN}"><si>{text}</si></sst>'
    name = '<c r="A2" t="s"><v>0</v></c>'
    path = write_book(tmp_path, sheet_xml(row_xml(2, name, cell)), sharedStrings=items)
    assert cells_of(path) == {f"{REDUCE}.1": (1,)}


def test_names_may_have_a_prefix_and_cells_no_place(tmp_path: Path) -> None:
    cells = f'<x:c t="inlineStr"><x:is><x:t>{REDUCE}</x:t></x:is></x:c><x:c><x:v>5e-1</x:v></x:c>'
    path = write_book(tmp_path, sheet_xml(f"<x:row>{cells}</x:row>", prefix="x:"))
    assert cells_of(path) == {REDUCE: (0.5,)}


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ('<c r="B2"><v>1.0</v></c>', 1),
        ('<c r="B2"><v> 2.50 </v></c>', 2.5),
        ('<c r="B2"><v>1E400</v></c>', "1E400"),
        ('<c r="B2"><v>many</v></c>', "many"),
        ('<c r="B2" t="b"><v>1</v></c>', True),
        ('<c r="B2" t="b"><v>false</v></c>', False),
        ('<c r="B2" t="str"><f>1+1</f><v>two</v></c>', "two"),
        ('<c r="B2" t="e"><v>#DIV/0!</v></c>', "#DIV/0!"),
        ('<c r="B2" t="inlineStr"><is><t>_x005F_x0041_ &lt;é&#8364;</t></is></c>', "_x0041_ <é€"),
        ('<c r="B2" t="inlineStr"><is><t><![CDATA[</row>]]></t></is></c>', "</row>"),
        ('<c r="B2" t="inlineStr" />', None),
        ('<c r="B2"/><c r="XFD2"><v>1</v></c>', None),
        ("<!-- </row> -->", None),
    ],
)
def test_cells_mean_what_they_mean_in_a_spreadsheet(cell: str, value: Any, tmp_path: Path) -> None:
    path = write_book(tmp_path, sheet_xml(row_xml(2, text_xml("A2", REDUCE), cell)))
    assert cells_of(path) == {REDUCE: (value,)}


def test_names_that_are_written_in_an_odd_way_are_found(tmp_path: Path) -> None:
    rows = [
        row_xml(2, text_xml("A2", LINEAR), '<c r="B2"><v>2</v></c>'),
        row_xml(3, text_xml("A3", "&#68;istributed.a.0"), '<c r="B3"><v>3</v></c>'),
        row_xml(4, text_xml("A4", "_x0044_istributed.b.0"), '<c r="B4"><v>4</v></c>'),
        row_xml(5, '<c r="B5"><v>5</v></c>', text_xml("A5", "Distributed.c.0")),
        row_xml(6, text_xml("A6", "<![CDATA[Distributed.d.0]]>"), '<c r="B6"><v>6</v></c>'),
        row_xml(7, text_xml("A7", LINEAR), '<c r="B7"><v>7</v></c>'),
    ]
    found = cells_of(write_book(tmp_path, sheet_xml(*rows)))
    assert found == {f"Distributed.{name}.0": (at,) for at, name in enumerate("abcd", start=3)}


@pytest.mark.parametrize("before", [-1, 0, 1, 2, 3])
def test_a_comment_where_two_pieces_meet_is_a_comment(before: int, tmp_path: Path) -> None:
    wanted = row_xml(3, text_xml("A3", REDUCE), '<c r="B3"><v>3</v></c>')
    comment = '<!--</row><row r="9"><c r="A9" t="inlineStr"><is><t>Torch.b.0</t></is></c>-->'
    start, end = sheet_xml(row_xml(2, text_xml("A2", "Torch.|")), f"{comment}{wanted}").split("|")
    # Sheets are read 64 KiB at a time.
    padding = "a" * ((1 << 16) - before - len(start) - end.index("<!--"))
    assert cells_of(write_book(tmp_path, f"{start}{padding}{end}")) == {REDUCE: (3,)}


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1"])
def test_xml_in_other_encodings_is_read(encoding: str, tmp_path: Path) -> None:
    xml = sheet_xml(row_xml(2, text_xml("A2", "Distributed.é.0"), '<c r="B2"><v>2</v></c>'))
    text = xml.replace("?>", f' encoding="{encoding}"?>', 1)
    assert cells_of(write_book(tmp_path, text.encode(encoding))) == {"Distributed.é.0": (2,)}


words = st.sampled_from(["Distributed.a.0", "Functional.b.1", "N/A", "<&>'\"", "x y ", "=1", "é\n"])
numbers = st.one_of(st.floats(), st.integers(-(10**20), 10**20), st.booleans(), st.none())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(words, *[st.one_of(words, numbers)] * 3), max_size=30))
def test_any_table_of_ours_is_read_as_others_read_it(
    rows: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    path = tmp_path / NAME
    titles = ("NPU Name", "Max diff", "Min diff", "Mean diff")
    write_xlsx(path, [Table("t", titles, rows)])
    ours = read_rows(read_head(path), titles[1:], ApiFilter(["Distributed"])).cells
    theirs: dict[str, tuple[Any, ...]] = {}
    for name, *cells in sheets_of(path)["t"][1:]:
        if str(name).startswith("Distributed"):
            theirs.setdefault(name, tuple("NPU:  Bench:" if c == "N/A" else c for c in cells))
    # What stands for no value is told by its letters, however they are written.
    plain = {
        name: tuple("NPU:  Bench:" if c == "nan" else c for c in cells)
        for name, cells in theirs.items()
    }
    assert ours == plain


def test_csv_of_msprobe_26_is_read(tmp_path: Path) -> None:
    path = tmp_path / f"compare_result_rank0_{TIME}.csv"
    path.write_text(
        "NPU Name,Cosine,NPU max,Bench max,Result,Err_message,NPU_Stack_Info\n"
        f"{REDUCE},1.0,1.6907901763916016,-2,pass,[],\"['File a.py, line 1, \n x = 1']\"\n"
        f"{REDUCE}.1,unsupported,True,,,,N/A\n"
    )
    assert read_head(path).mode == "tensor"
    assert cells_of(path, metrics=("Cosine",)) == {
        REDUCE: (1,),
        f"{REDUCE}.1": ("NPU:True  Bench:",),
    }


def test_a_csv_that_a_spreadsheet_saved_is_read(tmp_path: Path) -> None:
    path = tmp_path / f"compare_result_rank0_{TIME}.csv"
    path.write_bytes(f"\ufeffNPU Name,Max diff\r\n{REDUCE},-1.5E-3\r\n\r\n".encode())
    assert cells_of(path) == {REDUCE: (-0.0015,)}


def test_memory_does_not_grow_with_rows_that_nobody_wants(tmp_path: Path) -> None:
    def peak(count: int, ending: str) -> int:
        rows = [row(REDUCE, 1), *(row(f"Torch.a.{number}.forward", 0.5) for number in range(count))]
        path = write_result(tmp_path, count, rows, ending=ending)
        if ending == "xlsx" and count % 2:
            save_anew(path)
        tracemalloc.start()
        try:
            assert cells_of(path) == {REDUCE: (1,)}
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    for ending, few, many in (
        ("csv", 2000, 10_000),
        ("xlsx", 2000, 10_000),
        ("xlsx", 2001, 10_001),
    ):
        # Five times as many rows take no more, but for what reading in pieces needs.
        assert peak(many, ending) < peak(few, ending) + 300_000, (ending, many)


# --- What is refused. -----------------------------------------------------------------------------


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_data(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"sheet1.xml") + 200
    data[at : at + 40] = bytes(40)
    path.write_bytes(data)


def write_bytes(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def break_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def huge_directory(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(30_000):
            archive.writestr(f"xl/worksheets/{number}.xml", b"")


def encrypt(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut_in_half, r"is a damaged or cut workbook \(File is not a zip file\); copy it again"),
    "data": (damage_data, "is a damaged or cut workbook"),
    "empty": (write_bytes(b""), "is a damaged or cut workbook"),
    "html": (write_bytes(b"<html></html>"), "is a damaged or cut workbook"),
    "old": (write_bytes(b"\xd0\xcf\x11\xe0" + bytes(600)), "is a damaged or cut workbook"),
    "folder": (make_folder, "is no regular file"),
    "pipe": (make_pipe, "is no regular file; put the result itself there"),
    "link": (break_link, "cannot be read: No such file or directory; check the file"),
    "directory": (huge_directory, "its directory is larger than that of any workbook"),
    "encrypted": (encrypt, "is encrypted, or packed as no workbook is; save it anew"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_workbook_is_named_and_the_others_are_merged(damage: str, tmp_path: Path) -> None:
    for rank in range(3):
        path = write_result(tmp_path, rank, [row(REDUCE, rank)])
    harm, message = DAMAGES[damage]
    harm(tmp_path / f"compare_result_rank1_{TIME}.xlsx")
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert merged.steps[0].ranks == (0, 2)
    (problem,) = merged.problems
    assert problem.startswith(f"rank 1: {path.name.replace('rank2', 'rank1')}: ")
    assert re.search(message, problem)
    assert "\n" not in problem


CSV = f"NPU Name,Max diff,NPU max\n{LINEAR},1,2\n{REDUCE},3,4\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CSV[: CSV.rindex(",")].encode(), "a row has 2 cells and the header 3; the file is cut"),
        (CSV[:-2].encode() + b'"un', "is a damaged or cut csv"),
        (CSV.encode() + b'"', r"is a damaged or cut csv \(unexpected end of data\)"),
        (CSV.encode("utf-16"), "is no text in UTF-8; save it as csv in UTF-8"),
        (CSV.encode() + b"\xff\n", "is no text in UTF-8"),
        (b"", "is no result of compare: it has no table with a column 'NPU Name'"),
        (b"a,b\n1,2\n", "is no result of compare"),
        (b"NPU Name,a\n1,2\n", "is no result of compare"),
        (CSV.encode() + b"x" * (1 << 20) + b",,\n", "has a line of more than 1 MiB"),
        (CSV.encode() + b'"' + b"x\n" * 200_000, "is a damaged or cut csv"),
    ],
)
def test_a_damaged_csv_is_one_clear_line(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / f"compare_result_rank0_{TIME}.csv"
    path.write_bytes(text)
    with pytest.raises(TableError, match=message) as caught:
        cells_of(path)
    assert str(caught.value).startswith(f"{path.name}: ")


BOMB = "<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'>]>"
FILE = "<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>"


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        (f"{BOMB}{sheet_xml()}".replace('<?xml version="1.0"?>', ""), "holds a document type"),
        (f"{FILE}{sheet_xml()}".replace('<?xml version="1.0"?>', ""), "holds a document type"),
        (sheet_xml("<a>" * 100_000), "nested too deeply"),
        (sheet_xml("".join(f"<a{n}/>" for n in range(50_000))), "names or tags without end"),
        (sheet_xml("<row " + 'a="b"\n' * 400_000), "names or tags without end"),
        (sheet_xml(row_xml(2, '<c r="ZZZ2"/>')), "has a cell at 'ZZZ2', where none can be"),
        (sheet_xml(row_xml(2, '<c r="ABCDEFG2"/>')), "has a cell at 'ABCDEFG2'"),
        (sheet_xml(row_xml(2, '<c r="2"/>')), "has a cell at '2'"),
        (sheet_xml("<row></c></row>"), "its XML is damaged"),
        (sheet_xml()[:-20], "its XML is damaged"),
        ("", "its XML is damaged"),
        ("<html/>", "is no sheet of a workbook"),
        (sheet_xml(row_xml(2, '<c r="A2" t="s"><v>-1</v></c>')), "names its text by '-1'"),
        (
            sheet_xml(row_xml(2, text_xml("A2", REDUCE), '<c r="B2" t="s"><v>9</v></c>')),
            "names a text that the workbook does not hold",
        ),
    ],
)
def test_hostile_xml_is_one_clear_line(xml: str, message: str, tmp_path: Path) -> None:
    path = write_book(tmp_path, xml)
    with pytest.raises(TableError, match=message) as caught:
        cells_of(path)
    assert str(caught.value).startswith(f"{path.name}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("<html/>", "is no list of texts"),
        ("<sst>", "its XML is damaged"),
        (f"<sst>{'<a>' * 1000}", "nested too deeply"),
        (f"<sst>{'<t>' * 1000}", "nested too deeply"),
    ],
)
def test_a_damaged_list_of_texts_is_one_clear_line(
    texts: str, message: str, tmp_path: Path
) -> None:
    path = write_book(tmp_path, sheet_xml(), sharedStrings=texts)
    with pytest.raises(TableError, match=message):
        cells_of(path)


def test_a_header_has_no_more_columns_than_a_sheet(tmp_path: Path) -> None:
    xml = (
        f'<worksheet xmlns="{MAIN}"><sheetData><row>{"<c/>" * 20_000}</row></sheetData></worksheet>'
    )
    with pytest.raises(TableError, match="has more than 16384 columns"):
        read_head(write_book(tmp_path, xml))


def test_a_zip_without_a_sheet_is_no_workbook(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    with pytest.raises(TableError, match="is a zip, but no workbook: it holds no sheet"):
        read_head(path)


LIMITS = {
    "sheet_cells._MOST_ROWS": "has more than 2 rows; it is not read",
    "xml_reader._MOST_BYTES": "holds more than 0 GiB of XML",
    "text_budget._MOST_BYTES": "the rows that are wanted hold more than 0 MiB of text; with longer",
    "workbook._MOST_SHEETS": "has 3 sheets, which no result has",
}


@pytest.mark.parametrize("limit", LIMITS)
def test_more_than_a_result_can_hold_is_one_clear_line(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_result(tmp_path, 0, [row(f"Distributed.a.{number}") for number in range(5)])
    save_anew(path)
    with zipfile.ZipFile(path, "a") as archive:
        for number in (2, 3):
            archive.writestr(f"xl/worksheets/sheet{number}.xml", sheet_xml())
    monkeypatch.setattr(f"tensorprobe.ranks.{limit}", 2)
    with pytest.raises(TableError, match=LIMITS[limit]) as caught:
        cells_of(path)
    assert str(caught.value).startswith(f"{path.name}: ")


@pytest.mark.parametrize(
    ("ending", "message"),
    [("csv", "cannot be read: .*; copy it again"), ("xlsx", "is a damaged or cut workbook")],
)
@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file that fails when read")
def test_a_file_that_the_system_cannot_read_is_one_clear_line(
    ending: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / f"compare_result_rank0_{TIME}.{ending}"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(TableError, match=f"rank0_.*: {message}"):
        read_head(path)
