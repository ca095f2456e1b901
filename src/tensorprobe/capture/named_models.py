"""The models of a run, and what the modules in them are called.

handed over in a list        0.fc, 1.fc: the index stands first
handed over alone, or not    fc; model1.fc where another model has that name in this step
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tensorprobe.errors import ConfigError

__all__ = ["COMPILED", "Models", "ModuleNames", "named_models"]

Models = Sequence[tuple[str, torch.nn.Module]]
_Named = list[tuple[str, torch.nn.Module]]
# Where torch.compile's own module keeps the one that it stands for.
COMPILED = "_orig_mod"


def named_models(model: Any) -> Models:
    """Return one model without a prefix, or several with their indexes.

    Raises:
        ConfigError: it is no model.
    """
    if model is None:
        return ()
    if isinstance(model, torch.nn.Module):
        return (("", model),)
    shown = f"a {type(model).__name__}"
    if isinstance(model, (list, tuple)):
        strangers = [m for m in model if not isinstance(m, torch.nn.Module)]
        if not strangers:
            return tuple((str(index), m) for index, m in enumerate(model))
        shown += f" with a {type(strangers[0]).__name__} in it"
    raise ConfigError(f"the model is {shown}, wanted an nn.Module or a list of them")


class ModuleNames:
    """Tells the path of every module, each its own: no two of a step have path and class in common.

    A model that nobody handed over is named when it is first called. A single module without
    parameters, such as a loss that is made anew for each call, is no model: all of its class count
    together.

    Args:
        models: those that have names already, with what stands before them.
    """

    def __init__(self, models: Iterable[tuple[str, torch.nn.Module]] = ()) -> None:
        # An id is handed out again once its module is gone; the name is not.
        self._paths: dict[int, tuple[str, weakref.ref[torch.nn.Module]]] = {}
        self._taken: set[tuple[str, str]] = set()
        self._extra = 0
        # Modules may be called for the first time by several threads.
        self._lock = threading.Lock()
        self.add(models)

    def add(self, models: Iterable[tuple[str, torch.nn.Module]]) -> None:
        """Name the modules of models; those that have a name keep it."""
        with self._lock:
            for prefix, model in models:
                self._name_all(prefix, model)

    def known(self, module: torch.nn.Module) -> str | None:
        """Return the path of a module that has one."""
        found = self._paths.get(id(module))
        return None if found is None or found[1]() is not module else found[0]

    def parts(self) -> dict[str, Any]:
        """Return what _modules.c looks paths up in, by the name that it knows."""
        return {"paths": self._paths}

    def path_of(self, module: torch.nn.Module) -> str:
        """Return the path of any module."""
        path = self.known(module)
        if path is None:
            self.add((("", module),))
            path = self._paths[id(module)][0]
        return path

    def _name_all(self, prefix: str, model: torch.nn.Module) -> None:
        named = [
            (_path_in(prefix, path) if prefix or COMPILED in path else path, module)
            for path, module in model.named_modules()
        ]
        # Where none has a name, as when a step begins, nothing stands in the way.
        if self._paths:
            named = self._without_conflicts(model, named)
        reference = weakref.ref
        self._paths.update({id(module): (path, reference(module)) for path, module in named})
        self._taken.update([(path, type(module).__name__) for path, module in named])

    def _without_conflicts(self, model: torch.nn.Module, named: _Named) -> _Named:
        """Return those of a model's modules that have no name yet, with paths that are free."""
        unnamed = named = [(path, module) for path, module in named if self.known(module) is None]
        while _has_parts(model) and any((p, type(m).__name__) in self._taken for p, m in named):
            self._extra += 1
            named = [(_path_in(f"model{self._extra}", path), module) for path, module in unnamed]
        return named


def _has_parts(model: torch.nn.Module) -> bool:
    """Whether a module holds anything by which one of its class differs from another."""
    return bool(model._modules) or any(p is not None for p in model._parameters.values())


def _path_in(prefix: str, path: str) -> str:
    if COMPILED in path:
        path = ".".join(part for part in path.split(".") if part != COMPILED)
    return f"{prefix}.{path}" if prefix and path else prefix or path
