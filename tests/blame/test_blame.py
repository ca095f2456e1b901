"""The whole way: a fault is planted below what is recorded, and blame names it and its kind."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from planted import Exact, Kernels, aten, capture, scaled, with_element
from torch import nn
from torch.nn import functional

import tensorprobe
from tensorprobe.blame import Conclusion, blame
from tensorprobe.errors import DumpError


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(tmp_path_factory.mktemp("reference"))


def missing_bias(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    return result - args[0]


def shifted(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    return result.roll(1, 0)


def tanh_form(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    return functional.gelu(args[0], approximate="tanh")


FAULTS = {
    "scale": (Kernels(aten.addmm, 1, scaled(1.001)), "Functional.linear.1.forward", "scale"),
    "tiny scale": (Kernels(aten.addmm, 1, scaled(1.00003)), "Functional.linear.1.forward", "scale"),
    "bias": (Kernels(aten.addmm, 2, missing_bias), "Functional.linear.2.forward", "computation"),
    "bit": (
        Kernels(aten.addmm, 0, with_element(lambda x: x * 2**16)),
        "Functional.linear.0.forward",
        "corruption",
    ),
    "nan": (
        Kernels(aten.gelu, 0, with_element(lambda x: float("nan"))),
        "Functional.gelu.0.forward",
        "non-finite",
    ),
    "indices": (Kernels(aten.embedding, 0, shifted), "Functional.embedding.0.forward", "indices"),
    "approximation": (
        Kernels(aten.gelu, 0, tanh_form),
        "Functional.gelu.0.forward",
        "approximation",
    ),
    "gradient": (
        Kernels(aten.native_layer_norm_backward, 0, scaled(1.01)),
        "Functional.layer_norm.0.backward",
        "scale",
    ),
    "weight gradient": (
        Kernels(aten.native_layer_norm_backward, 0, scaled(0.5, 1)),
        "Functional.layer_norm.0.backward",
        "scale",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_with_its_kind(fault: str, trusted: Path, tmp_path: Path) -> None:
    kernels, culprit, kind = FAULTS[fault]
    kernels.seen = 0
    answer = blame(capture(tmp_path / "candidate", kernels), trusted)
    assert answer.culprit == culprit
    assert answer.first is not None
    assert answer.first.cause.kind == kind
    assert answer.first.basis == "replay"
    assert answer.first.times > 10
    assert answer.first.inputs == 0
    # A gradient of weights is used by nobody else in the step.
    assert (answer.first.victims > 0) == (fault != "weight gradient")
    assert answer.first.gradient_only == culprit.endswith("backward")
    assert answer.first.frame is not None
    assert answer.first.frame.path.endswith("planted.py")


def test_the_replay_of_a_culprit_reproduces_its_error(trusted: Path, tmp_path: Path) -> None:
    kernels = Kernels(aten.addmm, 1, scaled(1.001))
    first = blame(capture(tmp_path / "candidate", kernels), trusted).first
    assert first is not None and first.made is not None and first.reference_made is not None
    assert first.made == pytest.approx(1e-3, rel=1e-3)
    assert first.reference_made < 1e-6
    assert first.inherited == 0


def test_a_run_with_other_rounding_everywhere_is_noise(trusted: Path, tmp_path: Path) -> None:
    answer = blame(capture(tmp_path / "candidate", Exact()), trusted)
    assert answer.culprit is None
    assert answer.verdict == "noise"
    assert answer.differing > 10
    assert answer.closest is not None and answer.closest[1] < 10
    assert "rounding" in answer.summary


def test_a_fault_is_found_within_noise(trusted: Path, tmp_path: Path) -> None:
    kernels = Exact(aten.gelu, 0, scaled(1.0001))
    answer = blame(capture(tmp_path / "candidate", kernels), trusted)
    assert answer.culprit == "Functional.gelu.0.forward"


def test_the_same_run_twice_is_identical(trusted: Path, tmp_path: Path) -> None:
    answer = blame(capture(tmp_path / "candidate"), trusted)
    assert (answer.culprit, answer.verdict, answer.differing) == (None, "identical", 0)


def test_bfloat16_that_cuts_off_is_told_from_bfloat16_that_rounds(tmp_path: Path) -> None:
    def cut_off(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
        bias, a, b = (arg.float() for arg in args)
        exact = torch.addmm(bias, a, b)
        return (exact.view(torch.int32) & ~0xFFFF).view(torch.float32).to(result.dtype)

    reference = capture(tmp_path / "reference", dtype=torch.bfloat16)
    noise = capture(tmp_path / "noise", Exact(), dtype=torch.bfloat16)
    fault = capture(tmp_path / "fault", Kernels(aten.addmm, 1, cut_off), dtype=torch.bfloat16)
    assert blame(noise, reference).culprit is None
    answer = blame(fault, reference)
    assert answer.culprit == "Functional.linear.1.forward"
    assert answer.first is not None
    assert answer.first.cause.kind == "precision"
    assert "cuts" in answer.first.cause.text


def test_an_argument_that_differs_is_named(trusted: Path, tmp_path: Path) -> None:
    answer = blame(capture(tmp_path / "candidate", eps=1e-2), trusted)
    assert answer.culprit == "Functional.layer_norm.0.forward"
    assert answer.first is not None
    assert answer.first.cause.kind == "argument"
    assert "0.01" in answer.first.cause.text and "1e-05" in answer.first.cause.text


def test_a_call_that_only_one_run_makes_is_named(trusted: Path, tmp_path: Path) -> None:
    extra = capture(tmp_path / "candidate", scaled=True)
    answer = blame(extra, trusted)
    assert answer.culprit == "Tensor.__mul__.0.forward"
    assert answer.first is not None and answer.first.cause.kind == "extra call"
    answer = blame(trusted, extra)
    assert answer.culprit == "Tensor.__mul__.0.forward"
    assert answer.first is not None and answer.first.cause.kind == "missing call"


def test_other_data_is_no_operations_fault(trusted: Path, tmp_path: Path) -> None:
    answer = blame(capture(tmp_path / "candidate", data_seed=9), trusted)
    assert answer.culprit is None
    assert answer.verdict == "different from the start"
    assert answer.start.kind == "data"
    assert answer.start.places[0][0].call == "Functional.embedding.0.forward"


def test_other_weights_are_no_operations_fault(trusted: Path, tmp_path: Path) -> None:
    answer = blame(capture(tmp_path / "candidate", seed=9), trusted)
    assert (answer.culprit, answer.start.kind) == (None, "weights")
    assert "no operation is at fault" in answer.summary


def test_one_weight_that_differs_is_named_where_it_is_used(trusted: Path, tmp_path: Path) -> None:
    def disturb(model: nn.Module) -> None:
        weight = model.get_parameter("second.weight")
        weight.mul_(1 + 1e-3 * torch.randn(weight.shape))

    answer = blame(capture(tmp_path / "candidate", prepare=disturb), trusted)
    assert answer.culprit == "Functional.linear.1.forward"
    assert answer.first is not None
    assert (answer.first.cause.kind, answer.first.value_path) == ("state", "input.1")


def test_all_the_state_of_one_module_is_still_the_state_of_one(
    trusted: Path, tmp_path: Path
) -> None:
    def disturb(model: nn.Module) -> None:
        for name in ("norm.weight", "norm.bias"):
            model.get_parameter(name).mul_(1.01)

    answer = blame(capture(tmp_path / "candidate", prepare=disturb), trusted)
    assert (answer.culprit, answer.start.kind) == ("Functional.layer_norm.0.forward", "state")


def test_weights_that_differ_by_their_last_bit_are_noise(trusted: Path, tmp_path: Path) -> None:
    def nudge(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.copy_(torch.nextafter(parameter, parameter + 1))

    assert blame(capture(tmp_path / "candidate", prepare=nudge), trusted).culprit is None


def test_dropout_that_draws_other_numbers_is_randomness(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference", chance=0.2)
    assert blame(capture(tmp_path / "same", chance=0.2), reference).verdict == "identical"
    answer = blame(capture(tmp_path / "other", chance=0.2, dropout_seed=8), reference)
    assert answer.culprit == "Functional.dropout.0.forward"
    assert answer.first is not None and answer.first.cause.kind == "randomness"


def test_dropout_with_a_wrong_factor_is_not_called_randomness(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference", chance=0.2)
    # The last step of dropout is a product with what is kept.
    kernels = Kernels(aten.mul, 0, scaled(0.9))
    answer = blame(capture(tmp_path / "candidate", kernels, chance=0.2), reference)
    assert kernels.seen
    assert answer.culprit == "Functional.dropout.0.forward"
    assert answer.first is not None and answer.first.cause.kind == "scale"


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_modules_are_judged_too(level: str, tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference", level=level)
    kernels = Kernels(aten.addmm, 1, scaled(1.001))
    answer = blame(capture(tmp_path / "candidate", kernels, level=level), reference)
    wanted = {"mix": "Functional.linear.1.forward", "L0": "Module.second.Linear.forward.0"}
    assert answer.culprit == wanted[level]
    assert blame(capture(tmp_path / "noise", Exact(), level=level), reference).culprit is None


def test_statistics_are_enough_for_a_clear_fault(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference", task="statistics")
    kernels = Kernels(aten.addmm, 1, scaled(1.001))
    answer = blame(capture(tmp_path / "candidate", kernels, task="statistics"), reference)
    assert answer.culprit == "Functional.linear.1.forward"
    assert answer.basis == "statistics"
    assert answer.first is not None
    assert answer.first.cause.kind == "scale"
    assert answer.first.confidence == "likely"
    assert any("statistics" in note for note in answer.notes)
    noise = capture(tmp_path / "noise", Exact(), task="statistics")
    assert blame(noise, reference).culprit is None


def test_the_answer_is_strict_json(trusted: Path, tmp_path: Path) -> None:
    kernels = Kernels(aten.gelu, 0, with_element(lambda x: float("inf")))
    answer = blame(capture(tmp_path / "candidate", kernels), trusted)
    told = json.loads(json.dumps(answer.to_json(), allow_nan=False))
    assert told["culprit"] == told["ranked"][0] == "Functional.gelu.0.forward"
    assert told["kind"] == "non-finite"
    assert told["suspects"][0]["times_above_floor"] == "Infinity"
    assert told["suspects"][0]["code"]["function"] == "forward"


def test_the_package_offers_it_by_name(trusted: Path) -> None:
    answer = tensorprobe.blame(trusted, trusted)
    assert isinstance(answer, Conclusion)
    assert answer.verdict == "identical"


def test_a_dump_that_is_not_there_is_an_error(trusted: Path, tmp_path: Path) -> None:
    with pytest.raises(DumpError):
        blame(tmp_path / "nothing", trusted)


def test_a_weight_of_few_bits_that_is_off_by_a_few_percent_is_state(tmp_path: Path) -> None:
    """No kernel has touched a parameter: what it is off by is not the noise of the run."""

    def disturb(model: nn.Module) -> None:
        model.get_parameter("second.weight").mul_(1.03)

    reference = capture(tmp_path / "reference", dtype=torch.bfloat16)
    candidate = capture(tmp_path / "candidate", prepare=disturb, dtype=torch.bfloat16)
    first = blame(candidate, reference).first
    assert first is not None
    assert (first.call, first.cause.kind) == ("Functional.linear.1.forward", "state")


def test_a_result_that_went_through_a_shorter_type_is_a_matter_of_precision(
    trusted: Path, tmp_path: Path
) -> None:
    kernels = Kernels(aten.gelu, 0, lambda result, args: result.half().float())
    first = blame(capture(tmp_path / "candidate", kernels), trusted).first
    assert first is not None
    assert (first.call, first.cause.kind) == ("Functional.gelu.0.forward", "precision")
    assert "11 significant bits" in first.cause.text


def test_an_element_that_is_not_a_number_is_no_error_of_nothing(
    trusted: Path, tmp_path: Path
) -> None:
    kernels = Kernels(aten.gelu, 0, with_element(lambda x: math.nan))
    first = blame(capture(tmp_path / "candidate", kernels), trusted).first
    assert first is not None
    assert first.made is not None and math.isinf(first.made)


def test_what_runs_between_modules_is_not_said_to_come_from_outside_for_certain(
    tmp_path: Path,
) -> None:
    reference = capture(tmp_path / "reference", level="L0")
    kernels = Kernels(aten.gelu, 0, scaled(1.5))
    first = blame(capture(tmp_path / "candidate", kernels, level="L0"), reference).first
    assert first is not None
    assert (first.call, first.value_path) == ("Module.second.Linear.forward.0", "input.0")
    assert first.confidence == "likely"
    assert "code between modules" in first.cause.text
