"""Values that nobody computed or reads fail no comparison, and all that is said of it agrees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from small_dumps import call, compare_rows, tensor, write_data, write_dump

from tensorprobe.cli import main
from tensorprobe.compare import compare
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.report.verdict_text import ACCURACY, WORDS, Verdict, checksum_result

EMPTY = "Torch.empty.0.forward"
ZERO = "Tensor.zero_.0.forward"
ADD = "Torch.add.0.forward"
RELU = "Torch.relu.0.forward"
KINDS = ("statistics", "tensor", "md5")
UNREAD = {"statistics": "", "tensor": "None"}


def write(folder: Path, kind: str, calls: dict[str, tuple[list[float], list[float]]]) -> Path:
    """Write calls with the numbers of their inputs and outputs."""
    if kind == "tensor":
        return write_data(
            folder,
            {
                name: {
                    "input": [np.array([1.0, number, 3.0], np.float32) for number in given],
                    "output": [np.array([1.0, number, 3.0], np.float32) for number in made],
                }
                for name, (given, made) in calls.items()
            },
        )
    value = _summed if kind == "md5" else tensor
    return write_dump(
        folder,
        [
            call(name, list(map(value, given)), list(map(value, made)))
            for name, (given, made) in calls.items()
        ],
    )


def _summed(number: float) -> TensorValue:
    return replace(tensor(number), checksum=f"{int(number):08x}")


def write_pair(
    folder: Path, kind: str, *calls: tuple[str, list[list[float]], list[list[float]]]
) -> tuple[Path, Path]:
    """Write two runs: of each value the number in the one and in the other."""
    ours, theirs = (
        write(
            folder / name,
            kind,
            {
                api: ([pair[side] for pair in given], [pair[side] for pair in made])
                for api, given, made in calls
            },
        )
        for side, name in enumerate("ab")
    )
    return ours, theirs


SAME = [2.0, 2.0]
OTHER = [9.0, 2.0]
FILLED = (
    (EMPTY, [], [OTHER]),
    (ZERO, [OTHER], [SAME]),
    (RELU, [SAME], [SAME]),
)


@pytest.mark.parametrize("kind", KINDS)
def test_runs_that_differ_in_memory_as_it_was_found_alone_agree(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = write_pair(tmp_path, kind, *FILLED)
    result, rows = compare_rows(*pair, tmp_path / "o", highlight=True)
    tally = result.parts[0].tally
    assert (tally.passed, tally.failed, tally.counts["uninitialised"]) == (3, 0, 1)
    assert (tally.counts["overwritten"], tally.meaningless, tally.compared) == (1, 2, 5)
    assert (result.failed, tally.first_failure) == (0, None)
    _check_cells(kind, rows)
    folder = tmp_path / "o2"
    command = ["compare", *map(str, pair), "-o", str(folder), "--first-diff", "--format", "json"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "verdict     both runs agree in everything that was computed; 2 values differ in "
        "uninitialised memory, or in what is overwritten without being read\n"
    )
    assert ": 3 passed, 0 failed, 1 uninitialised, 1 overwritten unread\n" in text
    assert "first that fails" not in text
    (advice,) = folder.glob("advisor_*")
    assert advice.read_text() == (
        "Line: NA\nSuspect Nodes: NA\nExpert Advice: Every value that was compared meets the "
        "requirements. 2 of the others differ and mean nothing: uninitialised memory, or what is "
        "overwritten without being read.\n"
    )
    (found,) = folder.glob("diff_analyze_*")
    assert json.loads(found.read_text()) == {}
    (states,) = folder.glob("compare_result_rank_*")
    assert all(call["is_same"] for call in json.loads(states.read_text()).values())
    (summary,) = folder.glob("compare_summary_*")
    told = json.loads(summary.read_text())
    assert (told["failed"], told["uninitialised"], told["overwritten unread"]) == (0, 1, 1)


def _check_cells(kind: str, rows: list[dict[str, Any]]) -> None:
    """The numbers stay, and the cells for a verdict say that there is none."""
    made, given = rows[0], rows[1]
    assert (made["NPU Name"], given["NPU Name"]) == (f"{EMPTY}.output.0", f"{ZERO}.input.0")
    if kind == "md5":
        assert (made["NPU MD5"], made["BENCH MD5"]) == ("00000009", "00000002")
        assert (made["Result"], given["Result"]) == ("Uninitialised", "Overwritten")
        return
    assert (made["NPU max"], made["Bench max"]) == (9.0, 2.0 if kind == "statistics" else 3.0)
    title = "Result" if kind == "statistics" else "Accuracy Reached or Not"
    assert made[title] == given[title] == UNREAD[kind]
    assert made["Max diff" if kind == "statistics" else "MaxAbsErr"] == 7.0
    assert made["Err_message"] == "Uninitialised memory: nothing was computed here. "
    assert given["Err_message"].startswith("Overwritten without being read: ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_reads_such_memory_fails(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = write_pair(tmp_path, kind, (EMPTY, [], [OTHER]), (RELU, [OTHER], [OTHER]))
    folder = tmp_path / "o"
    command = ["compare", *map(str, pair), "-o", str(folder), "--first-diff", "--no-blame"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert ": 0 passed, 2 failed, 1 uninitialised\n" in text
    assert f"first that fails: {RELU}.input.0\n" in text
    (advice,) = folder.glob("advisor_*")
    assert advice.read_text().startswith(f"Line: 1\nSuspect Nodes: {RELU}.input.0\n")
    (found,) = folder.glob("diff_analyze_*")
    assert json.loads(found.read_text())["rank_0"][0]["op_name"] == RELU


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["Torch.empty_like.0.forward", "Tensor.resize_.0.forward", "Tensor.add_.0.forward"]
)
def test_what_such_a_call_is_given_is_judged(tmp_path: Path, kind: str, name: str) -> None:
    pair = write_pair(tmp_path, kind, (name, [OTHER], [SAME]))
    result = compare(*pair, tmp_path / "o", formats=[], first_difference=True)
    failure = result.parts[0].tally.first_failure
    assert result.failed == 1 and failure is not None and failure.name == f"{name}.input.0"
    (found,) = (tmp_path / "o").glob("diff_analyze_*")
    assert json.loads(found.read_text())["rank_0"][0]["op_name"] == name


def test_where_a_result_is_written_is_not_read(tmp_path: Path) -> None:
    for side, number in (("a", 9.0), ("b", 2.0)):
        for name in (ADD, "custom.add.0.forward"):
            into = CallRecord(
                name, inputs=(tensor(1.0),), kwargs={"out": tensor(number)}, outputs=(tensor(2.0),)
            )
            write_dump(tmp_path / side / name, [into])
    result, _ = compare_rows(tmp_path / "a" / ADD, tmp_path / "b" / ADD, tmp_path / "o")
    assert (result.failed, result.parts[0].tally.counts["overwritten"]) == (0, 1)
    # Of a function that is not torch's nobody knows.
    custom = (tmp_path / side / "custom.add.0.forward" for side in "ab")
    assert compare_rows(*custom, tmp_path / "o2")[0].failed == 1


@pytest.mark.parametrize("kind", KINDS)
def test_such_memory_that_agrees_is_not_spoken_of(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = write_pair(tmp_path, kind, (EMPTY, [], [SAME]), (ZERO, [SAME], [SAME]))
    assert main(["compare", *map(str, pair), "-o", str(tmp_path / "o")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("verdict     both runs agree in everything that was recorded\n")
    assert ": 3 passed, 0 failed\n" in text


def test_every_verdict_has_its_words() -> None:
    verdicts = set(get_args(Verdict))
    assert set(WORDS) == set(ACCURACY) == verdicts
    assert len({checksum_result(verdict) for verdict in verdicts}) == 4
