"""What distances show in the order of the run: gradients of parameters, from statistics alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from planted import Exact, Kernels, aten, capture, scaled
from torch import nn

from tensorprobe import PrecisionDebugger
from tensorprobe.blame import blame


@pytest.mark.parametrize("noise", [Kernels, Exact])
def test_a_gradient_of_weights_that_nothing_uses_is_found_in_its_statistics(
    tmp_path: Path, noise: type[Kernels]
) -> None:
    # On the way back each linear layer has two products: for its input, and for its weight.
    reference = capture(tmp_path / "reference", noise(), level="L0", task="statistics")
    fault = Kernels(aten.mm, 3, scaled(0.5))
    candidate = capture(tmp_path / "candidate", fault, level="L0", task="statistics")
    first = blame(candidate, reference).first
    assert first is not None
    assert (first.call, first.value_path) == ("Module.second.Linear.parameters_grad", "weight")


class Attention(nn.Module):
    """Attention, whose scores a bias of the keys moves all alike: its gradient is nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(40, 40), nn.Linear(40, 40)
        self.query, self.key, self.value = (nn.Linear(40, 40) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.tanh(self.first(x)))
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 6
        result: torch.Tensor = (torch.softmax(scores, -1) @ self.value(x)).square().mean()
        return result


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_gradient_that_is_nothing_but_noise_is_no_fault(tmp_path: Path, level: str) -> None:
    def record(folder: Path, kernels: Kernels) -> Path:
        torch.manual_seed(1)
        model, given = Attention(), torch.randn(3, 10, 40)
        debugger = PrecisionDebugger(task="statistics", dump_path=str(folder), level=level)
        debugger.start(model)
        with kernels:
            model(given).backward()
        debugger.stop()
        debugger.step()
        debugger.close()
        return folder

    reference = record(tmp_path / "reference", Kernels())
    assert blame(record(tmp_path / "candidate", Exact()), reference).verdict == "noise"


def test_a_recurrent_gradient_is_found_where_nothing_else_differs(tmp_path: Path) -> None:
    """A factor of 1.01 inside one module, on the way back of two runs that are the same so far."""

    def record(folder: Path, kernels: Kernels) -> Path:
        torch.manual_seed(1)
        model = nn.ModuleList([nn.Linear(24, 24), nn.LSTM(24, 30, 2), nn.Linear(30, 20)])
        first, rnn, last = model
        given = torch.randn(7, 3, 24)
        debugger = PrecisionDebugger(task="statistics", dump_path=str(folder), level="L0")
        debugger.start(model)
        with kernels:
            last(rnn(first(given))[0]).square().mean().backward()
        debugger.stop()
        debugger.step()
        debugger.close()
        return folder

    reference = record(tmp_path / "reference", Kernels())
    fault = Kernels(aten.mkldnn_rnn_layer_backward, 0, scaled(1.01))
    assert blame(record(tmp_path / "candidate", fault), reference).culprit in (
        "Module.1.LSTM.backward.0",
        "Module.1.LSTM.parameters_grad",
    )
