"""The user's front: PrecisionDebugger, save, seed_all.

One debugger is current in a process, so that `PrecisionDebugger.start()` works from another file.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch

from tensorprobe.capture.apis import ApiTable
from tensorprobe.capture.session import Models, Session
from tensorprobe.config import Config, load_config
from tensorprobe.errors import ConfigError

__all__ = ["PrecisionDebugger", "save", "seed_all"]

_LOG = logging.getLogger("tensorprobe")
_LEVELS = ("L0", "L1", "mix", "debug")
_TASKS = ("statistics", "tensor", "structure")

_current: PrecisionDebugger | None = None


class _OnClassToo:
    """A method that works on an instance and, through the current debugger, on the class."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        target = instance if instance is not None else _current
        if target is None:
            raise ConfigError(
                "there is no debugger yet; make a PrecisionDebugger(…) before "
                f"PrecisionDebugger.{self._function.__name__}()"
            )
        return self._function.__get__(target, owner)


class PrecisionDebugger:
    """Captures the steps of a training run into a dump.

        debugger = PrecisionDebugger(dump_path="./dump", level="mix")
        for batch in loader:
            debugger.start(model)
            loss = model(batch); loss.backward()
            debugger.stop()
            optimizer.step()
            debugger.step()

    Args:
        config_path: a config.json or YAML file; the other arguments win over it.
        task: statistics, tensor or structure.
        dump_path: where the dump goes.
        level: L0 modules, L1 API calls, mix both, debug saved values alone.
        model: the model, or a list of them, to name modules by; `start` takes it too.
        step: the steps to capture; all by default.
    """

    def __init__(
        self,
        config_path: str | os.PathLike[str] | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike[str] | None = None,
        level: str | None = None,
        model: Any = None,
        step: Sequence[int | str] | int | None = None,
    ) -> None:
        config = load_config(
            config_path,
            task=task,
            dump_path=dump_path,
            level=level,
            step=step,
        )
        _require(config)
        for notice in config.notices:
            _LOG.warning("%s", notice)
        self._config = config
        self._models = _named_models(model)
        self._apis = ApiTable(add=config.add_apis, skip=config.skip_apis)
        self._step = 0
        self._session: Session | None = None
        self._is_open = False
        global _current
        _current = self
        atexit.register(self._end)

    @_OnClassToo
    def start(self, model: Any = None) -> None:
        """Begin to capture; does nothing in a step or on a rank that is not wanted."""
        if self._is_open:
            _LOG.warning("start() came twice without a stop(); the second is ignored")
            return
        if model is not None:
            self._models = _named_models(model)
        rank = _rank()
        if not self._config.wants_step(self._step) or not self._config.wants_rank(rank or 0):
            return
        if self._session is None:
            self._session = Session(
                self._config, self._apis, step=self._step, rank=rank, tell=_LOG.warning
            )
        self._session.open(self._models)
        self._is_open = True

    @_OnClassToo
    def stop(self) -> None:
        """End the capture until the next start; stopping what is not started does nothing."""
        if self._is_open and self._session is not None:
            self._is_open = False
            self._session.close()

    @_OnClassToo
    def step(self) -> None:
        """Go on to the next step; the dump of this one is complete."""
        self.stop()
        if self._session is not None:
            self._session.finish()
            self._session = None
        self._step += 1

    def __enter__(self) -> PrecisionDebugger:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.step()

    def _end(self) -> None:
        if self._session is not None:
            self._is_open = False
            self._session.finish()
            self._session = None


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """Save one value, nested or not, under a name; with `save_backward` its gradients too.

    Works between `start` and `stop` of a debugger of any level.
    """
    session = None if _current is None else _current._session
    if session is None or _current is None or not _current._is_open:
        return
    recorder = session.recorder
    number = recorder.next_number(f"saved {name}")
    recorder.add(
        f"{name}.{number}.debug", saved=(recorder.draft(variable, f"{name}.{number}.debug"),)
    )


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Fix every random state of this process.

    Args:
        seed: the seed of Python, numpy and torch.
        mode: also ask torch for deterministic algorithms.
        rm_dropout: also turn every dropout off.
    """
    random.seed(seed)
    np.random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(mode)
    if rm_dropout:
        raise ConfigError("rm_dropout is not there yet")


def _require(config: Config) -> None:
    if config.dump_path is None:
        raise ConfigError(
            "dump_path is not set; give PrecisionDebugger(dump_path=…) or set it in the file"
        )
    if config.level not in _LEVELS:
        raise ConfigError(f"level {config.level} is not there yet; there are: {', '.join(_LEVELS)}")
    if config.task not in _TASKS:
        raise ConfigError(f"task {config.task} is not there yet; there are: {', '.join(_TASKS)}")


def _named_models(model: Any) -> Models:
    if model is None:
        return ()
    if isinstance(model, torch.nn.Module):
        return (("", model),)
    if isinstance(model, (list, tuple)) and all(isinstance(m, torch.nn.Module) for m in model):
        return tuple((str(index), m) for index, m in enumerate(model))
    raise ConfigError(
        f"the model is a {type(model).__name__}, wanted an nn.Module or a list of them"
    )


def _rank() -> int | None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return None
