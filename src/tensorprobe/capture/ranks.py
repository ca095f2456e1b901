"""Where the dump of one step goes, and whether it is wanted, though the rank may come out later.

A dump may begin before the process group is made, when nobody knows the rank. When its step ends it
moves to its rank's folder or, if that rank is not wanted, is thrown away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from tensorprobe.capture.code_patch import CodePatch
from tensorprobe.capture.process import current_rank
from tensorprobe.config import Config
from tensorprobe.store.file_names import rank_folder

__all__ = ["RankSearch"]


class RankSearch:
    """Finds this process's rank during one step, if it is not known at its beginning.

    Args:
        config: which ranks are wanted, and where their dumps go.
        step: the step.
        rank: the rank, if it is known already.

    Attributes:
        begun: the folder in which the dump begins.
    """

    def __init__(self, config: Config, *, step: int, rank: int | None) -> None:
        self._config = config
        self._step = step
        self._rank = rank
        self._patch: CodePatch | None = None
        self.begun = self._folder()
        if rank is None and not config.wants_rank(0):
            # Perhaps nobody wants it: then it must not take the place of an older dump.
            self.begun = self.begun.with_name(f"proc{os.getpid()}")

    @property
    def rank(self) -> int | None:
        """The rank, as far as it is known."""
        return self._rank

    @property
    def is_wanted(self) -> bool:
        """Whether the dump is wanted; without a rank a process is the only one, and the first."""
        return self._config.wants_rank(self._rank or 0)

    @property
    def move_to(self) -> Path | None:
        """Where the dump belongs, if not where it was begun."""
        folder = self._folder()
        return None if folder == self.begun else folder

    def open(self) -> None:
        """Start to search, unless that has been done or the rank is known."""
        destroy = getattr(torch.distributed, "destroy_process_group", None)
        if self._rank is None and self._patch is None and isinstance(destroy, FunctionType):
            self._patch = CodePatch(destroy, self._before_group_goes)

    def look(self) -> None:
        """Ask for the rank, if it is not known."""
        if self._rank is None:
            self._rank = current_rank()

    def close(self) -> None:
        """Search no longer."""
        self.look()
        if self._patch is not None:
            self._patch.end()
            self._patch = None

    def _before_group_goes(
        self, destroy: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.look()
        return destroy(*args, **kwargs)

    def _folder(self) -> Path:
        assert self._config.dump_path is not None
        return rank_folder(self._config.dump_path, step=self._step, rank=self._rank)
