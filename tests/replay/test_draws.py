"""Random calls are judged by what holds of any draw."""

from __future__ import annotations

import torch
from torch.nn import functional

from tensorprobe.replay.script_parts.draws import (
    judge_distribution,
    judge_dropout,
    judge_dropout_gradient,
)


def test_a_dropout_passes_whatever_falls() -> None:
    given = torch.randn(10_000)
    for probability in (0.1, 0.5, 0.9):
        judgement = judge_dropout(given, functional.dropout(given, probability), probability)
        assert judgement.verdict == "pass", judgement
        assert "share of zeros" in judgement.message


def test_a_wrong_share_of_zeros_is_an_error() -> None:
    given = torch.randn(10_000)
    judgement = judge_dropout(given, functional.dropout(given, 0.2), 0.3)
    assert judgement.verdict == "error" and "share of zeros" in judgement.message


def test_a_forgotten_scale_is_an_error() -> None:
    given = torch.randn(10_000)
    judgement = judge_dropout(given, functional.dropout(given, 0.5) * 0.5, 0.5)
    assert judgement.verdict == "error" and "what was kept" in judgement.message


def test_gradients_are_zero_where_results_are() -> None:
    given = torch.ones(4)
    result = torch.tensor([0.0, 2.0, 0.0, 2.0])
    assert judge_dropout_gradient(given, result, result).verdict == "pass"
    assert judge_dropout_gradient(given, result, result.flip(0)).verdict == "error"


def test_distributions_are_told_apart() -> None:
    ours, theirs = torch.randn(5000), torch.randn(5000)
    assert judge_distribution(ours, theirs).verdict == "pass"
    assert judge_distribution(torch.zeros(5000), theirs).verdict == "error"
    assert judge_distribution(ours * 1.5, theirs).verdict == "error"
    assert judge_distribution(ours[:10], theirs).verdict == "error"


def test_the_smallest_halves_are_as_exact_as_their_steps() -> None:
    given = (torch.randn(10_000) * 1e-6).half()
    assert judge_dropout(given, functional.dropout(given, 0.1), 0.1).verdict == "pass"


def test_a_wrong_scale_of_float32_is_an_error() -> None:
    given = torch.randn(10_000)
    assert judge_dropout(given, functional.dropout(given, 0.1) * 1.001, 0.1).verdict == "error"
