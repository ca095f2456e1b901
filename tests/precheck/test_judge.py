"""What is off is found, what rounding explains is not."""

from __future__ import annotations

import pytest
import torch

from tensorprobe.precheck.judge import Resemblance, Runs, judge_output, worst_verdict


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_rounded_result_passes(dtype: torch.dtype) -> None:
    truth = randn(1000)
    judgement = judge_output(truth.to(dtype), truth, length=1, noise=())
    assert judgement.verdict == "pass"
    assert judgement.numbers is not None and judgement.numbers.pair.unequal == 0


@pytest.mark.parametrize(
    ("dtype", "fault"), [(torch.float16, 1e-2), (torch.bfloat16, 1e-2), (torch.float32, 1e-3)]
)
def test_a_small_scale_error_is_an_error(dtype: torch.dtype, fault: float) -> None:
    truth = randn(1000)
    judgement = judge_output((truth * (1 + fault)).to(dtype), truth, length=64, noise=())
    assert judgement.verdict == "error"
    assert "distance" in judgement.message and "is over" in judgement.message
    assert judgement.excess > 1


def test_errors_of_a_long_sum_of_halves_are_others_for_other_inputs() -> None:
    truth = randn(4096)
    noise = torch.randn(4096, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    wrong = (truth * (1 + 0.01 * noise)).to(torch.bfloat16)

    def judged(length: int, *, is_alike: bool) -> str:
        found = Resemblance(is_alike, 2000.0)
        return judge_output(wrong, truth, length=length, resemblance=lambda: found).verdict

    assert judged(64, is_alike=False) == "warning"
    assert judged(64, is_alike=True) == "error"
    # Where nothing is added up no sum explains it, nor where nobody knows.
    assert judged(1, is_alike=False) == "error"
    assert judge_output(wrong, truth, length=64).verdict == "error"


def test_noise_does_not_explain_errors_that_many_elements_repeat() -> None:
    truth = randn(4096)
    signs = torch.where(torch.arange(4096) % 2 == 0, 1.0, -1.0)
    wrong = (truth * (1 + 0.01 * signs)).to(torch.bfloat16)
    run = truth * (1 + 0.01 * randn(4096).clamp(-1, 1))
    for is_alike, shared, verdict in (
        (True, 2000.0, "error"),
        (True, 2.0, "warning"),
        (False, 2000.0, "warning"),
    ):
        found = Resemblance(is_alike, shared)
        judgement = judge_output(
            wrong, truth, length=1, noise=[Runs(lambda: [run])], resemblance=lambda r=found: r
        )
        assert judgement.verdict == verdict, (is_alike, shared)


def test_the_smallest_numbers_of_a_dtype_are_held_against_its_smallest_step() -> None:
    truth = randn(1000) * 1e-6
    step = 2.0**-24
    near = (truth / step).round() * step
    near[::2] += step
    assert judge_output(near.half(), truth, length=64).verdict == "pass"
    assert judge_output((near * 2).half(), truth, length=64).verdict == "error"
    assert judge_output((truth * 2e3).half() * 1.02, truth * 2e3, length=64).verdict == "error"


def test_one_wrong_element_in_a_million_is_an_error_although_all_ratios_hold() -> None:
    truth = randn(1_000_000)
    wrong = truth.float()
    wrong[123_456] += 1.0
    judgement = judge_output(wrong, truth, length=1, noise=())
    assert judgement.verdict == "error"
    assert "an element is off by" in judgement.message
    assert "magnitude together" in judgement.message
    assert "(the largest error, of element 123456, is 1)" in judgement.message
    assert judgement.numbers is not None and judgement.numbers.within[2] > 0.9999


def test_the_limits_that_were_missed_are_named() -> None:
    truth = randn(100)
    judgement = judge_output(-truth.float(), truth, length=1, noise=())
    assert "cosine -1 is not over 0.99" in judgement.message
    assert "双万 0 is below 0.9999" in judgement.message


def test_what_noise_moves_as_far_is_a_warning() -> None:
    truth = randn(100)
    off = (truth * 1.02).to(torch.bfloat16)
    runs: list[torch.Tensor | None] = [truth * 0.98, truth * 1.02]
    judgement = judge_output(off, truth, length=1, noise=[Runs(lambda: runs)])
    assert judgement.verdict == "warning"
    assert "rounding noise moves the precise result as far" in judgement.message


def test_a_value_that_is_not_finite_on_one_side_is_an_error() -> None:
    truth = randn(10)
    wrong = truth.float()
    wrong[4] = float("nan")
    judgement = judge_output(wrong, truth, length=1, noise=())
    assert judgement.verdict == "error"
    assert "1 of 10 elements are NaN or infinite on one side only" in judgement.message


def test_what_a_half_cannot_hold_is_infinite_on_both_sides() -> None:
    truth = torch.tensor([1.0, 1e6, -1e6], dtype=torch.float32)
    assert judge_output(truth.half(), truth, length=1, noise=()).verdict == "pass"


def test_integers_and_bools_must_be_equal() -> None:
    right = torch.arange(6).reshape(2, 3)
    assert judge_output(right, right, length=1, noise=()).verdict == "pass"
    wrong = right.clone()
    wrong[1, 2] = 7
    judgement = judge_output(wrong, right, length=1, noise=())
    assert judgement.verdict == "error"
    assert "1 of 6 elements differ" in judgement.message and "[1, 2]" in judgement.message
    assert judge_output(right > 2, right > 3, length=1, noise=()).verdict == "error"


def test_other_shapes_and_kinds_are_errors() -> None:
    tensor = torch.zeros(3)
    assert judge_output(tensor, torch.zeros(2), length=1, noise=()).verdict == "error"
    assert judge_output(tensor.int(), tensor, length=1, noise=()).verdict == "error"
    assert judge_output(tensor.int(), tensor.long(), length=1, noise=()).verdict == "error"


def test_empty_and_single_elements() -> None:
    empty = torch.zeros(0)
    assert judge_output(empty, empty.double(), length=1, noise=()).verdict == "pass"
    one = torch.tensor(1.0)
    assert judge_output(one, one.double(), length=1, noise=()).verdict == "pass"
    assert judge_output(one * 1.001, one.double(), length=1, noise=()).verdict == "error"


def test_the_worst_verdict() -> None:
    assert worst_verdict(["pass", "error", "SKIP"]) == "error"
    assert worst_verdict(["SKIP"]) == "SKIP"
    assert worst_verdict([]) == "SKIP"


def test_neighbours_of_the_right_numbers_are_a_warning() -> None:
    truth = torch.tensor([1.01, -1.02], dtype=torch.float64)
    rounded = truth.to(torch.bfloat16)
    step = torch.finfo(torch.bfloat16).eps
    near = judge_output(rounded + step, truth, length=1)
    assert near.verdict == "warning" and "neighbour" in near.message
    assert judge_output(rounded + 2 * step, truth, length=1).verdict == "error"


def test_a_sum_that_is_kept_in_a_half_is_a_warning_and_a_wrong_factor_is_not() -> None:
    terms = randn(64, 500).to(torch.bfloat16)
    total = torch.zeros(500, dtype=torch.bfloat16)
    for term in terms:
        total += term
    truth = terms.double().sum(0)
    others = Resemblance(is_alike=False, shared_by=300.0)
    judgement = judge_output(total, truth, length=64, resemblance=lambda: others)
    assert judgement.verdict == "warning" and "a sum that is kept in" in judgement.message
    scaled = (truth * 1.01).to(torch.bfloat16)
    assert judge_output(scaled, truth, length=64).verdict == "error"


@pytest.mark.parametrize(("truth", "verdict"), [(1.0100, "warning"), (1.0065, "error")])
def test_the_next_number_is_right_only_where_the_truth_lies_in_between(
    truth: float, verdict: str
) -> None:
    """One number of bfloat16 can be one per cent off and still the neighbour of the right one."""
    ours = torch.tensor([1.015625], dtype=torch.bfloat16)
    assert judge_output(ours, torch.tensor([truth]), length=1).verdict == verdict
