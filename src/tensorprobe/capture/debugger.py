"""The user's front: PrecisionDebugger.

    PrecisionDebugger ─► which steps and ranks ─► Session, one per captured step
         ▲ start, stop, step, by hand, by a DataLoader's iterations or by an optimizer's steps

What a user does wrong is told in a warning; a wrong configuration is an error at the beginning.
Past 500 lines, as everything that a user calls changes one and the same state, with what the front
ends of older tools do otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import torch

from tensorprobe.capture.api_list import ApiList, edited_list
from tensorprobe.capture.apis import Api, ApiTable, as_in_dump
from tensorprobe.capture.config_file import ConfigFile
from tensorprobe.capture.current import OnClassToo, current_debugger, make_current
from tensorprobe.capture.custom_apis import CustomApis
from tensorprobe.capture.dataloader import NO_BATCHES, DataLoaderWatcher
from tensorprobe.capture.filters import CallFilter
from tensorprobe.capture.mode_places import end_removals, is_in_backward_pass
from tensorprobe.capture.named_models import named_models
from tensorprobe.capture.notices import Notices, steps_left_notice
from tensorprobe.capture.overflows import OverflowCount
from tensorprobe.capture.process import current_rank
from tensorprobe.capture.service import Service, Settings
from tensorprobe.capture.session import Session
from tensorprobe.capture.token_range import TokenRange
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.config import DEFAULT_DUMP_PATH, Config, change_config
from tensorprobe.errors import ConfigError
from tensorprobe.records import DumpInfo
from tensorprobe.store.runs import Run
from tensorprobe.store.unfinished import Finisher
from tensorprobe.summary.statistics import release_tables
from tensorprobe.system.interrupts import is_raised_by_handler, uninterrupted

__all__ = ["PrecisionDebugger"]

_LOG = logging.getLogger("tensorprobe")
_TASKS = ("statistics", "tensor", "overflow_check", "structure")
# What is set up once, when the debugger is made.
_LASTING = ("enable_dataloader", "api_list", "add_apis", "skip_apis")


class PrecisionDebugger:
    """Captures the steps of a training run into a dump.

        debugger = PrecisionDebugger(dump_path="./dump", level="mix")
        for batch in loader:
            debugger.start(model)
            loss = model(batch)
            loss.backward()
            debugger.stop()
            optimizer.step()
            debugger.step()

    `start`, `stop`, `step`, `save` and the others also work on the class, from any file: they mean
    the debugger that was made last. As a context manager it captures the whole block, and `step`
    goes on to the next step without another `start`.

    Args:
        config_path: a config.json or YAML file; the other arguments win over it.
        task: statistics, tensor, overflow_check or structure.
        dump_path: where the dump goes, by default ./dump_path.
        level: L0 modules, L1 API calls, mix both, debug saved values alone.
        model: the model, or a list of them, to name modules by; `start` takes it too.
        step: the steps to capture; all by default.
        api_list: a YAML file with the functions to capture, a support_wrap_ops.yaml.

    Attributes:
        captured_steps: how many steps have been written so far.
        is_closed: whether the debugger has ended, at the end of the process or before a newer one.
        started_step: the step of the last `start`.
        config: the configuration that it was given, field by field.
        service: what programs for msprobe reach behind a debugger; `service.config.dump_path` may
            be set between `stop` and `start`.

    Raises:
        ConfigError: a value that cannot be used, or a model that is none.
    """

    captured_steps: int
    is_closed: bool
    started_step: int
    service: Service
    config: Settings
    given_config: Config
    # What raises at the end of a run that follows a DataLoader.
    tool_name: ClassVar[str] = "tensorprobe"
    # A folder whose support_wrap_ops.yaml counts as soon as somebody has edited it.
    list_folder: ClassVar[Path | None] = None
    # Of a debugger that was made of a whole configuration there is none.
    _file: ConfigFile | None = None

    def __init__(
        self,
        config_path: str | os.PathLike[str] | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike[str] | None = None,
        level: str | None = None,
        model: Any = None,
        step: Sequence[int | str] | int | str | None = None,
        *,
        api_list: str | os.PathLike[str] | None = None,
    ) -> None:
        given = {"task": task, "dump_path": dump_path, "level": level, "step": step}
        self._file = ConfigFile(config_path, {**given, "api_list": api_list})
        self._set_up(self._file.config, model)

    @classmethod
    def from_config(
        cls, config: Config, model: Any = None, *, file: ConfigFile | None = None
    ) -> PrecisionDebugger:
        """Make a debugger of a whole configuration, as `load_config` returns it.

        Args:
            config: what to capture; every field of it counts.
            model: as for the constructor.
            file: where it was read, if that is to be read again when it changes.
        """
        debugger = cls.__new__(cls)
        debugger._file = file
        debugger._set_up(config, model)
        return debugger

    def _set_up(self, config: Config, model: Any) -> None:
        self._config = self.given_config = _usable(config)
        self._models = named_models(model)
        for notice in config.notices:
            _LOG.warning("%s", notice)
        path = self.default_api_list() if config.api_list is None else config.api_list
        listed = None if path is None else ApiList(path, as_in_dump)
        self._list_notice = ""
        if listed is not None and config.api_list is None:
            self._list_notice = (
                f"{path} was edited, and counts: of the functions that tensorprobe knows "
                f"{listed.left_out} are left out"
            )
        self._apis = ApiTable(add=config.add_apis, skip=config.skip_apis, listed=listed)
        self._custom = CustomApis(self._apis, self._watch_custom)
        self._step = self.started_step = self._first_step = 0
        self._has_started = False
        self._session: Session | None = None
        # What it was made for; a change of that is one of the next dump.
        self._session_config = self._config
        self._counters: dict[str, itertools.count[int]] = {}
        # The folder and the step of the last dump that was begun.
        self._last_place: tuple[Path | None, int] | None = None
        self._rank_id: int | None = None
        self._tokens: TokenRange | None = None
        self.service = Service(self)
        self.config = Settings(self, is_given=True)
        self._overflows = OverflowCount.of(config)
        # Its buffers serve one step after the other.
        self._transport: TensorTransport | None = None
        self._finisher = Finisher()
        self._run = Run()
        self._is_started = False
        # Whether the session's watchers are on, and whose thread they belong to.
        self._opened_by: int | None = None
        self._due_steps: set[int] = set()
        self._notices = Notices()
        self._tell = self._notices.tell
        # In a `with` block a step begins where the one before has ended.
        self._keeps_going = False
        self._entered_at = self.captured_steps = 0
        self._is_held = self._is_abandoned = self._had_no_rank = self.is_closed = False
        if (before := current_debugger()) is not None and before is not self:
            before.close()
        make_current(self)
        atexit.register(self._close_at_exit)
        self._custom.add(config.add_apis)
        if listed is not None:
            self._custom.add_listed(listed.added)
        self._loader: DataLoaderWatcher | None = None
        if config.enable_dataloader:
            self._loader = DataLoaderWatcher(self._on_next_batch, self._start)
            self._loader.open()

    def default_api_list(self) -> Path | None:
        """Return the list of functions that counts where the configuration names none."""
        return None if self.list_folder is None else edited_list(self.list_folder)

    # --- what the user calls -----------------------------------------------------------------

    @OnClassToo
    def start(
        self,
        model: Any = None,
        token_range: Sequence[int] | None = None,
        rank_id: int | None = None,
        scheduled_tokens: Any = None,
    ) -> None:
        """Begin to capture; does nothing in a step or on a rank that is not wanted.

        Args:
            model: the model, or a list of them, that names modules from now on.
            token_range: the first and the last token of an inference to capture, [0, 2]: token 0
                is what the model's first call after this makes, with what follows it.
            rank_id: the rank of this process, where torch.distributed does not know it.
            scheduled_tokens: has no effect; requests of a batch are not told apart.

        Raises:
            ConfigError: the model is no nn.Module and no list of them, or the range or the rank
                cannot be meant.
        """
        if model is not None:
            self._models = named_models(model)
        tokens = None
        if token_range is not None:
            root = model if model is not None else [found for _, found in self._models]
            tokens = TokenRange(root, token_range, self._hold)
        if rank_id is not None:
            if type(rank_id) is not int or rank_id < 0:
                raise ConfigError(f"start: rank_id is {rank_id!r}, wanted a number from 0 on")
            self._rank_id = rank_id
        if scheduled_tokens is not None:
            self._tell("start: scheduled_tokens has no effect: whole batches are recorded")
        if self._may_act("start"):
            self._is_abandoned = False
            self.service.first_start = False
            if tokens is not None and not self._is_started:
                self._tokens = tokens
                tokens.open()
            self._start()

    @OnClassToo
    def stop(self) -> None:
        """End the capture until the next `start`."""
        if not self._may_act("stop"):
            return
        if not self._is_started:
            self._tell("stop() came without a start(); there is nothing to stop")
        elif self._is_in_own_thread("stop"):
            self._stop()
        self._catch_up()
        if self._is_watched:
            self._maybe_reload_config()

    @OnClassToo
    def step(self) -> None:
        """Go on to the next step; the dump of this one is complete."""
        if not self._may_act("step"):
            return
        task: int = torch._C._current_graph_task_id()
        if task != -1:
            self._due_steps.add(task)
            self._tell(
                "step() came inside a backward pass; the step ends with the next call after that "
                "pass; call step() after loss.backward()"
            )
            return
        self._catch_up()
        if self._is_in_own_thread("step"):
            self._next_step()
            if self._is_watched:
                self._maybe_reload_config()

    @OnClassToo
    def reset_status(self) -> None:
        """Count calls from 0 again; what is recorded from now on is a dump of its own.

        Where it goes into the same folder it replaces what this step has recorded so far.
        """
        if not self._may_act("reset_status") or not self._is_in_own_thread("reset_status"):
            return
        goes_on = self._is_started
        self._stop()
        self._finish_session()
        if goes_on:
            self._start()

    def change(self, **fields: Any) -> None:
        """Change fields of the configuration; they hold from the next `start` on.

        Args:
            **fields: such as `dump_path="stage_2"`.

        Raises:
            ConfigError: there is no such field, or a value is not allowed.
        """
        self._go_on_with(change_config(self._config, **fields))

    def change_given(self, **fields: Any) -> None:
        """Change fields of the configuration that the debugger was given, too.

        Raises:
            ConfigError: there is no such field, or a value is not allowed.
        """
        self.given_config = _usable(change_config(self.given_config, **fields))
        self.change(**fields)

    @OnClassToo
    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Save one value, nested or not, under a name, in debug.json.

        At level debug every save in a wanted step counts, started or not; at other levels those
        between `start` and `stop`.

        Args:
            variable: a tensor, a number, a text, or lists, tuples and dicts of them.
            name: the value's name; each use of it in a step gets a number.
            save_backward: whether its gradients are saved too, when they are computed.
        """
        if self.is_closed or self._is_abandoned:
            return
        if not isinstance(name, str) or not name:
            self._tell(f"save() got {name!r} for a name, wanted a text; nothing is saved")
            return
        self._catch_up()
        if self._config.level == "debug":
            session = self._wanted_session()
        else:
            session = None if self._opened_by is None else self._session
        if session is not None:
            session.save(variable, name, with_gradients=save_backward)

    @OnClassToo
    def begin_module_dump(self, module: torch.nn.Module, name: str) -> None:
        """Record one module alone, as `tensorprobe.module_dump` does."""
        if not self._is_started:
            self._tell("module_dump() came without a start(); nothing is recorded")
        elif self._session is not None and self._opened_by is not None:
            self._session.module_dump.begin(module, name)

    @OnClassToo
    def end_module_dump(self) -> None:
        """Record everything again."""
        if self._session is not None:
            self._session.module_dump.end()

    @OnClassToo
    def set_init_step(self, step: int) -> None:
        """Count steps from this number on; call it before the training loop.

        Raises:
            ConfigError: it is no number from 0 on.
        """
        if type(step) is not int or step < 0:
            raise ConfigError(f"set_init_step: {step!r} is no step, wanted a number from 0 on")
        if self._is_started:
            self._tell(
                "set_init_step() came between start() and stop() and is ignored; call it before "
                "the training loop"
            )
            return
        self._finish_session()
        self._step = self.started_step = self._first_step = step

    @OnClassToo
    def register_custom_api(self, module: Any, name: str, prefix: str | None = None) -> None:
        """Record the calls of a function of the user's own, at level L1 and mix.

        A function that torch does not tell about is replaced in its module until it is restored;
        code that imported it by its name before is not seen.

        Args:
            module: the module, class or object that holds the function.
            name: the function's name there.
            prefix: the first part of the recorded name, by default the module's name.

        Raises:
            ConfigError: there is no such function, or the prefix is no word.
        """
        self._custom.register(module, name, prefix)

    @OnClassToo
    def restore_custom_api(self, module: Any, name: str) -> None:
        """Undo `register_custom_api`.

        Raises:
            ConfigError: there is no such function.
        """
        if not self._custom.restore(module, name):
            self._tell(f"restore_custom_api: {name!r} is not registered; there is nothing to undo")

    @property
    def dump_path(self) -> Path:
        """Where the dump goes."""
        assert self._config.dump_path is not None
        return self._config.dump_path

    @property
    def current_config(self) -> Config:
        """What is captured, and where to."""
        return self._config

    @property
    def is_open_elsewhere(self) -> bool:
        """Whether it captures what another thread does, which alone can end that."""
        # torch keeps its modes per thread: only the thread that turned them on can turn them off.
        return self._opened_by not in (None, threading.get_ident())

    @property
    def is_held(self) -> bool:
        """Whether calls pass unseen for a while, as during the work of an optimizer."""
        return self._is_held

    @is_held.setter
    def is_held(self, is_held: bool) -> None:
        self._is_held = is_held
        if self._session is not None:
            self._session.is_paused = is_held

    def __enter__(self) -> PrecisionDebugger:
        self._entered_at = self._step
        # What follows a DataLoader starts with its first batch.
        if self._loader is None:
            self._keeps_going = True
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_started:
            self._stop()
        # After a step() inside the block, the last step may have begun for nothing.
        if self._finish_session(keeps_empty=self._step == self._entered_at):
            self._step += 1
        self._keeps_going = False
        self._finisher.wait()

    def close(self) -> None:
        """Finish the dump and undo everything; at the end of the process this happens by itself."""
        end_removals()
        if self.is_closed:
            return
        atexit.unregister(self._close_at_exit)
        if self._tokens is not None:
            self._tokens.close()
        self._is_started, self._tokens = False, None
        is_kept = self._finish_session(keeps_empty=not self._keeps_going)
        self._finisher.wait()
        self._release_memory()
        if steps_left := self._steps_left(is_kept):
            self._tell(steps_left)
        self._run.folders.release()
        if self._overflows is not None:
            self._overflows.tell_if_none(_LOG.warning)
        self.is_closed = True
        self._custom.close()
        if self._loader is not None:
            self._loader.close()

    @property
    def has_begun(self) -> bool:
        """Whether a step has come, wanted or not."""
        return self._has_started or self._step > self._first_step

    def _close_at_exit(self) -> None:
        if self._loader is not None and not self.has_begun and not self.is_closed:
            self._tell(NO_BATCHES)
        self.close()

    def _steps_left(self, is_kept: bool) -> str:
        """Return what to tell, as the capture ends, of wanted steps that have not come.

        Args:
            is_kept: whether the last step has a dump.
        """
        config, rank = self._config, self._own_rank()
        # One rank's word is enough, and what nobody has begun has no steps.
        is_told_here = config.wants_rank(rank) if config.rank else not rank
        if not is_told_here or not self.has_begun or self._is_abandoned:
            return ""
        # Behind the last step() one may have begun for nothing.
        is_last_begun = is_kept if self._keeps_going else self.started_step == self._step
        is_last_begun &= self._has_started
        left = [step for step in config.step if step >= self._step + is_last_begun]
        last = self._step if is_last_begun else self._step - 1
        return steps_left_notice(left, last, self.captured_steps) if left else ""

    # --- how a step goes ---------------------------------------------------------------------

    def _may_act(self, what: str) -> bool:
        """Whether a call by the user counts; if not, they are told why."""
        end_removals()
        if self.is_closed:
            self._tell(f"{what}() is ignored: this debugger is closed, or a newer one replaced it")
        elif self._loader is not None:
            self._tell(f"{what}() is ignored: enable_dataloader starts and stops by itself")
        else:
            return True
        return False

    def _is_in_own_thread(self, what: str) -> bool:
        if self.is_open_elsewhere:
            self._tell(f"{what}() is ignored: it came from another thread than start()")
        return not self.is_open_elsewhere

    def _catch_up(self) -> None:
        """Do what was asked for inside a backward pass, once that is over."""
        if not self._due_steps or is_in_backward_pass() or self.is_open_elsewhere:
            return
        due, self._due_steps = len(self._due_steps), set()
        for _ in range(due):
            self._next_step()

    @uninterrupted()
    def _start(self) -> None:
        self._catch_up()
        if is_in_backward_pass() and self._config.level in ("L1", "L2", "mix"):
            # torch takes modes off again that are put on here.
            self._tell("start() inside a backward pass is ignored; call it before the forward pass")
            return
        if self._is_started:
            self._tell("start() came twice without a stop() between; the second is ignored")
            return
        self._maybe_reload_config()
        if self._config.dump_enable is False:
            place = self._config.place_of("dump_enable")
            self._tell(f"{place} is false: nothing is captured until it is true")
        if self._list_notice:
            self._tell(self._list_notice)
        self._is_started = self._has_started = True
        self.started_step = self._step
        if self._config.level == "debug":
            return
        session = self._wanted_session()
        if session is not None:
            self._opened_by = threading.get_ident()
            with self._own_trouble("start"):
                session.open(self._models)

    def _stop(self) -> None:
        self._is_started = False
        tokens, self._tokens = self._tokens, None
        if tokens is not None:
            tokens.close()
        self._shut()

    def _shut(self) -> None:
        """Watch no longer."""
        if self._session is not None and self._opened_by is not None:
            self._opened_by = None
            with self._own_trouble("stop"):
                self._session.close()

    def _next_step(self) -> None:
        goes_on = self._keeps_going and self._is_started
        self._stop()
        self._finish_session()
        self._step += 1
        if goes_on:
            self._start()

    def _wanted_session(self) -> Session | None:
        """Return the session of this step, or None if the step or the rank is not wanted."""
        config = self._config
        if config.dump_enable is False:
            return None
        if self._opened_by is None and _dump_of(self._session_config) != _dump_of(config):
            # What comes now is another dump of the same step.
            self._finish_session(keeps_numbers=True)
        if self._session is None:
            rank = self._own_rank()
            counted = 0 if rank is None and self._had_no_rank else rank
            if not self._config.wants_step(self._step) or not self._config.wants_rank(counted):
                return None
            if self._overflows is not None and self._overflows.is_spent:
                return None
            is_first = self._transport is None or not (self.captured_steps or self._overflows)
            is_first |= self._session_config.dump_path != config.dump_path
            self._session_config = config
            if self._last_place == (place := (config.dump_path, self._step)):
                # What this one replaces must not be published after it.
                self._finisher.wait()
            self._last_place = place
            self._transport = self._transport or TensorTransport(self._config.memory_budget << 20)
            self._session = Session(
                self._config,
                self._apis,
                step=self._step,
                rank=rank,
                run=self._run.mark(self._config.dump_path, self._step, rank, self._tell),
                run_folders=self._run.folders,
                tell=self._notices.tell_of_step,
                tell_once=self._tell,
                transport=self._transport,
                overflows=self._overflows,
                finisher=self._finisher,
                is_first=is_first,  # until there is a dump
                counters=self._counters,
                on_published=self._after_dump,
            )
            self._session.is_paused = self._is_held
        return self._session

    @uninterrupted()
    def _finish_session(self, *, keeps_empty: bool = True, keeps_numbers: bool = False) -> bool:
        """Publish the dump of the current step; returns whether there is one."""
        session, self._session = self._session, None
        if not keeps_numbers:
            self._counters = {}
        self._opened_by, is_kept = None, False
        if session is None:
            return False
        with self._own_trouble("step"):
            is_kept = session.finish(keeps_empty=keeps_empty)
        self.captured_steps += is_kept
        # Then it is taken for the only process, until it gets a rank.
        self._had_no_rank |= not is_kept and self._own_rank() is None
        if not self._config.wants_step(self._step + 1):
            self._release_memory()
        return is_kept

    def _release_memory(self) -> None:
        release_tables()
        transport, self._transport = self._transport, None
        if transport is not None:
            with self._own_trouble("step"):
                transport.release()

    @contextlib.contextmanager
    def _own_trouble(self, what: str) -> Iterator[None]:
        """Keep what goes wrong in the tool itself away from the run."""
        try:
            yield
        except Exception as err:
            if is_raised_by_handler(err):
                raise
            trouble = f"{what}() met trouble of its own ({type(err).__name__}: {err})"
            self._tell(f"{trouble}; the run goes on, the capture may miss something")

    # --- a configuration that changes ---------------------------------------------------------

    @property
    def _is_watched(self) -> bool:
        """Whether the file says whether to capture, and so is looked at by every call.

        Any other is looked at by `start` alone: it may come to say so.
        """
        return self._config.dump_enable is not None

    def _maybe_reload_config(self, force: bool = False) -> bool:
        """Read the configuration file again if it has changed; returns whether it has.

        vllm-ascend calls it by this name, after it has written `dump_enable` into the file.

        Args:
            force: read the file even if it looks as it did.
        """
        file = self._file
        if file is None or self.is_closed or self.is_open_elsewhere:
            return False
        try:
            config = file.read_if_changed(force=force)
            # Only a file that says whether to capture is one that somebody changes during the run.
            if config is None or not (self._is_watched or config.dump_enable is not None):
                return False
            if config.dump_enable is None:
                config = replace(config, dump_enable=self._config.dump_enable)
            self._go_on_with(config)
            self.given_config = self._config
        except ConfigError as err:
            if not self._is_watched:
                return False
            self._tell(f"{err}; nothing is captured until the file can be used again")
            self._go_on_with(replace(self._config, dump_enable=False))
            return False
        return True

    def _go_on_with(self, config: Config) -> None:
        """Take another configuration, from the next `start` on; what is off is off at once.

        Raises:
            ConfigError: it cannot be used; everything stays as it was.
        """
        before = self._config
        for name in _LASTING:
            if getattr(config, name) != getattr(before, name):
                self._tell(f"{name} cannot change while a run goes on; make a new debugger for it")
        config = _usable(replace(config, **{name: getattr(before, name) for name in _LASTING}))
        self._config = config
        for notice in config.notices:
            self._tell(notice)
        searched = ("task", "level", "overflow_nums")
        if any(getattr(config, name) != getattr(before, name) for name in searched):
            self._overflows = OverflowCount.of(config)
        if config.dump_enable is False and not self.is_open_elsewhere:
            self._shut()

    def _own_rank(self) -> int | None:
        return current_rank() if self._rank_id is None else self._rank_id

    def _hold(self, is_held: bool) -> None:
        self.is_held = is_held

    # --- what starts and stops by itself -----------------------------------------------------

    def _on_next_batch(self) -> None:
        if self._is_started:
            self._next_step()
        last = self._config.step[-1] if self._config.step else None
        if last is not None and self._step > last:
            self.close()
            raise Exception(self._exit_text(last))

    # --- what a debugger that stands for an older tool does otherwise -----------------------

    def _after_dump(self, folder: Path, info: DumpInfo) -> None:
        """Do what is left to do with the dump of a step, now that it is whole: nothing."""

    def _exit_text(self, last: int) -> str:
        """Return what the exception says that ends a run after the last wanted iteration."""
        return f"{self.tool_name}: exit after iteration {last}"

    def abandon_in_fork(self) -> None:
        """Forget, in a forked child, what its parent captures; only its own `start` counts."""
        self._is_abandoned = True
        if self._session is not None:
            self._session.is_paused = True
        self._session = self._opened_by = self._transport = None
        self._finisher, self._is_started, self._tokens = Finisher(), False, None
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    # --- functions of the user's own ---------------------------------------------------------

    def _watch_custom(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        session = self._session
        is_watched = self._opened_by is not None and self._config.level in ("L1", "mix")
        if session is None or not is_watched:
            return function(*args, **kwargs)
        return session.watch_custom_call(api, function, args, kwargs)


def _usable(config: Config) -> Config:
    """Return a configuration that a capture can go by, with the whole path of the dump.

    Raises:
        ConfigError: it is none.
    """
    _require(config)
    # A filter that cannot be used is an error now, not at the first step.
    CallFilter(config)
    # Whole, as the script may go to another folder while it runs.
    path = os.path.abspath(config.dump_path or DEFAULT_DUMP_PATH)
    return replace(config, dump_path=Path(path))


def _dump_of(config: Config) -> Config:
    """Return what of a configuration decides what is in a dump and where that is."""
    return replace(config, dump_enable=None, notices=())


def _require(config: Config) -> None:
    if config.task not in _TASKS:
        wanted = ", ".join(map(repr, _TASKS))
        raise ConfigError(
            f"{config.place_of('task')} is {config.task!r}, which captures nothing; it is for the "
            f"pre-check, `tensorprobe precheck`; to capture a run, give one of {wanted}"
        )
