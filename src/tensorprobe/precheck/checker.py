"""Check the calls of one rank's dump, each by its name: where the data come from and go to.

name ─► record and backward record ─► inputs, real or random ─► check_call ─► CallResult
                                 └► files of the next call, read while this one is checked
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from tensorprobe.errors import DumpError, RebuildError
from tensorprobe.names import ApiCall
from tensorprobe.precheck.check import check_call
from tensorprobe.precheck.checked_call import CheckedCall, CheckedOutput
from tensorprobe.precheck.columns import metric_cells
from tensorprobe.precheck.judge import Judgement
from tensorprobe.precheck.older_rule import worst_older_verdict
from tensorprobe.precheck.outcome import CallResult, OutputRow
from tensorprobe.precheck.repro import save_error
from tensorprobe.records import CallRecord, TensorValue, Value
from tensorprobe.replay.both_sides import BothSides, Repetition
from tensorprobe.replay.functions import parse_api_call
from tensorprobe.replay.random_inputs import make_inputs, make_like, seed_of
from tensorprobe.replay.rebuild import load_tensor
from tensorprobe.replay.recorded import tensor_values
from tensorprobe.replay.side import Side
from tensorprobe.replay.stopwatch import Stopwatch
from tensorprobe.store.dump import RankDump
from tensorprobe.system.thread_pool import Pending, ThreadPool

__all__ = ["Checker", "DataChoice", "PreparedCall"]

# A thread is told to read tensors of so many elements.
_LARGE = 1 << 18

DataChoice = Literal["real", "random", "auto"]


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks calls of one part of a dump.

    Attributes:
        part: the calls.
        device: where the candidate runs.
        data: real data, random data, or real where there are some.
        seed: of everything random.
        save_errors: the folder that failing calls are kept in; None for none.
        imports: the modules that were imported first, for the scripts in that folder.
    """

    part: RankDump
    device: torch.device
    data: DataChoice = "auto"
    seed: int = 1234
    save_errors: Path | None = None
    imports: tuple[str, ...] = ()

    def prepare(self, name: str) -> PreparedCall:
        """Read what was recorded of a call, but not its data."""
        watch = Stopwatch()
        record = self.part.try_call(name)
        if record is None:
            return PreparedCall(name, watch, "the record of the call cannot be read")
        try:
            source = _Source(self, record, parse_api_call(name))
        except RebuildError as err:
            return PreparedCall(name, watch, str(err))
        watch.stop()
        return PreparedCall(name, watch, "", source)

    def check(self, call: str | PreparedCall) -> CallResult:
        """Check one call; whatever goes wrong is its verdict."""
        prepared = self.prepare(call) if isinstance(call, str) else call
        name, source = prepared.name, prepared.source
        if source is None:
            return CallResult(name, "SKIP", message=prepared.problem)
        prepared.watch.resume()
        with warnings.catch_warnings():
            # What torch says of a function is for those who wrote the call.
            warnings.simplefilter("ignore")
            checked = check_call(
                source.record,
                source.call,
                source.inputs,
                source.gradients,
                device=self.device,
                seed=source.seed,
                watch=prepared.watch,
            )
        if self.save_errors is not None and "error" in (checked.forward, checked.backward):
            checked = self._save(name, checked)
        return _result_of(name, source.call, checked, source.note)

    def keep(self, prepared: PreparedCall, loss: str) -> CallResult:
        """Keep a call that ended its process, without making it again; that is its verdict.

        Args:
            prepared: the call.
            loss: what became of the process.
        """
        checked = CheckedCall("error", message=loss)
        source = prepared.source
        if source is not None and self.save_errors is not None:
            try:
                repetition = source.as_recorded()
            except Exception as err:  # noqa: BLE001 - the verdict stands, whatever this is
                checked = replace(checked, message=f"{loss}; it could not be saved: {err}")
            else:
                kept = replace(checked, repetition=repetition, was_lost=True)
                checked = self._save(prepared.name, kept)
        return CallResult(prepared.name, "error", message=checked.message, excess=float("inf"))

    def _save(self, name: str, checked: CheckedCall) -> CheckedCall:
        assert self.save_errors is not None
        try:
            folder = save_error(
                self.save_errors,
                name,
                checked,
                device=self.device,
                imports=self.imports,
            )
        except Exception as err:  # noqa: BLE001 - the verdict stands, whatever this is
            note = f"it could not be saved: {err}"
        else:
            note = f"saved in {folder}"
        return replace(checked, message=f"{checked.message}; {note}")


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that is to be checked next.

    Attributes:
        name: in the dump.
        watch: has taken the time to prepare it.
        problem: why it cannot be checked; blank if it can.
        source: where its tensors come from.
    """

    name: str
    watch: Stopwatch
    problem: str
    source: _Source | None = None

    def read_ahead(self, pool: ThreadPool) -> None:
        """Let a thread read the files, where that takes longer than telling it to."""
        if self.source is not None:
            self.source.read_ahead(pool)


class _Source:
    """Where the tensors of one call come from."""

    def __init__(self, checker: Checker, record: CallRecord, call: ApiCall) -> None:
        self._checker = checker
        self.record = record
        self.call = call
        self._values = tensor_values(record)
        has_data = all(value.data_name is not None or not _size(value) for value in self._values)
        self._is_real = checker.data == "real" or (checker.data == "auto" and has_data)
        # Each has numbers of its own: what a call draws must not resemble what it is given.
        self.seed = seed_of(checker.seed, f"{call} draws")
        self._input_seed = seed_of(checker.seed, str(call))
        self._gradient_seed = seed_of(checker.seed, f"{call} gradients")
        is_fallback = checker.data == "auto" and not has_data and checker.part.info.task == "tensor"
        self.note = "some data are missing, so all are random" if is_fallback else ""
        self._sent = self._recorded_gradients() if self._is_real else ()
        # Tensors that a thread reads, by the identity of their values; each is taken once.
        self._ahead: dict[int, Pending[torch.Tensor]] = {}

    def read_ahead(self, pool: ThreadPool) -> None:
        if not self._is_real:
            return
        for value in (*self._values, *self._sent):
            if isinstance(value, TensorValue) and _size(value) >= _LARGE:
                self._ahead[id(value)] = pool.submit(self._read, value)

    def _load(self, value: TensorValue) -> torch.Tensor:
        waiting = self._ahead.pop(id(value), None)
        return self._read(value) if waiting is None else waiting.result()

    def _read(self, value: TensorValue) -> torch.Tensor:
        return load_tensor(self._checker.part, value)

    def inputs(self) -> Sequence[torch.Tensor]:
        if not self._is_real:
            return make_inputs(self.call, self._values, self._input_seed)
        return [
            self._load(value)
            if value.data_name is not None or _size(value)
            else make_inputs(self.call, [value], 0)[0]
            for value in self._values
        ]

    def gradients(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        """Return recorded gradients where there are some that fit, else random ones."""
        recorded = self._sent
        if len(recorded) != len(outputs) or not any(recorded):
            return make_like(outputs, self._gradient_seed)
        found: list[torch.Tensor | None] = []
        for index, (value, output) in enumerate(zip(recorded, outputs, strict=True)):
            if not isinstance(value, TensorValue):
                # None arrived there.
                found.append(None)
                continue
            try:
                gradient = self._load(value)
            except RebuildError:
                gradient = None
            if gradient is None or gradient.shape != output.shape:
                found.extend(make_like([output], self._gradient_seed + index))
            else:
                found.append(gradient.to(output.dtype))
        return found

    def as_recorded(self) -> Repetition:
        """Return the call with the recorded gradients of its outputs; nothing is run."""
        cpu = torch.device("cpu")
        sides = BothSides.of_record(
            self.record, self.call, self.inputs, self.gradients, cpu, self.seed
        )
        sides.sent = tuple(
            self._load(value) if isinstance(value, TensorValue) and value.data_name else None
            for value in self._sent
        )
        sides.take_candidate(Side([]))
        return sides.repetition()

    def _recorded_gradients(self) -> tuple[Value, ...]:
        name = str(replace(self.call, direction="backward"))
        part = self._checker.part
        if self.call.direction == "backward" or name not in part:
            return ()
        try:
            return part.call(name).inputs or ()
        except DumpError:
            return ()


def _size(value: TensorValue) -> int:
    return math.prod(value.shape)


def _result_of(name: str, call: ApiCall, checked: CheckedCall, note: str) -> CallResult:
    rows = tuple(_row_of(call, output) for output in checked.outputs)
    excess = max((output.judgement.excess for output in checked.outputs), default=0.0)
    return CallResult(
        name,
        checked.forward,
        checked.backward or "",
        "; ".join(text for text in (checked.message, note) if text),
        rows,
        excess,
        checked.device_seconds,
        checked.reference_seconds,
        dict(checked.phases),
        older_forward=_older_of(checked, "forward"),
        older_backward=_older_of(checked, "backward"),
    )


def _older_of(checked: CheckedCall, direction: str) -> str:
    """Return what the older rule says of a call one way: the worst of its outputs there."""
    outputs = [output for output in checked.outputs if output.place.startswith(direction)]
    return worst_older_verdict(output.judgement.older for output in outputs) or ""


def _row_of(call: ApiCall, output: CheckedOutput) -> OutputRow:
    judgement: Judgement = output.judgement
    place = output.place
    if call.direction == "backward":
        # An operator of the backward pass, made as a call of its own.
        place = place.replace("forward", "backward", 1)
    shown = output.candidate if output.candidate is not None else output.reference
    return OutputRow(
        f"{call.api_type}.{call.api_name}.{call.number}.{place}",
        "" if output.reference is None else str(output.reference.dtype),
        "" if output.candidate is None else str(output.candidate.dtype),
        "" if shown is None else str(tuple(shown.shape)),
        metric_cells(judgement),
        judgement.verdict,
        judgement.message,
    )
