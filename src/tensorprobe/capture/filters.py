"""Which calls are recorded: `list`, `scope`, `data_mode` and `tensor_list` in one object.

    a forward call begins ─► enter: is it recorded?        a module's call is over ─► leave
    is its backward worth a hook? ─► follow                the backward is there ─► reach

A scope is a range in the order of the calls, so what it holds changes as the step goes on; a filter
belongs to one step. The tree of modules is not filtered: it stays whole in construct.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tensorprobe.config import Config
from tensorprobe.errors import ConfigError, NameFormatError
from tensorprobe.names import ApiCall, ModuleCall, backward_of, forward_of, parse_call

__all__ = ["CallFilter"]

_DIRECTIONS: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
_SIDES: tuple[Literal["input", "output"], ...] = ("input", "output")
_BEGINNING = "name-regex("
_REGEX = re.compile(r"name-regex\((?P<pattern>.*)\)", re.DOTALL)


class CallFilter:
    """Answers what one step records.

    >>> calls = CallFilter(Config(list=("relu", "Torch.matmul.3.forward")))
    >>> calls.enter("Functional.relu.0.forward"), calls.enter("Torch.matmul.2.forward")
    (True, False)

    Args:
        config: the filters as the user wrote them.

    Attributes:
        is_open: whether every call counts, so that only `data_mode` need be asked.

    Raises:
        ConfigError: a `name-regex(…)` that is none, or a scope that the level cannot see.
    """

    def __init__(self, config: Config) -> None:
        self._is_listed = _matcher(config.place_of("list"), config.list)
        everything = config.task == "tensor"
        with_data = () if everything else config.tensor_list
        self._has_data = (
            _matcher(config.place_of("tensor_list"), with_data) if everything or with_data else None
        )
        # Asked for every call and every tensor.
        self._parts = {
            (direction, side): config.wants_data(direction, side)
            for direction in _DIRECTIONS
            for side in _SIDES
        }
        self._directions = {
            direction: any(self._parts[direction, side] for side in _SIDES)
            for direction in _DIRECTIONS
        }
        # Only there is anything inside a module, and the older tools unfold a module only there.
        self._unfolds = bool(config.list) and config.level == "mix"
        self._scope = _Scope(*_checked_scope(config)) if config.scope else None
        self._running: list[_Running] = []
        self._last_asked = ("", False)
        self.is_open = not (config.list or config.scope)

    @property
    def missing_end(self) -> str | None:
        """Which end of the scope has not come, and what follows from that; None if both have."""
        scope = self._scope
        if scope is None:
            return None
        if not scope.has_begun:
            return f"the scope begins with {scope.first}, which did not come; nothing is recorded"
        if scope.is_open:
            text = f"the scope ends with {scope.last}, which did not come after its beginning"
            return f"{text}; all that came from there on is recorded"
        return None

    def wants_part(
        self, direction: Literal["forward", "backward"], side: Literal["input", "output"]
    ) -> bool:
        """Whether `data_mode` keeps the inputs or the outputs of one direction."""
        return self._parts[direction, side]

    def wants_direction(self, direction: Literal["forward", "backward"]) -> bool:
        """Whether `data_mode` keeps anything of one direction."""
        return self._directions[direction]

    @property
    def keeps_data(self) -> Callable[[str], bool] | None:
        """Whether the real data of a value of a name is written; None where no data are."""
        return self._has_data

    def enter(self, name: str) -> bool:
        """Note that a forward call begins; returns whether it is recorded.

        Asking again gives the same answer until another call begins or this one is left.
        """
        if self._scope is None and not self._unfolds:
            return self._directions["forward"] and self._is_listed(name)
        if name == self._last_asked[0]:
            return self._last_asked[1]
        for running in reversed(self._running):
            if running.name == name:
                return running.is_wanted
        in_scope = self._scope is None or self._scope.enter(name, [r.name for r in self._running])
        is_listed = self._is_listed(name) or any(r.unfolds_forward for r in self._running)
        is_wanted = in_scope and is_listed and self._directions["forward"]
        self._last_asked = (name, is_wanted)
        if _is_module(name):
            self._running.append(
                _Running(
                    name,
                    is_wanted,
                    unfolds_forward=self._unfolds and self._is_listed(name),
                    unfolds_backward=self._unfolds and self._is_listed(backward_of(name)),
                )
            )
        return is_wanted

    def leave(self, name: str) -> None:
        """Note that a module's forward call is over."""
        if not self._running or not any(running.name == name for running in self._running):
            return
        self._last_asked = ("", False)
        # An exception may have passed over the ends of the calls inside.
        while self._running.pop().name != name:
            pass
        if self._scope is not None:
            self._scope.leave(name)

    def follow(self, name: str) -> bool:
        """Whether the backward of a call that has just run may be recorded; `name` is its own."""
        if not self._directions["backward"]:
            return False
        if self.is_open:
            return True
        return self._is_listed(name) or any(r.unfolds_backward for r in self._running)

    def reach(self, name: str) -> bool:
        """Note a backward call that was followed; returns whether it is recorded.

        Asking again gives the same answer until another call comes.
        """
        if self._scope is None:
            return True
        if name != self._last_asked[0]:
            self._last_asked = (name, self._scope.reach(name))
        return self._last_asked[1]


