"""A process that checks calls for another.

python -m tensorprobe.precheck.worker READ WRITE PARENT
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprobe.replay.worker import Answer, Task, serve, warm_up
from tensorprobe.system.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tensorprobe.store import RankDump

__all__: list[str] = []


def _check_calls(settings: dict[str, Any]) -> Task:
    import torch

    from tensorprobe.precheck.checker import Checker
    from tensorprobe.precheck.outcome import CallResult
    from tensorprobe.replay.devices import describe_device, open_device
    from tensorprobe.store import open_dump

    device = open_device(settings["device"])
    if settings["jit_compile"] is not None and device.type == "npu":
        # The switch of that device's own compiler; it must be as it was while training.
        accelerator: Any = torch.npu  # type: ignore[attr-defined]
        accelerator.set_compile_mode(jit_compile=settings["jit_compile"])
    warm_up(device)
    reader = ThreadPool(1)
    opened = open_dump(settings["dump"], backward=settings["backward"])
    parts = {str(part.path): part for part in opened.parts}

    def errors_of(part: RankDump) -> Path | None:
        """Return where failing calls of a part are kept: each part of several has a folder."""
        if settings["save_errors"] is None:
            return None
        folder = Path(settings["save_errors"])
        return folder / part.label.replace("/", "_") if len(parts) > 1 else folder

    checkers = {
        path: Checker(
            part,
            device,
            settings["data"],
            settings["seed"],
            errors_of(part),
            tuple(settings["imports"]),
        )
        for path, part in parts.items()
    }

    told = dict.fromkeys(parts, 0)

    def prepare(order: dict[str, Any]) -> Callable[[], Answer]:
        checker = checkers[order["part"]]
        prepared = checker.prepare(order["name"])
        if order["loss"]:
            return lambda: checker.keep(prepared, order["loss"]).as_json()
        prepared.read_ahead(reader)

        def check_it() -> Answer:
            try:
                result = checker.check(prepared)
            except Exception as err:  # noqa: BLE001 - it becomes the call's verdict
                text = f"the check itself failed: {type(err).__name__}: {err}"
                result = CallResult(order["name"], "SKIP", message=text)
            # Said once, whichever call came upon it.
            gaps = checker.part.known_gaps
            unread = tuple(gap.problem for gap in gaps[told[order["part"]] :])
            told[order["part"]] = len(gaps)
            return replace(result, unread=unread).as_json()

        return check_it

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

    return Task(
        prepare,
        is_alive,
        describe_device(device),
        writes_to=settings["save_errors"],
        is_on_cpu=device.type == "cpu",
    )


if __name__ == "__main__":
    serve(_check_calls)
