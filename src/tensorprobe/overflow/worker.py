"""A process that repeats calls which overflowed: it may die or hang, and only its call is lost.

    python -m tensorprobe.overflow.worker READ WRITE

The loop and the pipes are those of the pre-check's worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tensorprobe.precheck.worker import Task, serve, warm_up

__all__: list[str] = []


def _replay_calls(settings: dict[str, Any]) -> Task:
    import torch

    from tensorprobe.overflow.replay import replay_overflow
    from tensorprobe.overflow.verdict import Replay
    from tensorprobe.precheck.devices import open_device
    from tensorprobe.precheck.rebuild import import_modules
    from tensorprobe.store import open_dump

    torch.set_num_threads(settings["threads"])
    import_modules(tuple(settings["imports"]))
    device = open_device(settings["device"]) if settings["repeats"] else None
    warm_up(device or torch.device("cpu"))
    parts = {str(part.path): part for part in open_dump(settings["dump"]).parts}

    def prepare(order: dict[str, str]) -> Callable[[], dict[str, Any]]:
        def replay() -> dict[str, Any]:
            try:
                found = replay_overflow(parts[order["part"]], order["name"], device=device)
            except Exception as err:  # noqa: BLE001 - it becomes the call's verdict
                text = f"the replay itself failed: {type(err).__name__}: {err}"
                found = Replay("not judged", message=text)
            return dataclasses.asdict(found)

        return replay

    return Task(prepare, lambda: True)


if __name__ == "__main__":
    serve(_replay_calls)
