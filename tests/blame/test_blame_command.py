"""`tensorprobe blame` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from planted import Kernels, aten, capture, scaled

from tensorprobe import PrecisionDebugger
from tensorprobe.cli import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    candidate = capture(folder / "candidate", Kernels(aten.addmm, 1, scaled(1.001)))
    return str(candidate), str(capture(folder / "reference"))


def test_the_answer_fits_one_screen(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blame", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    told = {line[:12].strip(): line[12:] for line in lines}
    assert told["culprit"] == "Functional.linear.1.forward.output.0"
    assert "planted.py" in told["code"]
    assert told["inputs"] == "agree"
    assert (
        "made here 1.0e-03" in told["output"] and "times what rounding explains" in told["output"]
    )
    assert told["kind"].startswith("scale: the result is 1.001")
    assert told["sure"].startswith("certain")
    assert "later calls" in told["victims"]
    assert told["next"]


def test_json_is_one_object_with_the_culprit(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blame", *runs, "--json", "--top", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["culprit"] == "Functional.linear.1.forward"
    assert told["repro"] is None
    assert len(told["suspects"]) == 1


def test_dumps_named_from_the_current_folder_are_replayed_too(
    runs: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(runs[0]).parent)
    assert main(["blame", *(Path(run).name for run in runs)]) == 0
    printed = capsys.readouterr().out
    assert "\nsure        certain" in printed
    assert "does not exist" not in printed


def test_no_fault_is_said_in_words(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blame", runs[1], runs[1]]) == 0
    assert capsys.readouterr().out.startswith("verdict     no operation is at fault")


def test_the_proof_is_written_and_named(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blame", *runs, "--repro", str(tmp_path / "proof")]) == 0
    assert f"proof       {tmp_path / 'proof' / 'repro.py'}" in capsys.readouterr().out
    assert (tmp_path / "proof" / "test_repro.py").exists()


def test_an_answer_whose_proof_cannot_be_written_is_still_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = Kernels(aten.addmm, 1, scaled(1.01))
    candidate = capture(tmp_path / "candidate", kernels, task="statistics")
    reference = capture(tmp_path / "reference", task="statistics")
    arguments = ["blame", str(candidate), str(reference), "--repro", str(tmp_path / "proof")]
    assert main(arguments) == 2
    out = capsys.readouterr().out
    assert out.startswith("culprit     Functional.linear.1.forward")
    assert "proof       none: " in out and "data were not recorded" in out
    assert main([*arguments, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["repro"] is None and "not recorded" in told["repro_problem"]


def test_a_call_that_only_one_run_makes_has_nothing_to_prove(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = capture(tmp_path / "candidate", scaled=True)
    arguments = ["blame", str(candidate), runs[1], "--repro", str(tmp_path / "proof")]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("culprit     Tensor.__mul__.0.forward\n")
    assert "proof       none: nothing to replay: only one run makes this call" in out
    assert not (tmp_path / "proof").exists()


def test_a_compare_json_stands_for_both_dumps(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "compare.json"
    file.write_text(json.dumps({"npu_path": runs[0], "bench_path": runs[1]}))
    assert main(["blame", str(file)]) == 0
    assert capsys.readouterr().out.startswith("culprit     Functional.linear.1.forward.output.0")
    assert main(["blame", runs[0]]) == 2
    assert "is one dump alone" in capsys.readouterr().err


@pytest.mark.parametrize("top", ["0", "-3"])
def test_too_few_suspects_are_one_line_and_code_2(
    runs: tuple[str, str], top: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blame", *runs, "--top", top]) == 2
    assert capsys.readouterr().err.startswith(f"tensorprobe: top is {top}, wanted 1 or more")


def test_checksums_beside_statistics_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    block = {"summary_mode": "md5"}
    config.write_text(json.dumps({"task": "statistics", "statistics": block}))
    kernels = Kernels(aten.addmm, 1, scaled(1.001))
    pair = [
        str(capture(tmp_path / name, kernel, config=str(config)))
        for name, kernel in (("a", kernels), ("b", None))
    ]
    assert main(["blame", *pair]) == 0
    out = capsys.readouterr().out
    assert "note        the dumps hold statistics and checksums" in out
    assert "statistics only" not in out


def test_checksums_tell_that_an_exact_operation_moved_its_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "statistics": {"summary_mode": "md5"}}))

    def pool(name: str, shift: int) -> str:
        torch.manual_seed(0)
        image, first, second = (
            torch.randn(sizes) for sizes in ((2, 3, 16, 16), (8, 3, 3, 3), (8, 8, 3, 3))
        )
        change = Kernels(
            aten.max_pool2d_with_indices,
            0,
            lambda result, _: (result[0].roll(shift, -1), result[1]),
        )
        with PrecisionDebugger(str(config), dump_path=str(tmp_path / name)), change:
            image.requires_grad_()
            values = torch.nn.functional.max_pool2d(torch.conv2d(image, first).relu(), 2)
            torch.conv2d(values, second).relu()
        return str(tmp_path / name)

    assert main(["blame", pool("bad", 1), pool("good", 0)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("culprit     Functional.max_pool2d.0.forward.output.0")
    assert "inputs      agree" in out
    assert "output      differs by its elements' order or bits" in out


def test_a_weight_whose_checksum_differs_is_named(
    peer_dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = peer_dumps / "ptdbg_ascend" / "2024-10" / "md5"
    pair = [str(folder / run / "ptdbg_dump_v3.0" / "step0") for run in ("npu", "bench")]
    if not Path(pair[1]).exists():
        pytest.skip("the repository does not hold this dump")
    assert main(["blame", *pair]) == 0
    told = {line[:12].strip(): line[12:] for line in capsys.readouterr().out.splitlines()}
    assert told["culprit"] == "Functional.linear.0.forward.input.1"
    assert told["code"].startswith("train.py:21 in forward: ")
    assert told["inputs"] == "differ by an unknown amount"
    assert told["kind"].startswith("state: ")


@pytest.mark.parametrize("levels", [("L0", "mix"), ("mix", "L1"), ("L1", "mix"), ("mix", "L0")])
def test_what_one_level_does_not_record_is_no_missing_call(
    tmp_path: Path, levels: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = Kernels(aten.addmm, 1, scaled(1.5))
    pair = [
        str(capture(tmp_path / name, kernel, level=level, task="statistics"))
        for name, kernel, level in (("a", kernels, levels[0]), ("b", None, levels[1]))
    ]
    assert main(["blame", *pair, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    wanted = "Module.second.Linear.forward.0" if "L0" in levels else "Functional.linear.1.forward"
    assert told["culprit"] == wanted
    assert not {"missing call", "extra call"} & {suspect["kind"] for suspect in told["suspects"]}
    assert any("captured at level" in note for note in told["notes"])


def test_modules_around_the_culprit_are_not_listed_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = Kernels(aten.addmm, 1, scaled(1.5))
    pair = [
        str(capture(tmp_path / name, kernel, level="mix", task="statistics"))
        for name, kernel in (("a", kernels), ("b", None))
    ]
    assert main(["blame", *pair, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["culprit"] == "Functional.linear.1.forward"
    assert "Module.second.Linear.forward.0" not in told["ranked"]
    assert told["suspects"][0]["module"] == "Module.second.Linear.forward.0"
    assert told["suspects"][0]["called_from"] is None


def test_a_missing_dump_is_one_line_and_code_2(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blame", str(tmp_path / "nothing"), runs[1]]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["blame", "--help"])
    assert "tensorprobe blame dump_npu/ dump_gpu/ --top 10" in capsys.readouterr().out


def test_the_help_runs_no_proof_that_may_not_be_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["blame", "--help"])
    text = capsys.readouterr().out
    assert "--repro proof/" in text
    assert "&&" not in text
