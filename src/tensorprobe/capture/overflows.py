"""Task overflow_check: record the calls that overflow, with their data, and no others.

    draft ─► numbers asked for, tensors held ─► add: a candidate in line
          ─► numbers arrive ─► an overflow: data and record are written
                           └► none: everything is let go; of a forward call that may go backward,
                              all but its inputs, for without them nobody can repeat its backward

The device is never waited for unless more memory is held than the budget allows. The search ends
for the whole run after so many overflows.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tensorprobe.capture.describe import Drafted, describe
from tensorprobe.capture.dispatch_modes import count_dispatch_modes, without_dispatch_modes
from tensorprobe.capture.held import HeldDraft, WritingCalls, held_in
from tensorprobe.capture.pending_tensors import PendingTensor
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.subclasses import describe_unusual
from tensorprobe.capture.transforms import is_transforming, without_transforms
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.config import Config
from tensorprobe.names import (
    ModuleCall,
    ParameterGradients,
    backward_of,
    is_parameter_gradients,
    parse_call,
)
from tensorprobe.overflow_rule import (
    Extent,
    can_overflow,
    find_overflow,
    is_nonfinite,
    overwritten_places,
)
from tensorprobe.records import CallRecord, DictValue, DumpInfo, Frame, ListValue, ScalarValue
from tensorprobe.store.writer import DumpWriter
from tensorprobe.summary.host import is_plain

__all__ = ["OverflowCount", "OverflowRecorder", "looking_at_both_sides"]

# Numbers are looked for when so many candidates wait for them.
_MANY = 32


class OverflowCount:
    """How many overflows a run has had, over all its steps.

    Args:
        most: the search ends with this one; -1 for never.

    Attributes:
        found: so many there were.
        steps: in so many steps they were looked for.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.found = 0
        self.steps = 0

    @staticmethod
    def of(config: Config) -> OverflowCount | None:
        """Return the count of a run that looks for overflows; None for another."""
        # At level debug nothing is watched that could overflow.
        is_search = config.task == "overflow_check" and config.level != "debug"
        return OverflowCount(config.overflow_nums) if is_search else None

    @property
    def is_spent(self) -> bool:
        """Whether no further overflow is looked for."""
        return 0 <= self._most <= self.found

    def tell_if_none(self, tell: Callable[[str], None]) -> None:
        """Say, at the end of the run, that there is no dump because nothing overflowed."""
        if self.steps and not self.found:
            counted = "1 step" if self.steps == 1 else f"{self.steps} steps"
            tell(f"no call overflowed in {counted}; overflow_check leaves no dump of them")


def looking_at_both_sides(config: Config) -> Config:
    """Return a configuration that records inputs and outputs: an overflow shows only in both."""
    directions = tuple(mode for mode in config.data_mode if mode in ("forward", "backward"))
    return replace(config, data_mode=directions or ("all",))


class _Candidate(NamedTuple):
    call: CallRecord
    stack: tuple[Frame, ...]
    parent: str | None
    statistics: int
    checksums: int
    held: tuple[HeldDraft, ...]
    nbytes: int
    # How many of the held ones went in; they come first.
    inputs: int


