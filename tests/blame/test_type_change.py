"""Runs that compute in other types are told as such."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from planted import Kernels, aten, capture, scaled
from torch import nn

from tensorprobe.blame import blame
from tensorprobe.cli import main


def under_autocast(model: nn.Module) -> None:
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)  # type: ignore[method-assign]


@pytest.mark.parametrize("level", ["L1", "mix", "L0"])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_autocast_against_float32_is_said_first_and_nobody_is_blamed(
    tmp_path: Path, task: str, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = capture(tmp_path / "a", prepare=under_autocast, task=task, level=level)
    reference = capture(tmp_path / "b", task=task, level=level)
    assert main(["blame", str(candidate), str(reference)]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(
        "verdict     the candidate computes in bfloat16 where the reference computes in float32: "
    )
    assert "forward calls, first " in line and "linear" in line.lower()
    told = json.loads(json.dumps(blame(candidate, reference).to_json()))
    assert (told["culprit"], told["verdict"]) == (None, "different from the start")
    assert told["types"]["candidate"] == "torch.bfloat16"


def test_a_fault_that_a_replay_shows_is_named_all_the_same(tmp_path: Path) -> None:
    kernels = Kernels(aten.gelu, 0, scaled(1.5))
    candidate = capture(tmp_path / "a", kernels, prepare=under_autocast)
    answer = blame(candidate, capture(tmp_path / "b"))
    assert answer.culprit == "Functional.gelu.0.forward"
    assert answer.types is not None and answer.types.calls >= 3


def test_one_call_of_another_type_is_a_note(tmp_path: Path) -> None:
    def look_at_it_in(dtype: torch.dtype) -> Callable[[nn.Module], None]:
        def prepare(model: nn.Module) -> None:
            run = model.forward

            def forward(ids: torch.Tensor) -> torch.Tensor:
                scores: torch.Tensor = run(ids)
                scores.detach().to(dtype)
                return scores

            model.forward = forward  # type: ignore[method-assign]

        return prepare

    answer = blame(
        capture(tmp_path / "a", prepare=look_at_it_in(torch.bfloat16)),
        capture(tmp_path / "b", prepare=look_at_it_in(torch.float16)),
    )
    assert answer.types is None
    assert any("computes in bfloat16 where" in note for note in answer.notes)
