"""The json of the origins, in the form of nan_analyze of msprobe 8.2.1."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from test_origin import INF, call, write_rank

import tensorprobe
from tensorprobe import PrecisionDebugger
from tensorprobe.cli import main

PEER = os.environ.get("TENSORPROBE_PEER_PYTHON", "")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Softplus())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.log(x)) + 1


def capture_log_of_zero(path: Path) -> Path:
    model = Model()
    debugger = PrecisionDebugger(dump_path=path, level="mix", task="statistics")
    debugger.start(model)
    model(torch.tensor([0.0, 1.0]))
    debugger.stop()
    debugger.close()
    return path / "step0"


def read(folder: Path) -> Any:
    (path,) = folder.glob("anomaly_analyze_*.json")
    assert re.fullmatch(r"anomaly_analyze_[0-9]{19}\.json", path.name)
    return json.loads(path.read_text())


def test_the_call_stands_there_with_its_values_modules_and_lines(tmp_path: Path) -> None:
    step = capture_log_of_zero(tmp_path / "dump")
    report = tensorprobe.overflow(step, tmp_path / "out", origins_json=True)
    (node,) = read(tmp_path / "out")["rank_0"]
    assert report.origins_path is not None and report.origins_path.parent == tmp_path / "out"
    assert list(node) == ["op_name", "data_info", "construct_info", "stack_info"]
    assert node["op_name"] == "Torch.log.0.forward"
    assert list(node["data_info"]) == ["input_args", "input_kwargs", "output"]
    (output,) = node["data_info"]["output"]
    assert (output["Max"], output["Min"], output["dtype"]) == (0, "-Infinity", "torch.float32")
    assert node["construct_info"] == ["Module.Model.forward.0", "Torch.log.0.forward"]
    assert "torch.log(x)" in node["stack_info"][0]


def test_ranks_that_made_none_are_left_out_and_the_origin_stands_first(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    write_rank(dump, [call("Torch.a.0", 1, 1), call("Torch.b.0", 1, INF)], rank=0)
    write_rank(dump, [call("Torch.a.0", 1, INF)], rank=1)
    write_rank(dump, [call("Torch.a.0", INF, INF)], rank=2)
    tensorprobe.overflow(dump, tmp_path, origins_json=True)
    found = read(tmp_path)
    assert [(rank, [node["op_name"] for node in nodes]) for rank, nodes in found.items()] == [
        ("rank_1", ["Torch.a.0.forward"]),
        ("rank_0", ["Torch.b.0.forward"]),
    ]


def test_where_no_call_made_one_there_is_no_file(tmp_path: Path) -> None:
    write_rank(tmp_path / "dump", [call("Torch.a.0", INF, INF)], rank=0)
    report = tensorprobe.overflow(tmp_path / "dump", tmp_path, origins_json=True)
    assert report.origins and report.origins_path is None
    assert not list(tmp_path.glob("*.json"))


def test_the_command_writes_it_when_asked_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rank(tmp_path / "dump", [call("Torch.a.0", 1, INF)], rank=0)
    words = ["overflow", str(tmp_path / "dump"), "-o", str(tmp_path)]
    main(words)
    assert not list(tmp_path.glob("*.json"))
    main([*words, "--origins-json"])
    (path,) = tmp_path.glob("*.json")
    assert f"written: {path}\n" in capsys.readouterr().out


@pytest.mark.peer
@pytest.mark.skipif(not PEER, reason="TENSORPROBE_PEER_PYTHON names no Python with msprobe")
def test_msprobe_writes_the_same_of_the_same_dump(tmp_path: Path) -> None:
    step = capture_log_of_zero(tmp_path / "dump")
    words = ["-f", "pytorch", "nan_analyze", "-i", str(step), "-o", str(tmp_path / "theirs")]
    answer = subprocess.run(
        [str(Path(PEER).with_name("msprobe")), *words],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    tensorprobe.overflow(step, tmp_path / "ours", origins_json=True)
    ours, theirs = read(tmp_path / "ours"), read(tmp_path / "theirs")
    # They write numbers that are not finite as no other reader of JSON takes them.
    assert ours == json.loads(json.dumps(theirs), parse_constant=str)
