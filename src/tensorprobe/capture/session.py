"""One step of one rank: the watchers that are on, and the recorder they feed.

Past 500 lines, as all watchers ask here what is wanted and what is recorded of a call.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from tensorprobe.capture.apis import Api, ApiTable
from tensorprobe.capture.collectives import CollectiveWatcher
from tensorprobe.capture.dataloader import NO_CALLS
from tensorprobe.capture.describe import tensors_in, values_of
from tensorprobe.capture.fast_paths import FastPathGuard
from tensorprobe.capture.fast_recorder import make_fast_recorder
from tensorprobe.capture.filters import CallFilter
from tensorprobe.capture.functions import FunctionWatcher
from tensorprobe.capture.gc_pace import GcPace
from tensorprobe.capture.gradients import GradientWatcher
from tensorprobe.capture.graph_edges import InputEdges, input_edges, next_sequence_number
from tensorprobe.capture.kernels import KernelWatcher
from tensorprobe.capture.mode_places import (
    insert_dispatch_mode,
    insert_function_mode,
    remove_dispatch_mode,
    remove_function_mode,
)
from tensorprobe.capture.modules import ModuleWatcher
from tensorprobe.capture.named_models import Models, ModuleNames
from tensorprobe.capture.notices import no_dump_notice, no_listed_call_notice
from tensorprobe.capture.overflows import OverflowCount, OverflowRecorder, looking_at_both_sides
from tensorprobe.capture.process import device_names
from tensorprobe.capture.raised import add_raised
from tensorprobe.capture.ranks import RankSearch
from tensorprobe.capture.recomputation import Recomputation
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.saved import SavedValues
from tensorprobe.capture.single_module import ModuleDump
from tensorprobe.capture.stacks import StackReader
from tensorprobe.capture.swaps import SwapGuard
from tensorprobe.capture.torch_compile import CompiledRegions
from tensorprobe.capture.traces import TraceGuard
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.capture.written import written_tensors
from tensorprobe.config import Config
from tensorprobe.names import backward_of
from tensorprobe.records import DumpInfo, Frame
from tensorprobe.store.run_folders import RunFolders
from tensorprobe.store.unfinished import Finisher
from tensorprobe.store.writer import DumpWriter
from tensorprobe.system.extensions import is_turned_off
from tensorprobe.system.interrupts import uninterrupted

__all__ = ["Session"]


class Session:
    """Captures one step; `open` and `close` may alternate, `finish` publishes the dump."""

    def __init__(
        self,
        config: Config,
        apis: ApiTable,
        *,
        step: int,
        rank: int | None,
        run: str | None = None,
        run_folders: RunFolders | None = None,
        tell: Callable[[str], None],
        transport: TensorTransport,
        tell_once: Callable[[str], None] | None = None,
        overflows: OverflowCount | None = None,
        finisher: Finisher | None = None,
        is_first: bool = True,
        counters: dict[str, itertools.count[int]] | None = None,
        on_published: Callable[[Path, DumpInfo], None] = lambda folder, info: None,
    ) -> None:
        if overflows is not None:
            overflows.steps += 1
            config = looking_at_both_sides(config)
        info = DumpInfo(
            rank=rank,
            step=step,
            task=config.task,
            level=config.level,
            torch_version=torch.__version__,
            python_version=sys.version.split()[0],
            devices=device_names(),
            run=run,
        )
        self.config = config
        self.apis = apis
        self._rank = RankSearch(config, step=step, rank=rank)
        self._tell = tell
        # For what holds for the whole run, not for this step alone.
        self.tell_once = tell_once or tell
        # A device waits for the host when a step begins. The first tells whether there is a folder.
        self._writer = DumpWriter(
            self._rank.begun,
            info,
            file_format=config.file_format,
            on_trouble=tell,
            opens_late=not is_first,
            on_refusal=lambda why: self.tell_once(no_dump_notice(config.dump_path, why)),
            run_folders=run_folders,
        )
        self._transport = transport
        self._overflows = overflows
        # A search for overflows counts what it finds, so that its steps end one by one.
        self._finisher = finisher if overflows is None else None
        self._is_left_to_finisher = False
        self._on_published = on_published
        self.recorder = (
            Recorder(config, self._writer, info, tell, transport, counters)
            if overflows is None
            else OverflowRecorder(config, self._writer, info, tell, transport, overflows, counters)
        )
        self._stacks = StackReader()
        self.recomputation = Recomputation()
        self._functions: FunctionWatcher | None = None
        self._fast_paths: FastPathGuard | None = None
        self._modules: ModuleWatcher | None = None
        # Of the whole step, however often the watchers are turned on in it.
        self._module_names = ModuleNames()
        self._gradients: GradientWatcher | None = None
        self._collectives: CollectiveWatcher | None = None
        self._kernels: KernelWatcher | None = None
        self._compiled: CompiledRegions | None = None
        self._traces: TraceGuard | None = None
        self._info = info
        self.calls = CallFilter(config)
        self.recorder.keeps_data = self.calls.keeps_data
        self.module_dump = ModuleDump(self)
        self._swaps = SwapGuard(self.recorder, self.module_dump)
        # Whether nothing is recorded now but what a module_dump asked for.
        self.is_paused = False
        self._inside_custom: set[int] = set()
        # Asked for every call, so they are looked up once.
        self._wanted = {way: self.calls.wants_direction(way) for way in ("forward", "backward")}
        self._with_inputs = self.calls.wants_part("forward", "input")
        self._with_outputs = self.calls.wants_part("forward", "output")
        self._with_gradients_in = self.calls.wants_part("backward", "input")
        self._with_gradients_out = self.calls.wants_part("backward", "output")
        self._saved: SavedValues | None = None
        self._collector = GcPace()
        self._saved_recorder = self.recorder

    def open(self, models: Models) -> None:
        """Turn the watchers on."""
        level = self.config.level
        self._collector.open()
        keeps_tensors = self.recorder.keeps_data is not None
        self._gradients = GradientWatcher(self.recorder.fail, keeps_tensors=keeps_tensors)
        if level in ("L0", "mix"):
            self._module_names.add(models)
            self._modules = ModuleWatcher(self, self._module_names, is_recording=True)
        if level in ("L1", "L2", "mix"):
            self._functions = FunctionWatcher(self)
            insert_function_mode(self._functions)
            self._fast_paths = FastPathGuard(self._functions)
            self._fast_paths.open()
        if level in ("L1", "mix"):
            self._collectives = CollectiveWatcher(self)
            self._collectives.open()
        if level == "L2":
            self._kernels = KernelWatcher(self)
            insert_dispatch_mode(self._kernels)
        self._open_fast_recorder()
        self._swaps.open(self._modules)
        self._rank.open()
        if self._modules is not None:
            self._modules.open(
                None if is_turned_off("capture._modules") else self.recorder.fast_recorder
            )
        self._compiled = CompiledRegions(self, self._functions, self._collectives)
        self._compiled.open()
        self._traces = TraceGuard(self, self._functions, self._kernels)
        self._traces.open()

    def _open_fast_recorder(self) -> None:
        """Leave usual calls to compiled code, where there is some and all calls are wanted."""
        fast_recorder = None if self._kernels is not None else make_fast_recorder(self)
        if fast_recorder is None or self._gradients is None:
            return
        self.recorder.fast_recorder = fast_recorder
        if not is_turned_off("capture._gradients"):
            self._gradients.fast_recorder = fast_recorder
        if self._functions is not None:
            self._functions.open_fast_recorder(fast_recorder)

    def close(self) -> None:
        """Turn the watchers off; nothing of them stays behind."""
        self._shut()
        self._do_or_leave("stop", self._flush)

    def _flush(self) -> None:
        try:
            self.recorder.flush()
        finally:
            # Only when the records are written: before, the collector would search through them.
            self._collector.close()

    @uninterrupted()
    def _shut(self) -> None:
        try:
            self._close_watchers()
            if not self._is_left_to_finisher:
                self.recorder.send()
        except BaseException:
            self._collector.close()
            raise

    def _do_or_leave(self, what: str, work: Callable[[], None]) -> None:
        """Do some work now, or beside the run while records wait for a device."""
        self._is_left_to_finisher |= self.recorder.is_waiting
        if self._finisher is None or not self._is_left_to_finisher:
            work()
        else:
            self._finisher.do(lambda: self._try(what, work))

    def _try(self, what: str, work: Callable[[], None]) -> None:
        """Do some work beside the run, which must not notice its trouble."""
        try:
            work()
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self.recorder.fail(f"what was left to do at {what}()", err)

    def _close_watchers(self) -> None:
        for guard in (self._traces, self._compiled):
            if guard is not None:
                guard.close()
        self._traces = self._compiled = None
        if self._kernels is not None:
            self._kernels.retire()
            remove_dispatch_mode(self._kernels)
            self._kernels = None
        for watcher in (self._collectives, self._fast_paths):
            if watcher is not None:
                watcher.close()
        self._collectives = self._fast_paths = None
        if self._functions is not None:
            self._functions.retire()
            remove_function_mode(self._functions, is_retired=True)
            self._functions = None
        self.module_dump.close()
        if self._modules is not None:
            self._modules.close()
            self._modules.flush()
            self._modules = None
        self.recorder.fast_recorder = None
        if self._gradients is not None:
            self._gradients.close()
            if self._gradients.passed_over:
                self._tell(
                    f"{self._gradients.passed_over} calls were reached by a second backward pass; "
                    "only the first is recorded"
                )
            self._gradients = None
        if self._saved is not None:
            self._saved.close()
            self._saved_recorder.flush()
        self._swaps.close()
        self._rank.close()

    def finish(self, *, keeps_empty: bool = True) -> bool:
        """Close the watchers and publish the dump; returns whether there is one.

        While numbers are on their way from a device, it is published beside the run.

        Args:
            keeps_empty: whether a step in which nothing was recorded gets a dump.
        """
        self._shut()
        if self._overflows is not None:
            self.recorder.flush()
        # Most steps of a long search find nothing: they leave nothing behind.
        is_idle = self._overflows is not None and not self._writer.has_records
        is_empty = self._writer.is_empty and not self.recorder.has_pending
        if is_idle or (is_empty and not keeps_empty) or not self._rank.is_wanted:
            self._do_or_leave("step", self._throw_away)
            return False
        if (missing := self.calls.missing_end) is not None:
            self._tell(f"step {self._info.step}: {missing}")
        has_records = self._writer.has_records or self.recorder.has_pending
        if not has_records and (nothing_listed := no_listed_call_notice(self.config)):
            self.tell_once(nothing_listed)
        elif self.config.enable_dataloader and is_empty and not self.config.scope:
            self._tell(f"step {self._info.step}: {NO_CALLS}")
        self._do_or_leave("step", self._publish)
        return not self._writer.is_refused

    def _publish(self) -> None:
        self._flush()
        self._writer.close(move_to=self._rank.move_to)
        if not self._writer.is_refused:
            info = replace(self._info, rank=self._rank.rank)
            self._on_published(self._writer.folder, info)

    def _throw_away(self) -> None:
        self._flush()
        self._writer.discard()

    def save(self, variable: Any, name: str, *, with_gradients: bool) -> None:
        """Record a value that the user named."""
        if self.config.task == "structure":
            return
        if self._saved is None:
            if self.config.level != "debug":
                writer = self._writer.for_saved_values()
                info = replace(self._info, level="debug")
                self._saved_recorder = Recorder(
                    self.config, writer, info, self._tell, self._transport
                )
            self._saved = SavedValues(self._saved_recorder)
            self._swaps.open(recorder=self._saved_recorder)
            self._rank.open()
        self._saved.save(variable, name, with_gradients=with_gradients)

    # --- what the watchers ask ---------------------------------------------------------------

    def wants(self, name: str, direction: Literal["forward", "backward"]) -> bool:
        """Whether the filters let a call through that begins now or, backward, has come.

        Asking again gives the same answer until another call comes.
        """
        if self.calls.is_open and not self.is_paused and not self._inside_custom:
            return self._wanted[direction]
        if self.is_quiet and not name.startswith("Module."):
            return False
        if direction == "forward":
            return self.calls.enter(name)
        return self.calls.follow(name) and self.calls.reach(name)

    def wants_backward_alone(self, name: str) -> bool:
        """Whether the backward of a call is recorded though forward calls are not."""
        calls = self.calls
        return (
            not calls.wants_direction("forward")
            and not self.config.scope
            and calls.follow(backward_of(name))
        )

    def leave(self, name: str, parent: str | None) -> None:
        """Note that a module's call is over, recorded or not; `parent` is the one around it."""
        self._writer.place(name, parent)
        self.calls.leave(name)

    @property
    def is_quiet(self) -> bool:
        """Whether API calls are not to be seen now: another record stands for them."""
        return self.is_paused or (
            bool(self._inside_custom) and threading.get_ident() in self._inside_custom
        )

    @property
    def current_module(self) -> str | None:
        """The name of the module call that is running."""
        return None if (modules := self._modules) is None else modules.current

    def read_stack(self) -> tuple[Frame, ...]:
        """Return where the current call was made."""
        return self._stacks.read()

    def fast_path_bindings(self) -> dict[str, Any] | None:
        """Return what _fast_recorder.c does a usual call of this step with; None: by Python."""
        calls = self.calls
        whole = self._with_inputs and self._with_outputs
        whole = whole and self._with_gradients_in and self._with_gradients_out
        parts = self.recorder.fast_path_bindings() if calls.is_open and whole else None
        if parts is None or self._gradients is None:
            return None
        return {
            "session": self,
            "modules": self._modules,
            "inside_custom": self._inside_custom,
            "done": self._add_backward,
            **self._stacks.parts(),
            **self._gradients.parts(),
            **parts,
        }

    def watch_call(
        self,
        api: Api,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        spelled: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        is_sealed: bool = True,
    ) -> Any:
        """Record one API call around its execution.

        Args:
            api: its name.
            function: what runs.
            args: its arguments.
            kwargs: its named arguments.
            spelled: how its arguments are shown, if not so.
            is_sealed: whether nobody outside gets hold of a tensor from inside but what it returns.
        """
        if (self.is_paused or self._inside_custom) and self.is_quiet:
            result = function(*args, **kwargs)
            self.recorder.note_run(api)
            return result
        if self._kernels is not None:
            return self._kernels.follow_call(api, function, args, kwargs)
        recorder = self.recorder
        name = f"{api.full_name}.{recorder.next_number(api.full_name)}.forward"
        is_wanted = self.wants(name, "forward")
        shown, shown_by_name = spelled or (args, kwargs)
        inputs = named = edges = None
        given: list[torch.Tensor] = []
        start = 0
        stack: tuple[Frame, ...] = ()
        try:
            # The mode is on around a function of the user's own.
            with torch._C.DisableTorchFunction():
                if is_wanted and self._with_inputs:
                    inputs = recorder.draft_all(shown, f"{name}.input")
                    named = recorder.draft_named(shown_by_name, f"{name}.kwargs")
                if is_wanted:
                    recorder.begin(name, stack := self.read_stack())
                if torch.is_grad_enabled():
                    given = tensors_in(shown)
                    if shown_by_name:
                        given += tensors_in(shown_by_name)
                    edges = input_edges(given)
                    start = next_sequence_number()
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(name, err)
        try:
            result = function(*args, **kwargs)
        except Exception:
            recorder.note_run(api)
            add_raised(self, name, inputs, named)
            raise
        recorder.note_run(api)
        # An in-place operator written as a statement returns its left side.
        values = values_of(result)
        try:
            with torch._C.DisableTorchFunction():
                parent = self.current_module
                if is_wanted:
                    outputs = None
                    if self._with_outputs:
                        outputs = recorder.draft_all(values, f"{name}.output")
                    recorder.add(
                        name,
                        inputs=inputs,
                        kwargs=named,
                        outputs=outputs,
                        is_recompute=self.recomputation.is_running(),
                        stack=stack,
                        parent=parent,
                    )
                else:
                    self._writer.place(name, parent)
                if edges is not None:
                    tensors = [result] if type(result) is torch.Tensor else tensors_in(result)
                    tensors = tensors or written_tensors(given, start)
                    self.watch_gradients(name, edges, start, tensors, parent, is_sealed=is_sealed)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(name, err)
        return result

    def watch_custom_call(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record one call of a function of the user's own; calls inside it are part of it."""
        if self.is_quiet:
            return function(*args, **kwargs)
        thread = threading.get_ident()

        def run(*args: Any, **kwargs: Any) -> Any:
            self._inside_custom.add(thread)
            try:
                return function(*args, **kwargs)
            finally:
                self._inside_custom.discard(thread)

        return self.watch_call(api, run, args, kwargs, is_sealed=False)

    def watch_gradients(
        self,
        name: str,
        edges: InputEdges,
        start: int,
        outputs: list[torch.Tensor],
        parent: str | None,
        **how: bool,
    ) -> None:
        """Record the backward of a call when it happens; `how` is for `GradientWatcher.watch`."""
        backward = backward_of(name)
        if (gradients := self._gradients) is not None and self.calls.follow(backward):
            gradients.watch(backward, parent, edges, start, outputs, self._add_backward, **how)

    def _add_backward(
        self,
        name: str,
        parent: str | None,
        of_outputs: list[torch.Tensor | None],
        of_inputs: list[torch.Tensor | None],
    ) -> None:
        if not self.calls.reach(name):
            return
        recorder = self.recorder
        into = out = None
        if self._with_gradients_in:
            into = recorder.draft_all(of_outputs, f"{name}.input")
        if self._with_gradients_out:
            out = recorder.draft_all(of_inputs, f"{name}.output")
        above = None if parent is None else backward_of(parent)
        recorder.add(name, inputs=into, outputs=out, parent=above)
