"""Which errors nothing excuses: the yardsticks one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from planted import Kernels, aten, scaled
from torch import nn

from tensorprobe import PrecisionDebugger
from tensorprobe.blame import blame
from tensorprobe.blame.call_split import CallSplit, OutputSplit, OwnError
from tensorprobe.blame.suspicion import find_suspicions


def capture(folder: Path, kernels: Kernels | None = None) -> Path:
    """Capture a chain of norms in bfloat16."""
    torch.manual_seed(2)
    model = nn.Sequential(*(nn.LayerNorm(32) for _ in range(5))).bfloat16()
    given = torch.randn(16, 32).bfloat16()
    debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level="L1")
    debugger.start(model)
    with kernels or Kernels():
        model(given).float().sin().sum().backward()
    debugger.stop()
    debugger.step()
    debugger.close()
    return folder


def test_a_factor_below_single_roundings_is_found_by_what_all_elements_share(
    tmp_path: Path,
) -> None:
    """A factor of 1.003 is less than a rounding of bfloat16, but always the same way."""
    reference = capture(tmp_path / "reference")
    candidate = capture(tmp_path / "candidate", Kernels(aten.native_layer_norm, 2, scaled(1.003)))
    first = blame(candidate, reference).first
    assert first is not None
    assert (first.call, first.cause.kind) == ("Functional.layer_norm.2.forward", "scale")


def split(
    call: str, factor: float, level: float, *, other: float = 0.0, other_level: float = 1.0
) -> CallSplit:
    mine = OwnError(0.003 * level, (1.0,), (level,), scale=factor)
    theirs = OwnError(0.003 * other_level, (1.0,), (other_level,), scale=other)
    return CallSplit(
        call,
        (
            OutputSplit(
                "output.0",
                "torch.bfloat16",
                (64, 64),
                False,
                False,
                (2.0**-8,),
                mine,
                theirs,
                0.0,
                0.0,
            ),
        ),
    )


@pytest.mark.parametrize(
    ("factor", "other", "is_found"),
    [
        pytest.param(0.004, 0.0, True, id="beyond chance, the others, the trusted run"),
        pytest.param(0.004, 0.004, False, id="the trusted run has it too"),
        pytest.param(0.0004, 0.0, False, id="too small to matter"),
    ],
)
def test_a_factor_is_held_against_everything_else(
    factor: float, other: float, is_found: bool
) -> None:
    splits = [split(f"Functional.gelu.{n}.forward", 1e-5, 1.0) for n in range(4)]
    splits[2] = split("Functional.gelu.2.forward", factor, 1.5, other=other)
    found = [(item.call, item.measure) for item in find_suspicions(splits)]
    assert found == ([("Functional.gelu.2.forward", "factor")] if is_found else [])


def test_a_factor_that_all_calls_have_is_how_the_run_works() -> None:
    splits = [split(f"Functional.gelu.{n}.forward", 0.004, 1.5) for n in range(4)]
    assert find_suspicions(splits) == []


def test_peers_without_any_error_make_no_floor_of_nothing() -> None:
    splits = [
        split(f"Functional.gelu.{n}.forward", 0.0, 2.0 if n == 1 else 0.0, other_level=0.0)
        for n in range(4)
    ]
    (found,) = find_suspicions(splits)
    assert found.measure == "peers"
    assert found.times == pytest.approx(20)


def test_channels_that_are_scaled_by_one_rounded_number_have_factors_by_chance() -> None:
    """A batch norm rounds 8 factors, however many elements its 8 channels have."""
    for name, is_found in (("gelu", True), ("batch_norm", False)):
        splits = [
            _single(split(f"Functional.{name}.{n}.backward", 1e-4, 1.0), (4, 8, 5, 5))
            for n in range(4)
        ]
        splits[2] = _single(split(f"Functional.{name}.2.backward", 0.0026, 1.0), (4, 8, 5, 5))
        assert [item.measure for item in find_suspicions(splits)] == ["factor"] * is_found


def cut_off(result: torch.Tensor, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    exact = torch.addmm(*(arg.float() for arg in args))
    return (exact.view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()


def test_few_elements_that_are_cut_off_are_found_by_the_bound_of_each(tmp_path: Path) -> None:
    """28 elements are too few for a norm, but rounding to nearest keeps each within half a unit."""

    def record(folder: Path, kernels: Kernels) -> Path:
        torch.manual_seed(3)
        model = nn.Sequential(*(nn.Linear(24, size) for size in (24, 24, 7))).bfloat16()
        debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level="L1")
        debugger.start(model)
        with kernels:
            model(torch.randn(4, 24).bfloat16())
        debugger.stop()
        debugger.step()
        debugger.close()
        return folder

    reference = record(tmp_path / "reference", Kernels())
    candidate = record(tmp_path / "candidate", Kernels(aten.addmm, 2, cut_off))
    first = blame(candidate, reference).first
    assert first is not None
    assert (first.call, first.cause.kind) == ("Functional.linear.2.forward", "precision")


def _single(found: CallSplit, shape: tuple[int, ...]) -> CallSplit:
    outputs = (replace(item, shape=shape, dtype="torch.float32") for item in found.outputs)
    return replace(found, outputs=tuple(outputs))
