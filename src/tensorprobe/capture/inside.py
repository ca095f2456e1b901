"""What a user calls in the middle of a model: save, module_dump, module_dump_end.

Without a debugger they do nothing, so that the lines may stay where they are.
"""

from __future__ import annotations

from typing import Any

import torch

from tensorprobe.capture.current import current_debugger
from tensorprobe.errors import ConfigError

__all__ = ["module_dump", "module_dump_end", "save"]


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """Save one value, as `PrecisionDebugger.save` does; without a debugger it does nothing.

    Args:
        variable: a tensor, a number, a text, or lists, tuples and dicts of them.
        name: the value's name; each use of it in a step gets a number.
        save_backward: whether its gradients are saved too, when they are computed.
    """
    debugger = current_debugger()
    if debugger is not None:
        debugger.save(variable, name, save_backward)


def module_dump(module: torch.nn.Module, name: str) -> None:
    """Record the calls of one module, under this name, and nothing else until `module_dump_end`.

    Works between `start` and `stop`, at every level but debug, with and without a model; without a
    debugger it does nothing.

    Args:
        module: the module; its calls are recorded as `Module.{name}.{Class}.forward.{number}`.
        name: what it is called in the dump.

    Raises:
        ConfigError: the module is no nn.Module, or the name no text.
    """
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            f"module_dump: the module is a {type(module).__name__}, wanted an nn.Module"
        )
    if not isinstance(name, str) or not name:
        raise ConfigError(f"module_dump: the name is {name!r}, wanted a text")
    debugger = current_debugger()
    if debugger is not None:
        debugger.begin_module_dump(module, name)


def module_dump_end() -> None:
    """Record everything again after `module_dump`."""
    debugger = current_debugger()
    if debugger is not None:
        debugger.end_module_dump()
