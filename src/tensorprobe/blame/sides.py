"""One run of the two: its calls by name, and their tensors, each read once for a call."""

from __future__ import annotations

import torch

from tensorprobe.errors import RebuildError
from tensorprobe.precheck.rebuild import load_tensor
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.store import RankDump

__all__ = ["Side"]


class Side:
    """One rank of one run.

    Attributes:
        part: the dump.
        calls: every call that can be read, in the order of the dump.
    """

    def __init__(self, part: RankDump) -> None:
        self.part = part
        self.calls: dict[str, CallRecord] = {call.name: call for call in part.calls()}
        self._loaded: dict[str, torch.Tensor] = {}

    def load(self, value: TensorValue) -> torch.Tensor:
        """Return the data of a tensor; kept until `forget`.

        Raises:
            RebuildError: there is none, or it cannot be read.
        """
        if value.data_name is None:
            raise RebuildError("the tensor's data were not recorded")
        tensor = self._loaded.get(value.data_name)
        if tensor is None:
            tensor = self._loaded[value.data_name] = load_tensor(self.part, value)
        return tensor

    def forget(self) -> None:
        """Let go of the data of the calls that were looked at."""
        self._loaded.clear()