class OverflowRecorder(Recorder):
    """Records what overflows in one step of one rank.

    Args:
        config: the configuration.
        writer: of the dump.
        info: what the dump is.
        tell: says something to the user.
        transport: brings data to the disk.
        count: of the overflows of the whole run.
        counters: of the calls of this step so far.
    """

    def __init__(
        self,
        config: Config,
        writer: DumpWriter,
        info: DumpInfo,
        tell: Callable[[str], None],
        transport: TensorTransport,
        count: OverflowCount,
        counters: dict[str, itertools.count[int]] | None = None,
    ) -> None:
        super().__init__(config, writer, info, tell, transport, counters)
        self._count = count
        self._budget = config.memory_budget << 20
        self._line: deque[_Candidate] = deque()
        self._held_bytes = 0
        # By the beginning of their memory: those that wait on a device.
        self._held_at: dict[int, list[HeldDraft]] = {}
        self._writing = WritingCalls()
        # Modules whose backward was given something that is not finite, and gradients of
        # parameters that are not finite, of modules whose backward is not known yet.
        self._poisoned: set[tuple[str, str]] = set()
        self._undecided: dict[tuple[str, str], list[_Candidate]] = {}
        # Forward calls, by the names of their backward calls, the oldest first.
        self._forwards: dict[str, _Candidate] = {}
        self._forward_bytes = 0

    # Values need their names, which a recorder that keeps no data may do without.

    def draft(self, value: Any, name: str) -> Drafted:
        """Describe one value."""
        with self._lock:
            return describe(value, self._draft_tensor, (name,))

    def draft_all(self, values: Iterable[Any], name: str) -> tuple[Drafted, ...]:
        """Describe positional values; nothing once the search has ended."""
        if self._count.is_spent:
            return ()
        with self._lock:
            draft = self._draft_tensor
            return tuple([describe(value, draft, (name, str(i))) for i, value in enumerate(values)])

    def draft_named(self, values: Mapping[str, Any], name: str) -> dict[str, Drafted]:
        """Describe named values; nothing once the search has ended."""
        if self._count.is_spent:
            return {}
        with self._lock:
            draft = self._draft_tensor
            return {key: describe(value, draft, (name, key)) for key, value in values.items()}

    def begin(self, name: str, stack: tuple[Frame, ...]) -> None:
        """Note nothing: most calls get no record, and a step without one no folder."""

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
        """Put one call at the end of the line of those that may have overflowed."""
        with self._lock:
            if self._pending:
                # An overflow whose data were on their way; a run that overflows may soon end.
                self._data.poll()
                self._write_ready()
            if self._count.is_spent:
                return
            call = CallRecord(
                name, inputs, kwargs, outputs, parameters, saved, is_recompute, defaults
            )
            given = tuple(held_in((*(inputs or ()), *(kwargs or {}).values())))
            if any(draft.is_overwritten for draft in given):
                self._writing.learn(name)
            held = (*given, *held_in((*(parameters or {}).values(), *(outputs or ()))))
            nbytes = sum([draft.nbytes for draft in held])
            candidate = _Candidate(
                call,
                stack,
                parent,
                self._statistics.asked,
                self._checksums.asked,
                held,
                nbytes,
                len(given),
            )
            if not self._line and self._is_known(candidate):
                self._decide(candidate)
                return
            self._wait_in_line(candidate)

    def flush(self) -> None:
        """Fetch all numbers, and write every overflow with its data."""
        with self._lock:
            while self._statistics.fetch():
                self._decide_known()
            while self._checksums.fetch():
                pass
            self._decide_known()
            undecided, self._undecided = self._undecided, {}
            for candidates in undecided.values():
                for candidate in candidates:
                    self._record(candidate)
            self._poisoned.clear()
            while self._forwards:
                self._forget_forward(next(iter(self._forwards)))
            super().flush()

    # --- waiting -----------------------------------------------------------------------------

    def _wait_in_line(self, candidate: _Candidate) -> None:
        self._line.append(candidate)
        self._held_bytes += candidate.nbytes
        for draft in candidate.held:
            if (address := draft.address) is not None:
                self._held_at.setdefault(address, []).append(draft)
        if self._held_bytes > self._budget // 2:
            self._statistics.send()
        elif len(self._line) % _MANY:
            return
        self._statistics.poll()
        self._checksums.poll()
        self._decide_known()
        while self._held_bytes > self._budget and self._statistics.fetch():
            self._decide_known()

    def _is_known(self, candidate: _Candidate) -> bool:
        return (
            candidate.statistics <= self._statistics.delivered
            and candidate.checksums <= self._checksums.delivered
        )

    def _decide_known(self) -> None:
        while self._line and self._is_known(self._line[0]):
            candidate = self._line.popleft()
            self._held_bytes -= candidate.nbytes
            for draft in candidate.held:
                if (address := draft.address) is not None and address in self._held_at:
                    # Those of later calls at the same place stay.
                    there = [other for other in self._held_at.pop(address) if other is not draft]
                    if there:
                        self._held_at[address] = there
            self._decide(candidate)
        if not self._line:
            self._held_at.clear()

    # --- deciding ----------------------------------------------------------------------------

    def _decide(self, candidate: _Candidate) -> None:
        call = candidate.call
        if self._count.is_spent:
            _let_go(candidate)
        elif is_parameter_gradients(call.name):
            self._decide_gradients(candidate)
        else:
            if call.inputs is not None and call.name.startswith("Module."):
                self._note_module(call)
            forward = self._forget_forward(call.name)
            if _has_overflowed(call):
                if forward is not None and not self._count.is_spent:
                    self._write(forward)
                self._record(candidate)
            elif not self._keep_forward(candidate):
                _let_go(candidate)
            if forward is not None:
                _let_go(forward)

    def _decide_gradients(self, candidate: _Candidate) -> None:
        """Record gradients of parameters that are not finite, if their module made them so."""
        gradients = (candidate.call.parameters or {}).values()
        owner = _module_of(candidate.call.name)
        if not any(map(is_nonfinite, _extents(gradients))) or owner in self._poisoned:
            _let_go(candidate)
        else:
            # What the module's backward was given is perhaps still on its way.
            self._undecided.setdefault(owner, []).append(candidate)

    def _note_module(self, call: CallRecord) -> None:
        name = parse_call(call.name)
        if not isinstance(name, ModuleCall) or name.direction == "forward":
            return
        owner = (name.path, name.class_name)
        is_poisoned = any(map(is_nonfinite, _extents(call.inputs or ())))
        if is_poisoned:
            self._poisoned.add(owner)
        for candidate in self._undecided.pop(owner, ()):
            if is_poisoned:
                _let_go(candidate)
            else:
                self._record(candidate)

    def _record(self, candidate: _Candidate) -> None:
        if self._count.is_spent:
            _let_go(candidate)
            return
        self._count.found += 1
        self._write(candidate)
        if self._count.is_spent:
            self._tell(
                f"{candidate.call.name} is overflow number {self._count.found}, the last that is "
                "recorded (overflow_nums); the run goes on"
            )

    def _write(self, candidate: _Candidate) -> None:
        """Write a call with the data that are still held."""
        call = candidate.call
        for draft in candidate.held:
            tensor = draft.held
            if tensor is not None:
                draft.file = self._data.keep(tensor, draft.name)
            elif draft.is_overwritten:
                self._writer.note(
                    f"the data of {draft.name} were overwritten before they were kept"
                )
        _let_go(candidate)
        super().add(
            call.name,
            inputs=call.inputs,
            kwargs=call.kwargs,
            outputs=call.outputs,
            parameters=call.parameters,
            saved=call.saved,
            is_recompute=call.is_recompute,
            stack=candidate.stack,
            parent=candidate.parent,
        )

    def _keep_forward(self, candidate: _Candidate) -> bool:
        """Hold the inputs of a forward call until its backward is decided, if there is room."""
        name = candidate.call.name
        given = candidate.held[: candidate.inputs]
        is_api = name.endswith(".forward") and not name.startswith("Module.")
        if not is_api or self._info.level == "L2" or not any(d.requires_grad for d in given):
            return False
        for draft in candidate.held[candidate.inputs :]:
            draft.let_go()
        candidate = candidate._replace(held=given, nbytes=sum([draft.nbytes for draft in given]))
        if candidate.nbytes > self._budget:
            return False
        self._forwards[backward_of(name)] = candidate
        self._forward_bytes += candidate.nbytes
        while self._forward_bytes > self._budget:
            oldest = self._forget_forward(next(iter(self._forwards)))
            if oldest is not None:
                _let_go(oldest)
        return True

    def _forget_forward(self, backward: str) -> _Candidate | None:
        forward = self._forwards.pop(backward, None)
        if forward is not None:
            self._forward_bytes -= forward.nbytes
        return forward

    # --- drafting ----------------------------------------------------------------------------

    def _draft_tensor(self, tensor: torch.Tensor, path: tuple[str, ...]) -> Drafted:
        if count_dispatch_modes() or is_transforming():
            with without_dispatch_modes(), without_transforms():
                return self._draft_tensor(tensor, path)
        known = self._drafts.find(tensor)
        if known is not None:
            numbers = known.measured, known.checked
        elif not is_plain(tensor):
            return describe_unusual(tensor, self._draft_tensor, path)
        else:
            numbers = self._drafts.find_numbers(tensor) or self._measure(tensor)
            # Not the held one, which would outlive its call in the table.
            self._drafts.keep(tensor, PendingTensor(tensor, *numbers))
        call, _, section = path[0].rpartition(".")
        if section not in ("input", "kwargs"):
            return HeldDraft(tensor, numbers, ".".join(path), copies=False)
        is_out = section == "kwargs" and path[1] == "out"
        will_change = not is_out and self._writing.may_write(call, tensor)
        draft = HeldDraft(tensor, numbers, ".".join(path), copies=will_change)
        if is_out:
            draft.hold_whatever_comes()
        if (will_change or is_out) and self._held_at:
            self._copy_held(tensor)
        return draft

    def _copy_held(self, tensor: torch.Tensor) -> None:
        """Copy what waits in line of the memory that a tensor shows: it is going to change."""
        for draft in self._held_at.pop(tensor.untyped_storage().data_ptr(), ()):
            draft.copy()


