"""Capture as api_accuracy_checker did: one iteration, which an import alone asks for.

import ─► CheckerCapture.arm ─► DataLoader: iteration {target_iter} ─► three JSON files ─► exit
          set_dump_switch("ON") … ("OFF") ─► what came between them ─► three JSON files
          set_dump_switch("ON") again ─► what came so far ─► three JSON files, for the time being
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tensorprobe.capture.checker_settings import CheckerConfig, CheckerSettings
from tensorprobe.capture.current import is_latest
from tensorprobe.capture.older_tools import OlderDebugger
from tensorprobe.capture.ptdbg_options import is_on
from tensorprobe.config import load_config
from tensorprobe.errors import TensorprobeError
from tensorprobe.store.checker_writer import write_checker_files
from tensorprobe.store.dump import RankDump
from tensorprobe.store.locate import open_dump
from tensorprobe.system.standard_streams import announce

__all__ = ["CheckerCapture", "CheckerDebugger"]

# Files are written anew once so many times as much was recorded: all in all little more than once.
_GROWTH = 1.5


class CheckerDebugger(OlderDebugger):
    """Captures into the files of api_accuracy_checker, by iterations or by hand."""

    def __init__(self, settings: CheckerSettings, *, follows_loader: bool) -> None:
        config = load_config(
            task="tensor" if settings.real_data else "statistics",
            level="L1",
            # Its files have what went into a call, forward and backward.
            data_mode="input",
            step=[settings.target_iter] if follows_loader else None,
            enable_dataloader=follows_loader,
        )
        self._written_size = 0.0
        self._set_up_below(settings.dump_path, config, None)

    @property
    def follows_loader(self) -> bool:
        """Whether a DataLoader starts and ends the capture."""
        return self._loader is not None

    def _exit_text(self, last: int) -> str:
        return f"Model pretest: exit after iteration {last}."

    def _announce_start(self) -> None:
        announce(f"The capture has begun. {self._place_meanwhile('tensorprobe precheck')}")

    def write_so_far(self) -> None:
        """Write the files of what was recorded until now; the end of the capture replaces them.

        A rank that is captured by hand is often terminated, once another has what it wants.
        """
        # What cannot be read or written yet is told at the end.
        with suppress(OSError, TensorprobeError):
            (part,) = open_dump(self.dump_path).parts
            size = part.path.stat().st_size
            if size >= self._written_size * _GROWTH:
                write_checker_files(part, self._base, process=os.getpid())
                self._written_size = size

    def _write(self, part: RankDump) -> Path | None:
        file = write_checker_files(part, self._base, process=os.getpid())
        announce(f"API information of this run is in {file} and the files beside it.")
        return None


class CheckerCapture:
    """The capture of a process: armed by an import, changed by its settings, or begun by hand.

    Args:
        config: the settings.
        debugger: what a capture is made of: the class that knows the list of functions.
    """

    def __init__(
        self, config: CheckerConfig, debugger: type[CheckerDebugger] = CheckerDebugger
    ) -> None:
        self._config = config
        self._class = debugger
        self._debugger: CheckerDebugger | None = None
        config.tell(self.arm)

    def arm(self) -> None:
        """Wait for the wanted iteration, unless a capture has begun; what waited before is gone."""
        if self._debugger is not None and not self._debugger.is_closed:
            if self._debugger.has_begun:
                announce("The settings are changed after the capture has begun; they do not count.")
                return
            self._debugger.close()
        self._debugger = None
        if self._config.settings.enable_dataloader:
            self._debugger = self._class(self._config.settings, follows_loader=True)

    def turn(self, switch: str) -> None:
        """Begin to capture by hand, or end it; where a DataLoader decides, nothing happens.

        Args:
            switch: ON or OFF.

        Raises:
            ConfigError: it is neither.
        """
        debugger = self._debugger
        is_live = debugger is not None and not debugger.is_closed and is_latest(debugger)
        if not is_on("the switch", switch):
            if debugger is not None and is_live and not debugger.follows_loader:
                debugger.stop()
                debugger.close()
            return
        if debugger is not None and is_live and debugger.has_begun:
            # A loop says so in each of its iterations, and one has ended.
            if not debugger.follows_loader:
                debugger.write_so_far()
            return
        self._debugger = self._class(self._config.settings, follows_loader=False)
        self._debugger.start()
