"""What a check says of one call: from the process that checks to the one that writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CallResult", "OutputRow"]


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One line of the details: one output, written input or gradient.

    Attributes:
        name: the value's name, `Functional.linear.0.forward.output.0`.
        reference_dtype: the dtype that the reference was computed in.
        device_dtype: the dtype of the device's result.
        shape: its shape.
        cells: the metrics in the order of the details' columns, and what stands behind the message;
            blank where there is none.
        status: pass, warning, error or SKIP.
        message: which number missed which limit, or why it was skipped.
    """

    name: str
    reference_dtype: str
    device_dtype: str
    shape: str
    cells: tuple[str, ...]
    status: str
    message: str


@dataclass(frozen=True, slots=True)
class CallResult:
    """The verdicts on one call.

    Attributes:
        name: the forward call's name in the dump.
        forward: pass, warning, error or SKIP.
        backward: likewise; blank where the call has no backward.
        message: why, in words; blank for a plain pass.
        rows: the details.
        excess: how many times a tolerance was exceeded, to sort by.
        device_seconds: time in the call on the device, both ways.
        reference_seconds: time in the call on the reference side, both ways.
        phases: seconds of everything that was done, by phase; see `stopwatch`.
        unread: what of the dump could not be read meanwhile.
        older_forward: pass or fail by the rule of the older tools; blank where it says nothing.
        older_backward: likewise.
    """

    name: str
    forward: str
    backward: str = ""
    message: str = ""
    rows: tuple[OutputRow, ...] = ()
    excess: float = 0.0
    device_seconds: float = 0.0
    reference_seconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    older_forward: str = ""
    older_backward: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return what `json` can write; `from_json` makes it a result again."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["rows"] = [[getattr(row, name) for name in OutputRow.__slots__] for row in self.rows]
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> CallResult:
        """Return the result that `as_json` was asked of."""
        rows = (
            OutputRow(name, reference, device, shape, tuple(cells), status, message)
            for name, reference, device, shape, cells, status, message in plain.pop("rows")
        )
        plain["unread"] = tuple(plain["unread"])
        return cls(**plain, rows=tuple(rows))
