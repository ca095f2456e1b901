"""The older tools' rule stands beside our verdict: of outputs, of calls, in the summary."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from precheck_models import Capture, capture_into, train_a_little, unseen

import tensorprobe
from tensorprobe.cli import main
from tensorprobe.precheck.judge import judge_output

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return capture_into(tmp_path)


def ones_of_which(wrong: int, dtype: torch.dtype, by: float) -> str | None:
    """Judge ten thousand ones of which some are off by a share."""
    truth = torch.ones(10_000, dtype=F64)
    result = truth.clone()
    result[:wrong] += by
    return judge_output(result.to(dtype), truth, length=1).older


@pytest.mark.parametrize(
    ("dtype", "by", "most"),
    # The next number after 1 is 1/128 away in bfloat16 and 1/1024 in float16.
    [(BF16, 1 / 128, 10), (F16, 1 / 512, 10), (F32, 2e-4, 1), (F64, 2e-4, 1)],
)
def test_the_share_of_elements_that_may_lie_beyond(
    dtype: torch.dtype, by: float, most: int
) -> None:
    assert ones_of_which(most, dtype, by) == "pass"
    assert ones_of_which(most + 1, dtype, by) == "fail"


def test_halves_are_held_against_a_thousandth_and_floats_against_a_ten_thousandth() -> None:
    assert ones_of_which(10_000, F16, 0.0009) == "pass"
    assert ones_of_which(10_000, F32, 0.0009) == "fail"
    assert ones_of_which(10_000, F32, 0.00009) == "pass"


def test_the_cosine_decides_where_all_shares_hold() -> None:
    truth = torch.ones(10_000, dtype=F64)
    wrong = truth.clone()
    wrong[0] = 1000.0
    judgement = judge_output(wrong.float(), truth, length=1)
    assert judgement.numbers is not None and judgement.numbers.within[2] == 0.9999
    assert judgement.older == "fail"
    assert "cosine 0.109444 is not over 0.99" in judgement.message
    assert "双万" not in judgement.message


def test_the_rule_decides_nothing() -> None:
    generator = torch.Generator().manual_seed(3)
    truth = torch.randn(1000, generator=generator, dtype=F64)
    near = judge_output((truth * 1.003).to(BF16), truth, length=4096)
    assert (near.verdict, near.older) == ("pass", "fail")
    assert "双千" in near.message and "explains" in near.message
    truth = torch.ones(1_000_000, dtype=F64)
    wrong = truth.float()
    wrong[7] = 1.5
    one = judge_output(wrong, truth, length=1)
    assert (one.verdict, one.older) == ("error", "pass")


def test_one_element_is_judged_by_its_error_alone() -> None:
    for given, older in ((1.0, "pass"), (1.00005, "pass"), (1.01, "fail"), (-1.0, "fail")):
        judgement = judge_output(torch.tensor([given]), torch.ones(1, dtype=F64), length=1)
        assert judgement.older == older, given
    assert judge_output(torch.ones(0), torch.ones(0, dtype=F64), length=1).older == "pass"


def test_a_side_of_zeros_has_no_cosine_and_fails() -> None:
    truth = torch.zeros(100_000, dtype=F64)
    truth[3] = 1e-30
    for ours, theirs in ((torch.zeros(100_000), truth), (truth.float(), torch.zeros_like(truth))):
        judgement = judge_output(ours, theirs, length=1)
        assert judgement.older == "fail"
        assert "there is no cosine" in judgement.message and "all zero" in judgement.message
    zeros = judge_output(torch.zeros(100_000), torch.zeros_like(truth), length=1)
    assert zeros.older == "pass"


def test_what_is_not_finite_must_be_so_on_both_sides() -> None:
    truth = torch.ones(100_000, dtype=F64)
    truth[5] = torch.nan
    truth[6] = torch.inf
    assert judge_output(truth.float(), truth, length=1).older == "pass"
    wrong = truth.float()
    wrong[5] = 1.0
    assert judge_output(wrong, truth, length=1).older == "fail"


def test_the_rule_says_nothing_of_integers_and_of_types_that_it_does_not_name() -> None:
    for dtype in (torch.int64, torch.bool):
        given = torch.ones(4, dtype=dtype)
        assert judge_output(given, given, length=1).older is None
        assert judge_output(given, ~given, length=1).older is None
        assert judge_output(given, given[:2], length=1).older is None
    truth = torch.ones(4, dtype=F64)
    assert judge_output(truth.to(torch.float8_e5m2), truth, length=1).older is None
    assert judge_output(torch.ones(3), truth, length=1).older == "fail"
    assert judge_output(torch.ones(4, dtype=torch.int64), truth, length=1).older == "fail"


def test_under_autocast_it_goes_by_the_type_of_the_result() -> None:
    truth = torch.ones(1000, dtype=F64)
    judgement = judge_output(torch.full((1000,), 1.0005), truth, length=1, computed_in=BF16)
    assert (judgement.verdict, judgement.older) == ("pass", "fail")


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def coarse_sum_dump(capture: Capture) -> Path:
    """Capture a half's result that misses 双千 by rounding alone, forward and backward."""

    def run() -> None:
        with unseen():
            torch.manual_seed(1)
            given = torch.randn(64, 64).to(BF16).requires_grad_()
            twice = torch.arange(6)
            out = torch.ones(64, 64, dtype=BF16)
        result = torch.nn.functional.softmax(given, -1)
        result.backward(out * 3)
        torch.nn.functional.dropout(out, 0.5)
        torch.relu(given.detach())
        torch.add(twice, 1)

    return Path(capture(run).path)


