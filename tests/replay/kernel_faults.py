"""Faults of a device, for this process and for those that run a script; needs torch alone.

python -I kernel_faults.py FAULT SCRIPT ...       prints what each of the scripts says and returns
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# By the name of the fault: the kernel, the dtype that it is wrong in, and what it does.
FAULTS: dict[str, tuple[Any, torch.dtype | None, str]] = {
    "gelu": (aten.gelu, torch.float32, "scale"),
    "half linear": (aten.addmm, torch.bfloat16, "scale"),
    "half by hand": (aten.mm, torch.float16, "nan"),
    "softmax": (aten._softmax, torch.float32, "scale"),
    "layer norm": (aten.native_layer_norm_backward, torch.float32, "scale"),
    "in place": (aten.mul_, torch.float32, "scale"),
    "statement": (aten.fill_, torch.float32, "scale"),
    "statistics": (aten.native_batch_norm, torch.float32, "written"),
    "places": (aten.argmax, torch.float32, "places"),
    "refused": (aten.erf, torch.float32, "raise"),
    "dropout": (aten.bernoulli_, None, "ones"),
    "draws": (aten.rand_like, None, "first seed"),
}


class Fault(TorchDispatchMode):
    """Makes one kernel wrong for one dtype."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.packet, self.dtype, self.kind = FAULTS[name]
        self.first_seed: int | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket is not self.packet:
                return result
            first = result[0] if isinstance(result, (tuple, list)) else result
            computed_in = args[0].dtype if self.kind == "places" else first.dtype
            if self.dtype is not None and computed_in is not self.dtype:
                return result
            if self.kind == "scale":
                first.mul_(1.02)
            elif self.kind == "nan":
                first.view(-1)[0] = float("nan")
            elif self.kind == "written":
                args[3].mul_(1.02)
            elif self.kind == "places":
                first.sub_(1).abs_()
            elif self.kind == "raise":
                raise RuntimeError("the kernel has a bug")
            elif self.kind == "ones":
                first.fill_(1)
            elif self.kind == "first seed":
                self.first_seed = self.first_seed or torch.initial_seed()
                if self.first_seed == torch.initial_seed():
                    first.square_()
        return result
