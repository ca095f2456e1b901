"""Keep the records of one step in order until their numbers are there, then write them.

    watchers ─► draft ─► pending records ─► fetch once ─► DumpWriter

A record that cannot be made is counted and told once; the run never notices.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tensorprobe.capture.describe import Draft, Drafted, describe, finish
from tensorprobe.capture.kept_data import KeptData
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.config import Config
from tensorprobe.records import CallRecord, DumpInfo, Frame
from tensorprobe.store.writer import DumpWriter
from tensorprobe.summary.checksum import ChecksumQueue
from tensorprobe.summary.statistics import StatisticsQueue

__all__ = ["Recorder"]

# Records wait in memory for their numbers; past this many one wait for the device clears them.
_MOST_PENDING = 4096


@dataclass(slots=True)
class _Pending:
    name: str
    inputs: tuple[Drafted, ...] | None
    kwargs: Mapping[str, Drafted] | None
    outputs: tuple[Drafted, ...] | None
    parameters: Mapping[str, Drafted] | None
    saved: tuple[Drafted] | None
    is_recompute: bool | None
    stack: tuple[Frame, ...]
    parent: str | None
    # How much data was promised before it: none of it is on the way when this is written.
    promised: int = 0


class Recorder:
    """Everything that is recorded of one rank in one step."""

    def __init__(
        self,
        config: Config,
        writer: DumpWriter,
        info: DumpInfo,
        tell: Callable[[str], None],
        transport: TensorTransport,
    ) -> None:
        self.config = config
        self._writer = writer
        self._info = info
        self._tell = tell
        self._queue = StatisticsQueue()
        self._checksums = ChecksumQueue()
        self._data = KeptData(writer, transport)
        self._pending: deque[_Pending] = deque()
        self._counts: Counter[str] = Counter()
        # Drafts of tensors that are still alive, by the object's id, with their version.
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], int, Draft]] = {}
        self._lock = threading.RLock()
        self.failures = 0
        # Whether the data of a value of this name is written, beside its statistics.
        self.keeps_data: Callable[[str], bool] = lambda name: info.task == "tensor"

    def next_number(self, key: str) -> int:
        """Count the calls of one API or module, from 0 in each step."""
        with self._lock:
            number = self._counts[key]
            self._counts[key] += 1
            return number

    def draft(self, value: Any, name: str) -> Drafted:
        """Describe a value now; `name` is where it stands, for its data file."""
        return describe(value, lambda tensor, path: self._draft_tensor(tensor, name, path))

    def draft_all(self, values: Any, name: str) -> tuple[Drafted, ...]:
        """Describe positional values, `{name}.0` and on."""
        return tuple(self.draft(value, f"{name}.{index}") for index, value in enumerate(values))

    def draft_named(self, values: Mapping[str, Any], name: str) -> dict[str, Drafted]:
        """Describe named values, `{name}.{key}`."""
        return {key: self.draft(value, f"{name}.{key}") for key, value in values.items()}

    def add(
        self,
        name: str,
        *,
        inputs: tuple[Drafted, ...] | None = None,
        kwargs: Mapping[str, Drafted] | None = None,
        outputs: tuple[Drafted, ...] | None = None,
        parameters: Mapping[str, Drafted] | None = None,
        saved: tuple[Drafted] | None = None,
        is_recompute: bool | None = None,
        stack: tuple[Frame, ...] = (),
        parent: str | None = None,
    ) -> None:
        """Put one record at the end of the line."""
        with self._lock:
            self._pending.append(
                _Pending(
                    name,
                    inputs,
                    kwargs,
                    outputs,
                    parameters,
                    saved,
                    is_recompute,
                    stack,
                    parent,
                    self._data.promised,
                )
            )
            if len(self._pending) >= _MOST_PENDING:
                self.flush()
            elif not len(self._queue):
                self._write_ready()

    def fail(self, what: str, err: Exception) -> None:
        """Count a record that could not be made; the first one is told."""
        self.failures += 1
        problem = f"{what} could not be recorded ({type(err).__name__}: {err})"
        self._writer.note(problem)
        if self.failures == 1:
            self._tell(f"{problem}; the run goes on, further failures are only counted")

    def forget_tensors(self) -> None:
        """Trust no tensor's version any longer: somebody wrote without raising it."""
        with self._lock:
            self._seen.clear()

    def flush(self) -> None:
        """Fetch all numbers, wait for all data, and write every pending record."""
        with self._lock:
            self._data.settle_all()
            self._write_ready()

    def _write_ready(self) -> None:
        """Write the records, in their order, whose data have reached the disk."""
        self._data.settle()
        self._queue.fetch()
        self._checksums.fetch()
        pending = self._pending
        while pending and pending[0].promised <= self._data.settled:
            record = pending.popleft()
            self._writer.write(self._finish(record), stack=record.stack, parent=record.parent)

    def _finish(self, record: _Pending) -> CallRecord:
        def all_of(values: tuple[Drafted, ...] | None) -> tuple[Any, ...] | None:
            return None if values is None else tuple(finish(v) for v in values)

        def named(values: Mapping[str, Drafted] | None) -> dict[str, Any] | None:
            if values is None:
                return None
            return {key: finish(value) for key, value in values.items()}

        return CallRecord(
            record.name,
            all_of(record.inputs),
            named(record.kwargs),
            all_of(record.outputs),
            named(record.parameters),
            None if record.saved is None else (finish(record.saved[0]),),
            record.is_recompute,
        )

    def _draft_tensor(self, tensor: torch.Tensor, name: str, path: tuple[str, ...]) -> Draft:
        full_name = ".".join((name, *path))
        with self._lock:
            version = -1 if tensor.is_inference() else tensor._version
            seen = self._seen.get(id(tensor))
            # An id is handed out again once its object is gone, and the data may have changed.
            is_seen = seen is not None and seen[0]() is tensor and seen[1] == version != -1
            keeps_data = self.keeps_data(full_name)
            if seen is not None and is_seen:
                file = seen[2].file
                has_data = file is not None and not file.is_lost
                if has_data or not keeps_data:
                    draft = replace(
                        seen[2], requires_grad=tensor.requires_grad, data_name=None, file=None
                    )
                    if keeps_data and file is not None:
                        self._data.link(draft, full_name, file)
                    return draft
            if len(self._seen) >= _MOST_PENDING:
                self._seen = {
                    key: kept for key, kept in self._seen.items() if kept[0]() is not None
                }
            draft = self._new_draft(tensor, full_name)
            self._seen[id(tensor)] = (weakref.ref(tensor), version, draft)
            return draft

    def _new_draft(self, tensor: torch.Tensor, name: str) -> Draft:
        draft = Draft(
            self._queue.ask(tensor), str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad
        )
        if self.config.summary_mode == "md5":
            draft.checked = self._checksums.ask(tensor)
        if self.keeps_data(name):
            known = None if draft.checked is None else draft.checked.value
            self._data.save(draft, tensor, name, checksum=known)
        return draft
