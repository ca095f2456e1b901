"""What comes from outside and differs is told, also what has no statistics to follow it by."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from planted import capture as train
from torch import nn
from torch.nn import functional

from tensorprobe import DumpWriter, PrecisionDebugger, blame
from tensorprobe.records import CallRecord, DumpInfo, TensorValue


def attend(folder: Path, mask: torch.Tensor, *, is_fused: bool = False) -> Path:
    """Capture three layers of attention that share one mask."""
    torch.manual_seed(0)
    queries = torch.randn(4, 16, 32)
    with PrecisionDebugger(dump_path=str(folder), task="tensor"):
        values = queries
        for _ in range(3):
            if is_fused:
                values = functional.scaled_dot_product_attention(
                    queries, queries, values, attn_mask=mask
                )
            else:
                scores = (queries @ queries.mT).masked_fill(~mask, -1e9)
                values = functional.softmax(scores, -1) @ values
    return folder


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_mask_from_outside_that_differs_is_named(is_fused: bool, tmp_path: Path) -> None:
    causal = torch.tril(torch.ones(16, 16, dtype=torch.bool))
    one_off = causal.clone()
    one_off[10, 3] = False
    reference = attend(tmp_path / "reference", causal, is_fused=is_fused)
    same = attend(tmp_path / "same", causal.clone(), is_fused=is_fused)
    assert blame(same, reference).verdict == "identical"
    answer = blame(attend(tmp_path / "candidate", one_off, is_fused=is_fused), reference)
    assert len(answer.start.places) == 1
    use, _ = answer.start.places[0]
    if is_fused:
        # What the first call is given is data.
        assert answer.verdict == "different from the start"
        assert (use.call, use.place) == (
            "Functional.scaled_dot_product_attention.0.forward",
            "kwargs.attn_mask",
        )
    else:
        assert answer.culprit == use.call == "Tensor.__invert__.0.forward"
        assert answer.first is not None and answer.first.cause.kind == "state"


def test_a_mask_that_the_run_makes_does_not_come_from_outside(tmp_path: Path) -> None:
    def capture(name: str, nudge: float) -> Path:
        torch.manual_seed(0)
        values = torch.randn(64, 64)
        edge = float(values[3, 5])
        with PrecisionDebugger(dump_path=str(tmp_path / name), task="tensor"):
            mask = (values * (1 + nudge) > edge)[None].expand(2, 64, 64)
            values.masked_fill(mask, 0.0)
        return tmp_path / name

    answer = blame(capture("candidate", 2.0**-22), capture("reference", 0.0))
    assert answer.start.kind == "none"


def test_weights_are_counted_each_once(tmp_path: Path) -> None:
    """Biases of 0 look alike in one run, and are others in the other."""

    def other(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(1)
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))

    def no_bias(model: nn.Module) -> None:
        for name, weight in model.named_parameters():
            if "bias" in name:
                weight.zero_()

    for level in ("L0", "L1"):
        reference = train(tmp_path / level / "reference", prepare=no_bias, level=level)
        answer = blame(train(tmp_path / level / "candidate", prepare=other, level=level), reference)
        assert answer.verdict == "different from the start"
        # An embedding, three layers and a norm.
        assert len(answer.start.places) == 9
        assert "(9 tensors that no recorded call made, first " in answer.summary


def test_what_no_recorded_call_made_behind_a_fault_is_not_from_outside(tmp_path: Path) -> None:
    def capture(name: str, factor: float) -> Path:
        torch.manual_seed(0)
        layers, data = [nn.Linear(16, 16) for _ in range(5)], torch.randn(32, 16)
        with PrecisionDebugger(dump_path=str(tmp_path / name), task="statistics"):
            values = functional.gelu(layers[0](data))
            values = values.detach().mul_(factor).requires_grad_()
            for layer in layers[1:]:
                # Numpy is not recorded: its results come from nowhere.
                moved = torch.from_numpy(values.detach().numpy() + 1).requires_grad_()
                values = functional.gelu(moved * 0.5) + layer(moved)
        return tmp_path / name

    answer = blame(capture("candidate", 1.01), capture("reference", 1.0))
    assert answer.verdict == "culprit"
    assert answer.culprit == "Tensor.mul_.0.forward"


@pytest.mark.parametrize(("factor", "is_named"), [(1.7e-5, False), (1.7e-2, True)])
def test_what_a_call_made_that_was_not_recorded_may_be_as_noisy_as_any_result(
    factor: float, is_named: bool, tmp_path: Path
) -> None:
    """Of short types one result is off by more than the others show, and so is what follows."""

    def sized(size: float, dtype: str = "torch.float32") -> TensorValue:
        return TensorValue(dtype, (4, 4), size, -size, 0.1 * size, 2 * size, requires_grad=True)

    def record(name: str, *, noise: float, short: float, unseen: float) -> Path:
        with DumpWriter(tmp_path / name, DumpInfo(level="L1")) as writer:
            for number in range(4):
                results = (sized((2.0 + number) * (1 + noise)),)
                call = f"Functional.gelu.{number}.forward"
                writer.write(CallRecord(call, inputs=(sized(1.0),), kwargs={}, outputs=results))
            for number, given, result in (
                (0, sized(1.0), sized(7.0 * (1 + short), "torch.float16")),
                (1, sized(9.0 * (1 + unseen)), sized(8.0)),
            ):
                call = f"Functional.linear.{number}.forward"
                inputs = (given, sized(0.5))
                writer.write(CallRecord(call, inputs=inputs, kwargs={}, outputs=(result,)))
        return tmp_path / name

    reference = record("reference", noise=0.0, short=0.0, unseen=0.0)
    candidate = record("candidate", noise=1e-7, short=5e-5, unseen=factor)
    answer = blame(candidate, reference)
    assert answer.culprit == ("Functional.linear.1.forward" if is_named else None)


def test_what_comes_from_a_fault_by_calls_that_were_not_recorded_is_no_other_start(
    tmp_path: Path,
) -> None:
    """Parts of a wrong result, taken by indices that nobody recorded, are victims."""

    def sized(size: float) -> TensorValue:
        return TensorValue(
            "torch.float32", (4, 4), size, -size, 0.1 * size, 2 * size, requires_grad=True
        )

    def record(name: str, factor: float) -> Path:
        with DumpWriter(tmp_path / name, DumpInfo(level="L1")) as writer:
            inputs = (sized(1.0), sized(0.5))
            result = sized(2.0 * factor)
            writer.write(
                CallRecord(
                    "Functional.conv1d.0.forward", inputs=inputs, kwargs={}, outputs=(result,)
                )
            )
            for number in range(5):
                part = sized((3.0 + number) * factor)
                call = f"Tensor.unsqueeze.{number}.forward"
                writer.write(CallRecord(call, inputs=(part,), kwargs={}, outputs=(part,)))
        return tmp_path / name

    answer = blame(record("candidate", 1.02), record("reference", 1.0))
    assert answer.culprit == "Functional.conv1d.0.forward"
    assert not answer.start.places
