"""What is merged of the results of many ranks, and how each cell looks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from result_tables import LINEAR, REDUCE, TIME, Rows, row, sheets_of, write_config, write_result

from tensorprobe import TensorprobeError, merge_results
from tensorprobe.cli import main
from tensorprobe.errors import ConfigError, TableError
from tensorprobe.report.compare_columns import Mode

GATHER = "Distributed.all_gather.0.forward.output.0"
LATER = "20260102030406"
MODES: tuple[Mode, ...] = ("statistics", "tensor", "md5")


def merged_rows(folder: Path, *apis: str, metric: str = "Max diff") -> list[tuple[object, ...]]:
    """Merge a folder; returns one sheet."""
    config = {"api": list(apis or ["Distributed"]), "compare_index": [metric]}
    (step,) = merge_results(folder, config, folder / "merged").steps
    return sheets_of(step.file)[metric]


def test_a_rank_without_a_value_has_an_empty_cell(tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE, 0.25)])
    write_result(tmp_path, 1, [row(GATHER, 0.5), row(REDUCE, 1)])
    assert merged_rows(tmp_path) == [
        ("NPU Name", "rank0", "rank1"),
        (REDUCE, 0.25, 1),
        (GATHER, None, 0.5),
    ]


def test_rows_stand_in_the_order_of_the_apis_and_each_once(tmp_path: Path) -> None:
    rows = [row(f"Distributed.{name}.forward.output.0") for name in ("a.0", "b.0", "a.1", "c.0")]
    write_result(tmp_path, 0, rows)
    sheet = merged_rows(tmp_path, "Distributed.b", "Distributed.a.1.forward", "Distributed.a")
    names = [str(name).split(".forward", maxsplit=1)[0] for name, _ in sheet[1:]]
    assert names == ["Distributed.b.0", "Distributed.a.1", "Distributed.a.0"]


def test_an_api_is_compared_part_by_part_from_the_beginning(tmp_path: Path) -> None:
    names = ["Distributed.all_gather.0.forward.output.0", "Distributed.all_gather_into.0.forward.0"]
    others = ["X.Distributed.all_gather.0.forward.output.0", "Distributed.all_gather.10.forward.0"]
    write_result(tmp_path, 0, [row(name) for name in names + others])
    assert [name for name, _ in merged_rows(tmp_path, "Distributed.all_gather.0")[1:]] == names[:1]
    assert [name for name, _ in merged_rows(tmp_path, "Distributed.all_gather")[1:]] == [
        names[0],
        others[1],
    ]
    # A whole name is one row.
    assert [name for name, _ in merged_rows(tmp_path, names[1])[1:]] == names[1:]


@pytest.mark.parametrize("ending", ["xlsx", "csv"])
@pytest.mark.parametrize("nothing", ["N/A", "unsupported", "Nan"])
def test_where_a_metric_has_no_value_the_largest_elements_stand(
    nothing: str, ending: str, tmp_path: Path
) -> None:
    cells = {
        "[0, 1]": "[0, 1]",
        "None": "None",
        0.1: "0.1",
        3.0: "3",
        # The older tool's tables have sixteen digits.
        0.47102075815200806: "0.4710207581520081",
        True: "True",
        # All digits of a whole number, as the older tool has them.
        float(2**80): "1208925819614629040488448",
        float("-inf"): "-inf",
        "-inf": "-inf",
        "=x": "=x",
        None: "",
    }
    rows = [row(f"A.b.{at}", nothing, NPU_max=cell) for at, cell in enumerate(cells)]
    write_result(tmp_path, 0, rows, ending=ending)
    shown = [cell for _, cell in merged_rows(tmp_path, "A")[1:]]
    assert shown == [f"NPU:{text}  Bench:3" for text in cells.values()]


@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_other_cells_stay_as_they_are(ending: str, tmp_path: Path) -> None:
    cells = [0.1, 12345, 0.47102075815200806, "0.5%", "-inf", "shape unmatched", None, 1e300]
    write_result(
        tmp_path, 0, [row(f"A.b.{at}", cell) for at, cell in enumerate(cells)], ending=ending
    )
    assert [cell for _, cell in merged_rows(tmp_path, "A")[1:]] == cells


@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_of_equal_values_the_first_in_the_column_is_shown(ending: str, tmp_path: Path) -> None:
    """As the older tool shows 1 for True where a 1 came before, in a row that is not merged."""
    rows = [
        row(LINEAR, 0.5, NPU_max=1, Bench_max=True),
        row(REDUCE, "N/A", NPU_max=True, Bench_max=1),
        row(GATHER, "N/A", NPU_max=False, Bench_max=0),
    ]
    write_result(tmp_path, 0, rows, ending=ending)
    assert [cell for _, cell in merged_rows(tmp_path)[1:]] == [
        "NPU:1  Bench:True",
        "NPU:False  Bench:0",
    ]


def test_metrics_are_sheets_in_the_order_in_which_they_are_wanted(tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE, Cosine=1)], mode="tensor")
    config = {"api": ["Distributed"], "compare_index": ["MaxAbsErr", "Cosine", "MaxAbsErr"]}
    (step,) = merge_results(tmp_path, config, tmp_path / "o").steps
    assert (step.mode, step.sheets, step.rows) == ("tensor", ("MaxAbsErr", "Cosine"), 1)
    assert list(sheets_of(step.file)) == ["MaxAbsErr", "Cosine"]
    config["compare_index"] = []
    (step,) = merge_results(tmp_path, config, tmp_path / "o").steps
    assert step.sheets[0] == "Cosine"
    assert step.sheets[-1] == "Requires_grad Consistent"
    assert len(step.sheets) == 7


def test_the_newest_result_of_a_rank_counts(tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE, 1)])
    write_result(tmp_path, 0, [row(REDUCE, 2)], time=LATER, ending="csv")
    write_result(tmp_path, 1, [row(REDUCE, 3)])
    # Both are of one comparison.
    write_result(tmp_path, 1, [row(REDUCE, 4)], ending="csv")
    assert merged_rows(tmp_path)[1] == (REDUCE, 2, 3)
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert merged.notes == ("there are several results of rank 0; the newest is merged",)
    assert merged.problems == ()


@pytest.mark.parametrize("damage", ["header", "rows"])
def test_a_csv_stands_in_for_its_damaged_workbook_and_that_is_said(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_result(tmp_path, 0, [row(REDUCE, 3)])
    path = write_result(tmp_path, 1, [row(REDUCE, 4), *[row(LINEAR, 0.5)] * 20_000])
    data = path.read_bytes()
    # The directory at the end stays whole, so that the header is read.
    at = data.index(b"sheet1.xml") + 20_000
    path.write_bytes(b"" if damage == "header" else data[:at] + bytes(40) + data[at + 40 :])
    csv = write_result(tmp_path, 1, [row(REDUCE, 4)], ending="csv")
    assert (
        main(
            [
                "merge",
                str(tmp_path),
                "--config",
                str(write_config(tmp_path)),
                "-o",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "rank 1" in line]
    assert note.startswith(f"note: rank 1: {path.name}: ")
    assert note.endswith(f"; {csv.name} is merged instead")
    assert merged_rows(tmp_path)[1] == (REDUCE, 3, 4)


def test_a_csv_that_is_damaged_too_does_not_stand_in(tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE, 3)])
    for ending in ("xlsx", "csv"):
        write_result(tmp_path, 1, [row(REDUCE, 4)], ending=ending).write_bytes(b"")
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert [problem.split(": ")[:2] for problem in merged.problems] == [
        ["rank 1", f"compare_result_rank1_{TIME}.xlsx"],
        ["rank 1", f"compare_result_rank1_{TIME}.csv"],
    ]
    assert merged.notes == ()


@pytest.mark.parametrize("other", ["rank02", "rank2-rank2", "rank02-rank2"])
def test_of_two_results_of_one_rank_and_time_the_one_left_out_is_named(
    other: str, tmp_path: Path
) -> None:
    path = write_result(tmp_path, 2, [row(REDUCE, 5)])
    path.rename(tmp_path / f"compare_result_{other}_{TIME}.xlsx")
    path = write_result(tmp_path, 2, [row(REDUCE, 6)])
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert merged.notes == (
        f"compare_result_{other}_{TIME}.xlsx: not merged, as {path.name} has the same rank and "
        "time",
        "there is no result of rank 0-1",
    )
    assert sheets_of(merged.steps[0].file)["Max diff"] == [("NPU Name", "rank2"), (REDUCE, 6)]


def test_a_comparison_of_two_ranks_is_the_result_of_neither(tmp_path: Path) -> None:
    path = write_result(tmp_path, 0, [row(REDUCE, 5)])
    path = path.rename(tmp_path / f"compare_result_rank0-rank1_{LATER}.xlsx")
    with pytest.raises(TableError, match=f"; {path.name}: the name has two ranks$"):
        merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    write_result(tmp_path, 0, [row(REDUCE, 6)])
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert merged.notes == (f"{path.name}: not merged, as the name has two ranks",)
    assert sheets_of(merged.steps[0].file)["Max diff"][1] == (REDUCE, 6)


@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_an_ending_in_capitals_is_an_ending(ending: str, tmp_path: Path) -> None:
    path = write_result(tmp_path, 0, [row(REDUCE, 6)], ending=ending)
    path.rename(path.with_suffix(f".{ending.upper()}"))
    assert merged_rows(tmp_path)[1] == (REDUCE, 6)
    (tmp_path / "mine.XLSX").write_bytes(b"")
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert merged.notes[0].startswith("mine.XLSX: not merged, as the name has no rank")


def test_ranks_stand_in_the_order_of_their_numbers_and_missing_ones_are_named(
    tmp_path: Path,
) -> None:
    for rank in (10, 2, 4, 999999999):
        write_result(tmp_path, rank, [row(REDUCE, rank)])
    assert merged_rows(tmp_path)[0] == ("NPU Name", "rank2", "rank4", "rank10", "rank999999999")
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert merged.notes == ("there is no result of rank 0-1, 3, 5-9, 11-999999998",)


def test_steps_have_a_workbook_each(tmp_path: Path) -> None:
    for step in (0, 12):
        for rank in (0, 1):
            path = write_result(tmp_path, rank, [row(REDUCE, step + rank)])
            path.rename(tmp_path / f"compare_result_step{step}_rank{rank}_{TIME}.xlsx")
    (tmp_path / f"compare_result_step12_rank1_{TIME}.xlsx").write_bytes(b"")
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert [(step.step, step.ranks) for step in merged.steps] == [(0, (0, 1)), (12, (0,))]
    assert "_merge_step0_" in merged.steps[0].file.name
    assert "_merge_step12_" in merged.steps[1].file.name
    assert sheets_of(merged.steps[1].file)["Max diff"][1] == (REDUCE, 12)
    assert merged.problems[0].startswith("step 12, rank 1: compare_result_step12_rank1_")


def test_results_without_a_step_beside_those_of_steps_have_the_plain_name(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_result(tmp_path, rank, [row(REDUCE, 7)])
    write_result(tmp_path, 1, [row(REDUCE)]).write_bytes(b"")
    path = write_result(tmp_path, 5, [row(REDUCE, 3)])
    path.rename(tmp_path / f"compare_result_step3_rank0_{TIME}.xlsx")
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert [step.step for step in merged.steps] == [None, 3]
    plain, of_step = (step.file.name for step in merged.steps)
    assert re.fullmatch(r"multi_ranks_compare_merge_[0-9]{14}\.xlsx", plain)
    assert re.fullmatch(r"multi_ranks_compare_merge_step3_[0-9]{14}\.xlsx", of_step)
    (problem,) = merged.problems
    assert problem.startswith("without a step, rank 1: compare_result_rank1_")


def test_a_step_of_another_kind_does_not_stop_the_others(tmp_path: Path) -> None:
    for step, mode in enumerate(MODES):
        path = write_result(tmp_path, 0, [row(REDUCE, step)], mode=mode)
        path.rename(tmp_path / f"compare_result_step{step}_rank0_{TIME}.xlsx")
    wanted = {"api": ["Distributed"], "compare_index": ["Max diff"]}
    merged = merge_results(tmp_path, wanted, tmp_path / "o")
    assert [(step.step, step.mode) for step in merged.steps] == [(0, "statistics")]
    assert [problem.partition(":")[0] for problem in merged.problems] == [
        "step 1, the configuration",
        "step 2, rank 0",
    ]


def test_names_of_both_sides_are_known(tmp_path: Path) -> None:
    path = write_result(tmp_path, 3, [row(REDUCE)])
    path.rename(tmp_path / f"compare_result_rank3-rank3_{TIME}.xlsx")
    assert merged_rows(tmp_path)[0] == ("NPU Name", "rank3")


def test_tables_without_a_rank_are_named_and_left_out(tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE)])
    for name in ("", "_rank", "_proc29396"):
        path = write_result(tmp_path, 1, [row(REDUCE)])
        path.rename(tmp_path / f"compare_result{name}_{TIME}.xlsx")
    for other in ("advisor_rank0.txt", f"multi_ranks_compare_merge_{TIME}.xlsx", ".~lock.csv"):
        (tmp_path / other).write_text("not looked at")
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert merged.steps[0].ranks == (0,)
    assert merged.notes == (
        f"compare_result_{TIME}.xlsx, compare_result_proc29396_{TIME}.xlsx, "
        f"compare_result_rank_{TIME}.xlsx: not merged, as the name has no rank; wanted "
        "compare_result_rank{N}_{time}.xlsx or .csv",
    )


def test_what_most_results_compare_is_merged_and_others_are_named(tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE, 0.1)], mode="tensor")
    write_result(tmp_path, 1, [row(REDUCE, 0.2)])
    write_result(tmp_path, 2, [row(REDUCE, 0.3)])
    write_result(tmp_path, 3, [row(REDUCE)], mode="md5")
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert (merged.steps[0].mode, merged.steps[0].ranks) == ("statistics", (1, 2))
    assert merged.problems == (
        f"rank 3: results of md5, such as compare_result_rank3_{TIME}.xlsx, cannot be merged: "
        "checksums say only whether values are equal; compare real data or statistics",
        f"rank 0: compare_result_rank0_{TIME}.xlsx compares real data and other ranks statistics; "
        "it is not merged",
    )
    # What is wanted decides before numbers do.
    wanted = {"api": ["Distributed"], "compare_index": ["Cosine"]}
    assert merge_results(tmp_path, wanted, tmp_path / "o").steps[0].ranks == (0,)


def test_metrics_that_no_result_has_are_told_with_those_that_they_have(tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE)])
    wanted = {"api": ["Distributed"], "compare_index": ["Cosine", "MaxRelativeErr"]}
    with pytest.raises(ConfigError) as caught:
        merge_results(tmp_path, wanted, tmp_path / "o")
    assert str(caught.value) == (
        "the configuration: compare_index holds 'Cosine', and the newest results, such as "
        f"compare_result_rank0_{TIME}.xlsx, compare statistics, whose metrics are Max diff, "
        "Min diff, Mean diff, L2norm diff, MaxRelativeErr, MinRelativeErr, MeanRelativeErr, "
        "NormRelativeErr, Requires_grad Consistent"
    )
    assert not (tmp_path / "o").exists()


def test_where_no_result_can_be_read_the_first_reason_is_told(tmp_path: Path) -> None:
    for rank in range(3):
        write_result(tmp_path, rank, [row(REDUCE)]).write_bytes(b"")
    with pytest.raises(TableError, match=r"nothing can be merged: rank 0: .*; and 2 more$"):
        merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")


def test_results_of_md5_alone_are_refused_in_one_line(tmp_path: Path) -> None:
    for rank in range(3):
        write_result(tmp_path, rank, [row(REDUCE)], mode="md5")
    with pytest.raises(TableError) as caught:
        merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert str(caught.value) == (
        f"{tmp_path}: nothing can be merged: rank 0-2: results of md5, such as "
        f"compare_result_rank0_{TIME}.xlsx, cannot be merged: checksums say only whether values "
        "are equal; compare real data or statistics"
    )
    assert not (tmp_path / "o").exists()


def test_a_table_without_some_metrics_is_named(tmp_path: Path) -> None:
    """ptdbg_ascend has fewer columns."""
    write_result(tmp_path, 0, [row(REDUCE)])
    (tmp_path / f"compare_result_rank1_{TIME}.csv").write_text(
        f"NPU Name,Max diff,NPU max,Bench max\n{REDUCE},5,1,1\n"
    )
    merged = merge_results(
        tmp_path, {"api": ["Distributed"], "compare_index": ["Max diff", "Min diff"]}, tmp_path
    )
    assert merged.problems == (f"rank 1: compare_result_rank1_{TIME}.csv has no column Min diff",)
    sheets = sheets_of(merged.steps[0].file)
    assert sheets["Max diff"][1] == (REDUCE, 0.5, 5)
    assert sheets["Min diff"][1] == (REDUCE, None, None)


def test_of_rows_of_one_name_the_first_counts_and_that_is_said(tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE, 1), row(REDUCE, 2), row(LINEAR), row(LINEAR)])
    assert merged_rows(tmp_path) == [("NPU Name", "rank0"), (REDUCE, 1)]
    merged = merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")
    assert merged.problems == (
        f"rank 0: compare_result_rank0_{TIME}.xlsx holds 1 rows whose name came before; of each "
        "name the first row is merged",
    )


@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_an_api_that_is_nowhere_is_told_with_what_is_near(ending: str, tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE), row(LINEAR)], ending=ending)
    write_result(tmp_path, 1, [row(LINEAR)], ending=ending)
    apis = ["Distributed", "Distributed.al_reduce.3", "Functional.lenear", "Nothing.like.it"]
    merged = merge_results(tmp_path, {"api": apis}, tmp_path / "o")
    assert merged.notes == (
        "rank 1: none of the APIs is there",
        "no row of any rank belongs to 'Distributed.al_reduce.3'; "
        "did you mean 'Distributed.all_reduce'?",
        "no row of any rank belongs to 'Functional.lenear'; did you mean 'Functional.linear'?",
        "no row of any rank belongs to 'Nothing.like.it'",
    )
    assert merged.steps[0].ranks == (0, 1)
    with pytest.raises(ConfigError, match="nothing to merge: no row of any rank belongs to 'dist'"):
        merge_results(tmp_path, {"api": ["dist"]}, tmp_path / "nothing")
    assert not list((tmp_path / "nothing").iterdir())


def test_a_damaged_rank_does_not_hide_that_no_row_is_wanted(tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE)])
    write_result(tmp_path, 1, [row(REDUCE)]).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"belongs to 'Distributed\.gather'; did you mean"):
        merge_results(tmp_path, {"api": ["Distributed.gather"]}, tmp_path / "o")


def test_a_metric_that_every_result_lacks_leaves_nothing_to_merge(tmp_path: Path) -> None:
    (tmp_path / f"compare_result_rank0_{TIME}.csv").write_text(f"NPU Name,Cosine\n{REDUCE},1\n")
    wanted = {"api": ["Distributed"], "compare_index": ["EucDist"]}
    with pytest.raises(TableError, match=r"nothing can be merged: rank 0: .* no column EucDist"):
        merge_results(tmp_path, wanted, tmp_path / "o")
    assert list((tmp_path / "o").iterdir()) == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "holds no result of any rank.*give the folder that `tensorprobe compare` wrote"),
        (["compare_result_rank0_20260102030405.json"], "json is not read.*--format xlsx"),
        (["compare_result_20260102030405.xlsx"], "is of one process alone"),
        (["compare_result_rank0.xlsx", "compare_result_rank٣_20260102030405.xlsx"], "no result"),
    ],
)
def test_a_folder_without_results_says_what_is_wanted(
    names: list[str], message: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(TableError, match=message):
        merge_results(tmp_path, {"api": ["Distributed"]}, tmp_path / "o")


def test_what_is_no_folder_is_one_clear_line(tmp_path: Path) -> None:
    path = write_result(tmp_path, 0, [row(REDUCE)])
    for folder, message in (
        (path, "is no folder; give the one that holds the results of all ranks"),
        (tmp_path / "none", "the folder cannot be read: No such file or directory; check the path"),
        ("\0", "the folder cannot be read: embedded null"),
    ):
        with pytest.raises(TableError, match=message):
            merge_results(folder, {"api": ["Distributed"]}, tmp_path / "o")
    with pytest.raises(ConfigError, match="results is 5; wanted the path of a folder"):
        merge_results(5, {"api": ["Distributed"]})  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["", "/dev/null/x", "merge.yaml/x"])
def test_a_folder_that_cannot_be_made_is_one_clear_line(path: str, tmp_path: Path) -> None:
    write_result(tmp_path, 0, [row(REDUCE)])
    config = write_config(tmp_path)
    if not path:
        (tmp_path / "o").write_text("a file")
    with pytest.raises(TensorprobeError, match=r"cannot be made: .*; choose another with -o"):
        merge_results(tmp_path, config, tmp_path / (path or "o"))


def test_what_one_sheet_cannot_hold_is_read_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: Rows = [row(f"Distributed.a.{number}", number) for number in range(25)]
    with monkeypatch.context() as patch:
        patch.setattr("tensorprobe.report.xlsx.ROWS_PER_SHEET", 10)
        path = write_result(tmp_path, 0, rows)
    assert len(sheets_of(path)) == 3
    assert [cell for _, cell in merged_rows(tmp_path)[1:]] == list(range(25))
