"""Which rows are wanted: those whose name begins with one of some APIs or modules, part by part."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprobe.system.text_file import find_near

__all__ = ["ApiFilter"]

_MOST_KINDS = 20_000
_ALIKE = 0.6


class ApiFilter:
    """Says of each row's name whether it is wanted, and remembers what was there to be wanted.

    >>> wanted = ApiFilter(["Distributed.all_reduce", "Distributed.gather"])
    >>> wanted.place("Distributed.all_reduce.0.forward.input.0")
    0
    >>> wanted.place("Distributed.all_gather.0.forward.input.0") is None
    True
    >>> wanted.unmet()
    [('Distributed.gather', 'Distributed.all_gather')]

    Args:
        apis: `{type}`, `{type}.{name}`, `{type}.{name}.{call}` and so on.
    """

    def __init__(self, apis: Sequence[str]) -> None:
        self._apis = tuple(dict.fromkeys(apis))
        self._met: set[str] = set()
        self._kinds: set[str] = set()

    def place(self, name: str) -> int | None:
        """Return the number of the first API that the name belongs to, from 0; None: of none."""
        self.note(name)
        if not name.startswith(self._apis):
            return None
        place = None
        for number, api in enumerate(self._apis):
            if name.startswith(api) and name[len(api) : len(api) + 1] in ("", "."):
                self._met.add(api)
                place = number if place is None else place
        return place

    def may_hold(self, text: str) -> bool:
        """Whether a text would be wanted if it were a row's name; it is not remembered as one."""
        return text.startswith(self._apis)

    def note(self, name: str) -> None:
        """Remember how a name begins, for what may have been meant by an API that is nowhere."""
        if len(self._kinds) < _MOST_KINDS:
            self._kinds.add(".".join(name.split(".", 2)[:2]))

    def unmet(self) -> list[tuple[str, str | None]]:
        """Return the APIs that no row belongs to, and what may have been meant."""
        words = self._kinds | {kind.partition(".")[0] for kind in self._kinds}
        return [
            (api, find_near(api, words - {api}, cutoff=_ALIKE))
            for api in self._apis
            if api not in self._met
        ]
