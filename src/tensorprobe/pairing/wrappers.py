"""What wrappers put into the paths of modules: a wrapped run pairs with a plain one.

DistributedDataParallel, DataParallel    module.blocks.0.fc
torch.compile                            _orig_mod.blocks.0.fc
FullyShardedDataParallel                 _fsdp_wrapped_module.blocks.0._fsdp_wrapped_module.fc
fully_shard                              blocks.0, whose class Block becomes FSDPBlock
CheckpointWrapper                        blocks.0._checkpoint_wrapped_module.fc
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tensorprobe.errors import NameFormatError
from tensorprobe.names import ModuleCall, ParameterGradients, parse_call

__all__ = ["is_call_of_wrapper", "without_wrappers", "wrapped_depth"]

_INSIDE = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
# A model may well have a part of this name; a wrapper's part has everything inside.
_AT_THE_ROOT = "module"
_CLASSES = frozenset(
    ("CheckpointWrapper", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel",
     "OptimizedModule")
)  # fmt: skip
_SHARDED = re.compile("FSDP(?=[A-Z])")


def wrapped_depth(names: Iterable[str]) -> int:
    """Return how many wrappers stand around the whole model of a run: all its parts are inside.

    >>> wrapped_depth(["Module.module.fc.Linear.forward.0", "Module.module.Net.forward.0"])
    1
    >>> wrapped_depth(["Module.module.fc.Linear.forward.0", "Module.fc.Linear.forward.0"])
    0
    """
    paths = {tuple(_parts(call)) for call in map(_module_call, names) if call is not None}
    paths.discard(())  # The outermost wrapper, or the model itself.
    depth = 0
    while paths and all(path[:1] == (_AT_THE_ROOT,) for path in paths):
        paths = {path[1:] for path in paths} - {()}
        depth += 1
    return depth


def without_wrappers(name: str, depth: int) -> str:
    """Return the name of a module's call as the plain model has it; other names come back.

    Args:
        name: the call's name.
        depth: how many wrappers stand around the whole model.

    >>> without_wrappers("Module.module._orig_mod.blocks.0.fc.Linear.forward.0", 1)
    'Module.blocks.0.fc.Linear.forward.0'
    >>> without_wrappers("Torch.relu.0.forward", 1)
    'Torch.relu.0.forward'
    """
    call = _module_call(name)
    if call is None:
        return name
    path = ".".join(_parts(call)[depth:])
    return str(replace(call, path=path, class_name=_SHARDED.sub("", call.class_name, count=1)))


def _parts(call: ModuleCall | ParameterGradients) -> list[str]:
    return [part for part in call.path.split(".") if part and part not in _INSIDE]


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
