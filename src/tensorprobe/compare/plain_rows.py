"""The one place that says whether the compiled maker of pairs and rows is there, and hands it out.

`_plain_rows.c` knows the pairs of calls that look alike, and the rows of statistics whose numbers
are finite. Without a C compiler `match` and `rows` make all of them, several times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol

from tensorprobe.compare.call_rows import Row
from tensorprobe.compare.cells import shape_text
from tensorprobe.compare.judge import GRAD_INCONSISTENT, NEEDS_CHECK
from tensorprobe.pairing.match import Pair
from tensorprobe.pairing.value_names import state_at
from tensorprobe.store.leaves import Leaf
from tensorprobe.system.extensions import load_compiled
from tensorprobe.system.powers_of_ten import powers_of_ten

__all__ = ["PlainRows", "load_plain_rows"]

_FUNCTIONS = ("alike_pairs", "statistics_rows", "set_up")
# By whether a relative error is too large, and twice whether requires_grad differs.
_MESSAGES = ("", NEEDS_CHECK, GRAD_INCONSISTENT, NEEDS_CHECK + GRAD_INCONSISTENT)


class PlainRows(Protocol):
    """What `_plain_rows.c` offers."""

    def alike_pairs(self, ours: list[Leaf], theirs: list[Leaf], call: str, /) -> list[Pair] | None:
        """Pair the values of two calls, or return None if their places or looks differ."""
        ...

    def statistics_rows(
        self, call: str, pairs: list[Pair], make_other: Callable[[str, Pair], Row | None], /
    ) -> list[Row]:
        """Return the rows of a call; `make_other` makes the unusual ones, and None is no row."""
        ...

    def set_up(
        self,
        pair: type[Pair],
        row: type[Row],
        messages: tuple[str, ...],
        shape_text: Callable[[tuple[int, ...]], str],
        state_at: Callable[[str], str],
        powers: bytes,
        /,
    ) -> None:
        """Take classes, messages, what gives the text of a shape and a place's state, powers."""
        ...


def load_plain_rows() -> PlainRows | None:
    """Return the compiled maker, or None where it is not there or was turned off."""
    compiled = load_compiled("tensorprobe.compare._plain_rows", *_FUNCTIONS)
    return None if compiled is None else _set_up(compiled)


@cache
def _set_up(compiled: PlainRows) -> PlainRows:
    compiled.set_up(Pair, Row, _MESSAGES, shape_text, state_at, powers_of_ten())
    return compiled
