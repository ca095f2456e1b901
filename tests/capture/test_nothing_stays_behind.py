"""After `stop` a process is as it was: no hook, no mode, no patched attribute, no memory."""

from __future__ import annotations

import functools
import gc
import shutil
import sys
import threading
import time
import tracemalloc
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import models
import psutil
import pytest
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from tensorprobe.capture import PrecisionDebugger, gradients

LEVELS = ["L0", "L1", "mix"]
# What the older tools replace while they run.
WATCHED_SPACES: list[Any] = [
    torch,
    functional,
    torch.Tensor,
    getattr(torch._C, "TensorBase", None) or torch._C._TensorBase,
    torch._VF,
    torch.linalg,
    torch.fft,
    torch.special,
    torch.autograd,
    torch.autograd.Function,
    torch.nn.Module,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.optim.Optimizer,
    torch.utils,
    torch.utils.checkpoint,
    torch.utils.data.DataLoader,
]
# Who puts hooks somewhere.
WATCHERS = {
    f"tensorprobe.capture.{name}"
    for name in (
        "collectives",
        "torch_compile",
        "code_patch",
        "functions",
        "gradients",
        "kernels",
        "modules",
        "saved",
    )
}


def attributes() -> dict[str, int]:
    """Every attribute of torch's open spaces, by which object it is."""
    return {
        f"{space.__name__}.{name}": id(value)
        for space in WATCHED_SPACES
        for name, value in vars(space).items()
        # Submodules appear when they are first used.
        if type(value) is not types.ModuleType and name != "__annotations__"
    }


def code_of_functions() -> dict[str, int]:
    """The code of every function in torch's open spaces."""
    return {
        f"{space.__name__}.{name}": id(value.__code__)
        for space in WATCHED_SPACES
        for name, value in vars(space).items()
        if type(value) is types.FunctionType
    }


def hooks_and_modes(*roots: nn.Module) -> dict[str, int]:
    """How many hooks of every kind there are, and how many modes are on."""
    found = {
        name: len(value)
        for name, value in vars(torch_module).items()
        if name.startswith("_global_") and hasattr(value, "__len__")
    }
    for index, root in enumerate(roots):
        for path, module in root.named_modules():
            for name, value in vars(module).items():
                if "hooks" in name and hasattr(value, "__len__"):
                    found[f"{index}.{path}.{name}"] = len(value)
        for path, parameter in root.named_parameters():
            found[f"{index}.{path} hooks"] = len(parameter._backward_hooks or ())
            found[f"{index}.{path} late hooks"] = len(parameter._post_accumulate_grad_hooks or ())
    found["function modes"] = torch._C._len_torch_function_stack()
    found["dispatch modes"] = torch._C._len_torch_dispatch_stack()
    # torch 2.1 does not tell.
    ask_for_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if ask_for_hooks is not None:
        found["saved tensor hooks"] = int(ask_for_hooks(True) is not None)
    found["optimizer hooks"] = sum(
        len(value)
        for name, value in vars(sys.modules[torch.optim.Optimizer.__module__]).items()
        if name.startswith("_global_optimizer") and hasattr(value, "__len__")
    )
    found["own hooks alive"] = len(own_hooks())
    return found


def own_hooks() -> list[Any]:
    """The tool's hooks on nodes and tensors, in whatever form they hold what they record into."""
    gc.collect()
    return [thing for thing in gc.get_objects() if is_own_hook(thing)]


def is_own_hook(thing: Any) -> bool:
    if type(thing) is functools.partial:
        return getattr(thing.func, "__module__", None) in WATCHERS
    if type(thing) is types.FunctionType:
        return bool(thing.__closure__) and thing.__module__ in WATCHERS
    kind = type(thing)
    if kind.__module__ == "tensorprobe.capture._calls":
        return kind.__name__ in ("ModuleHook", "ParameterHook", "Root")
    return kind in (gradients.RootHook, gradients._NodeHook)


def python_calls_in(run: Callable[[], Any]) -> set[str]:
    """Which files' Python functions something calls."""
    found: set[str] = set()

    def on_call(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(on_call)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return models.Gpt()


@pytest.fixture
def ids() -> Tensor:
    return torch.arange(16).view(2, 8)


@pytest.fixture(params=LEVELS)
def debugger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrecisionDebugger]:
    debugger = PrecisionDebugger(dump_path=tmp_path, level=request.param)
    yield debugger
    debugger.step()


