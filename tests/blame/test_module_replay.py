"""A module's settings are not in a dump: the trusted run's result tells them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from planted import Kernels, aten, with_element
from torch import nn

from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.blame import blame
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.blame.split import split_call
from tensorprobe.pairing.call_pairs import pair_calls

BUILT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dilated": (lambda: nn.Conv1d(4, 6, 3, dilation=2, padding=2), (3, 4, 20)),
    "strided": (lambda: nn.Conv2d(4, 6, 4, stride=2, padding=1), (2, 4, 8, 8)),
    "grouped": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), (2, 4, 8, 8)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1), (2, 4, 5, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 8, eps=1e-6), (3, 8, 6)),
    "batch norm": (lambda: nn.BatchNorm2d(5), (4, 5, 6, 6)),
    "layer norm": (lambda: nn.LayerNorm(16, eps=1e-12), (4, 16)),
    "leaky": (lambda: nn.LeakyReLU(0.2), (4, 16)),
    "gru": (lambda: _First(nn.GRU(6, 5, bidirectional=True)), (4, 3, 6)),
    "lstm": (lambda: _First(nn.LSTM(6, 5, num_layers=2, batch_first=True)), (4, 3, 6)),
    "gelu": (lambda: nn.GELU(approximate="tanh"), (4, 16)),
}


def capture(
    folder: Path, module: nn.Module, size: tuple[int, ...], kernels: Kernels | None = None
) -> Path:
    torch.manual_seed(1)
    model = nn.Sequential(module)
    given = torch.randn(size, requires_grad=True)
    debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level="L0")
    debugger.start(model)
    with kernels or Kernels():
        model(given).float().sin().sum().backward()
    debugger.stop()
    debugger.step()
    debugger.close()
    return folder


@pytest.mark.parametrize("name", sorted(BUILT))
def test_the_setting_that_ran_is_found(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, size = BUILT[name]
    run = RecordedRun(open_dump(capture(tmp_path, build(), size)).parts[0])
    replayed = 0
    for pair in pair_calls(run, run):
        if "Sequential" in pair.name or "_First" in pair.name:
            continue
        split = split_call(pair, run, run)
        assert not split.skipped
        replayed += len(split.outputs)
        assert all(output.candidate.relative < 1e-6 for output in split.outputs)
    assert replayed >= 2


def test_a_wrong_eps_is_not_taken_for_the_candidates_setting(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, size = nn.LayerNorm(16), (12, 16)

    def with_large_eps(result: Any, args: tuple[Any, ...]) -> Any:
        return aten.native_layer_norm(*args[:4], 1e-3)

    reference = capture(tmp_path / "reference", module, size)
    kernels = Kernels(aten.native_layer_norm, 0, with_large_eps)
    answer = blame(capture(tmp_path / "candidate", module, size, kernels), reference)
    assert answer.culprit == "Module.0.LayerNorm.forward.0"
    assert answer.first is not None and answer.first.basis == "replay"


def test_one_element_of_a_dilated_convolution_is_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, size = BUILT["dilated"]
    module = build().bfloat16()
    torch.manual_seed(1)
    reference = capture(tmp_path / "reference", nn.Sequential(_Cast(), module), size)
    kernels = Kernels(aten.convolution, 0, with_element(lambda x: x * 1.5))
    candidate = capture(tmp_path / "candidate", nn.Sequential(_Cast(), module), size, kernels)
    first = blame(candidate, reference).first
    assert first is not None
    assert (first.call, first.cause.kind) == ("Module.0.1.Conv1d.forward.0", "corruption")


class _First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.inner(given)[0]
        return states


class _Cast(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given.bfloat16()
