"""The tables of msprobe 26.2.0 and ptdbg_ascend, and the other files of 8.2.1, hold for ours.

These tools have titles and texts of their own: what both show must agree.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from goldens import Golden, absolute_config, agrees, all_goldens

from conftest import peer_root
from tensorprobe.compare import compare
from tensorprobe.names import parse_ptdbg_line

NEWER = sorted((peer_root() / "compare-26.2.0").glob("*/compare_result_*.csv"))
LEGACY = sorted(
    (peer_root() / "ptdbg_ascend").glob("*/*/compare*/compare_result_??????????????.csv")
)
DIFFERENCES = sorted((peer_root() / "compare-8.2.1").glob("*/*/diff_analyze_*.json"))
ADVISED = [golden for golden in all_goldens() if list(golden.path.parent.glob("advisor*"))]


def rows_of(folder: Path) -> list[dict[str, str]]:
    (file,) = folder.glob("*compare_result_*.csv")
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


@pytest.mark.skipif(not NEWER, reason="only in the whole collection of dumps")
@pytest.mark.parametrize("path", NEWER, ids=lambda path: path.parent.name)
def test_numbers_of_msprobe_26_are_ours(path: Path, tmp_path: Path) -> None:
    """Its texts for Result, Err_message and a relative error of 0 are its own."""
    pair = peer_root() / "msprobe-26.2.0" / path.parent.name
    compare(pair / "npu" / "step0", pair / "bench" / "step0", tmp_path, formats=["csv"])
    ours = rows_of(tmp_path)
    with path.open(newline="") as text:
        theirs = list(csv.DictReader(text))
    assert [row["NPU Name"] for row in ours] == [row["NPU Name"] for row in theirs]
    compared = 0
    for row, want in zip(ours, theirs, strict=True):
        for title in set(want) & set(row) - {"Result", "Err_message"}:
            cell = want[title]
            # Ours says so without a percent sign only where it is no number.
            if title.endswith("RelativeErr") and cell == "0" and row[title].endswith("%"):
                cell = "0.0%"
            if title == "NPU_Stack_Info" and cell == "None":
                cell = "N/A"
            assert agrees(row[title], cell) or cell in ("N/A", "None", "0"), (want, title)
            compared += agrees(row[title], cell)
    assert compared > 20 * len(ours)


@pytest.mark.skipif(not LEGACY, reason="only in the whole collection of dumps")
@pytest.mark.parametrize("path", LEGACY, ids=lambda path: "-".join(path.parts[-4:-1]))
def test_numbers_of_ptdbg_are_ours(path: Path, tmp_path: Path) -> None:
    pair = path.parent.parent
    compare(pair / "npu", pair / "bench", tmp_path, formats=["csv"])
    ours = {row["NPU Name"]: row for row in rows_of(tmp_path)}
    with path.open(newline="") as text:
        theirs = list(csv.DictReader(text))
    assert len(ours) == len(theirs)
    verdicts = compared = 0
    for want in theirs:
        call, section, way = parse_ptdbg_line(want["NPU Name"])
        row = ours[".".join([str(call), section, *(way or ("0",))])]
        assert row["NPU Tensor Shape"] == want["NPU Tensor Shape"]
        assert row["NPU Dtype"] == want["NPU Tensor Dtype"]
        for title in set(want) & set(row):
            cell = want[title]
            if title in ("NPU Name", "Bench Name", "NPU_Stack_Info", "Err_message", "Result"):
                continue
            if title == "Accuracy Reached or Not":
                verdicts += 1
                # Numbers and empty tensors have no verdict; it calls that Nan.
                assert row[title] == cell or (cell, row[title]) in (("Nan", "None"),), want
                continue
            if "Ratio" in title and want["MaxRelativeErr"].lower() == "nan":
                continue  # it counts a NaN on both sides as an error
            is_number = cell.replace(".", "").lstrip("-").isdigit()
            if is_number and row[title] not in ("unsupported", "None", "N/A"):
                assert agrees(row[title], cell), (want["NPU Name"], title, row[title], cell)
                compared += 1
    assert compared > 4 * len(theirs) or "NPU MD5" in theirs[0]
    if "NPU MD5" in theirs[0]:
        for want in theirs:
            call, section, way = parse_ptdbg_line(want["NPU Name"])
            row = ours[".".join([str(call), section, *(way or ("0",))])]
            assert row["Result"] == {"True": "Pass", "False": "Different"}[want["Result"]]


@pytest.mark.parametrize("golden", ADVISED, ids=lambda golden: golden.name)
def test_the_advice_names_the_line_and_node_of_the_golden(golden: Golden, tmp_path: Path) -> None:
    mapping = golden.path.parent / "data_mapping.yaml"
    result = compare(
        absolute_config(golden, tmp_path),
        output=tmp_path,
        mapping=mapping if golden.options.endswith("_dm") else None,
        fuzzy=golden.options.endswith("_f"),
        formats=["csv"],
    )
    rank = re.search(r"_rank\d*", golden.path.name)
    name = "advisor" + (rank[0] if rank else "")
    (theirs,) = golden.path.parent.glob(f"{name}_2*.txt")
    (ours,) = tmp_path.glob(f"{name}_2*.txt")
    wanted = theirs.read_text().splitlines()[:2]
    if golden.name.startswith("shape/mix_statistics/"):
        # Exactly half of the reference away is not more than half.
        wanted = ["Line: NA", "Suspect Nodes: NA"]
    assert ours.read_text().splitlines()[:2] == wanted
    assert ours.read_text().splitlines()[2].startswith("Expert Advice: ")
    assert result.parts[0].advice is not None


@pytest.mark.skipif(not DIFFERENCES, reason="only in the whole collection of dumps")
@pytest.mark.parametrize("path", DIFFERENCES, ids=lambda path: path.parent.name)
def test_the_first_difference_is_that_of_the_golden(path: Path, tmp_path: Path) -> None:
    config = json.loads((path.parent / "compare.json").read_text())
    sides = [peer_root() / config[key] for key in ("npu_path", "bench_path")]
    compare(*sides, tmp_path, formats=["csv"], first_difference=True)
    (file,) = tmp_path.glob("diff_analyze_*.json")
    ours, theirs = json.loads(file.read_text()), json.loads(path.read_text())
    if "tensor" in path.parent.name:
        # Real data are judged by their data: an all-zero buffer counts only on some ranks.
        assert set(ours) <= set(theirs)
    else:
        assert set(ours) == set(theirs)
    assert ours
    for rank, nodes in ours.items():
        (node,) = nodes
        (want,) = theirs[rank]
        assert node["op_name"] == want["op_name"]
        assert node["stack_info"] == want["stack_info"]
        assert node["data_info"] == want["data_info"]
        assert node["op_type"] == want["op_name"].partition(".")[0]
        assert node["position"]["call"] >= 0


ACROSS = [
    ("ptdbg_ascend/2024-03/all/npu", "ptdbg_ascend/2024-10/all/bench", "tensor", 118, 0),
    ("ptdbg_ascend/2024-03/md5/npu", "ptdbg_ascend/2024-10/md5/bench", "md5", 118, 0),
    (
        "api_accuracy_checker/2023-11/statistics",
        "api_accuracy_checker/2024-10/statistics",
        "statistics",
        89,
        6,
    ),
    (
        "api_accuracy_checker/2023-11/real_data",
        "api_accuracy_checker/2024-10/real_data",
        "tensor",
        89,
        6,
    ),
    ("msprobe-8.2.1/mlp/mix_tensor/npu", "msprobe-26.2.0/mlp_mix_tensor/bench", "tensor", 46, 18),
    (
        "msprobe-8.2.1/mlp/L1_tensor/npu",
        "msprobe-26.2.0/mlp_L1_statistics/npu",
        "statistics",
        27,
        3,
    ),
]


@pytest.mark.skipif(not NEWER, reason="only in the whole collection of dumps")
@pytest.mark.parametrize(("ours", "theirs", "mode", "compared", "unmatched"), ACROSS)
def test_versions_and_legacy_tools_match_each_other(
    ours: str, theirs: str, mode: str, compared: int, unmatched: int, tmp_path: Path
) -> None:
    result = compare(peer_root() / ours, peer_root() / theirs, tmp_path, formats=["csv"])
    (part,) = result.parts
    assert part.mode == mode
    assert (part.tally.compared, part.tally.unmatched) == (compared, unmatched)
    assert part.tally.passed > compared / 2