def _let_go(candidate: _Candidate) -> None:
    for draft in candidate.held:
        draft.let_go()


def _module_of(name: str) -> tuple[str, str]:
    gradients = parse_call(name)
    assert isinstance(gradients, ParameterGradients)
    return gradients.path, gradients.class_name


def _has_overflowed(call: CallRecord) -> bool:
    outputs = list(_extents(call.outputs or ()))
    # Almost always it ends here.
    if find_overflow((), outputs) is None or not can_overflow(call.name):
        return False
    passed_over = overwritten_places(call.name)
    given = [v for i, v in enumerate(call.inputs or ()) if f"input.{i}" not in passed_over]
    given += [v for k, v in (call.kwargs or {}).items() if f"kwargs.{k}" not in passed_over]
    given += (call.parameters or {}).values()
    return find_overflow(_extents(given), outputs) is not None


def _extents(values: Iterable[Drafted]) -> Iterator[Extent]:
    for value in values:
        if isinstance(value, ScalarValue):
            if isinstance(value.value, (int, float)):
                yield Extent(value.type_name, value.value, value.value)
        elif isinstance(value, ListValue):
            yield from _extents(value.items)
        elif isinstance(value, DictValue):
            yield from _extents(item for _, item in value.items)
        else:
            for draft in held_in((value,)):
                numbers = draft.measured.numbers
                assert numbers is not None, "delivered before"
                yield Extent(str(draft.dtype), numbers[0], numbers[1])
