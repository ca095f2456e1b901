"""On a GPU: overflows are found without waiting, and their data are those of the call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensorprobe
from overflow_runs import search, try_search
from tensorprobe.records import TensorValue
from tensorprobe.replay.rebuild import load_tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


def test_an_overflow_is_recorded_as_it_was_though_its_tensors_change(tmp_path: Path) -> None:
    zeros = torch.zeros(1000, device="cuda")

    def run() -> None:
        x = zeros.clone()
        y = torch.log(x)
        x.add_(1)
        y.fill_(0)
        x.half().mul_(60000).mul_(2)

    dump = search(tmp_path / "dump", run)
    part = dump.parts[0]
    assert list(part.names) == ["Torch.log.0.forward", "Tensor.mul_.1.forward"]
    assert dump.gaps == ()
    record = part.call("Torch.log.0.forward")
    assert record.inputs is not None
    assert isinstance(record.inputs[0], TensorValue)
    assert torch.equal(load_tensor(part, record.inputs[0]), zeros.cpu())
    report = tensorprobe.overflow(tmp_path / "dump", tmp_path, device="cuda:0")
    assert [o.replay.on_device for o in report.overflows] == ["overflows"] * 2
    assert [o.verdict for o in report.overflows] == ["normal"] * 2


# torch says so of the mode that tells of it.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_the_device_is_not_waited_for(tmp_path: Path) -> None:
    x = torch.randn(1000, device="cuda")

    def run() -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(300):
                torch.tanh(x + 1)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    run()
    try_search(tmp_path / "dump", run)


def test_a_watched_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    def train() -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(inplace=True), torch.nn.Linear(64, 8)
        ).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            torch.log(model(torch.randn(32, 64, device="cuda")).abs()).sum().backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    bare = train()
    found: list[torch.Tensor] = []
    try_search(tmp_path / "dump", lambda: found.append(train()), level="mix")
    assert torch.equal(bare.view(torch.int32), found[0].view(torch.int32))
