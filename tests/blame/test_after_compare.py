"""`tensorprobe compare` says first who is at fault, from what it has measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorprobe import DumpWriter, open_dump
from tensorprobe.blame import after_compare
from tensorprobe.blame.after_compare import Judge
from tensorprobe.cli import main
from tensorprobe.compare import compare as compare_dumps
from tensorprobe.compare.evidence import Answer, PartEvidence
from tensorprobe.demo.faulty_norm import capture_step
from tensorprobe.records import CallRecord, DumpInfo, ScalarValue, TensorValue


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    for name in ("candidate", "reference"):
        capture_step(folder / name, has_fault=name == "candidate")
    return str(folder / "candidate"), str(folder / "reference")


def compare(pair: tuple[str, str], tmp_path: Path, *options: str) -> int:
    return main(["compare", *pair, "-o", str(tmp_path / "o"), *options])


def test_a_small_comparison_begins_with_its_conclusion(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(pair, tmp_path) == 0
    text = capsys.readouterr().out
    assert text.startswith("culprit     Functional.layer_norm.0.forward.output.0\n")
    assert "values compared by real data" in text


@pytest.mark.parametrize("option", ["--no-blame", "--no-advice"])
def test_nobody_is_named_who_was_not_asked_for(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert compare(pair, tmp_path, option) == 0
    assert "culprit" not in capsys.readouterr().out


def test_runs_that_agree_need_nothing_that_blames(tmp_path: Path, pair: tuple[str, str]) -> None:
    program = (
        "import sys; from tensorprobe.cli import main; "
        f"main(['compare', {pair[1]!r}, {pair[1]!r}, '-o', {str(tmp_path)!r}]); "
        "print([name for name in ('torch', 'tensorprobe.blame.run') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "verdict     both runs agree in everything that was recorded"
    assert lines[-1] == "[]"


def test_what_the_comparison_has_measured_is_not_read_again(tmp_path: Path) -> None:
    class Forgetful(Judge):
        """Loses the data before it is asked, and keeps what it is handed."""

        def __call__(self, parts: Sequence[PartEvidence], *more: Any) -> Answer:
            for folder in folders:
                files = list(folder.rglob("*.pt"))
                assert files
                for file in files:
                    file.unlink()
            self.parts = parts
            return super().__call__(parts, *more)

    folders = [tmp_path / name for name in ("candidate", "reference")]
    for folder in folders:
        capture_step(folder, has_fault=folder.name == "candidate")
    judge = Forgetful(*map(str, folders))
    answer = compare_dumps(*folders, tmp_path / "o", find_culprit=judge).answer
    assert answer is not None and answer.culprit == "Functional.layer_norm.0.forward"
    assert any("from data" in line for line in answer.lines)
    assert not [gap for part in judge.parts for gap in part.candidate.known_gaps]


FIRST = "Functional.gelu.0.forward"


def write(
    folder: Path, changed: dict[int, float], *, calls: int = 3000, rank: int | None = None
) -> Path:
    """Write statistics of many calls in a row, some of whose results are off."""
    with DumpWriter(folder, DumpInfo(step=0, rank=rank, level="L1")) as writer:
        size = 1.0
        for number in range(calls):
            given, size = size, (1 + number % 7) * changed.get(number, 1.0)
            writer.write(
                CallRecord(
                    f"Functional.gelu.{number}.forward",
                    inputs=(tensor(given),),
                    kwargs={},
                    outputs=(tensor(size),),
                )
            )
    return folder


def tensor(size: float) -> TensorValue:
    return TensorValue("torch.float32", (4, 8), size, -0.9 * size, 0.01 * size, 2.5 * size)


def test_a_large_comparison_looks_from_the_first_difference_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_compare, "_FIRST_LOOK", 0.0)
    pair = str(write(tmp_path / "a", {2500: 1.02})), str(write(tmp_path / "b", {}))
    assert compare(pair, tmp_path) == 0
    text = capsys.readouterr().out
    assert text.startswith("culprit     Functional.gelu.2500.forward.output.0\n")
    assert "\nseen        500 calls" in text


def test_of_several_ranks_the_earliest_is_named_wherever_their_differences_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_compare, "_FIRST_LOOK", 0.0)
    for rank, number in enumerate((2500, 2200, 2600)):
        for side, changed in (("a", {number: 1.02}), ("b", {})):
            write(tmp_path / side / "step0" / f"rank{rank}", changed, rank=rank)
    assert compare((str(tmp_path / "a"), str(tmp_path / "b")), tmp_path) == 0
    text = capsys.readouterr().out
    assert text.startswith("culprit     Functional.gelu.2200.forward.output.0  (rank 1)\n")


def test_it_looks_further_while_all_is_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_compare, "_LEAST_CALLS", 200)
    monkeypatch.setattr(after_compare, "_FIRST_LOOK", 0.0)
    noise = dict.fromkeys(range(2000), 1 + 1e-7)
    pair = str(write(tmp_path / "a", {**noise, 700: 1.02})), str(write(tmp_path / "b", {}))
    parts = [PartEvidence(*(open_dump(path).parts[0] for path in pair), FIRST, {})]
    answer = Judge(*pair, is_thorough=False)(parts, 0.0)
    assert answer.culprit is None and "not looked at" in answer.lines[-1]
    assert Judge(*pair, is_thorough=False)(parts, 1000.0).culprit == "Functional.gelu.700.forward"
    assert Judge(*pair, is_thorough=True)(parts, 0.0).culprit == "Functional.gelu.700.forward"


def test_first_diff_holds_the_culprit_though_no_row_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = str(write(tmp_path / "a", {5: 1.02}, calls=9)), str(write(tmp_path / "b", {}, calls=9))
    assert compare(pair, tmp_path, "--first-diff") == 0
    (file,) = (tmp_path / "o").glob("diff_analyze_*.json")
    (node,) = json.loads(file.read_text())["rank_0"]
    assert (node["op_name"], node["op_type"]) == ("Functional.gelu.5.forward", "Functional")
    assert node["position"] == {"call": 5, "parent": None}
    output = node["data_info"]["output"]["Functional.gelu.5.forward.output.0"]
    assert output["NPU max"] == pytest.approx(6 * 1.02)
    culprit = node["culprit"]
    assert culprit["op_name"] == "Functional.gelu.5.forward"
    assert (culprit["kind"], culprit["confidence"]) == ("scale", "likely")


def test_first_diff_names_the_culprit_beside_the_first_row_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {3: 1.1, 6: 3.0}
    pair = str(write(tmp_path / "a", changed, calls=9)), str(write(tmp_path / "b", {}, calls=9))
    assert compare(pair, tmp_path, "--first-diff") == 0
    (file,) = (tmp_path / "o").glob("diff_analyze_*.json")
    (node,) = json.loads(file.read_text())["rank_0"]
    assert node["op_name"] == "Functional.gelu.6.forward"
    assert node["culprit"]["op_name"] == "Functional.gelu.3.forward"
    assert compare(pair, tmp_path / "without", "--first-diff", "--no-blame") == 0
    (file,) = (tmp_path / "without" / "o").glob("diff_analyze_*.json")
    assert "culprit" not in json.loads(file.read_text())["rank_0"][0]


def test_who_asks_for_the_first_difference_is_told_the_culprit_without_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = str(write(tmp_path / "a", {5: 1.02}, calls=9)), str(write(tmp_path / "b", {}, calls=9))
    assert compare(pair, tmp_path, "--first-diff", "--no-advice") == 0
    assert capsys.readouterr().out.startswith("culprit     Functional.gelu.5.forward")
    (file,) = (tmp_path / "o").glob("diff_analyze_*.json")
    assert "culprit" in json.loads(file.read_text())["rank_0"][0]


def write_saved(folder: Path, numbers: dict[str, float], **info: int) -> str:
    with DumpWriter(folder, DumpInfo(level="debug", **info)) as writer:
        for name, number in numbers.items():
            value = TensorValue("torch.float32", (2,), number, number, number, number)
            assert writer.write(CallRecord(name, saved=(value,)))
    return str(folder)


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        (
            ["x_grad.0.debug", "y.0.debug", "y_grad.0.debug"],
            [
                "first       y.0.debug is the first saved value that differs",
                "next        see what is computed between x.0.debug, which agrees, and it",
            ],
        ),
        (
            ["x.0.debug"],
            [
                "first       x.0.debug is the first saved value that differs",
                "next        nothing was saved before it: see what it is computed from",
            ],
        ),
        (
            ["x_grad.0.debug"],
            [
                "first       x_grad.0.debug is the first saved value that differs",
                "next        all that was saved forward agrees: see the backward pass behind it",
            ],
        ),
    ],
)
def test_of_saved_values_the_first_that_differs_in_the_run_is_named(
    tmp_path: Path, changed: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("x.0.debug", "x_grad.0.debug", "y.0.debug", "y_grad.0.debug")
    ours = write_saved(tmp_path / "a", {name: 1 + 9 * (name in changed) for name in names})
    theirs = write_saved(tmp_path / "b", dict.fromkeys(names, 1.0))
    assert compare((ours, theirs), tmp_path, "--first-diff") == 0
    text = capsys.readouterr().out
    assert text.splitlines()[:3] == [*lines, ""]
    first = lines[0].split()[1]
    assert f"first that fails: {first}\n" in text
    (file,) = (tmp_path / "o").glob("diff_analyze_*.json")
    (node,) = json.loads(file.read_text())["rank_0"]
    assert (node["op_name"], node["op_type"]) == (first, "debug")
    assert list(node["data_info"]["output"]) == [first]
    (advice,) = (tmp_path / "o").glob("advisor*")
    assert f"{first} is the first saved value that differs; " in advice.read_text()


def test_a_saved_value_that_differs_a_little_is_in_the_first_difference(tmp_path: Path) -> None:
    ours = write_saved(tmp_path / "a", {"x.0.debug": 1.0, "y.0.debug": 1.01})
    theirs = write_saved(tmp_path / "b", {"x.0.debug": 1.0, "y.0.debug": 1.0})
    assert compare((ours, theirs), tmp_path, "--first-diff") == 0
    (file,) = (tmp_path / "o").glob("diff_analyze_*.json")
    (node,) = json.loads(file.read_text())["rank_0"]
    assert node["op_name"] == node["culprit"]["op_name"] == "y.0.debug"
    assert node["culprit"]["kind"] == "saved value"
    assert node["data_info"]["output"]["y.0.debug"]["NPU max"] == 1.01


def test_saved_values_of_several_ranks_say_whose_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, number in (("a", 1.5), ("b", 1.0)):
        for rank in (0, 1):
            folder = tmp_path / side / "step0" / f"rank{rank}"
            write_saved(folder, {"x.0.debug": number}, rank=rank, step=0)
    assert compare((str(tmp_path / "a"), str(tmp_path / "b")), tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "first       x.0.debug (step0/rank0) is the first saved value that differs"
    assert lines[2] == "also        x.0.debug (step0/rank1)"


def test_the_advice_is_that_of_the_fault_that_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(folder: str, slope: float) -> str:
        with DumpWriter(tmp_path / folder, DumpInfo(step=0, level="L1")) as writer:
            inputs = (tensor(1.0), ScalarValue("float", slope))
            outputs = (tensor(2.0 if slope < 1e-3 else 3.0),)
            name = "Functional.leaky_relu.0.forward"
            writer.write(CallRecord(name, inputs=inputs, kwargs={}, outputs=outputs))
        return str(tmp_path / folder)

    assert compare((run("a", 1e-2), run("b", 1e-5)), tmp_path) == 0
    (file,) = (tmp_path / "o").glob("advisor_*.txt")
    line, node, advice = file.read_text().splitlines()
    assert (line, node) == ("Line: 1", "Suspect Nodes: Functional.leaky_relu.0.forward.input.1")
    assert advice == (
        "Expert Advice: Functional.leaky_relu.0.forward: it is called with other arguments: "
        "input.1 (negative_slope) is 0.01, in the reference 1e-05; compare the configuration and "
        "the code around this call."
    )


def test_the_advice_says_who_is_at_fault_though_no_row_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = str(write(tmp_path / "a", {5: 1.02}, calls=9)), str(write(tmp_path / "b", {}, calls=9))
    assert compare(pair, tmp_path) == 0
    (file,) = (tmp_path / "o").glob("advisor_*.txt")
    assert "meets the requirements. Yet Functional.gelu.5.forward: " in file.read_text()


def test_first_diff_shows_a_missing_call_as_the_reference_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(folder: str, skipped: int | None) -> str:
        with DumpWriter(tmp_path / folder, DumpInfo(step=0, level="L1")) as writer:
            size = 1.0
            for step, api in enumerate(("relu", "gelu", "silu", "elu", "tanh", "celu")):
                if step == skipped:
                    continue
                name = f"Functional.{api}.0.forward"
                given, size = size, size * (1.5 + step)
                record = CallRecord(
                    name, inputs=(tensor(given),), kwargs={}, outputs=(tensor(size),)
                )
                writer.write(record)
        return str(tmp_path / folder)

    assert compare((run("a", 2), run("b", None)), tmp_path, "--first-diff") == 0
    (file,) = (tmp_path / "o").glob("diff_analyze_*.json")
    (node,) = json.loads(file.read_text())["rank_0"]
    culprit = node["culprit"]
    assert culprit["op_name"] == "Functional.silu.0.forward"
    assert culprit["kind"] == "missing call"
    assert culprit["position"]["call"] == 2


def write_fed(folder: Path, factor: float) -> Path:
    """Write a run whose weights, and nothing else, are multiplied; no result is off by much."""
    with DumpWriter(folder, DumpInfo(step=0, level="L1")) as writer:
        for number in range(4):
            weight = TensorValue(
                "torch.float32", (8, 8), *(v * (3 + number) * factor for v in (1, -1, 0.1, 2))
            )
            weight = replace(weight, requires_grad=True)
            writer.write(
                CallRecord(
                    f"Functional.linear.{number}.forward",
                    inputs=(tensor(1.0 + number), weight),
                    kwargs={},
                    outputs=(tensor(2.0 + number),),
                )
            )
    return folder


def test_first_diff_says_that_the_weights_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = str(write_fed(tmp_path / "a", 1.5)), str(write_fed(tmp_path / "b", 1.0))
    assert compare(pair, tmp_path, "--first-diff") == 0
    (file,) = (tmp_path / "o").glob("diff_analyze_*.json")
    (node,) = json.loads(file.read_text())["rank_0"]
    assert node["op_name"].startswith("Functional.linear.")
    assert "what it is given differs" in node["reason"]
    start = node["different_from_start"]
    assert (start["op_name"], start["value"]) == ("Functional.linear.0.forward", "input.1")
    assert start["kind"] == "weights"
    assert "the weights of the two runs differ before any operation" in start["explanation"]
    # Whoever asks for nobody to be named still learns which difference is the first.
    assert compare(pair, tmp_path / "alone", "--first-diff", "--no-blame") == 0
    (file,) = (tmp_path / "alone" / "o").glob("diff_analyze_*.json")
    (node,) = json.loads(file.read_text())["rank_0"]
    assert node["op_name"].startswith("Functional.linear.") and "reason" in node


def test_a_fed_difference_that_no_row_calls_a_failure_is_told_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = str(write_fed(tmp_path / "a", 1.001)), str(write_fed(tmp_path / "b", 1.0))
    assert compare(pair, tmp_path, "--first-diff") == 0
    (file,) = (tmp_path / "o").glob("diff_analyze_*.json")
    (node,) = json.loads(file.read_text())["rank_0"]
    assert node["different_from_start"]["kind"] == "weights"


def test_what_cannot_be_opened_is_told_once(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare((pair[0], str(tmp_path / "nothing")), tmp_path) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.count("\n") == 1
