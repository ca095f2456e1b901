"""One step of one rank: the watchers that are on, and the recorder they feed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from tensorprobe.capture.apis import Api, ApiTable
from tensorprobe.capture.describe import tensors_in
from tensorprobe.capture.functions import FunctionWatcher
from tensorprobe.capture.gradients import GradientWatcher, InputEdges, next_sequence_number
from tensorprobe.capture.modules import ModuleWatcher
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.stacks import StackReader
from tensorprobe.config import Config
from tensorprobe.names import ApiCall, ModuleCall, parse_call
from tensorprobe.records import DumpInfo, Frame
from tensorprobe.store.writer import DumpWriter, rank_folder

__all__ = ["Session"]

Models = Sequence[tuple[str, torch.nn.Module]]


class Session:
    """Captures one step; `open` and `close` may alternate, `finish` publishes the dump."""

    def __init__(
        self,
        config: Config,
        apis: ApiTable,
        *,
        step: int,
        rank: int | None,
        tell: Callable[[str], None],
    ) -> None:
        assert config.dump_path is not None
        info = DumpInfo(
            rank=rank,
            step=step,
            task=config.task,
            level=config.level,
            torch_version=torch.__version__,
            python_version=sys.version.split()[0],
            devices=_devices(),
        )
        self.config = config
        self.apis = apis
        folder = rank_folder(config.dump_path, step=step, rank=rank)
        self._writer = DumpWriter(folder, info, file_format=config.file_format, on_trouble=tell)
        self.recorder = Recorder(config, self._writer, info, tell)
        self._stacks = StackReader()
        self._functions: FunctionWatcher | None = None
        self._modules: ModuleWatcher | None = None
        self._gradients: GradientWatcher | None = None
        self._in_scope = not config.scope

    def open(self, models: Models) -> None:
        """Turn the watchers on."""
        level = self.config.level
        self._gradients = GradientWatcher(self.recorder.fail)
        if level in ("L0", "mix"):
            self._modules = ModuleWatcher(self, models, is_recording=True)
            self._modules.open()
        if level in ("L1", "mix"):
            self._functions = FunctionWatcher(self)
            self._functions.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Turn the watchers off; nothing of them stays behind."""
        if self._functions is not None:
            self._functions.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._functions = None
        if self._modules is not None:
            self._modules.close()
            self._modules.flush()
            self._modules = None
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None
        self.recorder.flush()

    def finish(self) -> None:
        """Close the watchers and publish the dump."""
        self.close()
        self._writer.close()

    # --- what the watchers ask ---------------------------------------------------------------

    def wants(self, name: str, direction: Literal["forward", "backward"]) -> bool:
        """Whether the filters let a call through."""
        config = self.config
        if not any(config.wants_data(direction, side) for side in ("input", "output")):
            return False
        return not config.list or any(part in name for part in config.list)

    def wants_data(
        self, direction: Literal["forward", "backward"], side: Literal["input", "output"]
    ) -> bool:
        """Whether the configuration wants this part of calls."""
        return self.config.wants_data(direction, side)

    def is_recomputing(self) -> bool:
        """Whether a forward call happens inside a backward pass."""
        task: int = torch._C._current_graph_task_id()
        return task != -1

    def read_stack(self) -> tuple[Frame, ...]:
        """Return where the current call was made."""
        return self._stacks.read()

    def watch_call(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record one API call around its execution."""
        recorder = self.recorder
        number = recorder.next_number(f"{api.api_type}.{api.api_name}")
        name = str(ApiCall(api.api_type, api.api_name, number, "forward"))
        is_wanted = self.wants(name, "forward")
        inputs = named = None
        edges = None
        start = 0
        try:
            if is_wanted and self.wants_data("forward", "input"):
                inputs = recorder.draft_all(args, f"{name}.input")
                named = recorder.draft_named(kwargs, f"{name}.kwargs")
            if torch.is_grad_enabled():
                edges = InputEdges(tensors_in((args, tuple(kwargs.values()))))
                start = next_sequence_number()
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(name, err)
        result = function(*args, **kwargs)
        try:
            parent = None if self._modules is None else self._modules.current
            if is_wanted:
                outputs = None
                if self.wants_data("forward", "output"):
                    # An in-place operator written as a statement returns its left side.
                    values = result if type(result) is tuple else (result,)
                    outputs = recorder.draft_all(values, f"{name}.output")
                recorder.add(
                    name,
                    inputs=inputs,
                    kwargs=named,
                    outputs=outputs,
                    is_recompute=self.is_recomputing(),
                    stack=self.read_stack(),
                    parent=parent,
                )
            if edges is not None:
                self.watch_gradients(name, edges, start, tensors_in(result), parent)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(name, err)
        return result

    def watch_gradients(
        self,
        name: str,
        edges: InputEdges,
        start: int,
        outputs: Sequence[torch.Tensor],
        parent: str | None,
    ) -> None:
        """Record the backward of a call when it happens."""
        backward = _backward_of(name)
        if self._gradients is None or not self.wants(backward, "backward"):
            return
        recorder = self.recorder

        def done(
            of_outputs: list[torch.Tensor | None], of_inputs: list[torch.Tensor | None]
        ) -> None:
            into = out = None
            if self.wants_data("backward", "input"):
                into = recorder.draft_all(of_outputs, f"{backward}.input")
            if self.wants_data("backward", "output"):
                out = recorder.draft_all(of_inputs, f"{backward}.output")
            recorder.add(
                backward,
                inputs=into,
                outputs=out,
                parent=None if parent is None else _backward_of(parent),
            )

        self._gradients.watch(backward, edges, start, outputs, done)


def _backward_of(name: str) -> str:
    call = parse_call(name)
    assert isinstance(call, (ApiCall, ModuleCall))
    return str(replace(call, direction="backward"))


def _devices() -> tuple[str, ...]:
    if torch.cuda.is_available():
        return tuple(
            f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())
        )
    return ("cpu",)
