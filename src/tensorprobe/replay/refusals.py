"""What torch raises where it does not take a call: of arguments that nobody would write, too."""

from __future__ import annotations

__all__ = ["REFUSALS"]

REFUSALS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""A call that raises one of these could not be made; the reader is told which and goes on."""
