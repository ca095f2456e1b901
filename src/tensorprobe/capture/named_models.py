"""The models that a user hands over, with what stands before the names of their modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorprobe.errors import ConfigError

__all__ = ["Models", "named_models"]

Models = Sequence[tuple[str, torch.nn.Module]]


def named_models(model: Any) -> Models:
    """Return one model without a prefix, or several with their indexes.

    Raises:
        ConfigError: it is no model.
    """
    if model is None:
        return ()
    if isinstance(model, torch.nn.Module):
        return (("", model),)
    shown = f"a {type(model).__name__}"
    if isinstance(model, (list, tuple)):
        strangers = [m for m in model if not isinstance(m, torch.nn.Module)]
        if not strangers:
            return tuple((str(index), m) for index, m in enumerate(model))
        shown += f" with a {type(strangers[0]).__name__} in it"
    raise ConfigError(f"the model is {shown}, wanted an nn.Module or a list of them")
