"""A device named npu where there is none: torch knows its name, and whose turn it is.

torch lets the name of its spare backend be chosen, so that `torch.npu.set_device('npu:0')` is said
to torch itself. There is no memory on the device: nothing is computed there.
"""

from __future__ import annotations

import types

import torch

__all__ = ["install_npu"]

_DEVICES = 4


def install_npu() -> None:
    """Make `torch.npu`, with as many devices as a user of the seeds has."""
    torch.utils.rename_privateuse1_backend("npu")
    module = types.ModuleType("torch.npu")
    chosen = [0]

    def set_device(device: str | int | torch.device) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        if not 0 <= index < _DEVICES:
            raise RuntimeError(f"there is no npu:{index}")
        chosen[0] = index

    module.__dict__.update(
        set_device=set_device,
        current_device=lambda: chosen[0],
        device_count=lambda: _DEVICES,
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        manual_seed=lambda seed: None,
        manual_seed_all=lambda seed: None,
        synchronize=lambda device=None: None,
    )
    torch._register_device_module("npu", module)
