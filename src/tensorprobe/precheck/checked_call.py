"""What a check found out about one call, with the tensors of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from tensorprobe.precheck.judge import Judgement, Verdict
from tensorprobe.replay.both_sides import Repetition

__all__ = ["CheckedCall", "CheckedOutput", "RandomDraw"]


@dataclass(frozen=True, slots=True)
class CheckedOutput:
    """One output, written input or gradient of a checked call.

    Attributes:
        place: `forward.output.0`, `forward.input.3` or `backward.output.1`.
        candidate: the device's, on the CPU; None where there is none.
        reference: the reference's, in its own precision.
        judgement: what is said of it.
    """

    place: str
    candidate: torch.Tensor | None
    reference: torch.Tensor | None
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class RandomDraw:
    """How a call drew random numbers.

    Attributes:
        seed: of the device's; the reference's is the next one.
        dropout: the share that a dropout zeroes; None for any other call.
        groups: how many parts are drawn together; None for single elements.
    """

    seed: int
    dropout: float | None = None
    groups: int | None = None


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """Everything that a check found out about one call.

    Attributes:
        forward: the verdict forward.
        backward: the verdict backward; None where there is none.
        message: why, for the whole call.
        outputs: every output and gradient.
        repetition: of a failing call, what is needed to make it again.
        chooses: of a call that chooses places, its name and the dimension that they count along.
        was_lost: whether the call ended its process, so that nothing is known of its results.
        draw: of a call that drew random numbers, how.
        device_seconds: time in the call on the device.
        reference_seconds: time in the call on the reference side.
        phases: seconds of everything that was done, by phase; see `stopwatch`.
    """

    forward: Verdict
    backward: Verdict | None = None
    message: str = ""
    outputs: tuple[CheckedOutput, ...] = ()
    repetition: Repetition | None = None
    chooses: tuple[str, int | None] | None = None
    was_lost: bool = False
    draw: RandomDraw | None = None
    device_seconds: float = 0.0
    reference_seconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
