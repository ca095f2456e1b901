"""Functions of the user's own can be called by the names that the user's code gave them."""

from __future__ import annotations

import sys

import pytest
import torch

import tensorprobe
from tensorprobe.errors import ConfigError, RebuildError
from tensorprobe.replay.functions import find_callable, find_function
from tensorprobe.replay.users import import_modules

MODULE = """
import os
import subprocess as helpers
import torch
import tensorprobe

__all__ = ["Twice", "fused", "helpers", "missing", 3]


def fused(x):
    return x * 2


def hidden(x):
    return x


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


def elsewhere(x):
    return x + 1


tensorprobe.register_function("MyOps.fused_norm", elsewhere)
torch.library.define("users_of_test::add_one", "(Tensor x) -> Tensor")
torch.library.impl("users_of_test::add_one", "CPU", lambda x: x + 1)
torch.library.define("users_of_test::read", "(Tensor x, str path) -> Tensor")
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("modules") / "package_of_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "users_of_test.py").write_text(MODULE)
    sys.path.insert(0, str(folder.parent))
    import_modules(("package_of_test.users_of_test",))
    sys.path.remove(str(folder.parent))


@pytest.mark.parametrize(
    "name",
    [
        "users_of_test.fused",
        "package_of_test.users_of_test.fused",
        "Twice.apply",
        "MyOps.fused_norm",
        "Custom.users_of_test.add_one",
        "Custom.users_of_test.add_one.default",
    ],
)
def test_what_the_module_gave_a_name_is_called(imported: None, name: str) -> None:
    assert find_callable(f"{name}.0.forward")(torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "name",
    [
        "users_of_test.hidden",
        "users_of_test.helpers",
        "users_of_test.helpers.run",
        "users_of_test.os.system",
        "users_of_test.missing",
        "users_of_test.Twice",
        "Twice.forward",
        "Twice.backward",
        "Custom.users_of_test.read",
    ],
)
def test_what_it_did_not_is_not(imported: None, name: str) -> None:
    with pytest.raises(RebuildError):
        find_callable(f"{name}.0.forward")


def test_a_script_names_it_by_its_module(imported: None) -> None:
    assert find_function("users_of_test", "fused")[1] == "package_of_test.users_of_test.fused"
    assert find_function("MyOps", "fused_norm")[1] == "package_of_test.users_of_test.elsewhere"


def test_no_file_causes_an_import() -> None:
    before = set(sys.modules)
    for name in ("this.s", "antigravity.open", "Torch.onnx", "NPU.npu_rms_norm", "turtle.fd"):
        with pytest.raises(RebuildError):
            find_callable(f"{name}.0.forward")
    assert set(sys.modules) == before


@pytest.mark.parametrize("name", ["fused", "", "a b.c", "MyOps.1", 3])
def test_a_name_that_no_call_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is no name such as 'MyOps\.fused_norm'"):
        tensorprobe.register_function(name, test_no_file_causes_an_import)


def test_a_function_that_no_script_can_import_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be imported from its module"):
        tensorprobe.register_function("MyOps.local", lambda x: x)


def test_where_the_module_is_found_is_told() -> None:
    with pytest.raises(RebuildError, match=r"no_such_module cannot be imported .* on PYTHONPATH"):
        import_modules(("no_such_module",))
