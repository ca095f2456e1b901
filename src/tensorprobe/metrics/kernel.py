"""The one place that says whether the compiled kernel is there, and hands it out.

`_kernel.c`, `_pair.c` and `_errors.c` are compiled when tensorprobe is installed. Without a C
compiler the install succeeds all the same and numpy does the work, slower and with the same
meaning. That is said once per process, in the log, when the kernel is first wanted.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import os
from functools import cache
from typing import Protocol, cast

from tensorprobe.system.extensions import SWITCH, is_turned_off

__all__ = ["SWITCH", "Kernel", "compiled", "explain_absence", "load_kernel"]

# The first number drawn is 0. Drawing is atomic, so of two threads only one gets it.
_draws = itertools.count()


class Kernel(Protocol):
    """What the compiled module offers. Addresses are integers; the caller keeps memory alive."""

    def measure(
        self, address: int, count: int, type_name: str, /
    ) -> tuple[
        int,
        int,
        int,
        int,
        float | None,
        float | None,
        tuple[float, float, float],
        tuple[float, float, float],
    ]:
        """Return the fields of `statistics_numpy.PieceStatistics` for contiguous elements."""
        ...

    def histogram(
        self,
        address: int,
        count: int,
        type_name: str,
        low: float,
        high: float,
        bins: int,
        counts_address: int,
        /,
    ) -> None:
        """Add contiguous elements to the int64 counts of equally wide bins."""
        ...

    def measure_pair(
        self,
        candidate_address: int,
        candidate_type: str | int,
        reference_address: int,
        reference_type: str | int,
        count: int,
        candidate_factor: float,
        reference_factor: float,
        difference_factor: float,
        variant: str,
        /,
    ) -> tuple[
        float,
        float,
        float,
        float,
        float,
        int,
        float,
        tuple[int, int, int, int],
        int,
        int,
        int,
        int,
        int,
        int,
        float,
        float,
    ]:
        """Return the fields of `pair_numpy.PiecePair` for contiguous elements of both sides.

        A type that is an integer is the address of the 256 float32 that 8-bit elements stand for;
        "float32 as bfloat16" is one that is rounded while it is read.
        """
        ...

    def measure_errors(
        self,
        candidate_address: int,
        candidate_type: str,
        reference_address: int,
        reference_type: str,
        count: int,
        mean_size: float,
        small: float,
        small_error: float,
        most_places: int,
        /,
    ) -> tuple[int, int, int, int, int, int, int, int, float, float]:
        """Return the fields of `pair_errors.PieceErrors` for contiguous elements of both sides."""
        ...

    def pair_variants(self) -> list[str]:
        """Return which variants of `measure_pair` this machine can run, the fastest first."""
        ...

    def count_bytes(self, address: int, count: int, counts_address: int, /) -> None:
        """Add bytes to the 256 int64 counts of their values."""
        ...


def compiled() -> bool:
    """Return whether the compiled kernel is there and in use.

    >>> compiled() == (explain_absence() is None)
    True
    """
    return explain_absence() is None


def explain_absence() -> str | None:
    """Return why numpy does the kernel's work, or None when the kernel does it.

    Returns:
        One clause for a person, without a full stop.
    """
    if is_turned_off("metrics._kernel"):
        return f"{SWITCH} is set"
    found = _import_kernel()
    return found if isinstance(found, str) else None


def load_kernel() -> Kernel | None:
    """Return the compiled kernel, or None after saying once in the log that numpy is used."""
    absence = explain_absence()
    if absence is None:
        return cast(Kernel, _import_kernel())
    if next(_draws) == 0:
        # Whoever set the switch knows; a missing compiler is news.
        level = logging.INFO if os.environ.get(SWITCH) else logging.WARNING
        logging.getLogger("tensorprobe").log(
            level,
            "The compiled kernel is not used, because %s; numpy computes the same numbers more "
            "slowly. `tensorprobe doctor` shows this, too.",
            absence,
        )
    return None


@cache
def _import_kernel() -> Kernel | str:
    """Return the kernel, or why it cannot be had."""
    again = "install tensorprobe again where there is one"
    try:
        module = importlib.import_module("tensorprobe.metrics._kernel")
    except ModuleNotFoundError:
        return f"there was no C compiler when tensorprobe was installed ({again})"
    except ImportError as err:
        return f"it does not load here: {err}"
    doors = (
        "measure",
        "histogram",
        "count_bytes",
        "measure_pair",
        "measure_errors",
        "pair_variants",
    )
    if not all(hasattr(module, name) for name in doors):
        # An editable install keeps the old file when _kernel.c changes.
        return "it was built from an older source (install tensorprobe again)"
    return cast(Kernel, module)
