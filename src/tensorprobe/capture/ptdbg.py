"""Capture as ptdbg_ascend did: its debugger, and the three functions that came before it.

    set_dump_path, register_hook ─► PtdbgSwitch ─ set_dump_switch("ON") ─► PtdbgDebugger
    PtdbgDebugger ─► each step ─► {dump_path}/{tag}_v{version}/[step{N}/]rank{M}/{mode}_dump.pkl

Which version that is, the package with the older names says: by a class made from PtdbgDebugger.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from tensorprobe.capture.named_models import Models
from tensorprobe.capture.older_tools import OlderDebugger
from tensorprobe.capture.ptdbg_files import TagFolder
from tensorprobe.capture.ptdbg_options import Level, Names, PtdbgHook, PtdbgOptions, is_on
from tensorprobe.errors import ConfigError
from tensorprobe.store.dump import RankDump
from tensorprobe.system.standard_streams import announce

__all__ = ["PtdbgDebugger", "PtdbgSwitch"]

_TAG = "ptdbg_dump"
_FOLDER = "ASCEND_WORK_PATH"
# What register_hook's dump_mode records.
_LEVELS: dict[str, Level] = {"api": "L1", "model": "L0", "acl": "L2"}


class PtdbgDebugger(OlderDebugger):
    """`ptdbg_ascend.PrecisionDebugger`: captures steps into the files of ptdbg_ascend.

    Args:
        dump_path: where the folder of the dump goes.
        hook_name: `dump`, or `overflow_check` for the calls that overflow.
        rank: the only rank to capture.
        step: the only steps to capture.
        enable_dataloader: start and stop by the iterations of a DataLoader, and end the run after
            the last of the steps.
        model: record the calls of its modules in place of those of the API.

    Attributes:
        version: of ptdbg_ascend, which is part of the folder's name.

    Raises:
        ConfigError: a value cannot be used.
    """

    version: ClassVar[str]

    def __init__(
        self,
        dump_path: str | os.PathLike[str] | None = None,
        hook_name: str | None = None,
        rank: int | None = None,
        step: Sequence[int | str] | int | None = None,
        enable_dataloader: bool = False,
        model: Any = None,
    ) -> None:
        if hook_name not in ("dump", "overflow_check"):
            raise ConfigError(f"hook_name is {hook_name!r}, wanted 'dump' or 'overflow_check'")
        options = PtdbgOptions.checked(
            hook=PtdbgHook(hook_name), level="L1" if model is None else "L0"
        )
        self._arrange(
            options,
            _tag_folder(dump_path, _TAG, self.version),
            model,
            step=step,
            rank=rank,
            enable_dataloader=enable_dataloader,
        )

    def _arrange(
        self,
        options: PtdbgOptions,
        folder: Path,
        model: Any,
        *,
        folder_rank: int | None = None,
        has_steps: bool = True,
        **where: Any,
    ) -> None:
        """Set the debugger up, or set it up anew.

        Args:
            options: what to record.
            folder: of the tag.
            model: as for the constructor.
            folder_rank: the number of the rank's folder; by default it is found.
            has_steps: whether each step has a folder of its own.
            where: step, rank and enable_dataloader, as `PtdbgOptions.config` takes them.
        """
        self._options, self._folder, self._where = options, folder, where
        self._model = model
        self._folder_rank, self._has_steps = folder_rank, has_steps
        # Where the run was started, as the overflows' description goes there.
        self._started_in = Path(os.getcwd())
        # Kernels had no such files.
        stays_ours = options.is_kernels
        self._set_up_below(folder, options.config(**where), model, stays_ours=stays_ours)

    def configure_hook(
        self,
        mode: str | None = None,
        scope: Names = None,
        api_list: Names = None,
        filter_switch: str = "OFF",
        acl_config: Any = None,
        backward_input: Any = None,
        input_output_mode: Names = "all",
        summary_only: bool = False,
        summary_mode: str | None = None,
        overflow_nums: int = 1,
        need_replicate: bool = False,
    ) -> None:
        """Say what to record; call it before the first step.

        Args:
            mode: which calls; `api_stack` unless given.
            scope: the calls of the modes list, range, stack and acl.
            api_list: parts of the names of the calls of the mode api_list.
            filter_switch: ON records floating tensors alone.
            acl_config: of no use here: operators are seen without the driver.
            backward_input: of no use here: the backward pass is recorded as it runs.
            input_output_mode: which directions and sides.
            summary_only: record statistics, and no data.
            summary_mode: `all`, `summary` or `md5`.
            overflow_nums: end the search with this overflow; -1 for never.
            need_replicate: of no use here: the call can always be repeated.

        Raises:
            ConfigError: a value cannot be used.
        """
        del acl_config, backward_input, need_replicate
        if self.captured_steps or self._is_started:
            self._tell("configure_hook() is ignored: the capture has begun; call it before that")
            return
        options = PtdbgOptions.checked(
            hook=self._options.hook,
            mode=mode,
            scope=scope,
            api_list=api_list,
            filter_switch=filter_switch,
            data_mode=input_output_mode,
            summary_only=summary_only,
            summary_mode=summary_mode,
            overflow_nums=overflow_nums,
            level=self._options.level,
        )
        # It is set up anew, and must not end what it has become.
        self.close()
        self._arrange(
            options,
            self._folder,
            self._model,
            folder_rank=self._folder_rank,
            has_steps=self._has_steps,
            **self._where,
        )

    @property
    def folder(self) -> Path:
        """The folder of the tag, which everything goes below."""
        return self._folder

    def _announce_start(self) -> None:
        announce(f"Dump switch is turned on. Dump data will be saved to {self._folder}.")
        if TagFolder.known(self._folder) is None and not self._stays_ours:
            announce(self._place_meanwhile("every command of tensorprobe"))
            tag = TagFolder.at(self._folder)
            if self._has_steps:
                rank = _rank_of(self._own_rank(), self._folder_rank, self._models)
                tag.tell_of_earlier_steps(self.started_step, rank, self._tell)

    def _stop(self) -> None:
        was_on = self._opened_by is not None
        super()._stop()
        if was_on:
            announce("Dump switch is turned off.")

    def _exit_text(self, last: int) -> str:
        return f"ptdbg: exit after iteration {list(self._config.step)}"

    def _write(self, part: RankDump) -> Path | None:
        rank = _rank_of(part.info.rank, self._folder_rank, self._models)
        step = self._folder / f"step{part.info.step}" if self._has_steps else self._folder
        tag, folder = TagFolder.at(self._folder), step / f"rank{rank}"
        if self._options.hook is PtdbgHook.overflow_check:
            return tag.write_overflows(part, folder, self._started_in)
        return tag.write_dump(part, folder, self._options.form)


def _tag_folder(path: str | os.PathLike[str] | None, tag: str, version: str) -> Path:
    """Return the folder of a dump; without a path the environment may name one.

    Raises:
        ConfigError: the tag cannot be part of a folder's name.
    """
    if not isinstance(tag, str) or not tag or "/" in tag or "\0" in tag or tag in (".", ".."):
        raise ConfigError(f"dump_tag is {tag!r}, wanted a word that a folder's name begins with")
    if path is None and os.environ.get(_FOLDER):
        path = Path(os.environ[_FOLDER]) / "dump_data"
    if path is not None and not isinstance(path, str | os.PathLike):
        raise ConfigError(f"dump_path is {path!r}, wanted a path")
    return Path(os.path.abspath(path or ".")) / f"{tag}_v{version}"


def _rank_of(rank: int | None, given: int | None, models: Models) -> int:
    """Return the number of a process's folder: its rank or, as the tool took it, its device."""
    if given is not None:
        return given
    if rank is not None:
        return rank
    for _, model in models:
        for parameter in model.parameters():
            return parameter.device.index or 0
    for space in (getattr(torch, name, None) for name in ("cuda", "npu", "xpu")):
        if space is not None and space.is_initialized():
            device: int = space.current_device()
            return device
    return 0


