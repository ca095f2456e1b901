"""Whether a call is a dropout, and of which share, is told by its arguments."""

from __future__ import annotations

import torch

from tensorprobe.precheck.random_call import dropout_probability


def test_the_probability_of_a_call() -> None:
    assert dropout_probability("Functional", (torch.ones(1),), {}) == 0.5
    assert dropout_probability("Torch", (torch.ones(1), 0.25, True), {}) == 0.25
    assert dropout_probability("Functional", (torch.ones(1),), {"p": 0.1}) == 0.1
    assert dropout_probability("Torch", (torch.ones(1),), {}) is None
