"""Capture a script that was not edited: what `tensorprobe run` starts.

    python script_start.py train.py …                     ─┐
    python -m tensorprobe.script_start -m package.train … ─┴─► main ─► run_script

Steps follow the optimizer: one ends when the optimizer has made its step, whose own work is left
out, as between `stop` and `step` of an edited script.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import logging
import os
import runpy
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import SourceFileLoader
from types import FrameType, ModuleType, TracebackType
from typing import Any, NoReturn, Protocol

from tensorprobe.capture.code_patch import hide_from_dynamo
from tensorprobe.capture.config_file import ConfigFile
from tensorprobe.capture.current import is_latest
from tensorprobe.capture.debugger import PrecisionDebugger
from tensorprobe.capture.launch import OPTIONS_VARIABLE
from tensorprobe.capture.mode_places import is_in_backward_pass
from tensorprobe.capture.notices import Notices
from tensorprobe.config import DEFAULT_DUMP_PATH, Config
from tensorprobe.errors import ConfigError
from tensorprobe.store.forks import in_process, this_process
from tensorprobe.system.ctrl_c import give_back
from tensorprobe.system.standard_streams import complain, reserve_descriptors

__all__ = ["Stepping", "follow_optimizer", "main", "run_script"]

_LOG = logging.getLogger("tensorprobe")
_INSIDE_BACKWARD = (
    "an optimizer makes its step inside the backward pass, which ends no step of the capture; let "
    "it come after loss.backward(), or say in the script where steps end, by a PrecisionDebugger"
)
_IN_OTHER_THREAD = (
    "an optimizer makes its step in another thread than the script's first one, which ends no step "
    "of the capture, and calls there are seen at level L0 alone; make a PrecisionDebugger there"
)
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def main() -> NoReturn:
    """Run what this process was started for, with the options that `tensorprobe run` left.

    Raises:
        SystemExit: always.
    """
    reserve_descriptors()
    try:
        options = json.loads(os.environ.pop(OPTIONS_VARIABLE, "{}"))
        run_script(sys.argv[1:], partial(_capture, ConfigFile(options.pop("path", None), options)))
    except ConfigError as err:
        complain(str(err))
        sys.exit(2)


def run_script(words: Sequence[str], watch: Callable[[contextlib.ExitStack], None]) -> NoReturn:
    """Run a script in this process as Python does, and watch it.

    Args:
        words: the script's path, or `-m` and a module's name, and the script's own arguments.
        watch: begins to watch, and leaves on the stack what ends it.

    Raises:
        ConfigError: there is no script, or the configuration cannot be used.
        SystemExit: the script ended, with its exit code.
    """
    run = _prepare(list(words))
    with contextlib.ExitStack() as undo:
        watch(undo)
        try:
            give_back()
            run()
        except Exception as err:  # noqa: BLE001 - shown as Python shows it
            _show_error(err)
            sys.exit(1)
        except KeyboardInterrupt:
            # Not caught: Python shows it at the very end, and then dies of the signal.
            sys.excepthook = partial(_show_interrupt, sys.excepthook)
            raise
    sys.exit(0)


def _capture(file: ConfigFile, undo: contextlib.ExitStack) -> None:
    """Capture what comes, as a file says, which is read again when it changes."""
    config = file.config
    debugger = PrecisionDebugger.from_config(config, file=file)
    undo.callback(_finish, debugger, config, this_process())
    if not config.enable_dataloader:
        for handle in follow_optimizer(debugger):
            undo.callback(handle.remove)
        debugger.__enter__()


def _prepare(words: list[str]) -> Callable[[], None]:
    """Make this process look as if Python had been started with these words."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if words[:1] == ["-m"]:
        if len(words) < 2:
            raise ConfigError("-m wants the name of a module")
        sys.argv = ["-m", *words[2:]]
        sys.modules["__main__"] = main
        # What `python -m` itself calls; it fills __main__, where the public one makes another.
        return lambda: runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    if not words or not os.path.isfile(words[0]):
        raise ConfigError(f"there is no script {words[0] if words else 'given'}; check the path")
    script = os.path.abspath(words[0])
    main.__dict__.update(
        __file__=script, __cached__=None, __loader__=SourceFileLoader("__main__", script)
    )
    sys.argv = words
    # Processes that the script spawns find their way to it through this.
    sys.modules["__main__"] = main

    def run() -> None:
        with io.open_code(script) as file:
            code = compile(file.read(), script, "exec", dont_inherit=True)
        exec(code, main.__dict__)  # noqa: S102 - the user's own program

    return run


