"""Record single modules under names of the user's own, and nothing else meanwhile.

    module_dump(module, name) ─► Module.{name}.{Class}.forward.0 … ─► module_dump_end()

Gradients of the module come later; they are recorded until the session stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tensorprobe.capture.modules import ModuleWatcher, is_compiled_wrapper
from tensorprobe.capture.named_models import COMPILED, ModuleNames

if TYPE_CHECKING:
    from tensorprobe.capture.session import Session

__all__ = ["ModuleDump"]


class ModuleDump:
    """The modules that one session records by themselves.

    Args:
        session: where the records go; it is paused while a module is watched.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._watchers: list[_OneModuleWatcher] = []

    def begin(self, module: torch.nn.Module, name: str) -> None:
        """Record the calls of this module from now on, instead of everything else."""
        self.end()
        if is_compiled_wrapper(module):
            module = module.get_submodule(COMPILED)
        for watcher in self._watchers:
            if watcher.only is module and watcher.name == name:
                watcher.is_on = True
                break
        else:
            watcher = _OneModuleWatcher(self._session, module, name)
            watcher.open()
            self._watchers.append(watcher)
        self._session.is_paused = True

    def end(self) -> None:
        """Record everything again."""
        self._session.is_paused = False
        for watcher in self._watchers:
            watcher.is_on = False

    def let_go(self, tensor: torch.Tensor) -> None:
        """As `ModuleWatcher.let_go`."""
        for watcher in self._watchers:
            watcher.let_go(tensor)

    def close(self) -> None:
        """Remove every hook."""
        self.end()
        for watcher in self._watchers:
            watcher.close()
            watcher.flush()
        self._watchers.clear()


class _OneModuleWatcher(ModuleWatcher):
    """A module watcher that sees one module alone, also while its session is paused."""

    def __init__(self, session: Session, module: torch.nn.Module, name: str) -> None:
        super().__init__(session, ModuleNames([(name, module)]), is_recording=True)
        self.only = module
        self.name = name
        self.is_on = True

    def is_watching(self, module: torch.nn.Module) -> bool:
        """Whether calls of this module are recorded now."""
        return self.is_on and module is self.only

    def follow_uncalled(self, module: torch.nn.Module) -> None:
        """Nothing: it is one module alone."""
