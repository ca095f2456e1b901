"""A process that repeats calls which overflowed, for another.

python -m tensorprobe.overflow.worker READ WRITE PARENT
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tensorprobe.replay.worker import Task, serve, warm_up

__all__: list[str] = []


def _replay_calls(settings: dict[str, Any]) -> Task:
    import torch

    from tensorprobe.overflow.replay import replay_overflow
    from tensorprobe.overflow.verdict import Replay
    from tensorprobe.replay.devices import open_device
    from tensorprobe.store import open_dump

    device = open_device(settings["device"]) if settings["repeats"] else None
    warm_up(device or torch.device("cpu"))
    parts = {str(part.path): part for part in open_dump(settings["dump"]).parts}

    def prepare(order: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        def replay() -> dict[str, Any]:
            try:
                found = replay_overflow(parts[order["part"]], order["name"], device=device)
            except Exception as err:  # noqa: BLE001 - it becomes the call's verdict
                text = f"the replay itself failed: {type(err).__name__}: {err}"
                found = Replay("not judged", message=text)
            return dataclasses.asdict(found)

        return replay

    return Task(prepare, is_on_cpu=device is None or device.type == "cpu")


if __name__ == "__main__":
    serve(_replay_calls)