class _NamedArguments(dict[str, Any]):
    """Named arguments of one call, whose end can be seen by them."""


class Stepping(Protocol):
    """What is told of the steps of a run.

    Attributes:
        is_held: whether an optimizer is at work.
    """

    is_held: bool

    @property
    def is_open_elsewhere(self) -> bool:
        """Whether it watches another thread."""

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""

    def step(self) -> None:
        """A step has ended."""


def follow_optimizer(debugger: Stepping) -> list[Any]:
    """Let the steps of the run be those of its first optimizer; returns what undoes it."""
    hooks = import_module("torch.optim.optimizer")
    if not hasattr(hooks, "register_optimizer_step_post_hook"):
        _LOG.warning("this torch does not tell of optimizer steps; the whole run is one step")
        return []
    tell = Notices().tell
    pace: weakref.ref[Any] | None = None
    running: weakref.ref[Any] | None = None
    # What torch makes of the step of each optimizer; it calls the hooks.
    step_code = hooks.Optimizer.profile_hook_step(lambda: None).__code__

    # The step may be compiled: what is hidden is not compiled with it.
    @hide_from_dynamo
    def before(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal running
        # With a closure the model runs inside the optimizer's step.
        if kwargs.get("closure", args[1] if len(args) > 1 else None) is not None:
            return None
        debugger.is_held = True
        # Nobody tells of a step that fails, but what it was called with goes when it is over.
        named = _NamedArguments(kwargs)
        running = weakref.ref(named, release)
        return args, named

    @hide_from_dynamo
    def release(_: Any) -> None:
        caller: FrameType | None = sys._getframe(1)
        while caller is not None and caller.f_code is not step_code:
            caller = caller.f_back
        # Another hook may have taken other arguments for the step that is to come.
        if caller is None:
            debugger.is_held = False

    @hide_from_dynamo
    def after(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal pace, running
        running = None
        debugger.is_held = False
        if is_in_backward_pass():
            tell(_INSIDE_BACKWARD)
            return
        if debugger.is_open_elsewhere:
            tell(_IN_OTHER_THREAD)
            return
        # Of several optimizers the first that steps sets the pace, for as long as it lives.
        if pace is None or pace() is None:
            pace = weakref.ref(optimizer)
        if pace() is optimizer and not debugger.is_closed:
            debugger.step()

    return [
        hooks.register_optimizer_step_pre_hook(before),
        hooks.register_optimizer_step_post_hook(after),
    ]


def _finish(debugger: PrecisionDebugger, config: Config, process: int) -> None:
    """Close the dump, and say where it is; one process of several does."""
    if not in_process(process):
        # A forked child.
        return
    debugger.close()
    count = debugger.captured_steps
    if os.environ.get("RANK", "0") == str(config.rank[0] if config.rank else 0):
        is_off = debugger.current_config.dump_enable is False
        text = "nothing was captured" + ("; dump_enable is false" if is_off else "")
        if count:
            steps = "1 step" if count == 1 else f"{count} steps"
            # As it was written: whoever reads this is where the command was given.
            path = config.dump_path or DEFAULT_DUMP_PATH
            text = f"captured {steps}; look with: tensorprobe show {path}"
        if not is_latest(debugger):
            text = f"the script made a debugger of its own, which took over; before that, {text}"
        complain(text)


def _show_error(err: Exception) -> None:
    """Show an error that nobody caught, without the frames of this file."""
    traceback = err.__traceback__
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    sys.excepthook(type(err), err.with_traceback(traceback), traceback)


def _show_interrupt(
    show: Callable[..., Any],
    kind: type[BaseException],
    err: BaseException,
    traceback: TracebackType | None,
) -> None:
    """Show where the script was interrupted, without any frame of this package."""
    theirs: list[TracebackType] = []
    is_ours = False
    while traceback is not None:
        # What stands between two of our own, a decorator's frame, is ours, too.
        is_between = is_ours and _file_of(traceback) == contextlib.__file__
        is_ours = is_between or _file_of(traceback).startswith(_PACKAGE)
        if not is_ours and not _is_ours(traceback):
            theirs.append(traceback)
        traceback = traceback.tb_next
    chain: TracebackType | None = None
    for part in reversed(theirs):
        chain = TracebackType(chain, part.tb_frame, part.tb_lasti, part.tb_lineno)
    show(kind, err.with_traceback(chain), chain)


def _is_ours(traceback: TracebackType) -> bool:
    return _file_of(traceback) in (__file__, runpy.__file__, "<frozen runpy>")


def _file_of(traceback: TracebackType) -> str:
    return traceback.tb_frame.f_code.co_filename