def train_once(model: nn.Module, ids: Tensor) -> None:
    model(ids).square().mean().backward()


# --- hooks and modes -----------------------------------------------------------------------------


def test_no_hook_and_no_mode_is_left_after_stop(
    debugger: PrecisionDebugger, model: nn.Module, ids: Tensor
) -> None:
    train_once(model, ids)
    before = hooks_and_modes(model)
    for _ in range(2):
        debugger.start(model)
        train_once(model, ids)
        assert hooks_and_modes(model) != before
        debugger.stop()
        assert hooks_and_modes(model) == before
        debugger.step()
        assert hooks_and_modes(model) == before


def test_no_hook_and_no_mode_is_left_without_a_backward_pass(
    debugger: PrecisionDebugger, model: nn.Module, ids: Tensor
) -> None:
    train_once(model, ids)
    before = hooks_and_modes(model)
    debugger.start(model)
    out = model(ids)
    assert hooks_and_modes(model)["own hooks alive"] > before["own hooks alive"]
    debugger.stop()
    assert hooks_and_modes(model) == before
    out.mean().backward()


class FailureError(Exception):
    pass


class Failing(nn.Module):
    """Raises in the middle of its forward or of its backward pass."""

    def __init__(self, *, in_backward: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.in_backward = in_backward

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner[0](x)
        if not self.in_backward:
            raise FailureError
        hidden.register_hook(self.fail)
        return self.inner[1](hidden)

    @staticmethod
    def fail(_: Tensor) -> None:
        raise FailureError


@pytest.mark.parametrize("in_backward", [False, True], ids=["forward", "backward"])
def test_nothing_is_left_when_the_model_raises(
    debugger: PrecisionDebugger, in_backward: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Failing(in_backward=in_backward))
    plain = nn.Sequential(nn.Linear(4, 4))
    train_once(plain, torch.randn(2, 4))
    before, codes = hooks_and_modes(model, plain), code_of_functions()
    debugger.start(model)
    with pytest.raises(FailureError):
        train_once(model, torch.randn(2, 4))
    # The run goes on, and so does the capture.
    train_once(plain, torch.randn(2, 4))
    debugger.stop()
    assert hooks_and_modes(model, plain) == before
    assert code_of_functions() == codes


def test_nothing_is_left_when_start_and_stop_stand_around_the_failure(
    debugger: PrecisionDebugger,
) -> None:
    model = Failing(in_backward=True)
    before = hooks_and_modes(model)
    for _ in range(3):
        debugger.start(model)
        try:
            with pytest.raises(FailureError):
                train_once(model, torch.randn(2, 4))
        finally:
            debugger.stop()
        debugger.step()
    assert hooks_and_modes(model) == before


def test_a_graph_that_outlives_the_capture_has_no_hooks(
    debugger: PrecisionDebugger, model: nn.Module, ids: Tensor, tmp_path: Path
) -> None:
    debugger.start(model)
    loss = model(ids).square().mean()
    loss.backward(retain_graph=True)
    debugger.stop()
    debugger.step()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    called = python_calls_in(lambda: loss.backward(retain_graph=True))
    assert not [path for path in called if "tensorprobe" in Path(path).parts]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == written


def test_a_debugger_that_was_never_started_calls_nothing(
    tmp_path: Path, model: nn.Module, ids: Tensor
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    called = python_calls_in(lambda: train_once(model, ids))
    assert not [path for path in called if "tensorprobe" in Path(path).parts]
    del debugger


# --- attributes ----------------------------------------------------------------------------------


def test_every_function_is_itself_before_during_and_after(
    debugger: PrecisionDebugger, model: nn.Module, ids: Tensor
) -> None:
    # They are told apart by which object they are, so all of them have to stay alive.
    kept = [value for space in WATCHED_SPACES for value in vars(space).values()]
    gelu, transpose = functional.gelu, torch.transpose
    before, codes = attributes(), code_of_functions()
    debugger.start(model)
    found = [attributes()]
    assert functional.gelu is gelu
    assert torch.transpose is transpose
    assert torch.equal(transpose(ids, 0, 1)[1:, :1], ids.t()[1:, :1])
    out = model(ids)
    out.register_hook(lambda _: found.append(attributes()))
    out.square().mean().backward()
    found.append(attributes())
    debugger.stop()
    found.append(attributes())
    assert len(found) == 4
    for now in found:
        assert {name for name in before if now.get(name) != before[name]} == set()
        assert now.keys() == before.keys()
    assert code_of_functions() == codes
    assert kept


def test_modules_and_tensors_get_no_attributes(
    debugger: PrecisionDebugger, model: nn.Module, ids: Tensor
) -> None:
    train_once(model, ids)

    def everything() -> dict[str, list[str]]:
        found = {name: sorted(vars(module)) for name, module in model.named_modules()}
        found.update((name, sorted(vars(p))) for name, p in model.named_parameters())
        return {**found, "ids": sorted(vars(ids))}

    before = everything()
    methods = {name: type(module).forward for name, module in model.named_modules()}
    debugger.start(model)
    train_once(model, ids)
    assert everything() == before
    debugger.stop()
    assert everything() == before
    assert {name: type(module).forward for name, module in model.named_modules()} == methods


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_tensors_live_no_longer_than_without_the_tool(tmp_path: Path, level: str) -> None:
    model = models.Mlp()

    def living() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    train_once(model, torch.randn(8, 6))
    before = living()
    debugger.start(model)
    for _ in range(3):
        # Activations of a pass without backward go when their last user lets them go.
        model(torch.randn(8, 6))
        train_once(model, torch.randn(8, 6))
        assert living() == before
    debugger.stop()
    debugger.step()
    assert living() == before


@pytest.mark.parametrize("level", LEVELS)
def test_activations_go_at_once_without_the_garbage_collector(tmp_path: Path, level: str) -> None:
    gone: list[bool] = []

    class Buffer:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

        def __del__(self) -> None:
            gone.append(True)

    model = models.Mlp()
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.start(model)
    gc.collect()
    gc.disable()
    try:
        # A tensor that autograd saved dies with its graph; what it was packed into tells us.
        with torch.autograd.graph.saved_tensors_hooks(Buffer, lambda buffer: buffer.tensor):
            out = model(torch.randn(8, 6))
        assert not gone
        del out
        assert gone
    finally:
        gc.enable()
        debugger.stop()
        debugger.step()


def test_two_hundred_steps_hold_their_memory(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = models.Mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="mix")
    process = psutil.Process()

    def run(steps: int) -> None:
        for _ in range(steps):
            debugger.start(model)
            loss = functional.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 4)
            loss.backward()
            debugger.stop()
            optimizer.step()
            optimizer.zero_grad()
            debugger.step()
            shutil.rmtree(tmp_path / "dump")
        gc.collect()

    # Stacks, names of functions and the like are learnt once, so always from the same line.
    # Tracing is slow: only the last steps are traced.
    objects, resident, traced = [], [], []
    try:
        for steps in (20, 160, 5, 15):
            run(steps)
            objects.append(len(gc.get_objects()))
            resident.append(process.memory_info().rss)
            traced.append(tracemalloc.get_traced_memory()[0])
            if steps == 160:
                tracemalloc.start()
    finally:
        tracemalloc.stop()
    assert objects[1] - objects[0] < 80
    assert resident[1] - resident[0] < 16 << 20
    assert traced[3] - traced[2] < 15 * 4096


class _Slow(dict[str, Any]):
    """Takes until the capture is over to say what it holds."""

    is_asked: threading.Event

    def items(self) -> Any:
        self.is_asked.set()
        end = time.monotonic() + 10
        while torch_module._global_forward_pre_hooks and time.monotonic() < end:
            time.sleep(0.001)
        return super().items()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_that_another_thread_calls_while_the_capture_stops_has_no_hooks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    class Layer(nn.Linear):
        def forward(self, given: Tensor, options: Any) -> Tensor:
            return super().forward(given)

    layer, options = Layer(4, 4), _Slow()
    options.is_asked = threading.Event()
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.start(layer)
    thread = threading.Thread(target=layer, args=(torch.randn(2, 4), options))
    thread.start()
    assert options.is_asked.wait(10)
    debugger.stop()
    thread.join()
    debugger.step()
    assert [p._backward_hooks for p in layer.parameters() if p._backward_hooks] == []
    assert [r.getMessage() for r in caplog.records if r.name.startswith("tensorprobe")] == []
