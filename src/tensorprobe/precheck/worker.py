"""A process that checks calls for another: it may die or hang, and only its call is lost.

    python -m tensorprobe.precheck.worker READ WRITE

Two pipes carry JSON lines. In: one line of settings, then names. Out: `{"ready": true}` or
`{"failed": …}`, then a line for each name, and `{"bye": true}` before it ends by itself.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

__all__ = ["main"]


def main(read_end: int, write_end: int) -> None:
    """Check calls until there are no more names or the device is lost."""
    with os.fdopen(read_end) as orders, os.fdopen(write_end, "w") as answers:
        settings = json.loads(orders.readline() or "null")
        if settings is None:
            return
        # After the first line, so that whoever started us need not wait for torch.
        from tensorprobe.errors import TensorprobeError

        try:
            check, is_alive = _prepare(settings)
        except (TensorprobeError, RuntimeError, ImportError) as err:
            _say(answers, {"failed": f"{err}"})
            return
        _say(answers, {"ready": True})
        for line in orders:
            _say(answers, check(json.loads(line)))
            if not is_alive():
                break
        _say(answers, {"bye": True})


def _prepare(settings: dict[str, Any]) -> tuple[Any, Any]:
    import torch

    from tensorprobe.precheck.checker import Checker
    from tensorprobe.precheck.devices import open_device
    from tensorprobe.precheck.outcome import CallResult
    from tensorprobe.precheck.rebuild import import_modules
    from tensorprobe.store import open_dump

    torch.set_num_threads(settings["threads"])
    import_modules(tuple(settings["imports"]))
    device = open_device(settings["device"])
    if settings["jit_compile"] is not None and device.type == "npu":
        # The switch of that device's own compiler; it must be as it was while training.
        accelerator: Any = torch.npu  # type: ignore[attr-defined]
        accelerator.set_compile_mode(jit_compile=settings["jit_compile"])
    parts = {str(part.path): part for part in open_dump(settings["dump"]).parts}
    checkers = {
        path: Checker(
            part,
            device,
            settings["data"],
            settings["seed"],
            None if settings["save_errors"] is None else Path(settings["save_errors"]),
            tuple(settings["imports"]),
        )
        for path, part in parts.items()
    }

    def check(order: dict[str, str]) -> dict[str, Any]:
        try:
            result = checkers[order["part"]].check(order["name"])
        except Exception as err:  # noqa: BLE001 - it becomes the call's verdict
            text = f"the check itself failed: {type(err).__name__}: {err}"
            result = CallResult(order["name"], "SKIP", message=text)
        return dataclasses.asdict(result)

    def is_alive() -> bool:
        """Whether the device still answers; after some errors it never does again."""
        module: Any = getattr(torch, device.type, None)
        if device.type == "cpu" or not hasattr(module, "synchronize"):
            return True
        try:
            module.synchronize(device)
        except RuntimeError:
            return False
        return True

    return check, is_alive


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
