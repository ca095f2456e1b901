"""Open the device under test by its name, its number, or as what there is."""

from __future__ import annotations

from typing import Any

import torch

from tensorprobe.errors import ConfigError

__all__ = ["describe_device", "open_device"]

_ACCELERATORS = ("cuda", "npu", "xpu", "mps")


def open_device(name: str) -> torch.device:
    """Return a device, after a first number was put on it.

    >>> open_device("cpu")
    device(type='cpu')

    Args:
        name: as torch knows it; or the number alone of an accelerator; or `auto`, which is the
            first accelerator, or the CPU where there is none.

    Raises:
        ConfigError: there is no such device.
    """
    wanted = name
    if name == "auto" or name.isdecimal():
        modules = ((kind, getattr(torch, kind, None)) for kind in _ACCELERATORS)
        there = [kind for kind, module in modules if module and module.is_available()]
        if not there and name != "auto":
            raise ConfigError(f"there is no accelerator here, so none with the number {name}")
        wanted = f"{there[0]}:{0 if name == 'auto' else int(name)}" if there else "cpu"
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as err:
        reason = str(err).splitlines()[0]
        raise ConfigError(f"the device {wanted!r} cannot be used here: {reason}") from err
    return device


def describe_device(device: torch.device) -> str:
    """Return the name of a device with its number and, if it tells, what it is.

    >>> describe_device(torch.device("cpu"))
    'cpu'
    """
    numbered = torch.zeros(1, device=device).device
    module: Any = getattr(torch, numbered.type, None)
    if numbered.type == "cpu" or not hasattr(module, "get_device_name"):
        return str(numbered)
    return f"{numbered} {module.get_device_name(numbered)}"
