"""What a replay shows: the numbers of each result, for those who judge them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["CallSplit", "OutputSplit", "OwnError"]


@dataclass(frozen=True, slots=True)
class OwnError:
    """The error that one side made in one result, against a replay of its own inputs.

    Attributes:
        relative: its norm over that of the replay.
        peaks: the largest error of an element over what rounding explains there, for each roundoff
            that the operation may work in.
        levels: the norm of the error over that of the error to expect, likewise.
        scale: the part of the error that is a multiple of the result, (a * result).
        bias: the mean error towards larger size, in halves of the unit in the last place.
        worst: the place of the element with the largest peak, in C order.
        got: what was recorded there.
        wanted: what the replay gives there.
        nonfinite: elements that are NaN or infinite though their replay is a number of that type.
        overflowed: elements that are infinite because their replay is too large for the type.
        unequal: elements of an exact operation that are not what they must be.
        spikes: elements whose error is beyond what rounding explains.
        bits: the significant bits that all elements of a float32 result get by with, where that is
            those of a shorter type; else 0.
    """

    relative: float = 0.0
    peaks: tuple[float, ...] = (0.0,)
    levels: tuple[float, ...] = (0.0,)
    scale: float = 0.0
    bias: float = 0.0
    worst: int = -1
    got: float = 0.0
    wanted: float = 0.0
    nonfinite: int = 0
    overflowed: int = 0
    unequal: int = 0
    spikes: int = 0
    bits: int = 0


@dataclass(frozen=True, slots=True)
class OutputSplit:
    """One result of a call on both sides.

    Attributes:
        place: `output.0`.
        dtype: of the candidate's result.
        shape: likewise.
        exact: whether it must agree bit for bit.
        once: whether a sound kernel rounds it once, at the end.
        roundoffs: what the operation may work in; `peaks` and `levels` are in this order.
        candidate: the error that the candidate made here.
        reference: the error that the reference made here.
        inherited: the distance between both replays, relative to the reference's.
        total: the distance between both recorded results, likewise.
    """

    place: str
    dtype: str
    shape: tuple[int, ...]
    exact: bool
    once: bool
    roundoffs: tuple[float, ...]
    candidate: OwnError
    reference: OwnError
    inherited: float
    total: float

    @property
    def count(self) -> int:
        """Return how many elements the result has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class CallSplit:
    """A call whose results were split.

    Attributes:
        name: the call.
        outputs: its results.
        skipped: why other results are missing.
        settings: of a module whose result is what another setting of its class gives: that
            setting, and the reference's, in words.
    """

    name: str
    outputs: tuple[OutputSplit, ...]
    skipped: tuple[str, ...] = ()
    settings: tuple[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as another process can be told it; numbers may be NaN or infinite."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> CallSplit:
        """Return what `to_json` told of."""
        settings = told["settings"]
        return cls(
            told["name"],
            tuple(_output_split(output) for output in told["outputs"]),
            tuple(told["skipped"]),
            None if settings is None else (settings[0], settings[1]),
        )


def _output_split(told: Mapping[str, Any]) -> OutputSplit:
    sides = {side: OwnError(**_with_tuples(told[side])) for side in ("candidate", "reference")}
    return OutputSplit(**{**_with_tuples(told), **sides})


def _with_tuples(told: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}
