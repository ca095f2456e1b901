"""Where in the code a call is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe import open_dump
from tensorprobe.blame.places import find_places, short_path
from tensorprobe.records import Frame

PACKAGES = "/opt/venv/lib/python3.11/site-packages"
TORCH = Frame(f"{PACKAGES}/torch/nn/modules/module.py", 1, "_call_impl", "return forward_call()")
LIBRARY = Frame(f"{PACKAGES}/transformers/activations.py", 103, "forward", "return silu(input)")
MODEL = Frame(f"{PACKAGES}/transformers/models/llama/modeling_llama.py", 164, "forward", "…")
SCRIPT = Frame("/home/me/train.py", 97, "<module>", "loss = model(ids)")


def test_a_call_in_a_library_has_its_line_and_the_users_own() -> None:
    assert find_places((LIBRARY, TORCH, MODEL, TORCH, SCRIPT)) == (LIBRARY, SCRIPT)


def test_a_call_in_the_users_own_code_has_one_line() -> None:
    inner = Frame("/home/me/model.py", 12, "forward", "x = relu(x)")
    assert find_places((TORCH, inner, TORCH, SCRIPT)) == (inner, None)


@pytest.mark.parametrize(
    "path",
    [
        "ptdbg_ascend/src/python/ptdbg_ascend/hook_module/hook_module.py",
        "api_accuracy_checker/dump/dump.py",
        f"{PACKAGES}/msprobe/pytorch/hook_module/wrap_functional.py",
        "/usr/lib/python3.11/contextlib.py",
        "<frozen runpy>",
        "/src/pytorch/torch/autograd/function.py",
        f"{PACKAGES}/torch_npu/contrib/module.py",
        "C:\\venv\\Lib\\site-packages\\torch\\nn\\functional.py",
    ],
)
def test_frames_of_torch_tools_and_python_are_passed_over(path: str) -> None:
    assert find_places((Frame(path, 1, "wrapper", ""), SCRIPT)) == (SCRIPT, None)


@pytest.mark.parametrize(
    "path", ["/home/me/torch/train.py", "/data/msprobe/train.py", "<stdin>", "/lib/train.py"]
)
def test_a_users_folder_may_be_called_like_a_tool(path: str) -> None:
    frame = Frame(path, 1, "main", "")
    assert find_places((TORCH, frame)) == (frame, None)


def test_torch_alone_is_better_than_nothing() -> None:
    assert find_places((TORCH,)) == (TORCH, None)
    assert find_places(()) == (None, None)


def test_paths_of_packages_are_short() -> None:
    assert short_path(LIBRARY.path) == "transformers/activations.py"
    assert short_path(SCRIPT.path) == SCRIPT.path


@pytest.mark.parametrize(
    ("dump", "call"),
    [
        ("ptdbg_ascend/2024-10/md5/npu/ptdbg_dump_v3.0/step0", "conv2d"),
        ("api_accuracy_checker/2024-10/statistics", "conv2d"),
        ("msprobe-26.2.0/mlp_L1_tensor/npu", "linear"),
    ],
)
def test_dumps_of_other_tools_show_the_script(peer_dumps: Path, dump: str, call: str) -> None:
    if not (peer_dumps / dump).exists():
        pytest.skip("the repository does not hold this dump")
    part = open_dump(peer_dumps / dump).parts[0]
    name = next(name for name in part.names if call in name and part.stack(name))
    place, own = find_places(part.stack(name))
    assert place is not None and place.path == "train.py"
    assert own is None
