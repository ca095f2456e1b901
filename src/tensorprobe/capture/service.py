"""What programs reach behind a debugger, by the names that msprobe gave it.

debugger.service.config.dump_path = …   what comes after the next `start` goes there (verl)
debugger.service.reset_status()         calls are counted from 0 again
debugger.config.dump_path               where the dump goes unless the service says otherwise
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprobe.config import Config

if TYPE_CHECKING:
    from tensorprobe.capture.debugger import PrecisionDebugger

__all__ = ["Service", "Settings"]

_FIELDS = frozenset(field.name for field in fields(Config)) - {"notices", "places"}


class Settings:
    """The configuration of a debugger, field by field.

    What is set is checked as in a file, and holds from the next `start` on.

    Args:
        debugger: whose it is.
        is_given: whether it is the one that the debugger was given, which stays as it is when
            the service gets another; programs put the folders of their stages below its path.
    """

    def __init__(self, debugger: PrecisionDebugger, *, is_given: bool = False) -> None:
        object.__setattr__(self, "_debugger", debugger)
        object.__setattr__(self, "_is_given", is_given)

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS:
            raise AttributeError(f"the configuration has no field {name!r}")
        debugger = self._debugger
        value = getattr(debugger.given_config if self._is_given else debugger.current_config, name)
        # As they stand in a file: programs put more behind a path, and look for numbers in a list.
        if isinstance(value, Path):
            return str(value)
        return list(value) if isinstance(value, tuple) else value

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_given:
            self._debugger.change_given(**{name: value})
        else:
            self._debugger.change(**{name: value})

    def __dir__(self) -> list[str]:
        return sorted(_FIELDS)


class Service:
    """The part of a debugger that msprobe calls its service.

    Attributes:
        config: the configuration.
        first_start: whether nothing has been started yet. Some programs set it before each model
            that is new; here models are found by themselves, so nothing depends on it.
    """

    def __init__(self, debugger: PrecisionDebugger) -> None:
        self._debugger = debugger
        self.config = Settings(debugger)
        self.first_start = True

    @property
    def current_iter(self) -> int:
        """The step that was started last."""
        return self._debugger.started_step

    def reset_status(self) -> None:
        """Count calls from 0 again; what is recorded from now on is a dump of its own.

        Where it goes into the same folder it replaces what this step has recorded so far.
        """
        self._debugger.reset_status()

    # Under this name, too, by programs of before it was public.
    _reset_status = reset_status
