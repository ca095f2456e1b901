"""In which order the elements of a tensor stand in its file, and that they are all there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.system.cores import count_cores
from warm_python import run_warm


def layouts() -> dict[str, torch.Tensor]:
    """Tensors that lie in memory in many ways."""
    torch.manual_seed(3)
    base = torch.randn(6, 128, 96)
    pairs = torch.view_as_complex(base.view(6, 128, 48, 2))
    return {
        "transposed": base.transpose(0, 1),
        "with gaps": base[:, :, :64],
        "with gaps, transposed": base[:, :, :64].view(6, 128, 4, 16).transpose(1, 2),
        "with short runs": base[:, :, :32].permute(2, 0, 1),
        "without runs": base[:, :, ::3].transpose(0, 1),
        "expanded": base[:1].expand(6, 128, 96).transpose(0, 2),
        "overlapping": base.as_strided((50, 60, 7), (7, 9, 1)),
        "overlapping, transposed": base.as_strided((7, 60, 50), (1, 9, 7)),
        "with sides of one": base.transpose(0, 2)[:, None, :, :1],
        "half": base.half().permute(2, 0, 1),
        "doubles with gaps": base.double()[..., :64].permute(1, 0, 2),
        "truths": (base > 0).transpose(1, 2),
        "integers": (base * 10).long()[:, ::2].transpose(0, 1),
        "conjugated": pairs.conj().transpose(0, 1),
        "negated": pairs.conj().imag.transpose(0, 1),
        "negated integers": torch._neg_view((base[0] * 10).long()),
        "empty": base[:0].transpose(0, 1),
        "deep": base.view(2, 3, 2, 4, 16, 2, 2, 24).permute(7, 1, 0, 2, 4, 6, 5, 3),
        "parameter": torch.nn.Parameter(base.clone()).transpose(0, 2),
    }


@pytest.fixture(params=["all threads", "one less"], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    # Where torch leaves a core free, threads of ours write.
    before = torch.get_num_threads()
    torch.set_num_threads(count_cores() - (request.param == "one less" and count_cores() > 1))
    torch.ones(1 << 22).add(1)
    yield
    torch.set_num_threads(before)


def capture(folder: Path, tensors: dict[str, torch.Tensor], **fields: object) -> list[Any]:
    """Capture one call of each tensor; returns the records of what they were given."""
    debugger = PrecisionDebugger(task="tensor", dump_path=folder, level="L1", **fields)  # type: ignore[arg-type]
    with debugger:
        debugger.start()
        for tensor in tensors.values():
            tensor.clone()
    calls = json.loads(next(folder.rglob("dump.json")).read_text())["data"]
    return [
        calls[f"Tensor.clone.{number}.forward"]["input_args"][0] for number in range(len(tensors))
    ]


def test_every_layout_is_kept_whole(tmp_path: Path) -> None:
    tensors = layouts()
    values = capture(tmp_path, tensors)
    data = next(tmp_path.rglob("dump_tensor_data"))
    part = open_dump(tmp_path).parts[0]
    for (name, tensor), value in zip(tensors.items(), values, strict=True):
        kept = torch.load(data / value["data_name"])
        expected = tensor.detach().resolve_conj().resolve_neg()
        assert kept.shape == tensor.shape and kept.dtype == tensor.dtype, name
        assert torch.equal(kept, expected), name
        # No element takes more room than its own.
        assert kept.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), name
        if tensor.is_floating_point() and tensor.numel():
            assert value["Max"] == tensor.max().item(), name
            assert value["Norm"] == pytest.approx(tensor.double().norm().item()), name
    loaded = [part.load(leaf.value) for call in part for leaf in call.leaves()]  # type: ignore[arg-type]
    assert len(loaded) == 2 * len(tensors)


def test_a_tensor_in_another_order_is_written_as_it_lies(tmp_path: Path) -> None:
    tensors = layouts()
    values = dict(zip(tensors, capture(tmp_path, tensors), strict=True))
    data = next(tmp_path.rglob("dump_tensor_data"))

    def stride_of(name: str) -> tuple[int, ...]:
        return tuple(torch.load(data / values[name]["data_name"]).stride())

    assert stride_of("transposed") == tensors["transposed"].stride()
    assert stride_of("half") == tensors["half"].stride()
    assert stride_of("deep") == tensors["deep"].stride()
    assert stride_of("with gaps") == (128 * 64, 64, 1)
    assert stride_of("with gaps, transposed") == (128 * 64, 16, 64, 1)
    assert stride_of("expanded") == (128 * 6, 6, 1)


@pytest.mark.parametrize("fields", [{"summary_mode": "md5"}, {"file_format": "npy"}])
def test_checksums_and_npy_have_c_order(tmp_path: Path, fields: dict[str, str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "tensor", "tensor": fields}))
    tensors = layouts()
    capture(tmp_path / "dump", tensors, config_path=config)
    files = list((tmp_path / "dump").rglob("dump_tensor_data/*.*"))
    assert len(files) == 2 * len(tensors)
    for path in files:
        if path.suffix == ".npy":
            assert np.load(path).flags.c_contiguous
        else:
            assert torch.load(path).is_contiguous()


SCRIPT = """
import os, sys
from pathlib import Path
import torch
sys.path[:0] = sys.argv[1].split(os.pathsep)
from test_kept_order import capture, layouts
torch.set_num_threads(int(sys.argv[3]))
torch.ones(1 << 22).add(1)
capture(Path(sys.argv[2]), layouts())
"""


def test_files_are_the_same_without_compiled_code(tmp_path: Path) -> None:
    contents = []
    for is_compiled in (True, False):
        folder = tmp_path / str(is_compiled)
        environment = {**os.environ, "TENSORPROBE_NO_KERNEL": "" if is_compiled else "1"}
        words = (os.pathsep.join(sys.path), folder, torch.get_num_threads())
        run_warm(SCRIPT, *words, environment=environment, check=True)
        files = sorted(folder.rglob("dump_tensor_data/*.pt"))
        contents.append({path.name: path.read_bytes() for path in files})
    assert len(contents[0]) == 2 * len(layouts())
    assert contents[0] == contents[1]
