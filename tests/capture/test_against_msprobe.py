"""Same model, same seed: every call that msprobe 8.2.1 records is in our dump with its values."""

from __future__ import annotations

import math
import os
import subprocess

import pytest

from conftest import REPOSITORY
from tensorprobe import open_dump
from tensorprobe.records import CallRecord, TensorValue, Value
from tensorprobe.store import RankDump

PEER = os.environ.get("TENSORPROBE_PEER_PYTHON", "")
pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not PEER, reason="TENSORPROBE_PEER_PYTHON names no Python with msprobe"),
]

SCRIPT = """
import functools, sys
import torch, torch.nn as nn, torch.nn.functional as F
tool, folder, kind, level = sys.argv[1:]
if tool == "msprobe":
    from msprobe.pytorch import PrecisionDebugger
else:
    from tensorprobe.capture import PrecisionDebugger

class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=-1)
        q, k, v = (t.reshape(batch, length, 2, -1).transpose(1, 2) for t in (q, k, v))
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4, dim=-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 4, 2)
        self.norm, self.slope, self.pool = nn.BatchNorm2d(8), nn.PReLU(), nn.MaxPool2d(2)
        self.last, self.head = nn.Conv1d(4, 6, 3), nn.Linear(6, 5)
        self.gain = 1.5

    def forward(self, x):
        x = self.pool(self.slope(self.norm(self.wide(x))))
        x = 0.5 * x * (1.0 + torch.tanh(0.79 * (x + 0.044715 * torch.pow(x, 3.0))))
        half = 0.5
        x = half * self.narrow(x) + self.gain * F.logsigmoid(x[:, :4, :1, :1])
        x = functools.partial(F.softplus, beta=2.0)(self.last(x.flatten(2)))
        best, _ = x.topk(2, dim=-1)
        return self.head(best.max(dim=-1).values * (2 - half))

class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 50)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x).reshape(-1, 50)

torch.manual_seed(0)
if kind == "gpt":
    model, given, targets = Gpt(), torch.randint(0, 50, (2, 5)), torch.randint(0, 50, (10,))
else:
    model, given, targets = Cnn(), torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
debugger = PrecisionDebugger(task="statistics", dump_path=folder, level=level)
debugger.start(model)
F.cross_entropy(model(given), targets).backward()
debugger.stop()
debugger.step()
"""


@pytest.fixture(
    scope="module",
    params=[(kind, level) for kind in ("gpt", "cnn") for level in ("L0", "L1", "mix")],
    ids="-".join,
)
def dumps(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RankDump, RankDump]:
    folder = tmp_path_factory.mktemp("both")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    for tool in ("msprobe", "tensorprobe"):
        command = [PEER, "-c", SCRIPT, tool, str(folder / tool), *request.param]
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        assert answer.returncode == 0, answer.stderr
    return open_dump(folder / "msprobe").parts[0], open_dump(folder / "tensorprobe").parts[0]


def is_their_own(name: str) -> bool:
    """What msprobe's hooks and torch's backward() add; no call of the user's."""
    return name.startswith(("Tensor.view_as.", "Torch.ones_like."))


def leaves_of(call: CallRecord) -> dict[str, Value]:
    return {leaf.name: leaf.value for leaf in call.leaves()}


def agree(mine: Value, theirs: Value) -> bool:
    if not isinstance(mine, TensorValue) or not isinstance(theirs, TensorValue):
        return mine == theirs
    numbers = zip(
        (mine.max, mine.min, mine.mean, mine.norm),
        (theirs.max, theirs.min, theirs.mean, theirs.norm),
        strict=True,
    )
    return (
        (mine.dtype, mine.shape, mine.requires_grad)
        == (theirs.dtype, theirs.shape, theirs.requires_grad)
    ) and all(
        a == b
        or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6))
        for a, b in numbers
    )


def test_every_call_that_msprobe_records_is_in_ours(dumps: tuple[RankDump, RankDump]) -> None:
    theirs, ours = dumps
    missing = [name for name in theirs.names if name not in ours and not is_their_own(name)]
    assert missing == []


def test_forward_values_and_parameter_gradients_are_the_same(
    dumps: tuple[RankDump, RankDump],
) -> None:
    theirs, ours = dumps
    compared = 0
    for call in theirs:
        if is_their_own(call.name) or "backward" in call.name:
            continue
        mine = leaves_of(ours.call(call.name))
        for name, value in leaves_of(call).items():
            assert agree(mine[name], value), name
            compared += 1
    assert compared > 30


def test_module_gradients_are_the_same(dumps: tuple[RankDump, RankDump]) -> None:
    """Backward of modules has one order in both; of APIs msprobe writes autograd's own order."""
    theirs, ours = dumps
    for call in theirs:
        if call.name.startswith("Module.") and ".backward." in call.name:
            mine = leaves_of(ours.call(call.name))
            for name, value in leaves_of(call).items():
                assert agree(mine[name], value), name


def test_the_tree_and_the_stacks_name_the_users_lines(dumps: tuple[RankDump, RankDump]) -> None:
    theirs, ours = dumps
    for name in ours.names:
        stack = ours.stack(name)
        assert not any("tensorprobe/capture" in frame.path for frame in stack)
    if ours.info.level == "mix":
        for name in theirs.names:
            parent = theirs.parent(name)
            if not is_their_own(name) and parent is not None and "backward" not in name:
                assert ours.parent(name) == parent
