"""The compiled parts of capture say exactly what their twins in Python say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprobe.capture import drafts, gradients, graph_edges, stacks
from tensorprobe.capture.describe import describe
from tensorprobe.capture.dispatch_modes import count_dispatch_modes
from tensorprobe.compiled import load_compiled
from tensorprobe.summary import host
from tensorprobe.summary.statistics import Measured

pytestmark = pytest.mark.skipif(
    load_compiled("tensorprobe.capture._graph") is None, reason="built without a C compiler"
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
        found = graph_edges._compiled().find(outputs, edges, start) if compiled else None
        if found is None:
            roots = graph_edges._roots(outputs, edges, start)
            edges.settle(outputs)
            found = (roots, *graph_edges._edges_to_inputs(roots, edges, start))
    roots, leaving, incoming = found
    reached = [None if edge is None else (type(edge[0]), edge[1]) for edge in incoming.values()]
    return taken, edges.views, _shown(roots), _shown(leaving), _shown(incoming, reached)


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
    roots, leaving, _ = graph_edges._compiled().find([product], edges, start)
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
    answers = [drafts.is_plain(tensor) for tensor in odd_tensors()]
    assert answers == [host.is_plain(tensor) for tensor in odd_tensors()]
    assert True in answers and False in answers


def test_a_draft_is_the_same_from_both() -> None:
    numbers = Measured((1.0, 0.0, 0.5, 2.0))
    for tensor in (t for t in odd_tensors() if host.is_plain(t)):
        made, written = (
            drafts.make_draft(tensor, numbers, None),
            drafts.Draft(tensor, numbers, None),
        )
        assert type(made) is drafts.Draft and made.alive() is tensor
        for name in set(drafts.Draft.__slots__) - {"alive"}:
            assert getattr(made, name) == getattr(written, name), name
        assert made.as_json() == written.encode(written.requires_grad)


def test_a_draft_is_found_until_somebody_writes() -> None:
    table = drafts.DraftTable(is_ordered=False)
    tensor = torch.ones(3)
    table.keep(tensor, drafts.make_draft(tensor, Measured((1.0, 1.0, 1.0, 1.0)), None))
    assert table.find(tensor) is table._find(tensor) is not None
    tensor.add_(1)
    assert table.find(tensor) is None and table._find(tensor) is None
    assert table.find(torch.ones(3)) is None
    with pytest.raises(RuntimeError, match="Inference tensors do not track"):
        # Asked for its version, such a tensor refuses, in both; it never gets into the table.
        with torch.inference_mode():
            inferred = torch.ones(2)
        table._drafts[id(inferred)] = drafts.make_draft(inferred, Measured(None), None)
        table.find(inferred)


def draft_values(values: Iterable[Any], table: drafts.DraftTable) -> tuple[list[Any], list[Any]]:
    """Draft values; returns what came out, and the tensors that were measured."""
    measured = []

    def ask(tensor: torch.Tensor) -> Measured:
        measured.append(tensor)
        return Measured((1.0, 0.0, 0.5, 2.0))

    def slowly(tensor: torch.Tensor, name: Any) -> str:
        return f"slowly {type(tensor).__name__}"

    assert drafts.draft_usual is not None
    drafted = drafts.draft_usual(
        values, table, ask, None, (count_dispatch_modes,), slowly, describe, ("", "")
    )
    return list(drafted), measured


def test_usual_tensors_are_drafted_and_measured_once() -> None:
    table = drafts.DraftTable(is_ordered=False)
    whole = torch.ones(4, 6)
    view, part = whole.transpose(0, 1), whole[1:]
    (first, again, of_view, of_part, nothing, number), measured = draft_values(
        [whole, whole, view, part, None, 3], table
    )
    assert len(measured) == 1 and measured[0] is whole
    assert first is again and table.find(whole) is first
    assert of_view.measured is first.measured and tuple(of_view.shape) == (6, 4)
    # A part of it has other numbers, which Python takes.
    assert of_part == "slowly Tensor"
    assert nothing is None and number == describe(3, lambda *_: None)
    whole.add_(1)
    assert draft_values([view], table)[0] == ["slowly Tensor"]
    assert draft_values((whole,), table)[1][0] is whole


def test_the_order_of_elements_counts_for_a_checksum() -> None:
    table = drafts.DraftTable(is_ordered=True)
    whole = torch.ones(4, 6)
    (_, flat, transposed), _ = draft_values([whole, whole.view(-1), whole.t()], table)
    assert isinstance(flat, drafts.Draft) and transposed == "slowly Tensor"


def test_odd_tensors_are_left_to_python() -> None:
    for tensor in odd_tensors():
        (drafted,), measured = draft_values([tensor], drafts.DraftTable(is_ordered=False))
        if host.is_plain(tensor) and tensor._base is None:
            assert isinstance(drafted, drafts.Draft) and len(measured) == 1
        else:
            assert str(drafted).startswith("slowly") and not measured


class Loud(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_tensors_are_left_to_python_while_a_dispatch_mode_is_on() -> None:
    with Loud():
        assert draft_values([torch.ones(2)], drafts.DraftTable(is_ordered=False)) == (
            ["slowly Tensor"],
            [],
        )


def test_a_full_table_is_left_to_python_which_makes_room() -> None:
    table = drafts.DraftTable(is_ordered=False)
    table._limit = 2
    tensors = [torch.ones(2) for _ in range(3)]
    drafted, _ = draft_values(tensors, table)
    assert drafted[2] == "slowly Tensor" and len(table._drafts) == 2


def test_what_measuring_raises_comes_out() -> None:
    def refuse(tensor: torch.Tensor) -> Measured:
        raise ValueError("no numbers")

    assert drafts.draft_usual is not None
    table = drafts.DraftTable(is_ordered=False)
    with pytest.raises(ValueError, match="no numbers"):
        drafts.draft_usual(
            [torch.ones(2)], table, refuse, None, (count_dispatch_modes,), None, describe, ("", "")
        )
    assert not table._drafts


Gradients = tuple[str, "str | None", list[Any], list[Any]]


def watch_product(
    hook: Any, monkeypatch: pytest.MonkeyPatch, on_done: Callable[..., None]
) -> tuple[list[str], torch.Tensor]:
    """Multiply a tensor with itself under a watcher; returns what failed, and the product."""
    monkeypatch.setattr(gradients, "_make_hook", hook)
    failed: list[str] = []
    watcher = gradients.GradientWatcher(lambda name, err: failed.append(f"{name}: {err}"))
    x = leaf(3) * 1
    start, edges = graph_edges.next_sequence_number(), graph_edges.input_edges([x, x])
    product = x * x
    watcher.watch("f.0.backward", "m", edges, start, [product], on_done, is_sealed=True)
    return failed, product


HOOKS = [gradients._NodeHook, gradients._hook_class()]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_node_hands_its_gradients_over_once(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Gradients] = []
    failed, product = watch_product(hook, monkeypatch, lambda *found: told.append(found))
    product.sum().backward(retain_graph=True)
    product.sum().backward()
    ((name, parent, of_outputs, of_inputs),) = told
    assert (name, parent, failed) == ("f.0.backward", "m", [])
    assert of_outputs[0].tolist() == [1.0, 1.0, 1.0]
    # Both places of the one tensor get the sum over the two edges.
    twice = (2 * product.detach().sqrt()).tolist()
    for gradient in of_inputs:
        assert gradient.abs().tolist() == pytest.approx(twice)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_fails_is_told_and_ends_nothing(
    hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*found: Any) -> None:
        raise ValueError("not today")

    failed, product = watch_product(hook, monkeypatch, refuse)
    product.sum().backward()
    assert failed == ["f.0.backward: not today"]


@pytest.mark.parametrize("hook", HOOKS)
def test_ctrl_c_in_a_hook_is_not_swallowed(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*found: Any) -> None:
        raise KeyboardInterrupt

    failed, product = watch_product(hook, monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        product.sum().backward()
    assert not failed


def test_a_stack_has_the_same_key_from_both() -> None:
    frame = sys._getframe()
    key = stacks._key_of(frame)
    # This frame itself moves on between the two.
    assert stacks._compiled.stack_key(frame, stacks._codes, 400)[2:] == key[2:]
    # A code that was never seen is learned by Python.
    assert stacks._compiled.stack_key(frame, {}, 400) is None
    assert stacks._compiled.stack_key(frame, stacks._codes, 4)[2:] == key[2:4]


CAPTURE = """
import sys, torch
from tensorprobe import PrecisionDebugger, seed_all
from tensorprobe.capture import drafts, gradients, graph_edges, recorder, stacks
from tensorprobe.store import leaf_encode
from tensorprobe.summary import host
if sys.argv[2] == "python":
    graph_edges._compiled = lambda: None
    drafts._compiled = stacks._compiled = leaf_encode._compiled = None
    drafts._usual_text = lambda draft: None
    recorder.make_draft, recorder.is_plain = drafts.Draft, host.is_plain
    recorder.draft_usual, gradients._make_hook = None, gradients._NodeHook
seed_all(1)
block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
lstm = torch.nn.LSTM(8, 4)
x = torch.randn(2, 3, 8)
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix", task="statistics")
debugger.start([block, lstm])
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = block(x)
out = lstm(y.float())[0] * 1
view = out[0]
view.mul_(3)
(out.sum() / 0 + torch.stack([out, out]).chunk(2)[0].sum()).backward()
debugger.stop()
debugger.step()
"""


def test_a_dump_is_the_same_with_and_without_them(tmp_path: Path) -> None:
    texts = []
    for way in ("compiled", "python"):
        folder = tmp_path / way
        subprocess.run([sys.executable, "-c", CAPTURE, folder, way], check=True)
        rank = folder / "step0" / "rank"
        # Which places are written together, and so first, is a matter of time.
        tree = json.loads((rank / "construct.json").read_text())
        # Up to its data, a dump says which run it is of.
        data = (rank / "dump.json").read_text().partition(' "data": {')[2]
        texts.append((data, (rank / "stack.json").read_text(), tree))
    assert len(texts[0][0]) > 20_000
    assert texts[0] == texts[1]
