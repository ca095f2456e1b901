"""The user's front: PrecisionDebugger.

    PrecisionDebugger ─► which steps and ranks ─► Session, one per captured step
         ▲ start, stop, step, by hand, by a DataLoader's iterations or by an optimizer's steps

What a user does wrong is told in a warning; a wrong configuration is an error at the beginning.

Past 500 lines with what the front ends of older tools do otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from tensorprobe.capture.apis import Api, ApiTable
from tensorprobe.capture.current import OnClassToo, current_debugger, make_current
from tensorprobe.capture.custom_apis import CustomApis
from tensorprobe.capture.dataloader import DataLoaderWatcher
from tensorprobe.capture.filters import CallFilter
from tensorprobe.capture.mode_places import end_removals, is_in_backward_pass
from tensorprobe.capture.named_models import named_models
from tensorprobe.capture.notices import Notices
from tensorprobe.capture.overflows import OverflowCount
from tensorprobe.capture.process import current_rank
from tensorprobe.capture.session import Session
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.config import DEFAULT_DUMP_PATH, Config, load_config
from tensorprobe.errors import ConfigError
from tensorprobe.interrupts import is_raised_by_handler, uninterrupted
from tensorprobe.records import DumpInfo
from tensorprobe.store.runs import Run
from tensorprobe.store.unfinished import Finisher
from tensorprobe.summary.statistics import release_tables

__all__ = ["PrecisionDebugger"]

_LOG = logging.getLogger("tensorprobe")
_TASKS = ("statistics", "tensor", "overflow_check", "structure")


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

    Attributes:
        captured_steps: how many steps have been written so far.
        is_closed: whether the debugger has ended, at the end of the process or before a newer one.

    Raises:
        ConfigError: a value that cannot be used, or a model that is none.
    """

    captured_steps: int
    is_closed: bool

    def __init__(
        self,
        config_path: str | os.PathLike[str] | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike[str] | None = None,
        level: str | None = None,
        model: Any = None,
        step: Sequence[int | str] | int | str | None = None,
    ) -> None:
        config = load_config(config_path, task=task, dump_path=dump_path, level=level, step=step)
        self._set_up(config, model)

    @classmethod
    def from_config(cls, config: Config, model: Any = None) -> PrecisionDebugger:
        """Make a debugger of a whole configuration, as `load_config` returns it.

        Args:
            config: what to capture; every field of it counts.
            model: as for the constructor.
        """
        debugger = cls.__new__(cls)
        debugger._set_up(config, model)
        return debugger

    def _set_up(self, config: Config, model: Any) -> None:
        _require(config)
        # A filter that cannot be used is an error now, not at the first step.
        CallFilter(config)
        self._models = named_models(model)
        # Whole, as the script may go to another folder while it runs.
        path = os.path.abspath(config.dump_path or DEFAULT_DUMP_PATH)
        self._config = replace(config, dump_path=Path(path))
        for notice in config.notices:
            _LOG.warning("%s", notice)
        self._apis = ApiTable(add=config.add_apis, skip=config.skip_apis)
        self._custom = CustomApis(self._apis, self._watch_custom)
        self._step = 0
        self._session: Session | None = None
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
        atexit.register(self.close)
        self._custom.add(config.add_apis)
        self._loader: DataLoaderWatcher | None = None
        if config.enable_dataloader:
            self._loader = DataLoaderWatcher(self._on_next_batch, self._start)
            self._loader.open()

    # --- what the user calls -----------------------------------------------------------------

    @OnClassToo
    def start(self, model: Any = None) -> None:
        """Begin to capture; does nothing in a step or on a rank that is not wanted.

        Args:
            model: the model, or a list of them, that names modules from now on.

        Raises:
            ConfigError: the model is no nn.Module and no list of them.
        """
        if model is not None:
            self._models = named_models(model)
        if self._may_act("start"):
            self._is_abandoned = False
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
        self._step = step

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
        atexit.unregister(self.close)
        self._is_started = False
        self._finish_session(keeps_empty=not self._keeps_going)
        self._finisher.wait()
        self._release_memory()
        self._run.folders.release()
        if self._overflows is not None:
            self._overflows.tell_if_none(_LOG.warning)
        self.is_closed = True
        self._custom.close()
        if self._loader is not None:
            self._loader.close()

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
        self._is_started = True
        if self._config.level == "debug":
            return
        session = self._wanted_session()
        if session is not None:
            self._opened_by = threading.get_ident()
            with self._own_trouble("start"):
                session.open(self._models)

    def _stop(self) -> None:
        self._is_started = False
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
        if self._session is None:
            rank = current_rank()
            counted = 0 if rank is None and self._had_no_rank else rank
            if not self._config.wants_step(self._step) or not self._config.wants_rank(counted):
                return None
            if self._overflows is not None and self._overflows.is_spent:
                return None
            is_first = self._transport is None or not (self.captured_steps or self._overflows)
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
                on_published=self._after_dump,
            )
        return self._session

    @uninterrupted()
    def _finish_session(self, *, keeps_empty: bool = True) -> bool:
        """Publish the dump of the current step; returns whether there is one."""
        session, self._session = self._session, None
        self._opened_by, is_kept = None, False
        if session is None:
            return False
        with self._own_trouble("step"):
            is_kept = session.finish(keeps_empty=keeps_empty)
        self.captured_steps += is_kept
        # Then it is taken for the only process, until it gets a rank.
        self._had_no_rank |= not is_kept and current_rank() is None
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
        return f"tensorprobe: exit after iteration {last}"

    def abandon_in_fork(self) -> None:
        """Forget, in a forked child, what its parent captures; only its own `start` counts."""
        self._is_abandoned = True
        if self._session is not None:
            self._session.is_paused = True
        self._session = self._opened_by = self._transport = None
        self._finisher, self._is_started = Finisher(), False
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


def _require(config: Config) -> None:
    if config.task not in _TASKS:
        wanted = ", ".join(map(repr, _TASKS))
        raise ConfigError(
            f"{config.place_of('task')} is {config.task!r}, which captures nothing; it is for the "
            f"pre-check, `tensorprobe precheck`; to capture a run, give one of {wanted}"
        )