class PtdbgSwitch:
    """What the functions of ptdbg_ascend arrange together; its methods have their names.

    Args:
        debugger: what a capture is made of: the class that knows the version.
    """

    def __init__(self, debugger: type[PtdbgDebugger]) -> None:
        self._class = debugger
        self._path: str | os.PathLike[str] | None = None
        self._tag = _TAG
        self._hook: PtdbgHook | None = None
        self._model: Any = None
        self._rank: int | None = None
        self._overflow_nums = 1
        self._level: Level = "L1"
        self._debugger: PtdbgDebugger | None = None

    def set_dump_path(
        self, fpath: str | os.PathLike[str] | None = None, dump_tag: str = _TAG
    ) -> None:
        """Say where the next dump goes: `{fpath}/{dump_tag}_v{version}`.

        Args:
            fpath: the folder; made if need be. By default the environment's ASCEND_WORK_PATH.
            dump_tag: what the name of the dump's own folder begins with.

        Raises:
            ConfigError: a folder cannot have such a name.
        """
        folder = _tag_folder(fpath, dump_tag, self._class.version)
        self._path, self._tag = fpath, dump_tag
        debugger = self._debugger
        if debugger is not None and not debugger.is_closed and debugger.folder != folder:
            announce(
                f"set_dump_path() came while the switch is on: what is recorded now still goes to "
                f"{debugger.folder}; the next capture goes to {folder}. Turn the switch OFF first."
            )

    def register_hook(
        self,
        model: Any,
        hook: Any,
        *,
        overflow_nums: int = 1,
        dump_mode: str = "api",
        dump_config: Any = None,
        rank: int | None = None,
    ) -> None:
        """Say what to do with the calls of a run; with `overflow_check` the search begins.

        Args:
            model: any of the models: all are recorded.
            hook: `acc_cmp_dump` or `overflow_check`.
            overflow_nums: end the search with this overflow; -1 for never.
            dump_mode: `api`; `model` records modules, `acl` the operators below API calls.
            dump_config: of no use here: operators are seen without the driver.
            rank: the number of this process's folder; by default it is found.

        Raises:
            AssertionError: the model is no nn.Module.
            ConfigError: another value cannot be used.
        """
        del dump_config
        if not isinstance(model, torch.nn.Module):
            raise AssertionError(
                f"Please register hooks to nn.Module: register_hook got a {type(model).__name__}; "
                "call it after the model is made"
            )
        if not isinstance(hook, PtdbgHook):
            raise ConfigError(f"the hook is {hook!r}, wanted acc_cmp_dump or overflow_check")
        if dump_mode not in _LEVELS:
            raise ConfigError(f"dump_mode is {dump_mode!r}, wanted 'api', 'acl' or 'model'")
        if rank is not None and (type(rank) is not int or rank < 0):
            raise ConfigError(f"rank is {rank!r}, wanted a number from 0 on")
        if self._path is None and not os.environ.get(_FOLDER):
            announce(
                "register_hook() came before set_dump_path(): call set_dump_path() first, or the "
                "dump goes into the current folder"
            )
        self._model, self._hook, self._rank = model, hook, rank
        self._overflow_nums, self._level = overflow_nums, _LEVELS[dump_mode]
        if hook is PtdbgHook.overflow_check:
            if dump_mode != "api":
                announce(
                    f"dump_mode {dump_mode!r} has no effect with overflow_check: API calls are "
                    "what is searched"
                )
            self.set_overflow_check_switch("ON")

    def set_dump_switch(
        self,
        switch: str,
        mode: str = "all",
        scope: Names = None,
        api_list: Names = None,
        filter_switch: str = "OFF",
        dump_mode: Names = "all",
        summary_only: bool = False,
        summary_mode: str | None = None,
    ) -> None:
        """Turn the recording of calls ON, or OFF; what was recorded is written then.

        Args:
            switch: ON or OFF.
            mode: which calls.
            scope: the calls of the modes list, range, stack and acl.
            api_list: parts of the names of the calls of the mode api_list.
            filter_switch: ON records floating tensors alone.
            dump_mode: which directions and sides.
            summary_only: record statistics, and no data.
            summary_mode: `all`, `summary` or `md5`.

        Raises:
            ConfigError: a value cannot be used.
        """
        options = PtdbgOptions.checked(
            mode=mode,
            scope=scope,
            api_list=api_list,
            filter_switch=filter_switch,
            data_mode=dump_mode,
            summary_only=summary_only,
            summary_mode=summary_mode,
            level=self._level,
        )
        self._turn(switch, options)

    def set_overflow_check_switch(self, switch: str, filter_switch: str = "OFF") -> None:
        """Turn the search for calls that overflow ON or OFF.

        Args:
            switch: ON or OFF.
            filter_switch: of no use here: an overflow is one of floating tensors.

        Raises:
            ConfigError: a value cannot be used.
        """
        options = PtdbgOptions.checked(
            hook=PtdbgHook.overflow_check,
            filter_switch=filter_switch,
            overflow_nums=self._overflow_nums,
        )
        self._turn(switch, options)

    def set_backward_input(self, backward_input: Any) -> None:
        """Do nothing: the backward pass is recorded as it runs.

        Args:
            backward_input: of no use here.
        """

    def _turn(self, switch: object, options: PtdbgOptions) -> None:
        if is_on("the switch", switch):
            self._turn_on(options)
        else:
            self._turn_off()

    def _turn_on(self, options: PtdbgOptions) -> None:
        if self._debugger is not None and not self._debugger.is_closed:
            announce("Dump switch is turned on already; it goes on as it is.")
            return
        debugger = self._class.__new__(self._class)
        debugger._arrange(
            options,
            _tag_folder(self._path, self._tag, self._class.version),
            self._model,
            folder_rank=self._rank,
            has_steps=False,
        )
        # Only now: what cannot be arranged is no debugger.
        self._debugger = debugger
        if self._hook is None and options.hook is PtdbgHook.acc_cmp_dump:
            announce("set_dump_switch() came without register_hook(); every call is recorded")
        debugger.start()

    def _turn_off(self) -> None:
        debugger, self._debugger = self._debugger, None
        if debugger is None or debugger.is_closed:
            announce("Dump switch is turned off.")
            return
        debugger.stop()
        debugger.close()
