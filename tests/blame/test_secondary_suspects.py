"""Behind the culprit only those are suspects whom it does not explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from planted import Kernels, aten, capture, scaled
from torch import nn

from tensorprobe import PrecisionDebugger, blame
from tensorprobe.demo.faulty_norm import capture_step


class TwoFaults(Kernels):
    """A wrong activation and a wrong norm behind it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.overloadpacket is aten.gelu:
            return result * 1.01
        if func.overloadpacket is aten.native_layer_norm:
            return (result[0] * 1.02, *result[1:])
        return result


def test_a_second_fault_is_listed_where_a_replay_proves_it(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference")
    answer = blame(capture(tmp_path / "candidate", TwoFaults()), reference)
    assert [accused.call for accused in answer.accused] == [
        "Functional.gelu.0.forward",
        "Functional.layer_norm.0.forward",
    ]


def test_one_fault_has_one_suspect_whatever_was_recorded(tmp_path: Path) -> None:
    for task in ("tensor", "statistics"):
        reference = capture(tmp_path / task / "reference", task=task)
        kernels = Kernels(aten.gelu, 0, scaled(-0.7))
        answer = blame(capture(tmp_path / task / "candidate", kernels, task=task), reference)
        assert [accused.call for accused in answer.accused] == ["Functional.gelu.0.forward"]


def test_the_way_back_of_the_modules_around_is_no_other_suspect(tmp_path: Path) -> None:
    for name in ("candidate", "reference"):
        capture_step(tmp_path / name, has_fault=name == "candidate")
    answer = blame(tmp_path / "candidate", tmp_path / "reference")
    assert [accused.call for accused in answer.accused] == ["Functional.layer_norm.0.forward"]


def test_the_gradients_of_one_call_are_one_suspect(tmp_path: Path) -> None:
    def train(name: str, factor: float) -> Path:
        torch.manual_seed(0)
        model, data = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)
        debugger = PrecisionDebugger(dump_path=str(tmp_path / name), task="tensor", level="L0")
        debugger.start(model)
        with Kernels(aten.mm, 0, scaled(factor)):
            model(data).pow(2).mean().backward()
        debugger.stop()
        debugger.step()
        debugger.close()
        return tmp_path / name

    answer = blame(train("candidate", 1.1), train("reference", 1.0))
    assert len(answer.accused) == 1
    assert str(answer.culprit).startswith("Module.Linear.")
