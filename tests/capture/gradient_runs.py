"""Runs whose gradients are captured and read back, for the tests of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.records import TensorValue, Value

Gradients = list["Tensor | None"]


class Captured:
    """What one captured run left on the disk."""

    def __init__(self, folder: Path) -> None:
        (self._part,) = open_dump(folder).parts
        self._data = self._part.path.parent / "dump_tensor_data"
        assert not self._part.gaps

    @property
    def names(self) -> list[str]:
        return list(self._part.names)

    @property
    def backward_names(self) -> list[str]:
        return [name for name in self.names if ".backward" in name]

    def is_recompute(self, name: str) -> bool | None:
        return self._part.call(name).is_recompute

    def inputs(self, name: str) -> Gradients:
        """The gradients that came into a call's backward: of the call's outputs."""
        return self._tensors(self._part.call(name).inputs)

    def outputs(self, name: str) -> Gradients:
        """The gradients that left a call's backward: of the call's inputs."""
        return self._tensors(self._part.call(name).outputs)

    def parameters(self, name: str) -> dict[str, Tensor | None]:
        parameters = self._part.call(name).parameters
        assert parameters is not None
        return {key: self._tensor(value) for key, value in parameters.items()}

    def _tensors(self, values: Sequence[Value] | None) -> Gradients:
        assert values is not None
        return [self._tensor(value) for value in values]

    def _tensor(self, value: Value) -> Tensor | None:
        if value is None:
            return None
        assert isinstance(value, TensorValue)
        assert value.data_name is not None
        tensor: Tensor = torch.load(self._data / value.data_name, weights_only=True)
        assert tuple(tensor.shape) == value.shape
        return tensor


class Capture:
    """Runs something with the tool on, and reads the dump back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, run: Callable[[], Any], *, level: str = "L1", model: nn.Module | None = None
    ) -> Captured:
        debugger = PrecisionDebugger(dump_path=self._folder, task="tensor", level=level)
        debugger.start(model)
        run()
        debugger.stop()
        debugger.step()
        return Captured(self._folder)


@contextmanager
def capturing(folder: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Capture]:
    """Give what captures; the tool has nothing to complain about: every call could be recorded."""
    torch.manual_seed(0)
    yield Capture(folder)
    assert [r.getMessage() for r in caplog.records if r.name.startswith("tensorprobe")] == []


def assert_equal(actual: Gradients, expected: Sequence[Tensor | None]) -> None:
    """Same number, same places without a gradient, same shapes, same bits."""
    assert [None if t is None else tuple(t.shape) for t in actual] == [
        None if t is None else tuple(t.shape) for t in expected
    ]
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if ours is not None and theirs is not None:
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs.detach()), f"gradient {index} differs"


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, tuple) else []
