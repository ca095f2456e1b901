"""The compiled parts of capture say exactly what their twins in Python say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.nn import functional

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger, graph_edges, pending_tensors, stacks
from tensorprobe.summary import host
from tensorprobe.summary.statistics import Measured
from tensorprobe.system.extensions import SWITCH, load_compiled

pytestmark = pytest.mark.skipif(
    load_compiled("tensorprobe.capture._calls") is None, reason="built without a C compiler"
)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def part_of(whole: torch.Tensor) -> torch.Tensor:
    return whole[1:]


def written_view() -> torch.Tensor:
    whole = leaf(4, 4) * 1
    view = whole[1]
    whole.mul_(2)
    return view


# What makes the tensors, and the call.
CALLS: dict[str, tuple[Callable[[], list[torch.Tensor]], Callable[..., Any]]] = {
    "two leaves": (lambda: [leaf(4, 4), leaf(4, 4)], torch.matmul),
    "one tensor twice": (lambda: [leaf(4) * 1] * 2, torch.mul),
    "several nodes": (
        lambda: [leaf(4, 3), torch.tensor([0, 2, 1, 1])],
        functional.cross_entropy,
    ),
    "a linear layer": (
        lambda: [leaf(2, 3, 4) * 1, leaf(5, 4), leaf(5)],
        functional.linear,
    ),
    "a product of stacks": (lambda: [leaf(2, 3, 4) * 1, leaf(2, 4, 5) * 1], torch.matmul),
    "no gradient": (lambda: [torch.randn(3), torch.randn(3)], torch.add),
    "detached": (lambda: [leaf(3) * 1], lambda a: a.detach()),
    "a view": (lambda: [leaf(3, 2) * 1], lambda a: a.transpose(0, 1)),
    "a view of a new tensor": (lambda: [leaf(3, 2) * 1], lambda a: a.t().reshape(6)),
    "several views": (lambda: [leaf(4, 2) * 1], lambda a: a.split(2)),
    "an input that is a view": (lambda: [part_of(leaf(4, 2) * 1)], torch.exp),
    "a view whose base was written": (lambda: [written_view()], torch.exp),
    "in place": (lambda: [leaf(3) * 1], lambda a: a.add_(1)),
    "in place into a view": (lambda: [part_of(leaf(4, 2) * 1)], lambda a: a.mul_(2)),
    "handed back": (lambda: [part_of(leaf(4, 2) * 1)], lambda a: a),
    "one output of several": (lambda: [leaf(4, 2) * 1], lambda a: torch.max(a, 0)),
}


def find_edges(call: str, *, compiled: bool, autocast: bool) -> tuple[Any, ...]:
    """Return what is found of a call, with the kinds of nodes in place of the nodes."""
    make, function = CALLS[call]
    tensors = make()
    start = graph_edges.next_sequence_number()
    edges = (graph_edges.input_edges if compiled else graph_edges.InputEdges)(tensors)
    taken = (
        edges.count,
        list(edges.leaves.values()),
        [(type(node).__name__, nr, at) for (node, nr), at in edges.nodes.items()],
        [(at, tensor is tensors[at], version) for at, tensor, version, _ in edges._view_inputs],
    )
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        result = function(*tensors)
        outputs = [result] if isinstance(result, torch.Tensor) else list(result)
        found = graph_edges.compiled_graph().find_nodes(outputs, edges, start) if compiled else None
        if found is None:
            roots = graph_edges._roots(outputs, edges, start)
            edges.settle(outputs)
            found = (roots, *graph_edges._edges_to_inputs(roots, edges, start))
    roots, leaving, incoming = found
    reached = [None if edge is None else (type(edge[0]), edge[1]) for edge in incoming.values()]
    cuts = list(edges.views.values())
    return taken, cuts, _shown(roots), _shown(leaving), _shown(incoming, reached)


def _shown(nodes: dict[Any, Any], values: Iterable[Any] | None = None) -> list[tuple[str, Any]]:
    values = nodes.values() if values is None else values
    return [(type(node).__name__, value) for node, value in zip(nodes, values, strict=True)]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_the_edges_of_a_call_are_those_that_python_finds(call: str, autocast: bool) -> None:
    compiled = find_edges(call, compiled=True, autocast=autocast)
    assert compiled == find_edges(call, compiled=False, autocast=autocast)


def test_the_usual_call_is_found_without_python() -> None:
    a, b = leaf(4, 4) * 1, leaf(4, 4)
    start, edges = graph_edges.next_sequence_number(), graph_edges.input_edges([a, b])
    product = a @ b
    roots, leaving, _ = graph_edges.compiled_graph().find_nodes([product], edges, start)
    assert list(roots) == [product.grad_fn] and leaving[product.grad_fn] == [
        (0, [0], None),
        (1, [1], None),
    ]


class OwnTensor(torch.Tensor):
    pass


def odd_tensors() -> list[torch.Tensor]:
    empty = torch.ones(4)
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    with torch.inference_mode():
        inferred = torch.ones(2)
    return [
        torch.ones(3), torch.nn.Parameter(torch.ones(2)), torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        empty[:0], freed, inferred,
        torch.ones(2).as_subclass(OwnTensor),
        torch.view_as_complex(torch.ones(2, 2)),
    ]  # fmt: skip


def test_a_tensor_is_plain_to_both() -> None:
    answers = [pending_tensors.is_plain(tensor) for tensor in odd_tensors()]
    assert answers == [host.is_plain(tensor) for tensor in odd_tensors()]
    assert True in answers and False in answers


def test_a_draft_is_the_same_from_both() -> None:
    numbers = Measured((1.0, 0.0, 0.5, 2.0))
    for tensor in (t for t in odd_tensors() if host.is_plain(t)):
        made, written = (
            pending_tensors.make_pending_tensor(tensor, numbers, None),
            pending_tensors.PendingTensor(tensor, numbers, None),
        )
        assert type(made) is pending_tensors.PendingTensor
        for name in pending_tensors.PendingTensor.__slots__:
            assert getattr(made, name) == getattr(written, name), name
        assert made.as_json() == written.encode(written.requires_grad)


def test_a_draft_is_found_until_somebody_writes() -> None:
    table = pending_tensors.PendingTensorTable(is_ordered=False)
    tensor = torch.ones(3)
    table.keep(
        tensor, pending_tensors.make_pending_tensor(tensor, Measured((1.0, 1.0, 1.0, 1.0)), None)
    )
    assert table.find(tensor) is table._find(tensor) is not None
    tensor.add_(1)
    assert table.find(tensor) is None and table._find(tensor) is None
    assert table.find(torch.ones(3)) is None
    with pytest.raises(RuntimeError, match="Inference tensors do not track"):
        # Asked for its version, such a tensor refuses, in both; it never gets into the table.
        with torch.inference_mode():
            inferred = torch.ones(2)
        draft = pending_tensors.make_pending_tensor(inferred, Measured(None), None)
        table.known[id(inferred)] = (draft, weakref.ref(inferred))
        table.find(inferred)


def test_a_stack_has_the_same_key_from_both() -> None:
    frame = sys._getframe()
    key = stacks._key_of(frame)
    # This frame itself moves on between the two; a frame takes 16 bytes.
    assert stacks._compiled.stack_key(frame, stacks._codes, 400)[16:] == key[16:]
    # A code that was never seen is learned by Python.
    assert stacks._compiled.stack_key(frame, {}, 400) is None
    assert stacks._compiled.stack_key(frame, stacks._codes, 4)[16:] == key[16:32]
    with pytest.raises(TypeError, match="wanted a frame"):
        stacks._compiled.stack_key(None, stacks._codes, 400)


def test_codes_that_were_forgotten_are_not_trusted() -> None:
    """A code's id is handed out again once nobody keeps the code."""
    frame = sys._getframe()
    stacks._key_of(frame)
    codes = dict(stacks._codes)
    whole = stacks._compiled.stack_key(frame, codes, 400)
    codes.clear()
    assert stacks._compiled.stack_key(frame, codes, 400) is None
    codes.update(dict.fromkeys(stacks._codes))
    assert stacks._compiled.stack_key(frame, codes, 400) == b""
    assert whole