def test_the_columns_of_both_files_and_the_count(
    capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = coarse_sum_dump(capture)
    out = tmp_path / "out"
    main(["precheck", str(dump), "-o", str(out), "--device", "cpu"])
    said = " ".join(capsys.readouterr().out.split())
    (result,), (details,) = out.glob("*_result_*.csv"), out.glob("*_details_*.csv")
    calls = {row["API name"]: row for row in read(result)}
    outputs = {row["API Name"]: row for row in read(details)}
    assert list(read(result)[0])[-2:] == ["Older Rule Forward", "Older Rule Backward"]
    assert list(read(details)[0])[-1] == "Older Rule"
    for name, row in outputs.items():
        if row["余弦相似度"] and row["双千指标"] and row["DEVICE Dtype"] == "torch.bfloat16":
            meets = float(row["余弦相似度"]) > 0.99 and float(row["双千指标"]) >= 0.999
            assert row["Older Rule"] == ("pass" if meets else "fail"), name
    assert outputs["Functional.softmax.0.backward.output.0"]["Older Rule"] == "fail"
    softmax = calls["Functional.softmax.0"]
    assert softmax["Backward Test Success"] in ("pass", "warning")
    assert softmax["Older Rule Backward"] == "fail"
    relu = calls["Torch.relu.0"]
    assert (relu["Older Rule Forward"], relu["Older Rule Backward"]) == ("pass", "")
    for name in ("Functional.dropout.0", "Torch.add.0"):
        assert calls[name]["Older Rule Forward"] == "", name
    found = [
        "fail" if "fail" in ways else "pass" if "pass" in ways else ""
        for ways in (
            (row["Older Rule Forward"], row["Older Rule Backward"]) for row in calls.values()
        )
    ]
    counts = {verdict: found.count(verdict) for verdict in ("pass", "fail", "")}
    assert counts["pass"] and counts["fail"] and counts[""]
    assert (
        "by the older tools' rule (cosine over 0.99, and 双千 or 双万): "
        f"{counts['pass']} pass, {counts['fail']} fail; it does not judge {counts['']}"
    ) in said


def test_the_report_has_it_too_also_of_calls_that_were_checked_before(
    capture: Capture, tmp_path: Path
) -> None:
    dump = coarse_sum_dump(capture)
    whole = tensorprobe.precheck(dump, tmp_path / "out", devices=["cpu"])
    lines = {line.name: line for line in whole.lines}
    assert lines["Functional.softmax.0"].older_verdict == "fail"
    assert lines["Functional.dropout.0"].older_verdict == ""
    assert whole.older_counts == {
        verdict: sum(line.older_verdict == verdict for line in whole.lines)
        for verdict in ("pass", "fail")
    }
    cut(whole.result_paths[0])
    resumed = tensorprobe.precheck(dump, devices=["cpu"], resume=whole.result_paths[0])
    assert resumed.older_counts == whole.older_counts


def cut(result: Path) -> None:
    """Leave two calls in a result file."""
    result.write_bytes(b"".join(result.read_bytes().splitlines(keepends=True)[:3]))


def without_the_rule(path: Path, columns: int) -> bytes:
    """Take away the last columns, so that a file is as it was before they were there."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row[:-columns] for row in csv.reader(file)]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path.read_bytes()


@pytest.mark.parametrize("lost", [False, True])
def test_files_of_an_earlier_version_go_on_with_the_columns_that_they_have(
    capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: bool
) -> None:
    dump = capture(train_a_little).path
    whole = tensorprobe.precheck(dump, tmp_path / "out", devices=["cpu"])
    (result,), (details,) = whole.result_paths, whole.details_paths
    new = result.read_bytes(), details.read_bytes()
    before = without_the_rule(result, 2), without_the_rule(details, 1)
    cut(result)
    if lost:
        # Without details nothing counts as done, so both are begun anew.
        details.unlink()
    assert main(["precheck", str(dump), "--device", "cpu", "--resume", str(result)]) == 0
    assert (result.read_bytes(), details.read_bytes()) == (new if lost else before)
    assert "by the older tools' rule" in capsys.readouterr().out
