"""Keep the records of one step in order until their numbers are there, then write them.

    watchers ─► draft ─► pending records ─► numbers arrive ─► DumpWriter

A record that cannot be made is counted and told once; the run never notices.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensorprobe.capture.describe import Draft, Drafted, describe, finish
from tensorprobe.capture.kept_data import KeptData
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.config import Config
from tensorprobe.records import CallRecord, DumpInfo, Frame
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.store.writer import DumpWriter
from tensorprobe.summary.checksum import Checked, ChecksumQueue
from tensorprobe.summary.seen import SeenMemory
from tensorprobe.summary.statistics import Measured, StatisticsQueue

__all__ = ["Recorder"]

_Numbers = tuple[Measured, "Checked | None"]

# Records wait in memory for their numbers; past this many the oldest are waited for.
_MOST_PENDING = 4096
# Looking whether numbers have arrived costs a little, so it is done once in so many records.
_BETWEEN_LOOKS = 16


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
    # How many statistics, checksums and files must have been delivered before it can be written.
    statistics: int
    checksums: int
    files: int


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
        self._statistics = StatisticsQueue()
        self._checksums = ChecksumQueue()
        self._pending: deque[_Pending] = deque()
        self._counts: Counter[str] = Counter()
        self._with_checksums = config.summary_mode == "md5"
        self._numbers = SeenMemory[_Numbers](is_ordered=self._with_checksums)
        self._data = KeptData(writer, transport)
        self._lock = threading.RLock()
        self.failures = 0
        # Whether the data of a value of this name is written, beside its statistics; None: of none.
        self.keeps_data: Callable[[str], bool] | None = (
            (lambda name: True) if info.task == "tensor" else None
        )

    def next_number(self, key: str) -> int:
        """Count the calls of one API or module, from 0 in each step."""
        with self._lock:
            number = self._counts[key]
            self._counts[key] += 1
            return number

    def draft(self, value: Any, name: str) -> Drafted:
        """Describe a value now; `name` is where it stands, for its data file."""
        with self._lock:
            return describe(value, self._draft_tensor, (name,))

    def draft_all(self, values: Iterable[Any], name: str) -> tuple[Drafted, ...]:
        """Describe positional values, `{name}.0` and on."""
        with self._lock:
            draft = self._draft_tensor
            return tuple([describe(value, draft, (name, str(i))) for i, value in enumerate(values)])

    def draft_named(self, values: Mapping[str, Any], name: str) -> dict[str, Drafted]:
        """Describe named values, `{name}.{key}`."""
        if not values:
            return {}
        with self._lock:
            draft = self._draft_tensor
            return {key: describe(value, draft, (name, key)) for key, value in values.items()}

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
            statistics, checksums = self._statistics, self._checksums
            pending = _Pending(
                name, inputs, kwargs, outputs, parameters, saved, is_recompute, stack, parent,
                statistics.asked, checksums.asked, self._data.promised,
            )  # fmt: skip
            if not self._pending and self._is_ready(pending):
                self._write([pending])
                return
            self._pending.append(pending)
            if not len(self._pending) % _BETWEEN_LOOKS:
                statistics.poll()
                checksums.poll()
                self._data.poll()
                self._write_ready()
            if len(self._pending) >= _MOST_PENDING:
                self.flush()

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
            self._numbers.clear()
            self._data.forget_tensors()

    def flush(self) -> None:
        """Fetch all numbers, wait for all data, and write every pending record."""
        with self._lock:
            # While the device is at work on the last numbers, records with the first are written.
            while self._statistics.fetch():
                self._checksums.poll()
                self._write_ready()
            while self._checksums.fetch():
                self._write_ready()
            self._data.fetch()
            self._write_ready()

    def _is_ready(self, record: _Pending) -> bool:
        return (
            record.statistics <= self._statistics.delivered
            and record.checksums <= self._checksums.delivered
            and record.files <= self._data.delivered
        )

    def _write_ready(self) -> None:
        ready: list[_Pending] = []
        while self._pending and self._is_ready(self._pending[0]):
            ready.append(self._pending.popleft())
        if ready:
            self._write(ready)

    def _write(self, records: list[_Pending]) -> None:
        if len(records) == 1:
            record = records[0]
            self._writer.write(self._finish(record), stack=record.stack, parent=record.parent)
        else:
            self._writer.write_all((self._finish(r), r.stack, r.parent) for r in records)

    def _finish(self, record: _Pending) -> CallRecord:
        saved = record.saved
        return CallRecord(
            record.name,
            _finish_all(record.inputs),
            _finish_named(record.kwargs),
            _finish_all(record.outputs),
            _finish_named(record.parameters),
            None if saved is None else (finish(saved[0]),),
            record.is_recompute,
        )

    def _draft_tensor(self, tensor: torch.Tensor, path: tuple[str, ...]) -> Draft:
        numbers = self._numbers.find(tensor)
        if numbers is None:
            measured = self._statistics.ask(tensor)
            checked = self._checksums.ask(tensor) if self._with_checksums else None
            numbers = (measured, checked)
            self._numbers.keep(tensor, numbers)
        measured, checked = numbers
        return Draft(measured, checked, tensor, self._keep_data(tensor, path, checked))

    def _keep_data(
        self, tensor: torch.Tensor, path: tuple[str, ...], checked: Checked | None
    ) -> PendingFile | None:
        """Have a tensor's data written, if they are wanted."""
        if self.keeps_data is None:
            return None
        name = ".".join(path)
        if not self.keeps_data(name):
            return None
        return self._data.keep(tensor, name, None if checked is None else checked.value)


def _finish_all(values: tuple[Drafted, ...] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple([finish(value) for value in values])


def _finish_named(values: Mapping[str, Drafted] | None) -> dict[str, Any] | None:
    return None if values is None else {key: finish(value) for key, value in values.items()}
