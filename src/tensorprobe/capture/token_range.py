"""Capture some tokens of an inference alone: those that a model's calls of these numbers make.

start(model, token_range=[0, 2]) ─► held ─► call 0 of the model ─► seen ─► call 3 ─► held
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorprobe.capture.code_patch import hide_from_dynamo
from tensorprobe.errors import ConfigError

__all__ = ["TokenRange"]


class TokenRange:
    """Counts the calls of a model and holds the capture outside of a range of them.

    Args:
        model: the model; of a list of them the first.
        token_range: the first and the last token, from 0 on, both included.
        hold: lets calls pass unseen, or has them seen again.

    Raises:
        ConfigError: there is no model, or the range is none.
    """

    def __init__(self, model: Any, token_range: Any, hold: Callable[[bool], None]) -> None:
        if isinstance(model, (list, tuple)) and model:
            model = model[0]
        if not isinstance(model, torch.nn.Module):
            raise ConfigError("start: token_range counts the calls of a model; give the model, too")
        ends = token_range if isinstance(token_range, (list, tuple)) else ()
        if (
            len(ends) != 2
            or any(type(end) is not int for end in ends)
            or not 0 <= ends[0] <= ends[1]
        ):
            raise ConfigError(
                f"start: token_range is {token_range!r}, wanted the first and the last token, such "
                "as [0, 2]"
            )
        self._model = model
        self._first, self._last = ends
        self._hold = hold
        self._count = 0
        self._handle: Any = None

    def open(self) -> None:
        """Begin to count; it comes before whatever else watches modules."""
        hook = torch.nn.modules.module.register_module_forward_pre_hook(self._before)
        self._handle = hook
        self._hold(True)

    def close(self) -> None:
        """Count no more, and hold nothing back."""
        self._handle.remove()
        self._hold(False)

    @hide_from_dynamo
    def _before(self, module: torch.nn.Module, args: Any) -> None:
        if module is self._model:
            self._hold(not self._first <= self._count <= self._last)
            self._count += 1
