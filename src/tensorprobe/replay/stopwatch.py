"""Where the time of a check goes, phase by phase."""

from __future__ import annotations

from time import perf_counter

__all__ = ["PHASES", "Phase", "Stopwatch"]

PHASES = ("load", "prepare", "device", "reference", "fetch", "measure", "noise", "other")
"""What a check does: read files, make arguments, run the call on the device and on the CPU, bring
results to the host, measure them, repeat runs with noise where a result is in doubt."""


class Stopwatch:
    """Adds up the seconds of each phase; the time of an inner one is not the outer one's.

    What happens during `noise` is noise, whatever it is.

    >>> watch = Stopwatch()
    >>> with watch.phase("load"):
    ...     pass
    >>> list(watch.stop())
    ['other', 'load']
    """

    __slots__ = ("_seconds", "_since", "_stack")

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {"other": 0.0}
        self._stack = ["other"]
        self._since = perf_counter()

    def phase(self, name: str) -> Phase:
        """Return a phase that begins and ends with the block that it is entered for."""
        return Phase(self, name)

    def stop(self) -> dict[str, float]:
        """Return the seconds of each phase until now."""
        self._add()
        return dict(self._seconds)

    def resume(self) -> None:
        """Leave out the time since it was stopped."""
        self._since = perf_counter()

    def begin(self, name: str) -> None:
        """Let the time go to a phase."""
        inner = self._add()
        self._stack.append("noise" if inner == "noise" else name)

    def end(self) -> None:
        """Let the time go to the phase before."""
        self._add()
        self._stack.pop()

    def _add(self) -> str:
        now = perf_counter()
        name, seconds = self._stack[-1], self._seconds
        seconds[name] = seconds.get(name, 0.0) + now - self._since
        self._since = now
        return name


class Phase:
    """One phase of a stopwatch as a block."""

    __slots__ = ("_name", "_watch")

    def __init__(self, watch: Stopwatch, name: str) -> None:
        self._watch = watch
        self._name = name

    def __enter__(self) -> None:
        self._watch.begin(self._name)

    def __exit__(self, *error: object) -> None:
        self._watch.end()