@dataclass(frozen=True, slots=True)
class _Running:
    """A module's forward call that has begun, and whether what is inside it counts as listed."""

    name: str
    is_wanted: bool
    unfolds_forward: bool
    unfolds_backward: bool


class _Scope:
    """A range of calls, both ends complete; it opens again if its first call comes again."""

    def __init__(self, first: str, last: str) -> None:
        self.first = first
        self.has_begun = False
        self.last = last
        self.is_open = False
        # The backward of a module is over when that of all that ran inside it is, in no fixed
        # order: what ran inside an end of the range belongs to it.
        self._inside_first: set[str] = set()
        self._inside_last: set[str] = set()
        self._insides = [
            (forward_of(end), inside)
            for end, inside in ((first, self._inside_first), (last, self._inside_last))
            if _is_module(end) and forward_of(end) != end
        ]

    def enter(self, name: str, around: list[str]) -> bool:
        """Note that a call begins inside of others; returns whether it is in the range."""
        for module, inside in self._insides:
            if module in around:
                inside.add(name)
        if name == self.first:
            self._open()
        is_in_range = self.is_open
        # Nothing is recorded inside an API call, but much inside a module.
        if not _is_module(name):
            self.leave(name)
        return is_in_range

    def leave(self, name: str) -> None:
        """Note that a call is over."""
        if name == self.last:
            self.is_open = False

    def reach(self, name: str) -> bool:
        """Note a backward call; returns whether it is in the range."""
        forward = forward_of(name) if self._insides else ""
        if name == self.first or (not self.has_begun and forward in self._inside_first):
            self._open()
        is_in_range = self.is_open or (self.has_begun and forward in self._inside_last)
        self.leave(name)
        return is_in_range

    def _open(self) -> None:
        self.is_open = self.has_begun = True


def _matcher(place: str, entries: tuple[str, ...]) -> Callable[[str], bool]:
    """Turn names, parts of names and name-regex(…) into one question; no entry means all."""
    parts: list[str] = []
    patterns: list[re.Pattern[str]] = []
    for entry in entries:
        if not entry.startswith(_BEGINNING):
            parts.append(entry)
            continue
        regex = _REGEX.fullmatch(entry)
        try:
            patterns.append(re.compile("" if regex is None else regex["pattern"]))
            problem = "the last bracket is missing" if regex is None else ""
        except (re.error, OverflowError, RecursionError) as err:
            problem = str(err)
        if problem:
            raise ConfigError(
                f"{place} holds {entry!r}, wanted a regular expression in the brackets: {problem}; "
                "mend it, or write a part of a name alone, such as 'relu'"
            )
    if not entries:
        return lambda name: True
    return lambda name: any(part in name for part in parts) or any(p.match(name) for p in patterns)


def _checked_scope(config: Config) -> tuple[str, str]:
    first, last = config.scope
    place = config.place_of("scope")
    for name in (first, last):
        try:
            call = parse_call(name)
        except NameFormatError:
            call = None
        if not isinstance(call, (ApiCall, ModuleCall)):
            raise ConfigError(
                f"{place} holds {name!r}, wanted the whole name of a call, such as "
                "'Tensor.add.0.forward' or 'Module.fc1.Linear.forward.0'"
            )
        is_module = isinstance(call, ModuleCall)
        if config.level == ("L1" if is_module else "L0"):
            kind, watched = ("a module", "API calls") if is_module else ("an API", "modules")
            raise ConfigError(
                f"{place} holds {name!r}, a call of {kind}, but level {config.level} watches "
                f"{watched} alone; use level 'mix'"
            )
    return first, last


def _is_module(name: str) -> bool:
    return name.startswith("Module.")
