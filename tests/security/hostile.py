"""Dumps that ask for more than data, and a look at what a command did to the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from conftest import REPOSITORY

TEXT = {"type": "str", "value": "touch PWNED"}


def value(item: Any) -> dict[str, Any] | list[Any]:
    """Return an argument as a dump holds it."""
    if isinstance(item, (list, tuple)):
        return [value(each) for each in item]
    return {"type": type(item).__name__, "value": item}


def tensor(*shape: int, dtype: str = "torch.float32", **more: Any) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": dtype,
        "shape": list(shape),
        "Max": 1.0,
        "Min": 0.0,
        "Mean": 0.5,
        "Norm": 1.0,
        "requires_grad": False,
        **more,
    }


def call(*args: Any, outputs: Iterable[Any] = (), **kwargs: Any) -> dict[str, Any]:
    return {"input_args": list(args), "input_kwargs": kwargs, "output": list(outputs)}


def write_dump(folder: Path, calls: dict[str, Any], *, task: str = "statistics") -> Path:
    """Write a dump of these calls and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data = str(folder / "dump_tensor_data") if task == "tensor" else None
    head = {"task": task, "level": "L1", "framework": "pytorch", "dump_data_dir": data}
    (folder / "dump.json").write_text(json.dumps({**head, "data": calls}))
    return folder


def write_data(folder: Path, name: str, data: torch.Tensor) -> dict[str, Any]:
    """Write a tensor of a dump and return its value."""
    (folder / "dump_tensor_data").mkdir(parents=True, exist_ok=True)
    torch.save(data, folder / "dump_tensor_data" / name)
    numbers = data.double()
    low, high, mean = float(numbers.min()), float(numbers.max()), float(numbers.mean())
    told = tensor(*data.shape, dtype=str(data.dtype), Max=high, Min=low, Mean=mean)
    return {**told, "Norm": float(numbers.norm()), "data_name": name}


def run(folder: Path, *args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of tensorprobe in a folder."""
    paths = os.pathsep.join((str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, "-m", "tensorprobe", *map(str, args)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths.rstrip(os.pathsep), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def everything_below(*folders: Path) -> dict[str, tuple[int, int]]:
    """Return every file and folder with size and time of its last change."""
    found = {}
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            status = path.lstat()
            found[str(path)] = (status.st_size, status.st_mtime_ns)
    return found
