"""What repeating a call showed, from the process that repeats to the one that writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Replay", "Verdict"]

Verdict = Literal["normal", "abnormal", "not judged"]


@dataclass(frozen=True, slots=True)
class Replay:
    """What repeating a call showed.

    Attributes:
        verdict: `normal` if the CPU overflows too, in the recorded dtype.
        on_cpu: what the CPU made of it in the recorded dtype.
        exact: what it made of it one precision up.
        on_device: what the device made of it; empty if none was given.
        message: what else is to be known, or why it was not judged.
    """

    verdict: Verdict
    on_cpu: str = ""
    exact: str = ""
    on_device: str = ""
    message: str = ""
