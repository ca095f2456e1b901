"""A process that replays calls of two runs, for another.

python -m tensorprobe.blame.worker READ WRITE PARENT
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensorprobe.replay.worker import Answer, Task, serve, warm_up

__all__: list[str] = []

_LONGEST = 500
# Products and sums: below this threads wait for each other longer than they work.
_WORTH_THREADS = 3e6


def _replay_calls(settings: dict[str, Any]) -> Task:
    import torch

    from tensorprobe.blame.links import Use
    from tensorprobe.blame.recorded_run import RecordedRun
    from tensorprobe.blame.senders import find_sender
    from tensorprobe.blame.split import split_call
    from tensorprobe.errors import RebuildError
    from tensorprobe.pairing.call_pairs import pair_records
    from tensorprobe.pairing.gradient_order import recorder_of_nodes
    from tensorprobe.store import open_dump

    warm_up(torch.device("cpu"))
    parts = [open_dump(Path(settings[key])).parts[0] for key in ("candidate", "reference")]
    ours, theirs = (RecordedRun(part, on_demand=True) for part in parts)
    of_node = recorder_of_nodes(parts[0].info, parts[1].info)
    told = [len(part.known_gaps) for part in parts]

    def replay(order: dict[str, Any]) -> Answer:
        mine, other = ours.calls[order["candidate"]], theirs.calls[order["reference"]]
        pair = pair_records(order["position"], mine, other, of_node)
        if order["kind"] == "sender":
            uses = [Use(*use) for use in order["uses"]]
            return {"sender": find_sender(pair, uses, ours, theirs, order["work"])}
        with _threads_for(order["cost"]):
            return split_call(pair, ours, theirs).to_json()

    def answer(order: dict[str, Any]) -> Answer:
        started = time.process_time()
        said: Answer = {}
        try:
            said["found"] = replay(order)
        except RebuildError as err:
            said["problem"] = _shortened(str(err))
        except Exception as err:  # noqa: BLE001 - it becomes the reason why the call is not replayed
            said["problem"] = _shortened(
                f"{order['name']} cannot be replayed: {type(err).__name__}: {err}"
            )
        finally:
            ours.forget()
            theirs.forget()
        said["unread"] = []
        for index, part in enumerate(parts):
            problems = [gap.problem for gap in part.known_gaps]
            said["unread"].append(problems[told[index] :])
            told[index] = len(problems)
        said["seconds"] = time.process_time() - started
        return said

    return Task(lambda order: lambda: answer(order))


@contextmanager
def _threads_for(cost: float) -> Iterator[None]:
    """Let torch use one thread only for what is quickly done."""
    import torch

    before = torch.get_num_threads()
    if cost < _WORTH_THREADS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


if __name__ == "__main__":
    serve(_replay_calls)
