"""The beginning of a dump.json or debug.json, up to its first record."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tensorprobe._version import __version__
from tensorprobe.records import DumpInfo
from tensorprobe.store.layout import DATA_FOLDER, FORMAT_VERSION, OWN_KEY

__all__ = ["header_of"]


def header_of(info: DumpInfo, folder: Path) -> bytes:
    """Return what a dump begins with.

    Args:
        info: what the dump is.
        folder: where it is.
    """
    has_data = info.task in ("tensor", "overflow_check")
    own: dict[str, Any] = {"format": FORMAT_VERSION, "version": __version__}
    for key, value in (
        ("run", info.run),
        ("torch", info.torch_version),
        ("python", info.python_version),
    ):
        if value is not None:
            own[key] = value
    for key, number in (("rank", info.rank), ("step", info.step)):
        if number is not None:
            own[key] = number
    if info.devices:
        own["devices"] = list(info.devices)
    fields = {
        "task": info.task,
        "level": info.level,
        "framework": info.framework,
        "dump_data_dir": os.fspath(folder / DATA_FOLDER) if has_data else None,
        OWN_KEY: own,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in fields.items()]
    return ("{\n" + "".join(lines) + ' "data": {').encode()
