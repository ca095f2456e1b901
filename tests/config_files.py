"""Configuration files for tests: the older tools' own, a full one, and what reading one says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.config import Config, load_config
from tensorprobe.errors import ConfigError

# The shape of the file that an older tool installs: every block, most fields at their defaults.
STOCK = {
    "task": "statistics",
    "dump_path": "./dump_path",
    "rank": [],
    "step": [],
    "level": "L1",
    "enable_dataloader": False,
    "async_dump": False,
    "tensor": {"scope": [], "list": [], "data_mode": ["all"], "file_format": "npy"},
    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "overflow_check": {"overflow_nums": 1, "check_mode": "all"},
    "run_ut": {"white_list": [], "black_list": [], "error_data_path": "./"},
    "grad_probe": {"grad_level": "L1", "param_list": [], "bounds": [-1, 0, 1]},
    "free_benchmark": {"scope": [], "list": [], "fuzz_device": "npu", "max_sample": 20},
}
FULL = {
    "task": "tensor",
    "dump_path": "/data/run 1",
    "rank": [1, "4-6"],
    "step": ["3", 0, "2-2", 0],
    "level": "mix",
    "enable_dataloader": True,
    "precision": "high",
    "add_apis": ["torch_npu.npu_scaled_masked_softmax"],
    "skip_apis": ["Tensor.__getitem__"],
    "tensor": {
        "scope": ["Module.conv1.Conv2d.forward.0", "Module.fc2.Linear.forward.0"],
        "list": ["relu", "Torch.matmul.3.backward"],
        "tensor_list": [],
        "data_mode": ["input", "forward"],
        "summary_mode": "md5",
        "file_format": "npy",
    },
}


def save(fields: object, folder: Path, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


def load(fields: object, folder: Path, **arguments: Any) -> Config:
    return load_config(save(fields, folder), **arguments)


def refusal(fields: object, folder: Path, **arguments: Any) -> str:
    """Give the message after the file's name, once it is known to be one line."""
    with pytest.raises(ConfigError) as caught:
        load(fields, folder, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}/config.json: ")


def notices(fields: object, folder: Path, **arguments: Any) -> list[str]:
    config = load(fields, folder, **arguments)
    return [notice.removeprefix(f"{folder}/config.json: ") for notice in config.notices]


# What is read -------------------------------------------------------------------------------------
