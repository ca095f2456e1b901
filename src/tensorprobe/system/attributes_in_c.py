"""Which attributes of Python's objects compiled code reads and sets: all of them.

Whoever renames one of these renames it in the C file, too. `tests/system/test_attributes_in_c.py`
holds this list against the names in the C files and against the classes.
"""

from __future__ import annotations

__all__ = ["ATTRIBUTES", "FOREIGN", "MADE_IN_C"]

ATTRIBUTES: dict[str, dict[str, tuple[str, ...]]] = {
    "capture/_calls.h": {
        "tensorprobe.capture.apis:Api": ("full_name",),
        "tensorprobe.capture.session:Session": ("is_paused", "leave", "watch_gradients"),
        "tensorprobe.capture.recorder:Recorder": (
            *("_add", "_draft_tensor", "fail", "forget_tensors", "next_number"),
        ),
        "tensorprobe.capture.recorder:_Pending": (
            *("checksums", "defaults", "inputs", "is_recompute", "kwargs", "name", "outputs"),
            *("parameters", "parent", "saved", "stack", "statistics"),
        ),
        "tensorprobe.capture.pending_tensors:PendingTensor": (
            *("_text", "checked", "dtype", "file", "measured", "memory", "requires_grad"),
            *("shape", "version"),
        ),
        "tensorprobe.capture.pending_tensors:_Memory": ("alive", "numbers", "version"),
        "tensorprobe.capture.modules:ModuleWatcher": ("_threads", "follow_uncalled"),
        "tensorprobe.capture.modules:_Running": (
            *("edges", "has_inner", "inputs", "is_by_python", "kwargs", "module", "name"),
            *("parameters", "parent", "stack", "start"),
        ),
        "tensorprobe.capture.gradients:GradientWatcher": (
            *("find_rest", "is_active", "note_place", "open_pass", "pass_over"),
        ),
        "tensorprobe.capture.gradients:RootHook": (
            *("count", "done", "edges", "hook", "is_sealed", "name", "outputs", "parent"),
            *("start", "watcher"),
        ),
        "tensorprobe.capture.gradients:_Call": (
            *("done", "missing", "name", "nodes", "of_inputs", "of_outputs", "parent", "start"),
            *("task", "unused"),
        ),
        "tensorprobe.capture.gradients:_NodeHook": (
            *("call", "inputs", "number", "outputs", "watcher"),
        ),
        "tensorprobe.capture.graph_edges:InputEdges": (
            *("_view_inputs", "count", "is_cast", "leaves", "nodes", "positions_under_cast"),
            "views",
        ),
        "tensorprobe.store.pending_file:PendingFile": (
            *("end", "follow", "frame", "is_done", "is_lost", "path", "write"),
        ),
        "tensorprobe.summary.statistics:Measured": ("numbers",),
        "tensorprobe.summary.statistics:StatisticsQueue": (
            *("_ask_quickly", "_ask_unseen", "_unsent", "ask", "asked", "send"),
        ),
        "tensorprobe.summary.checksum:ChecksumQueue": ("ask", "asked"),
    },
    "store/_entry_text.c": {
        "tensorprobe.capture.pending_tensors:PendingTensor": (
            *("_text", "checked", "dtype", "file", "measured", "requires_grad", "shape"),
        ),
        "tensorprobe.store.pending_file:PendingFile": ("data_name",),
        "tensorprobe.summary.checksum:Checked": ("value",),
        "tensorprobe.summary.statistics:Measured": ("numbers",),
        "tensorprobe.capture.recorder:_Pending": (
            *("inputs", "is_recompute", "kwargs", "outputs", "parameters"),
        ),
    },
    "summary/_launch.c": {"tensorprobe.summary.statistics:Measured": ("numbers",)},
}
"""By C file, from `src/tensorprobe` on: the attributes of our own classes."""

MADE_IN_C = (
    "tensorprobe.capture.recorder:_Pending",
    "tensorprobe.capture.pending_tensors:PendingTensor",
    "tensorprobe.capture.modules:_Running",
    "tensorprobe.capture.gradients:_Call",
    "tensorprobe.capture.gradients:_NodeHook",
    "tensorprobe.capture.gradients:RootHook",
    "tensorprobe.capture.graph_edges:InputEdges",
    "tensorprobe.summary.statistics:Measured",
)
"""Classes of which C makes objects without their constructor, so that it sets every slot."""

FOREIGN: dict[str, dict[str, tuple[str, ...]]] = {
    "capture/_calls.h": {
        "tensor": (
            *("_base", "_is_view", "_version", "data_ptr", "detach", "dtype", "get_device"),
            *("grad_fn", "is_conj", "is_contiguous", "is_inference", "is_meta", "is_neg"),
            *("is_nested", "layout", "numel", "output_nr", "requires_grad", "shape", "stride"),
        ),
        "node": ("_sequence_nr", "next_functions", "register_hook"),
        "leaf node": ("variable",),
        "module": (
            *("__dict__", "_forward_hooks", "_forward_pre_hooks", "_modules", "_parameters"),
            "forward",
        ),
        "frame": ("f_back", "f_lasti", "f_locals"),
        "lock": ("acquire", "release", "__enter__", "__exit__"),
        "class": ("__name__",),
        "named result": ("n_sequence_fields",),
        # Variables in torch's own code, keys of dicts, and options of functions.
        "no attribute": ("args", "is_late", "is_sealed", "kwargs", "running"),
    },
    "store/_entry_text.c": {},
    "summary/_launch.c": {
        "tensor": (
            *("data_ptr", "dtype", "get_device", "is_contiguous", "is_neg", "ndim", "numel"),
        ),
    },
}
"""By C file: the attributes of objects of torch's and Python's."""
