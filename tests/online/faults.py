"""Wrong kernels for the tests of the online check: a mode that spoils one call of one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OtherChoice", "WrongKernel"]


class WrongKernel(TorchDispatchMode):
    """Spoils the N-th call of an operator, as a wrong kernel below every other mode would.

    Args:
        operator: its name without the overload.
        call: which of its calls, from 1.
        in_place: whether its result is written into, as by a kernel that writes wrongly; else
            another tensor takes its place.
    """

    def __init__(self, operator: str, call: int = 1, *, in_place: bool = False) -> None:
        super().__init__()
        self.operator, self.call, self.in_place = operator, call, in_place
        self.count = 0
        self.was_made = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name.partition("::")[2] != self.operator:
            return result
        self.count += 1
        if self.count != self.call:
            return result
        self.was_made = True
        if result is None:
            # What it has done is in the tensors of its first argument.
            args[0][-1].mul_(1.03)
            return result
        if isinstance(result, (tuple, list)):
            place = next(i for i, value in enumerate(result) if _is_float(value))
            return type(result)(
                self._spoil(value) if i == place else value for i, value in enumerate(result)
            )
        return self._spoil(result)

    def _spoil(self, result: torch.Tensor) -> torch.Tensor:
        if self.in_place or self.operator.endswith("_"):
            return result.mul_(1.03)
        return result * 1.03


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 0


class OtherChoice(TorchDispatchMode):
    """Lets a function that chooses from its argument choose by other means.

    Args:
        operator: its name without the overload.
        choose: given what it returned, returns what is to take its place.
    """

    def __init__(self, operator: str, choose: Callable[[Any], Any]) -> None:
        super().__init__()
        self.operator, self.choose = operator, choose

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_it = func._schema.name.partition("::")[2] == self.operator
        return self.choose(result) if is_it else result
