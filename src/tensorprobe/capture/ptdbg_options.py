"""What a user of ptdbg_ascend may ask for, in the words of this tool.

mode, scope, api_list, filter_switch, dump_mode, summary_mode ─► PtdbgOptions
    ├► config: what to capture
    └► form: which lines its files have
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from tensorprobe.config import Config, load_config
from tensorprobe.errors import ConfigError, NameFormatError
from tensorprobe.names import API_TYPES, ModuleCall, parse_ptdbg_call
from tensorprobe.store.ptdbg_writer import PtdbgForm

__all__ = ["Level", "Names", "PtdbgHook", "PtdbgOptions", "is_on"]

_MODES = ("all", "list", "range", "stack", "acl", "api_list", "api_stack")
_SUMMARIES = ("all", "summary", "md5")
_WITH_STACKS = ("list", "range", "stack", "api_stack")

Names = Sequence[str] | str | None
Level = Literal["L0", "L1", "L2"]


class PtdbgHook(Enum):
    """What `register_hook` is given: what to do with the calls of a run."""

    acc_cmp_dump = "dump"
    overflow_check = "overflow_check"


@dataclass(frozen=True, slots=True)
class PtdbgOptions:
    """What is recorded, and how.

    Attributes:
        hook: record every call, or those that overflow.
        mode: which calls; it is part of the files' names.
        scope: the calls of the modes list, acl, range and stack.
        api_list: parts of the names of the calls of the mode api_list.
        floats_alone: whether no number, no whole tensor and no single element is recorded.
        data_mode: which directions and sides.
        summary: `all` for the data and statistics, `summary` for statistics, `md5` for checksums.
        overflow_nums: end the search with this overflow; -1 for never.
        level: `L1` for API calls, `L0` for modules, `L2` for the operators below API calls.
    """

    hook: PtdbgHook = PtdbgHook.acc_cmp_dump
    mode: str = "api_stack"
    scope: tuple[str, ...] = ()
    api_list: tuple[str, ...] = ()
    floats_alone: bool = False
    data_mode: Names = "all"
    summary: str = "all"
    overflow_nums: int = 1
    level: Level = "L1"

    @classmethod
    def checked(
        cls,
        *,
        hook: PtdbgHook = PtdbgHook.acc_cmp_dump,
        mode: str | None = None,
        scope: Names = None,
        api_list: Names = None,
        filter_switch: str = "OFF",
        data_mode: Names = "all",
        summary_only: bool = False,
        summary_mode: str | None = None,
        overflow_nums: int = 1,
        level: Level = "L1",
    ) -> PtdbgOptions:
        """Check what a user has written.

        Raises:
            ConfigError: something of it has no meaning.
        """
        mode = "api_stack" if mode is None else mode
        summary = summary_mode or ("summary" if summary_only else "all")
        if hook is PtdbgHook.acc_cmp_dump and mode not in _MODES:
            raise ConfigError(f"mode is {mode!r}, wanted one of {', '.join(_MODES)}")
        if summary not in _SUMMARIES:
            raise ConfigError(f"summary_mode is {summary!r}, wanted one of {', '.join(_SUMMARIES)}")
        return cls(
            hook,
            mode,
            _names("scope", scope),
            _names("api_list", api_list),
            is_on("filter_switch", filter_switch),
            data_mode,
            summary,
            overflow_nums,
            level,
        )

    @property
    def is_kernels(self) -> bool:
        """Whether the operators below API calls are asked for, which ptdbg left to the driver."""
        return self.mode == "acl" or self.level == "L2"

    @property
    def form(self) -> PtdbgForm:
        """Which files are written, and which lines they have."""
        return PtdbgForm(
            "dump" if self.mode == "all" else f"{self.mode}_dump",
            with_values=self.mode != "stack",
            with_stacks=self.mode in _WITH_STACKS,
            floats_alone=self.floats_alone,
        )

    def config(
        self,
        *,
        step: Sequence[int | str] | int | str | None = None,
        rank: int | None = None,
        enable_dataloader: bool = False,
    ) -> Config:
        """Return what to capture.

        Raises:
            ConfigError: a name, a step or another value cannot be used.
        """
        is_search = self.hook is PtdbgHook.overflow_check
        has_data = self.summary == "all" and self.mode != "stack"
        listed, scope = self._calls()
        return load_config(
            task="overflow_check" if is_search else "tensor" if has_data else "statistics",
            level="L2" if self.is_kernels else self.level,
            list=listed,
            scope=scope,
            data_mode=self.data_mode,
            summary_mode="md5" if self.summary == "md5" else "statistics",
            # Data of the precheck's files are .pt; those of a dump need no second writing as .npy.
            file_format="pt" if is_search or self.is_kernels else "npy",
            overflow_nums=self.overflow_nums,
            step=step,
            rank=rank,
            enable_dataloader=enable_dataloader,
        )

    def _calls(self) -> tuple[list[str], list[str]]:
        """Return the list and the scope that stand for a mode."""
        if self.hook is PtdbgHook.overflow_check:
            return [], []
        if self.mode == "api_list":
            _require_names("api_list", self.api_list, self.mode)
            return [f"name-regex((?i).*{_spelled(api)})" for api in self.api_list], []
        if self.mode in ("list", "acl"):
            _require_names("scope", self.scope, self.mode)
            return [_beginning_with(name, self.is_kernels) for name in self.scope], []
        if self.mode == "range" or (self.mode == "stack" and len(self.scope) > 1):
            if len(self.scope) != 2:
                raise ConfigError(
                    f"scope is {list(self.scope)!r}, wanted the first and the last call of the "
                    "range, such as ['Tensor_abs_1_forward', 'Tensor_transpose_3_forward']"
                )
            return [], [_whole(name) for name in self.scope]
        if self.mode == "stack":
            return [_beginning_with(name, self.is_kernels) for name in self.scope], []
        return [], []


def is_on(what: str, switch: object) -> bool:
    """Tell ON from OFF.

    >>> is_on("filter_switch", "ON")
    True

    Raises:
        ConfigError: it is neither.
    """
    if switch not in ("ON", "OFF"):
        raise ConfigError(f"{what} is {switch!r}, wanted 'ON' or 'OFF'")
    return switch == "ON"


def _names(what: str, names: object) -> tuple[str, ...]:
    given = [names] if isinstance(names, str) else names or []
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"{what} is {names!r}, wanted a list of names")
    return tuple(given)


def _require_names(what: str, names: tuple[str, ...], mode: str) -> None:
    if not names:
        raise ConfigError(f"mode {mode!r} wants names in {what}, such as {what}=['relu']")


def _whole(name: str) -> str:
    try:
        return str(parse_ptdbg_call(name))
    except NameFormatError as err:
        raise ConfigError(f"scope holds {name!r}: {err}") from err


def _beginning_with(name: str, both_ways: bool) -> str:
    """Return what finds the calls whose names begin like this one."""
    if both_ways:
        # The operators of a call are listed by the call, whichever way they run.
        name = re.sub(r"[._](forward|backward)$", "", name)
    elif not name.startswith(API_TYPES):
        # A module's number stands elsewhere in its name.
        call = parse_ptdbg_call(name) if re.search("[._](for|back)ward$", name) else None
        if isinstance(call, ModuleCall):
            return f"name-regex({re.escape(str(call))}$)"
        return f"name-regex(Module[.]{_spelled(name)})"
    return f"name-regex({_spelled(name)})"


def _spelled(name: str) -> str:
    """Return a pattern for a name that stands with underscores, or dots, between its parts."""
    return "".join("[._]" if sign in "._" else re.escape(sign) for sign in name)
