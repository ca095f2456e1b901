"""Keep the records of one step in order until their numbers are there, then write them.

    watchers ─► draft ─► pending records ─► numbers arrive ─► DumpWriter

On the host numbers are there at once, and a record is written before the next call begins: who
debugs a crash or a hang needs the last calls before it. What waits for a device is noted meanwhile.
A record that cannot be made is counted and told once; the run never notices.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from tensorprobe.capture.apis import Api
from tensorprobe.capture.describe import KNOWN_INTS, Drafted, describe
from tensorprobe.capture.dispatch_modes import count_dispatch_modes, without_dispatch_modes
from tensorprobe.capture.host_write_pool import make_write_pool
from tensorprobe.capture.kept_data import KeptData
from tensorprobe.capture.pending_tensors import (
    Numbers,
    PendingTensor,
    PendingTensorTable,
    is_plain,
    make_pending_tensor,
)
from tensorprobe.capture.subclasses import describe_unusual
from tensorprobe.capture.transforms import is_transforming, without_transforms
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.config import Config
from tensorprobe.operations.facts import WRITES_UNSEEN
from tensorprobe.records import DumpInfo, Frame
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.store.writer import DumpWriter
from tensorprobe.summary.checksum import Checked, ChecksumQueue
from tensorprobe.summary.statistics import (
    StatisticsQueue,
)
from tensorprobe.summary.transfer import BATCH
from tensorprobe.system.interrupts import is_raised_by_handler, uninterrupted

__all__ = ["Recorder"]

# Records wait in memory for their numbers; past this many the oldest are waited for.
_MOST_PENDING = 4096
# Numbers that are still on a device are not waited for, and while the host has records to make the
# device has nothing to do: those records are best written when the host has made them all.
_TOGETHER_ON_DEVICE = 1024
_LONGEST_WAIT_ON_DEVICE = 0.25


# Where no data are kept nobody asks for the names of values; so deep is the nesting of one.
_NO_NAME = ("", "")
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))


class _Pending:
    """One record that waits: what a `CallRecord` holds, at a third of its cost.

    The last two are how many statistics and checksums must have been delivered before it can be
    written.
    """

    __slots__ = (
        "checksums", "defaults", "inputs", "is_recompute", "kwargs", "name", "outputs",
        "parameters", "parent", "saved", "stack", "statistics",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        inputs: tuple[Drafted, ...] | None,
        kwargs: Mapping[str, Drafted] | None,
        outputs: tuple[Drafted, ...] | None,
        parameters: Mapping[str, Drafted] | None,
        saved: tuple[Drafted] | None,
        is_recompute: bool | None,
        defaults: Mapping[str, Drafted] | None,
        stack: tuple[Frame, ...],
        parent: str | None,
        statistics: int,
        checksums: int,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.kwargs = kwargs
        self.outputs = outputs
        self.parameters = parameters
        self.saved = saved
        self.is_recompute = is_recompute
        self.defaults = defaults
        self.stack = stack
        self.parent = parent
        self.statistics = statistics
        self.checksums = checksums


class Recorder:
    """Everything that is recorded of one rank in one step."""

    def __init__(
        self,
        config: Config,
        writer: DumpWriter,
        info: DumpInfo,
        tell: Callable[[str], None],
        transport: TensorTransport,
        counters: dict[str, itertools.count[int]] | None = None,
    ) -> None:
        self.config = config
        self._writer = writer
        self._info = info
        self._tell = tell
        self._statistics = StatisticsQueue()
        self._checksums = ChecksumQueue()
        self._data = KeptData(writer, transport)
        self._pending: deque[_Pending] = deque()
        # Those of them that are about to be written.
        self._ready: list[_Pending] = []
        # When numbers were last looked for, and how many records have come since.
        self._looked = time.monotonic()
        self._unlooked = 0
        self._has_deferred_look = False
        # A dump that begins in the middle of a step counts on from the one before.
        self._counters = {} if counters is None else counters
        self._with_checksums = config.summary_mode == "md5"
        self._drafts = PendingTensorTable(is_ordered=self._with_checksums)
        self._lock = threading.RLock()
        # Writes and measures the host's tensors, where their data are kept.
        self._pool = (
            make_write_pool(
                self._lock, self._statistics, self.forget_tensors, transport.borrow, self.fail
            )
            if info.task == "tensor"
            else None
        )
        # What values are described in; the data of several are best written together.
        self.drafting: AbstractContextManager[Any] = self._pool or self._lock
        self.failures = 0
        # What describes values in compiled code, while there is such a thing.
        self.fast_recorder: Any = None
        # Whether the data of a value of this name is written, beside its statistics; None: of none.
        self.keeps_data: Callable[[str], bool] | None = (
            (lambda name: True) if info.task == "tensor" else None
        )

    def next_number(self, key: str) -> int:
        """Count the calls of one API or module, from 0 in each step."""
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters.setdefault(key, itertools.count())
        return next(counter)

    def draft(self, value: Any, name: str) -> Drafted:
        """Describe a value now; `name` is where it stands, for its data file."""
        # Another thread may stop the capture meanwhile; so below.
        fast_recorder = self.fast_recorder
        if fast_recorder is not None and self.keeps_data is None:
            return fast_recorder.draft_all((value,), name)[0]
        with self.drafting:
            return describe(value, self._draft_tensor, (name,))

    def draft_all(self, values: Iterable[Any], name: str) -> tuple[Drafted, ...]:
        """Describe positional values, `{name}.0` and on."""
        fast_recorder = self.fast_recorder
        if fast_recorder is not None and type(values) in (tuple, list):
            drafts: tuple[Drafted, ...] = fast_recorder.draft_all(values, name)
            return drafts
        with self.drafting:
            draft = self._draft_tensor
            if self.keeps_data is None:
                return tuple(
                    [
                        draft(value, _NO_NAME)
                        if type(value) in _TENSORS
                        else describe(value, draft, _NO_NAME)
                        for value in values
                    ]
                )
            return tuple([describe(value, draft, (name, str(i))) for i, value in enumerate(values)])

    def draft_named(self, values: Mapping[str, Any], name: str) -> dict[str, Drafted]:
        """Describe named values, `{name}.{key}`."""
        if not values:
            return {}
        fast_recorder = self.fast_recorder
        if fast_recorder is not None and type(values) is dict:
            drafts: dict[str, Drafted] = fast_recorder.draft_named(values, name)
            return drafts
        with self.drafting:
            draft = self._draft_tensor
            return {
                key: draft(value, (name, key))
                if type(value) in _TENSORS
                else describe(value, draft, (name, key))
                for key, value in values.items()
            }

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
        defaults: Mapping[str, Drafted] | None = None,
        stack: tuple[Frame, ...] = (),
        parent: str | None = None,
    ) -> None:
        """Put one record at the end of the line."""
        with self._lock:
            self._add(
                _Pending(
                    name,
                    inputs,
                    kwargs,
                    outputs,
                    parameters,
                    saved,
                    is_recompute,
                    defaults,
                    stack,
                    parent,
                    self._statistics.asked,
                    self._checksums.asked,
                )
            )

    def begin(self, name: str, stack: tuple[Frame, ...]) -> None:
        """Note that a call begins whose record will come.

        Args:
            name: of the call.
            stack: where it is made; the very object that its record comes with.
        """
        self._writer.begin(name, stack)

    def _add(self, record: _Pending) -> None:
        """Put a record at the end of the line; the caller holds the lock."""
        self._pending.append(record)
        pool = self._pool
        if pool is not None and pool.is_running:
            # Somebody calls from inside what measures: numbers may be on their way there.
            if not self._has_deferred_look:
                self._has_deferred_look = True
                pool.defer(self._write_arrived)
        elif self._statistics.is_waiting or self._checksums.is_waiting:
            self._await_device(record)
        else:
            self._data.poll()
            self._write_ready()

    def _await_device(self, record: _Pending) -> None:
        """Note a record whose numbers, or those before it, are on a device; look for them at times.

        The caller holds the lock.
        """
        self._writer.wait_for(record.name)
        self._unlooked += 1
        waited = time.monotonic() - self._looked
        if self._unlooked >= _TOGETHER_ON_DEVICE or waited >= _LONGEST_WAIT_ON_DEVICE:
            self._write_arrived()
            if len(self._pending) >= _MOST_PENDING:
                self.flush()

    def _write_arrived(self) -> None:
        self._unlooked, self._looked = 0, time.monotonic()
        self._has_deferred_look = False
        # What is asked for seldom would wait for the end of the step.
        self.send()
        self._statistics.poll()
        self._checksums.poll()
        self._data.poll()
        self._write_ready()

    def fast_path_bindings(self) -> dict[str, Any] | None:
        """Return what _fast_recorder.c makes records with, by the names that it knows.

        None where this is another kind of recorder.
        """
        if type(self) is not Recorder:
            return None
        keeps_data = self.keeps_data is not None
        return {
            "recorder": self,
            "statistics": self._statistics,
            "checksums": self._checksums,
            "batch": BATCH,
            "with_checksums": self._with_checksums,
            **self._drafts.parts(),
            "counters": self._counters,
            "pending_class": _Pending,
            "begin": self._writer.begin,
            "lock": self._lock,
            "pool": self._pool if keeps_data else None,
            "keep": self._draft_kept_tensor if keeps_data else None,
            "no_name": _NO_NAME,
            "describe": lambda value, path: describe(value, self._draft_tensor, path),
            "known_ints": KNOWN_INTS,
        }

    def fail(self, what: str, err: Exception) -> None:
        """Count a record that could not be made; the first one is told.

        What a signal's handler raised goes on: the run is to notice.
        """
        if is_raised_by_handler(err):
            raise err
        self.failures += 1
        problem = f"{what} could not be recorded ({type(err).__name__}: {err})"
        self._writer.note(problem)
        if self.failures == 1:
            self._tell(f"{problem}; the run goes on, further failures are only counted")

    def note_run(self, api: Api) -> None:
        """Note that a function has run, which may have written into any tensor it was given."""
        if api.api_name in WRITES_UNSEEN:
            self.forget_tensors()

    def forget_tensor(self, tensor: torch.Tensor) -> None:
        """Trust the version of one tensor no longer."""
        with self._lock:
            self._drafts.forget(tensor)

    def forget_tensors(self) -> None:
        """Trust no tensor's version any longer: somebody wrote without raising it."""
        with self._lock:
            self._drafts.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether records wait for numbers from a device, and not for data to be written."""
        is_waiting = self._statistics.is_waiting or self._checksums.is_waiting
        return is_waiting and self.keeps_data is None

    @property
    def has_pending(self) -> bool:
        """Whether there are records that are not written."""
        return bool(self._pending or self._ready)

    def send(self) -> None:
        """Send all numbers off that are still on a device."""
        with self._lock:
            self._statistics.send()
            self._checksums.send()

    def flush(self) -> None:
        """Fetch all numbers, wait for all data, and write every pending record."""
        with self._lock:
            # While the device is at work on the last numbers, records with the first are written.
            while self._statistics.fetch():
                self._checksums.poll()
                self._write_ready()
            while self._checksums.fetch():
                self._write_ready()
            if self._pool is not None:
                self._pool.drain()
            self._data.fetch()
            self._write_ready()
            self._statistics.rest()

    def _is_ready(self, record: _Pending) -> bool:
        return (
            record.statistics <= self._statistics.delivered
            and record.checksums <= self._checksums.delivered
        )

    def _write_ready(self) -> None:
        with uninterrupted():
            try:
                while self._is_ready(self._pending[0]):
                    self._ready.append(self._pending.popleft())
            except IndexError:
                # There are no more; in another thread a stop of the capture may have come between
                # the two lines above, and has then written them all, those that were ready first.
                pass
            ready, self._ready = self._ready, []
            if len(ready) == 1:
                call = ready[0]
                self._writer.write(call, stack=call.stack, parent=call.parent)
            elif ready:
                self._writer.write_all([(call, call.stack, call.parent) for call in ready])

    def _draft_tensor(self, tensor: torch.Tensor, path: tuple[str, ...]) -> Drafted:
        known = self._drafts.find(tensor)
        if (
            known is not None
            and self.keeps_data is None
            and known.requires_grad == tensor.requires_grad
        ):
            return known
        if count_dispatch_modes() or is_transforming():
            with without_dispatch_modes(), without_transforms():
                return self._draft_alone(tensor, path, known)
        return self._draft_alone(tensor, path, known)

    def _draft_alone(
        self, tensor: torch.Tensor, path: tuple[str, ...], known: PendingTensor | None
    ) -> Drafted:
        """Draft a tensor that no mode and no transform sees being read."""
        drafts = self._drafts
        is_whole = False
        if known is not None:
            numbers: Numbers | None = (known.measured, known.checked)
        elif not is_plain(tensor):
            return describe_unusual(tensor, self._draft_tensor, path)
        else:
            is_whole = tensor._base is None
            numbers = None if is_whole else drafts.find_numbers(tensor)
        if self.keeps_data is None:
            draft = make_pending_tensor(tensor, *(numbers or self._measure(tensor)))
        else:
            draft = self._draft_kept(tensor, path, known, numbers)
            if known is not None and known.file is not None and not known.file.is_lost:
                # The next one whose data are wanted finds the file.
                return draft
        drafts.keep(tensor, draft, has_place=is_whole or numbers is not None)
        return draft

    def _draft_kept_tensor(self, tensor: torch.Tensor, name: str) -> Drafted:
        """The same for a value of this name, whose data are kept."""
        known, keeps = self._drafts.find(tensor), self.keeps_data
        if known is None or keeps is None or (same := known.file) is None or same.is_lost:
            return self._draft_alone(tensor, (name,), known)
        # Most were kept before, as the output of another call.
        draft = make_pending_tensor(tensor, known.measured, known.checked)
        draft.file = self._data.link(name, same, self._pool) if keeps(name) else None
        return draft

    def _measure(self, tensor: torch.Tensor) -> Numbers:
        checked = self._checksums.ask(tensor) if self._with_checksums else None
        return self._statistics.ask(tensor), checked

    def _draft_kept(
        self,
        tensor: torch.Tensor,
        path: tuple[str, ...],
        known: PendingTensor | None,
        numbers: Numbers | None,
    ) -> PendingTensor:
        """Draft a tensor whose data may be wanted, too."""
        if numbers is not None:
            measured, checked = numbers
            file = self._keep_data(tensor, path, known, checked)
        else:
            checked = self._checksums.ask(tensor) if self._with_checksums else None
            # Its data first: where they must be put in order for it, that is done once.
            file = self._keep_data(tensor, path, known, checked)
            measured = (self._pool or self._statistics).ask(tensor)
        draft = make_pending_tensor(tensor, measured, checked)
        draft.file = file
        return draft

    def _keep_data(
        self,
        tensor: torch.Tensor,
        path: tuple[str, ...],
        known: PendingTensor | None,
        checked: Checked | None,
    ) -> PendingFile | None:
        """Have a tensor's data written, if they are wanted."""
        name = ".".join(path)
        if self.keeps_data is None or not self.keeps_data(name):
            return None
        checksum = None if checked is None else checked.value
        same = None if known is None else known.file
        return self._data.keep(tensor, name, checksum=checksum, same=same, pool=self._pool)
