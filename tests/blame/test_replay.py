"""A recorded call is made again, forward and backward, from one side's own inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from planted import Kernels, aten, capture
from torch import nn
from torch.nn import functional

from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.blame.split import split_call
from tensorprobe.errors import RebuildError
from tensorprobe.pairing.call_pairs import CallPair, pair_calls


def run_of(folder: Path, level: str = "L1") -> RecordedRun:
    return RecordedRun(open_dump(capture(folder, level=level, chance=0.3)).parts[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return run_of(tmp_path_factory.mktemp("run"), "mix")


def pair_named(run: RecordedRun, name: str) -> CallPair:
    return next(pair for pair in pair_calls(run, run) if pair.name == name)


@pytest.mark.parametrize(
    "name",
    [
        "Functional.linear.1.forward",
        "Functional.linear.1.backward",
        "Functional.layer_norm.0.backward",
        "Functional.gelu.0.backward",
        "Functional.dropout.0.forward",
        "Functional.dropout.0.backward",
        "Functional.cross_entropy.0.backward",
        "Functional.embedding.0.backward",
        "Module.first.Linear.forward.0",
        "Module.first.Linear.backward.0",
        "Module.norm.LayerNorm.backward.0",
    ],
)
def test_every_sort_of_call_is_replayed_to_its_rounding(name: str, run: RecordedRun) -> None:
    split = split_call(pair_named(run, name), run, run)
    assert split.outputs and not split.skipped
    for output in split.outputs:
        assert output.candidate.peaks[0] < 5
        assert output.inherited == 0
        assert output.candidate.relative < 1e-6


def test_an_item_that_is_set_is_replayed_backward(tmp_path: Path) -> None:
    x, v = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    debugger = PrecisionDebugger(task="tensor", dump_path=str(tmp_path), level="L1")
    debugger.start()
    hidden = x * 2.0
    hidden[1:] = v
    hidden.square().sum().backward()
    debugger.step()
    debugger.close()
    run = RecordedRun(open_dump(tmp_path).parts[0])
    split = split_call(pair_named(run, "Tensor.__setitem__.0.backward"), run, run)
    assert not split.skipped
    assert [output.candidate.relative < 1e-6 for output in split.outputs] == [True, True]


def test_parameter_gradients_are_replayed_through_their_module(run: RecordedRun) -> None:
    name = next(
        name for name in run.calls if name.startswith("Module.first.Linear.parameters_grad")
    )
    split = split_call(pair_named(run, name), run, run)
    assert {output.place for output in split.outputs} == {"weight", "bias"}
    assert all(output.candidate.relative < 1e-6 for output in split.outputs)


def test_exact_calls_must_agree_bit_for_bit(run: RecordedRun) -> None:
    (output,) = split_call(pair_named(run, "Functional.embedding.0.forward"), run, run).outputs
    assert output.exact
    assert output.candidate.unequal == 0


def test_what_was_inherited_is_told_from_what_was_made_here(tmp_path: Path) -> None:
    def record(folder: Path, factor: float) -> RecordedRun:
        debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level="L1")
        torch.manual_seed(0)
        given, weight = torch.randn(8, 16) * factor, torch.randn(4, 16)
        debugger.start()
        functional.linear(given, weight)
        debugger.stop()
        debugger.step()
        debugger.close()
        return RecordedRun(open_dump(folder).parts[0])

    ours, theirs = record(tmp_path / "a", 1.01), record(tmp_path / "b", 1.0)
    (pair,) = (p for p in pair_calls(ours, theirs) if p.name == "Functional.linear.0.forward")
    (output,) = split_call(pair, ours, theirs).outputs
    assert output.total == pytest.approx(0.01, rel=1e-3)
    assert output.inherited == pytest.approx(0.01, rel=1e-3)
    assert output.candidate.relative < 1e-6


def test_a_call_that_draws_numbers_is_refused(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(task="tensor", dump_path=str(tmp_path), level="L1")
    debugger.start()
    torch.bernoulli(torch.full((4,), 0.5))
    debugger.stop()
    debugger.step()
    debugger.close()
    run = RecordedRun(open_dump(tmp_path).parts[0])
    with pytest.raises(RebuildError, match="random"):
        split_call(pair_named(run, "Torch.bernoulli.0.forward"), run, run)


def test_an_unknown_module_is_refused(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp()

    model = nn.Sequential(Odd())
    debugger = PrecisionDebugger(task="tensor", dump_path=str(tmp_path), level="L0", model=model)
    debugger.start()
    model(torch.randn(3))
    debugger.stop()
    debugger.step()
    debugger.close()
    run = RecordedRun(open_dump(tmp_path).parts[0])
    with pytest.raises(RebuildError, match="class"):
        split_call(pair_named(run, "Module.0.Odd.forward.0"), run, run)


@pytest.mark.parametrize(("place", "peaks"), [(3, 0.0), (5, float("inf"))])
def test_of_equal_values_any_place_is_right(place: int, peaks: float, tmp_path: Path) -> None:
    """The largest value stands at 1 and 3; another device may choose either, but not 5."""

    class Other(Kernels):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = super().__torch_dispatch__(func, types, args, kwargs)
            return torch.full_like(result, place) if func is aten.argmax.default else result

    sides = []
    for name, kernels in (("a", Other()), ("b", Kernels())):
        debugger = PrecisionDebugger(task="tensor", dump_path=str(tmp_path / name), level="L1")
        values = torch.tensor([[0.0, 4.0, 1.0, 4.0, 2.0, 3.0]])
        debugger.start()
        with kernels:
            values.argmax(-1)
        debugger.stop()
        debugger.step()
        debugger.close()
        sides.append(RecordedRun(open_dump(tmp_path / name).parts[0]))
    pair = next(pair for pair in pair_calls(*sides) if pair.name == "Tensor.argmax.0.forward")
    found = [output.candidate.peaks[0] for output in split_call(pair, *sides).outputs]
    assert max(found, default=0.0) == peaks
