"""Open the device under test by its name, its number, or as what there is."""

from __future__ import annotations

import torch

from tensorprobe.errors import ConfigError

__all__ = ["open_device"]

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
