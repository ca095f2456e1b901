"""`OnlineCheck`: run each operator of a block once more on the CPU, and say which computes wrongly.

with OnlineCheck ─► OperatorWatcher, a dispatch mode ─► OnlineSession ─► OnlineReport
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from types import FrameType, TracebackType
from typing import Any

from tensorprobe.capture.code_patch import hide_from_dynamo
from tensorprobe.capture.compiler_listener import CompilerListener
from tensorprobe.capture.mode_places import remove_dispatch_mode
from tensorprobe.capture.operator_mode import OperatorMode
from tensorprobe.errors import ConfigError
from tensorprobe.online.options import make_options
from tensorprobe.online.report import OnlineReport
from tensorprobe.online.session import OnlineSession
from tensorprobe.report.online_text import summary_lines
from tensorprobe.system.standard_streams import complain

__all__ = ["OnlineCheck"]

_GIB = 1 << 30
_thread = threading.local()


class OnlineCheck:
    """Check every operator of a block against the CPU while the block runs.

    Around a forward pass, a backward pass, or whole steps. Each ATen operator runs on its device as
    always, and once more on the CPU on copies of the same inputs; what rounding does not explain is
    told as `Failed`. The run's results are, bit for bit, those without the check.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with OnlineCheck(path=folder) as check:
    ...         _ = torch.ones(2, 3) @ torch.ones(3, 2)
    ...     check.report.failed
    0

    Args:
        mode: whose inputs and outputs are kept as `.npy`: `auto` those of operators that miss,
            `list` those in `ops`, `all`, or `off`. All are checked in any case.
        path: the folder in which a folder of results is made.
        ops: operators for mode `list`, by names as in `dir(torch.ops.aten)`.
        tag: a part of the folder's name.
        jobs: how many threads check in the background; at most a quarter of the cores.
        precision: what the CPU computes in: `higher`, one precision up, or the `same`.
        every: check one of so many calls of each operator.
        steps: check these steps alone; see `step`.
        max_bytes: do not check calls whose tensors are larger together.
        include: check operators whose name holds one of these, or fits a pattern with * and ?.
        exclude: leave such operators out.
        memory_limit: how many bytes may wait for the threads in the background.
        disk_limit: how many bytes of data are kept at most.
        statistics: write maximum, minimum and mean of outputs that pass into the table, too.
        debug: tell every operator.
        older_rule: say `Failed` of what misses the older tools' rule alone, too, with a remark.
        quiet: do not print the summary.

    Attributes:
        report: what was found, once the block has ended.

    Raises:
        ConfigError: an argument cannot be used.
    """

    def __init__(
        self,
        mode: str = "auto",
        path: str | os.PathLike[str] = "./online",
        ops: Sequence[str] | None = None,
        tag: str | None = None,
        jobs: int = 0,
        *,
        precision: str = "higher",
        every: int = 1,
        steps: Collection[int] | None = None,
        max_bytes: int | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        memory_limit: int = 2 * _GIB,
        disk_limit: int = 20 * _GIB,
        statistics: bool = False,
        debug: bool = False,
        older_rule: bool = False,
        quiet: bool = False,
    ) -> None:
        self._options = make_options(
            path=path,
            mode=mode,
            ops=ops,
            tag=tag,
            jobs=jobs,
            precision=precision,
            every=every,
            steps=steps,
            max_bytes=max_bytes,
            include=include,
            exclude=exclude,
            memory_limit=memory_limit,
            disk_limit=disk_limit,
            statistics=statistics,
            debug=debug,
            older_rule=older_rule,
        )
        self._quiet = quiet
        self._session: OnlineSession | None = None
        self._watcher: OperatorWatcher | None = None
        self._report: OnlineReport | None = None
        if self._options.jobs < jobs:
            complain(f"jobs is {jobs}; {self._options.jobs} is a quarter of the cores, and used")

    @property
    def report(self) -> OnlineReport:
        """What was found; there is none before the block has ended."""
        if self._report is None:
            raise ConfigError("there is no report before the block of the OnlineCheck has ended")
        return self._report

    def __enter__(self) -> OnlineCheck:
        if self._session is not None:
            raise ConfigError("this OnlineCheck is on already; make another one for this block")
        known: OnlineCheck | None = getattr(_thread, "check", None)
        # One that ended in another thread cannot say so here; a parent's is not on in its child.
        session = None if known is None else known._session
        if session is not None and session.is_own:
            raise ConfigError(
                "an OnlineCheck is on in this thread already and checks what runs in this block"
            )
        session = OnlineSession(self._options)
        try:
            watcher = OperatorWatcher(session)
            self._listener = CompilerListener(self._on_compiled)
            self._listener.open()
            # Above those that are on: what they make of an operator is what the run computes.
            watcher.__enter__()  # type: ignore[no-untyped-call]
        except BaseException:
            session.close()
            raise
        self._session, self._watcher = session, watcher
        _thread.check = self
        return self

    def step(self) -> None:
        """Say that a training step has ended; `steps` counts these, from 0."""
        if self._session is not None:
            self._session.step += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session, watcher = self._session, self._watcher
        if session is None or watcher is None:
            return
        watcher.is_retired = True
        remove_dispatch_mode(watcher)
        self._listener.close()
        if getattr(_thread, "check", None) is self:
            _thread.check = None
        self._session = self._watcher = None
        if not session.is_own:
            # A forked child leaves the files, and the threads that it does not have, to its parent.
            return
        self._report = session.close()
        if not self._quiet:
            for line in summary_lines(self._report, str(self._report.folder)):
                complain(line)

    def _on_compiled(self, frame: FrameType) -> None:
        # Of the thread that it is on in alone.
        if self._session is not None and getattr(_thread, "check", None) is self:
            self._session.note(
                "torch.compile is used: operators inside compiled code are not seen, and not "
                "checked; TORCH_COMPILE_DISABLE=1 lets them run one by one"
            )


class OperatorWatcher(OperatorMode):  # type: ignore[no-untyped-call]
    """Hands every operator of its thread, and of its backward passes, to a session."""

    def __init__(self, session: OnlineSession) -> None:
        super().__init__()
        self._session = session
        # Whether it is over, though torch may have the mode on until a backward pass is.
        self.is_retired = False

    @hide_from_dynamo
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_retired or not self._session.is_own:
            return func(*args, **kwargs)
        return self._session.watch(func, args, kwargs)