# Each is left out once, at a level that uses it.
PARTS_OF_A_STEP = {
    "L0": ["capture._modules"],
    "L1": ["capture._frames"],
    "mix": ["capture._graph", "capture._gradients"],
}

CAPTURE = """
import sys, torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from tensorprobe import PrecisionDebugger, seed_all
seed_all(1)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(10, 8)
        self.norm = torch.nn.BatchNorm1d(3)
        self.qkv = torch.nn.Linear(8, 24)
        self.scaled = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 8))
        self.drop = torch.nn.Dropout(0.5)
        self.scale = torch.nn.Parameter(torch.ones(8))
    def forward(self, ids, factor=1.0):
        x = self.norm(self.tokens(ids))
        q, k, v = self.qkv(x).view(2, 3, 2, 12).transpose(1, 2).split(4, dim=-1)
        weights = F.softmax(q @ k.transpose(-2, -1) / 2, dim=-1)
        x = x + (weights @ v).transpose(1, 2).reshape(2, 3, 8) * self.scale
        x = self.drop(checkpoint(lambda y: self.scaled(y).relu(), x, use_reentrant=False))
        with torch.no_grad():
            F.linear(x, self.tokens.weight).argmax(-1)
        kept, _ = x.unbind(0)
        kept = Double.apply(kept + self.scale * self.scale - factor)
        return kept.clone().clamp_(min=0), x.max(dim=-1)

block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
lstm, odd = torch.nn.LSTM(8, 4), Odd()
x = torch.randn(2, 3, 8)
ids = torch.randint(10, (2, 3))
with open(sys.argv[1] + ".json", "w") as file:
    file.write('{"task": "statistics", "statistics": {"summary_mode": "%s"}}' % sys.argv[3])
debugger = PrecisionDebugger(sys.argv[1] + ".json", dump_path=sys.argv[1], level=sys.argv[2])
debugger.start([block, lstm, odd])
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = block(x)
out = lstm(y.float())[0] * 1
view = out[0]
view.mul_(3)
with torch.inference_mode():
    odd.drop(x) + 1
kept, most = odd(ids, factor=0.5)
loss = out.sum() / 0 + torch.stack([out, out]).chunk(2)[0].sum() + kept.mean() + most.values.sum()
loss.backward(retain_graph=True)
loss.backward()
debugger.stop()
debugger.step()
"""


