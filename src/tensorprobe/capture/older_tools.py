"""What the front ends of older tools have in common: debuggers that leave the files of those tools.

    a step ─► a dump of ours in {base}/unfinished_{pid}/ ─► whole ─► the older layout ─► removed

So what a killed run had recorded is on the disk, as a dump of ours that every command opens, and no
data stay there twice.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorprobe.capture.debugger import PrecisionDebugger
from tensorprobe.capture.session import Session
from tensorprobe.config import Config
from tensorprobe.errors import TensorprobeError
from tensorprobe.records import DumpInfo
from tensorprobe.store.dump import RankDump
from tensorprobe.store.layout import ERROR_LOG
from tensorprobe.store.msprobe_reader import open_rank_file

__all__ = ["OlderDebugger"]

_MOST_ATTEMPTS = 1000


class OlderDebugger(PrecisionDebugger):
    """A debugger whose dumps are written again in the layout of an older tool."""

    _base: Path
    # Whether the older tool had no files for what is captured: the dump stays one of ours.
    _stays_ours: bool
    # Whether the dump's folder was asked for, and whether it is there.
    _has_asked: bool
    _has_folder: bool

    def _set_up_below(
        self,
        base: str | os.PathLike[str],
        config: Config,
        model: Any,
        *,
        stays_ours: bool = False,
    ) -> None:
        """Set the debugger up.

        Args:
            base: the folder that the files go below.
            config: what to capture; its dump_path does not count.
            model: as for `PrecisionDebugger`.
            stays_ours: leave the dump as it is, in that folder.
        """
        self._base, self._stays_ours = Path(os.path.abspath(base)), stays_ours
        self._has_asked = self._has_folder = False
        path = self._base if stays_ours else self._base / f"unfinished_{os.getpid()}"
        self._set_up(replace(config, dump_path=path), model)

    def _write(self, part: RankDump) -> Path | None:
        """Write the dump of one step in the older layout; returns where its errors are listed.

        Raises:
            OSError: something cannot be written.
            TensorprobeError: something of the dump cannot be read.
        """
        raise NotImplementedError

    def _announce_start(self) -> None:
        """Say that what comes from now on is captured."""
        raise NotImplementedError

    def _place_meanwhile(self, taker: str) -> str:
        """Return a sentence that says where the calls of the capture are until it ends.

        Args:
            taker: the command that opens what a killed run leaves.
        """
        return (
            f"Until it ends its calls are in {self.dump_path}, which {taker} takes should the run "
            "be killed."
        )

    def _start(self) -> None:
        was_on = self._opened_by is not None
        super()._start()
        # Where no dump can be written, whoever writes it says so.
        if self._has_folder and self._opened_by is not None and not was_on:
            self._announce_start()

    def _wanted_session(self) -> Session | None:
        if not self._has_asked:
            self._make_folder()
        return super()._wanted_session()

    def _make_folder(self) -> None:
        """Make a folder that is this run's own: nobody has put anything into its place."""
        self._has_asked = True
        # What cannot be made is told by whoever writes the dump.
        with suppress(OSError):
            self._base.mkdir(parents=True, exist_ok=True)
            if self._stays_ours:
                self._has_folder = True
                return
            for number in range(_MOST_ATTEMPTS):
                mark = f"_{number}" if number else ""
                path = self._base / f"unfinished_{os.getpid()}{mark}"
                with suppress(FileExistsError):
                    path.mkdir()
                    self._config = replace(self._config, dump_path=path)
                    self._has_folder = True
                    return

    def _after_dump(self, folder: Path, info: DumpInfo) -> None:
        if self._stays_ours:
            return
        try:
            target = self._write(open_rank_file(folder / "dump.json", info))
            log = folder / ERROR_LOG
            if target is not None and log.exists():
                os.replace(log, target / ERROR_LOG)
        except (OSError, TensorprobeError) as err:
            self._tell(
                f"the files of the older tool could not be written: {err}; the dump itself is in "
                f"{folder}, and `tensorprobe show` opens it"
            )
            return
        if (folder / "debug.json").exists():
            self._tell(f"values that were saved by name are in {folder / 'debug.json'}")
            return
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()

    def close(self) -> None:
        """Finish the dump and undo everything; at the end of the process this happens by itself."""
        is_first = not self.is_closed
        super().close()
        if is_first and self._has_asked:
            with suppress(OSError):
                self.dump_path.rmdir()
