"""Step aside while torch traces a model into a graph: whatever we asked of a tensor would be in it.

Between the ends of `torch.jit.trace` and its relatives a tensor's size is a node of the graph to
be, and a dispatch mode is more than the tracer can bear. So nothing of us is on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.capture.code_patch import CodePatch
from tensorprobe.capture.mode_places import (
    function_modes,
    insert_dispatch_mode,
    insert_function_mode,
    remove_dispatch_mode,
    remove_function_mode,
)

if TYPE_CHECKING:
    from tensorprobe.capture.functions import FunctionWatcher
    from tensorprobe.capture.kernels import KernelWatcher
    from tensorprobe.capture.session import Session

__all__ = ["TraceGuard"]

# The last one is what torch.onnx traces with.
_TRACERS = ("trace", "trace_module", "_get_trace_graph")
_NOTICE = "a model is traced by torch.jit; what happens in the meantime is not recorded"


class TraceGuard:
    """Turns a session off around torch's tracers, while it is open.

    Args:
        session: the session.
        functions: its function mode, if it has one.
        kernels: its dispatch mode, likewise.
    """

    def __init__(
        self, session: Session, functions: FunctionWatcher | None, kernels: KernelWatcher | None
    ) -> None:
        self._session = session
        self._functions = functions
        self._kernels = kernels
        self._patches: list[CodePatch] = []

    def open(self) -> None:
        """Start to step aside."""
        for name in _TRACERS:
            tracer = getattr(torch.jit, name, None)
            if isinstance(tracer, FunctionType):
                self._patches.append(CodePatch(tracer, self._trace))

    def close(self) -> None:
        """Leave the tracers alone again."""
        while self._patches:
            self._patches.pop().end()

    def _trace(self, tracer: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        self._session.tell_once(_NOTICE)
        with self._aside():
            return tracer(*args, **kwargs)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        session, functions, kernels = self._session, self._functions, self._kernels
        was_paused = session.is_paused
        # Modes belong to a thread; in another one they are not on.
        is_on = functions is not None and any(mode is functions for mode in function_modes())
        session.is_paused = True
        if functions is not None and is_on:
            remove_function_mode(functions)
            if kernels is not None:
                remove_dispatch_mode(kernels)
        try:
            yield
        finally:
            session.is_paused = was_paused
            # Somebody may have ended the capture in the meantime.
            if functions is not None and is_on and not functions.is_retired:
                insert_function_mode(functions)
                if kernels is not None:
                    insert_dispatch_mode(kernels)
