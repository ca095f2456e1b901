"""Write what was read from a dump as Python source: nothing of a file stands in it unquoted."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tensorprobe.errors import RebuildError

__all__ = ["ArgumentSource", "name_in_docstring"]

_NO_KEYWORDS = frozenset((*keyword.kwlist, "__debug__"))
_LITERALS = (bool, int, str, type(None), type(...))


def name_in_docstring(name: str) -> str:
    """Return a call's name as a docstring and a format can hold it.

    >>> name_in_docstring("Torch.add.0.forward"), name_in_docstring("a'{b}")
    ('Torch.add.0.forward', 'a__b_')
    """
    return re.sub(r"[^\w.\-]", "_", name)


class ArgumentSource:
    """Turns arguments of a call into source.

    Args:
        tensor: gives the source of a tensor.
        dtype: gives the source of a dtype, from the one that torch has for it.
    """

    def __init__(
        self, tensor: Callable[[torch.Tensor], str], dtype: Callable[[str], str] = str
    ) -> None:
        self._tensor = tensor
        self._dtype = dtype

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the arguments as they stand in a call."""
        parts = [self.write(value) for value in args]
        for key, value in kwargs.items():
            # Python reads other signs than those of ASCII as what they look like.
            is_word = key.isascii() and key.isidentifier() and not keyword.iskeyword(key)
            source = self.write(value)
            parts.append(
                f"{key}={source}" if is_word and key != "__debug__" else f"**{{{key!r}: {source}}}"
            )
        return ", ".join(parts)

    def write(self, value: Any) -> str:
        """Return the source of one argument.

        Raises:
            RebuildError: it has none.
        """
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.Size):
            return f"torch.Size({list(value)})"
        if isinstance(value, tuple):
            return "(" + "".join(f"{self.write(item)}, " for item in value) + ")"
        if isinstance(value, list):
            return "[" + ", ".join(self.write(item) for item in value) + "]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self.write(v)}" for k, v in value.items()) + "}"
        if isinstance(value, torch.device):
            return "device"
        if isinstance(value, torch.dtype):
            return self._dtype(str(value))
        if isinstance(value, torch.memory_format):
            return str(value)
        if isinstance(value, slice):
            return f"slice({', '.join(map(self.write, (value.start, value.stop, value.step)))})"
        if isinstance(value, np.complexfloating):
            return self.write(complex(value))
        if isinstance(value, np.generic):
            # The longest floats of numpy give themselves back.
            number = value.item()
            return self.write(float(number) if isinstance(number, np.generic) else number)
        if type(value) is complex:
            return f"complex({self.write(value.real)}, {self.write(value.imag)})"
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if type(value) in _LITERALS:
            return repr(value)
        raise RebuildError(f"an argument of type {type(value).__name__} cannot be written down")