def captured(folder: Path, level: str, summary: str, without: str) -> tuple[str, str, Any]:
    """Return what a run that uses no compiled code of these parts writes."""
    environment = {**os.environ, SWITCH: without}
    command = [sys.executable, "-c", CAPTURE, folder, level, summary]
    subprocess.run(command, check=True, env=environment)
    rank = folder / "step0" / "rank"
    # Which places are written together, and so first, is a matter of time.
    tree = json.loads((rank / "construct.json").read_text())
    # Up to its data, a dump says which run it is of.
    data = (rank / "dump.json").read_text().partition(' "data": {')[2]
    return data, (rank / "stack.json").read_text(), tree


@pytest.mark.parametrize(
    ("level", "summary"), [("L0", "statistics"), ("L1", "md5"), ("mix", "statistics")]
)
def test_a_dump_is_the_same_with_and_without_them(tmp_path: Path, level: str, summary: str) -> None:
    whole = captured(tmp_path / "compiled", level, summary, "")
    assert len(whole[0]) > 20_000
    for without in ("capture._calls,store._entry_text", *PARTS_OF_A_STEP[level]):
        assert captured(tmp_path / without, level, summary, without) == whole, without


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_usual_calls_take_no_step_of_ours_in_python(tmp_path: Path, level: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    x = torch.randn(3, 4)
    debugger = PrecisionDebugger(dump_path=str(tmp_path), level=level, task="statistics")
    seen: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "capture" in frame.f_code.co_filename:
            seen.add(frame.f_code.co_name)

    for step in range(2):
        debugger.start(model)
        # In the first step the fast recorder learns the functions.
        sys.setprofile(look if step else None)
        model(x).sum().backward()
        sys.setprofile(None)
        debugger.stop()
        debugger.step()
    steps = {
        *("watch_call", "watch", "begin", "find_rest", "draft_all", "_draft_tensor"),
        *("on_backward", "_enter", "_record"),
    }
    assert not seen & steps
    names = [name for part in open_dump(tmp_path).parts for name in part.names]
    assert sum(".backward" in name for name in names) >= 2 * 4, "the gradients came"


class _Unversioned(torch.Tensor):
    """Does not say how often it was written into, for another reason than inference."""

    @property
    def _version(self) -> int:  # type: ignore[override]
        raise RuntimeError("no version today")


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_what_torch_warns_of_names_the_line_of_the_program_from_the_first_call_on(
    tmp_path: Path, level: str
) -> None:
    ones, short = torch.ones(4), [torch.empty(2), torch.empty(2)]
    with PrecisionDebugger(dump_path=tmp_path, level=level):
        for out in short:
            with pytest.warns(UserWarning, match="was resized") as told:
                torch.add(ones, ones, out=out)
            assert [one.filename for one in told] == [__file__]


def test_a_tensor_that_does_not_tell_its_version_is_no_draft() -> None:
    tensor = torch.ones(2).as_subclass(_Unversioned)
    for make in (pending_tensors.PendingTensor, pending_tensors.make_pending_tensor):
        with pytest.raises(RuntimeError, match="no version today"):
            make(tensor, Measured(None), None)
