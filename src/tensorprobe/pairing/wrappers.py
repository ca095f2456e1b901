"""What wrappers put into the paths of modules: a wrapped run pairs with a plain one.

DistributedDataParallel, DataParallel    module.blocks.0.fc
torch.compile                            _orig_mod.blocks.0.fc
FullyShardedDataParallel                 _fsdp_wrapped_module.blocks.0._fsdp_wrapped_module.fc
fully_shard                              blocks.0, whose class Block becomes FSDPBlock
CheckpointWrapper                        blocks.0._checkpoint_wrapped_module.fc
"""

from __future__ import annotations

import re
from dataclasses import replace

from tensorprobe.errors import NameFormatError
from tensorprobe.names import ModuleCall, ParameterGradients, parse_call

__all__ = ["is_call_of_wrapper", "without_wrappers"]

_INSIDE = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
# A model may well have a part of this name: what both runs have is taken off on both sides.
_AT_THE_ROOT = _INSIDE | {"module"}
_CLASSES = frozenset(
    ("CheckpointWrapper", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel",
     "OptimizedModule")
)  # fmt: skip
_SHARDED = re.compile("FSDP(?=[A-Z])")


def without_wrappers(name: str) -> str:
    """Return the name of a module's call as the plain model has it; other names come back.

    >>> without_wrappers("Module.module._orig_mod.blocks.0.fc.Linear.forward.0")
    'Module.blocks.0.fc.Linear.forward.0'
    >>> without_wrappers("Torch.relu.0.forward")
    'Torch.relu.0.forward'
    """
    call = _module_call(name)
    if call is None:
        return name
    parts = call.path.split(".") if call.path else []
    start = 0
    while start < len(parts) and parts[start] in _AT_THE_ROOT:
        start += 1
    path = ".".join(part for part in parts[start:] if part not in _INSIDE)
    return str(replace(call, path=path, class_name=_SHARDED.sub("", call.class_name, count=1)))


def is_call_of_wrapper(name: str) -> bool:
    """Whether a call is that of a wrapper itself, which hands on what the model computes.

    >>> is_call_of_wrapper("Module.DistributedDataParallel.forward.0")
    True
    """
    call = _module_call(name)
    return call is not None and call.class_name in _CLASSES


def _module_call(name: str) -> ModuleCall | ParameterGradients | None:
    if not name.startswith("Module."):
        return None
    try:
        call = parse_call(name)
    except NameFormatError:
        return None
    return call if isinstance(call, (ModuleCall, ParameterGradients)) else None
