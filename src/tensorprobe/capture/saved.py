"""Values that the user saves by name, and their gradients: `{name}.{count}.debug` in debug.json.

    save ─► describe the value now ─► a hook on each tensor that takes part in a backward pass
         ─► its gradients, in the same nesting, as {name}_grad.{count}.debug

The record of the gradients is written when the last of them has come, or at the end without those
that did not; a value that has none holds null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from tensorprobe.capture.describe import Drafted, describe
from tensorprobe.names import SavedValue
from tensorprobe.records import DictValue, ListValue

__all__ = ["SavedValues"]


class _Recorder(Protocol):
    """What of a recorder is used here."""

    def next_number(self, key: str) -> int: ...

    def draft(self, value: Any, name: str) -> Drafted: ...

    def add(self, name: str, *, saved: tuple[Drafted] | None = None) -> None: ...

    def fail(self, what: str, err: Exception) -> None: ...


class SavedValues:
    """Saves values into one step's debug.json.

    Args:
        recorder: where the records go.
    """

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder
        self._awaited: list[_Gradients] = []

    def save(self, variable: Any, name: str, *, with_gradients: bool) -> None:
        """Record one value now and, if wanted, its gradients when they come."""
        recorder = self._recorder
        number = recorder.next_number(f"saved {name}")
        full_name = str(SavedValue(name, number))
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                recorder.add(full_name, saved=(recorder.draft(variable, full_name),))
                if with_gradients:
                    self._await(variable, str(SavedValue(f"{name}_grad", number)))
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(full_name, err)

    def close(self) -> None:
        """Remove every hook, and record the gradients that came of values with others missing."""
        for gradients in self._awaited:
            gradients.close()
        self._awaited.clear()

    def _await(self, variable: Any, name: str) -> None:
        # Done ones need not be kept; a loop may save thousands in one step.
        self._awaited = [kept for kept in self._awaited if not kept.is_done]
        self._awaited.append(_Gradients(self._recorder, variable, name))


class _Slot:
    """The place of one tensor in the nesting, and its gradient once that is known."""

    def __init__(self, path: tuple[str, ...]) -> None:
        self.path = path
        self.gradient: Drafted = None


class _Gradients:
    """The gradients of one saved value, until the last of them has come."""

    def __init__(self, recorder: _Recorder, variable: Any, name: str) -> None:
        self._recorder = recorder
        self._name = name
        self._handles: list[Any] = []
        self._missing = 0
        self.is_done = False
        self._nesting = describe(variable, self._place)
        if not self._missing:
            self._write()

    def close(self) -> None:
        """Stop waiting."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if not self.is_done:
            self._write()

    def _place(self, tensor: torch.Tensor, path: tuple[str, ...]) -> _Slot:
        slot = _Slot(path)
        if tensor.requires_grad:
            self._missing += 1
            self._handles.append(tensor.register_hook(self._hook(slot)))  # type: ignore[no-untyped-call]
        return slot

    def _hook(self, slot: _Slot) -> Callable[[torch.Tensor], None]:
        def on_gradient(gradient: torch.Tensor) -> None:
            # The first one counts: a leaf gets another with every backward pass.
            if self.is_done or slot.gradient is not None:
                return
            try:
                with torch._C.DisableTorchFunction(), torch.no_grad():
                    full_name = ".".join((self._name, *slot.path))
                    slot.gradient = self._recorder.draft(gradient, full_name)
                    self._missing -= 1
                    if not self._missing:
                        self._write()
            except Exception as err:  # noqa: BLE001 - counted and told by the recorder
                self._recorder.fail(self._name, err)

        return on_gradient

    def _write(self) -> None:
        self.is_done = True
        self._recorder.add(self._name, saved=(_filled(self._nesting),))


def _filled(value: Drafted) -> Drafted:
    """Put the gradients into their places; what is no tensor has none."""
    if isinstance(value, _Slot):
        return value.gradient
    if isinstance(value, ListValue):
        return ListValue(tuple(_filled(item) for item in value.items), value.is_tuple)
    if isinstance(value, DictValue):
        return DictValue(tuple((key, _filled(item)) for key, item in value.items))
    return None
