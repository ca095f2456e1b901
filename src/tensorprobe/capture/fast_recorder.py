"""Leave the usual calls of a step to compiled code (_fast_recorder.c and what it names).

    torch ─► FastRecorder: a usual call? ─► recorded there
                 │      a function that it does not know is noted first, by FunctionWatcher
                 └► FunctionWatcher.__torch_function__
    a backward pass ─► RootHook ─► FastRecorder: a usual one? ─► recorded there
                                        └► GradientWatcher

A captured step on a GPU waits for what the host does between two operators. Whatever is not usual,
and everything where nothing was compiled, goes through the same steps in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.capture.apis import Api, ApiTable
from tensorprobe.capture.describe import tensors_in
from tensorprobe.capture.dispatch_modes import count_dispatch_modes
from tensorprobe.capture.graph_edges import (
    compiled_graph,
    input_edges,
    next_sequence_number,
    pass_over_shapes,
)
from tensorprobe.capture.raised import add_raised
from tensorprobe.capture.spelling import as_spelled
from tensorprobe.capture.transforms import is_transforming
from tensorprobe.capture.written import written_tensors
from tensorprobe.names import backward_of
from tensorprobe.operations.facts import WRITES_UNSEEN
from tensorprobe.system.extensions import load_compiled

if TYPE_CHECKING:
    from tensorprobe.capture.session import Session

__all__ = ["make_fast_recorder", "note_function"]

# As in _calls.c.
_MAYBE_OPERATOR, _IS_PYTHON, _WRITES_UNSEEN = 1, 2, 4


def make_fast_recorder(session: Session) -> Any | None:
    """Return what records the usual calls of a session; None where that is for Python."""
    compiled = load_compiled("tensorprobe.capture._calls", "FastRecorder")
    graph = compiled_graph()
    parts = None if compiled is None else session.fast_path_bindings()
    if compiled is None or parts is None:
        return None
    known = {
        "tensor_class": torch.Tensor,
        "parameter_class": torch.nn.Parameter,
        "tensors_in": tensors_in,
        "as_spelled": as_spelled,
        "is_grad_enabled": torch.is_grad_enabled,
        "next_sequence_number": next_sequence_number,
        "current_pass": torch._C._current_graph_task_id,
        "current_node": torch._C._current_autograd_node,
        "without_functions": torch._C.DisableTorchFunction,
        "backward_of": backward_of,
        "count_dispatch_modes": count_dispatch_modes,
        "is_transforming": is_transforming,
        "written_tensors": written_tensors,
        "add_raised": add_raised,
        "input_edges": input_edges if graph is None else None,
        "pass_over_shapes": pass_over_shapes,
    }
    return compiled.FastRecorder(known | parts)


def note_function(apis: ApiTable, function: Any, api: Api | None) -> None:
    """Note how calls of a function of torch are recorded, the first time that it comes.

    Args:
        apis: where it is noted.
        function: the function; nobody has put it in the place of another.
        api: what it is called; None if its calls do not count.
    """
    if function is torch.empty:
        # Who calls it matters: see FunctionWatcher.
        apis.usual[function] = False
        return
    if api is None:
        apis.usual[function] = None
        return
    is_python = getattr(function, "__code__", None) is not None
    flags = _MAYBE_OPERATOR * api.may_be_operator | _IS_PYTHON * is_python
    flags |= _WRITES_UNSEEN * (api.api_name in WRITES_UNSEEN)
    apis.usual[function] = (api, api.full_name, flags)
