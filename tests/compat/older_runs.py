"""The run that the older tools recorded, again: the same model, with the same numbers.

Model and lines are those of the real dumps, whose stacks show them; weights and input are read from
the files of one of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conftest import DATA, REPOSITORY

REAL = next((DATA / "peer_dumps/ptdbg_ascend/2024-03/all/npu").rglob("api_stack_dump.pkl"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(x)))
        y = self.fc(torch.flatten(x, 1))
        b = torch.gt(torch.arange(3), 1)
        z = torch.where(b, y, torch.zeros(2, 3))
        s = torch.split(z, [1, 2], dim=1)
        e = torch.cat([s[0], s[1]], dim=1)
        h = torch.mul(e.to(torch.bfloat16), 2)
        q = torch.div(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))
        n = torch.mul(torch.empty(0, 3), 2.0)
        return torch.sum(e) + h.float().sum() + torch.nan_to_num(q).sum() + n.sum()


def real_array(name: str) -> Tensor:
    return torch.from_numpy(np.load(REAL.with_suffix("") / f"{name}.npy"))


def same_net() -> Net:
    net = Net()
    with torch.no_grad():
        net.conv.weight.copy_(real_array("Functional_conv2d_0_forward_input.1"))
        assert net.conv.bias is not None
        net.conv.bias.copy_(real_array("Functional_conv2d_0_forward_input.2"))
        net.fc.weight.copy_(real_array("Functional_linear_0_forward_input.1"))
        net.fc.bias.copy_(real_array("Functional_linear_0_forward_input.2"))
    return net


def same_input() -> Tensor:
    return real_array("Functional_conv2d_0_forward_input.0")


def lines_of(pkl: Path) -> list[list[Any]]:
    text = pkl.read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def run_script(program: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user does, in a folder of its own."""
    (folder / "train.py").write_text(program)
    return run_python([str(folder / "train.py"), *words], folder)


def run_python(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(REPOSITORY / "compat/src"), *sys.path]
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
