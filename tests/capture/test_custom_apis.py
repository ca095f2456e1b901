"""Functions of the user's own are one call each, and are given back as they were."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from debugged import messages, names

from tensorprobe import (
    PrecisionDebugger,
    load_config,
)
from tensorprobe.errors import ConfigError


def user_module() -> ModuleType:
    module = ModuleType("my_ops")

    def fused(x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
        return torch.sigmoid(x) * scale

    module.fused = fused  # type: ignore[attr-defined]
    return module


def test_a_function_of_the_users_own_is_recorded_as_one_call(tmp_path: Path) -> None:
    ops = user_module()
    original = ops.fused
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.register_custom_api(ops, "fused", "MyOps")
    debugger.start()
    x = torch.ones(2, requires_grad=True)
    ops.fused(x, scale=3.0).sum().backward()
    debugger.stop()
    ops.fused(x)
    debugger.step()
    called = names(tmp_path)
    assert "MyOps.fused.0.forward" in called and "MyOps.fused.0.backward" in called
    assert not any("sigmoid" in name for name in called)
    entry = json.loads((tmp_path / "step0/rank/dump.json").read_text())["data"]
    assert entry["MyOps.fused.0.forward"]["input_kwargs"]["scale"]["value"] == 3.0
    debugger.restore_custom_api(ops, "fused")
    assert ops.fused is original


def test_the_prefix_is_the_modules_name_by_default(tmp_path: Path) -> None:
    ops = user_module()
    debugger = PrecisionDebugger(dump_path=tmp_path)
    PrecisionDebugger.register_custom_api(ops, "fused")
    debugger.start()
    ops.fused(torch.ones(2))
    debugger.step()
    assert "my_ops.fused.0.forward" in names(tmp_path)


class Attention:
    scale = 2.0

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    @staticmethod
    def mask(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @classmethod
    def make(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.scale


class OwnAttention(Attention):
    pass


@pytest.mark.parametrize("home", [Attention, OwnAttention])
@pytest.mark.parametrize("name", ["attend", "mask", "make"])
def test_methods_are_recorded_without_their_object_and_restored_exactly(
    tmp_path: Path, home: type, name: str
) -> None:
    before = vars(home).get(name)
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.register_custom_api(home, name, "Own")
    debugger.start()
    getattr(home(), name)(torch.ones(2))
    debugger.step()
    data = json.loads((tmp_path / "step0/rank/dump.json").read_text())["data"]
    (value,) = data[f"Own.{name}.0.forward"]["input_args"]
    assert value["type"] == "torch.Tensor"
    debugger.restore_custom_api(home, name)
    assert vars(home).get(name) is before


def test_a_method_of_one_object_is_recorded_and_restored(tmp_path: Path) -> None:
    attention = Attention()
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.register_custom_api(attention, "attend")
    debugger.start()
    attention.attend(torch.ones(2))
    debugger.step()
    assert "Custom.attend.0.forward" in names(tmp_path)
    debugger.restore_custom_api(attention, "attend")
    assert vars(attention) == {}


def test_a_function_of_torch_only_gets_another_name(tmp_path: Path) -> None:
    before = torch.matmul
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.register_custom_api(torch, "matmul", "Mine")
    assert torch.matmul is before
    debugger.start()
    torch.matmul(torch.ones(2, 2), torch.ones(2, 2))
    debugger.step()
    debugger.restore_custom_api(torch, "matmul")
    debugger.start()
    torch.matmul(torch.ones(2, 2), torch.ones(2, 2))
    debugger.step()
    assert "Mine.matmul.0.forward" in names(tmp_path, 0)
    assert "Torch.matmul.0.forward" in names(tmp_path, 1)


def test_a_newer_debugger_restores_what_the_older_replaced(tmp_path: Path) -> None:
    ops = user_module()
    original = ops.fused
    PrecisionDebugger(dump_path=tmp_path / "a").register_custom_api(ops, "fused")
    assert ops.fused is not original
    PrecisionDebugger(dump_path=tmp_path / "b")
    assert ops.fused is original


def test_a_function_that_somebody_replaced_since_is_left_alone(tmp_path: Path) -> None:
    ops = user_module()
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.register_custom_api(ops, "fused")
    ours = ops.fused

    def theirs(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = ours(x)
        return result

    ops.fused = theirs  # type: ignore[attr-defined]
    debugger.restore_custom_api(ops, "fused")
    assert ops.fused is theirs
    assert torch.equal(ops.fused(torch.zeros(1)), torch.ones(1))


def test_what_cannot_be_registered_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    ops = user_module()
    with pytest.raises(ConfigError, match=r"^register_custom_api: my_ops has no function 'fusde'"):
        debugger.register_custom_api(ops, "fusde")
    for prefix in ("Module", "Module.ops", "two words", "a/b", ".", "a.0.forward", 5):
        wanted = f"the prefix is {prefix!r}, wanted a word such as 'MyOps'"
        with pytest.raises(ConfigError, match=re.escape(wanted)):
            debugger.register_custom_api(ops, "fused", prefix)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'Linear' of torch.nn is a class; give the class and "):
        debugger.register_custom_api(torch.nn, "Linear")
    with pytest.raises(ConfigError, match=r"'bit_length' of int cannot be replaced: "):
        debugger.register_custom_api(int, "bit_length")
    debugger.restore_custom_api(ops, "fused")
    assert messages(caplog) == [
        "restore_custom_api: 'fused' is not registered; there is nothing to undo"
    ]


def test_add_apis_names_functions_by_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "our_kernels.py").write_text("def swiglu(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    names_given = ["our_kernels.swiglu", "no_such_package.fused"]
    config = load_config(dump_path=tmp_path / "dump", add_apis=names_given)
    debugger = PrecisionDebugger.from_config(config)
    import our_kernels  # type: ignore[import-not-found]

    debugger.start()
    our_kernels.swiglu(torch.ones(2))
    debugger.step()
    assert "our_kernels.swiglu.0.forward" in names(tmp_path / "dump")
    assert messages(caplog) == [
        "add_apis holds 'no_such_package.fused', which cannot be recorded: No module named "
        "'no_such_package'"
    ]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_what_we_ask_of_a_functions_tensors_is_not_the_users(tmp_path: Path, level: str) -> None:
    ops = user_module()
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.register_custom_api(ops, "fused", "MyOps")
    numbers = torch.randn(2, 8, dtype=torch.cfloat)
    given = [
        numbers.conj(),
        numbers.conj().imag,
        torch.ones(3).to_sparse(),
        torch.ones(2, 4)[:, :2],
    ]
    debugger.start()
    for tensor in given:
        with contextlib.suppress(NotImplementedError, RuntimeError):
            ops.fused(tensor)
    debugger.stop()
    debugger.step()
    debugger.restore_custom_api(ops, "fused")
    assert {name.split(".")[0] for name in names(tmp_path)} == {"MyOps"}
