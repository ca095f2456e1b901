"""torch's tracers work under capture as without, and their graphs have nothing of us in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe import PrecisionDebugger, open_dump

# torch says so of its own tracer.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")

NOTICE = "a model is traced by torch.jit; what happens in the meantime is not recorded"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x)).reshape(x.shape[0], -1)


def kinds(traced: Any) -> list[str]:
    return [node.kind() for node in traced.inlined_graph.nodes()]


@pytest.mark.parametrize("level", ["L0", "L1", "L2", "mix"])
def test_a_traced_model_is_the_same_under_capture(
    tmp_path: Path, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.ones(3, 4)
    expected = kinds(torch.jit.trace(net, x))
    before = torch.jit.trace.__code__
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.start(net)
    net(x)
    traced = torch.jit.trace(net, x)
    net(x)
    debugger.stop()
    debugger.step()
    assert kinds(traced) == expected
    assert torch.equal(traced(x), net(x))
    assert torch.jit.trace.__code__ is before
    assert caplog.messages == [NOTICE]
    assert not list(tmp_path.rglob("dump_error_info.log"))
    names = list(open_dump(tmp_path).part().names)
    wanted = {"L0": "Module.fc.Linear", "L2": "Aten.relu", "L1": "Torch.relu", "mix": "Torch.relu"}
    assert len([name for name in names if name.startswith(wanted[level])]) == 2


def test_a_tracer_that_fails_leaves_the_capture_on(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    debugger.start()
    with pytest.raises(ZeroDivisionError):
        torch.jit.trace(lambda x: x * (1 / 0), torch.ones(2))
    torch.sin(torch.zeros(2))
    debugger.stop()
    debugger.step()
    assert "Torch.sin.0.forward" in open_dump(tmp_path).part().names
    assert torch._C._len_torch_function_stack() == 0
