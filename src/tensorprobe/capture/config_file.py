"""A debugger's configuration file, which somebody may change while the run goes on.

vllm-ascend writes `dump_enable` into it when a request goes wrong, and again when that is recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tensorprobe.config import Config, load_config

__all__ = ["ConfigFile"]


class ConfigFile:
    """The file and the arguments of a debugger.

    Args:
        path: of the file; None: there is none, and nothing changes.
        given: the arguments, which win over the file whenever it is read.
    """

    def __init__(self, path: str | os.PathLike[str] | None, given: Mapping[str, Any]) -> None:
        self._given = given
        self._path = path
        # Looked at first, so that what is written while it is read is seen as a change.
        self._seen = self._look()
        self.config: Config = load_config(path, **given)
        if path is not None:
            # The script may go to another folder while it runs.
            self._path = os.path.abspath(path)

    def read_if_changed(self, *, force: bool = False) -> Config | None:
        """Return what the file says now; None if nobody has changed it, or it is gone.

        Args:
            force: read it even if it looks as it did: a clock may be too coarse to tell.

        Raises:
            ConfigError: the file cannot be used. It is read again whenever this is asked.
        """
        seen = self._look()
        is_same = seen == self._seen
        if seen is None or (is_same and not force):
            return None
        before, self.config = self.config, load_config(self._path, **self._given)
        self._seen = seen
        return None if is_same and self.config == before else self.config

    def _look(self) -> tuple[int, int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except (OSError, ValueError):
            # Whether it can be read is for whoever reads it.
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
