"""What a check found out about one call, with the tensors of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from tensorprobe.precheck.judge import Judgement, Verdict
from tensorprobe.replay.rebuild import RebuiltCall

__all__ = ["CheckedCall", "CheckedOutput"]


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
class CheckedCall:
    """Everything that a check found out about one call.

    Attributes:
        forward: the verdict forward.
        backward: the verdict backward; None where there is none.
        message: why, for the whole call.
        outputs: every output and gradient.
        call: of a failing call, the rebuilt call with its inputs on the CPU.
        gradients: of a failing call, what was sent back, one for each output.
        copies_leaves: of a failing call, whether it wrote into copies of its inputs.
        was_lost: whether the call ended its process, so that nothing is known of its results.
        draw_seed: of a call that drew random numbers, their seed on the device; the reference's
            is the next one.
        device_seconds: time in the call on the device.
        reference_seconds: time in the call on the reference side.
        phases: seconds of everything that was done, by phase; see `stopwatch`.
    """

    forward: Verdict
    backward: Verdict | None = None
    message: str = ""
    outputs: tuple[CheckedOutput, ...] = ()
    call: RebuiltCall | None = None
    gradients: tuple[torch.Tensor | None, ...] = ()
    copies_leaves: bool = False
    was_lost: bool = False
    draw_seed: int | None = None
    device_seconds: float = 0.0
    reference_seconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
