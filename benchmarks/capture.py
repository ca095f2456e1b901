"""What a step costs while it is captured, as a ratio to the bare step in the same run.

    python benchmarks/capture.py [--device cuda] [--rounds 7]
    python benchmarks/capture.py --host --rounds 50

One process runs each way in turn with the bare step, so that a noisy machine disturbs both alike;
the table holds medians. On a GPU the last numbers of a step are written while the run goes on: what
that costs the bare step that follows stands in a column of its own, and the bare step that counts
is the one after. With `--device cuda` also the largest extra memory of the device. `--host` takes a
model so small that its calls alone count, on one thread: what a GPU would wait for.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import gpt
import torch

from tensorprobe.capture import PrecisionDebugger

WAYS: dict[str, dict[str, str]] = {
    "imported, not started": {},
    "L0": {"level": "L0"},
    "L1": {"level": "L1"},
    "mix": {"level": "mix"},
    "L1 md5": {"level": "L1", "summary_mode": "md5"},
}


def measure_step(run: Callable[[], None], device: str) -> tuple[float, int]:
    """Return the seconds that a step takes, and the most memory of the device."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start, 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start, torch.cuda.max_memory_allocated()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--host", action="store_true", help="a tiny model, on one thread")
    arguments = parser.parse_args()
    device = arguments.device
    shape = gpt.CPU if device == "cpu" else gpt.GPU
    if arguments.host:
        shape = gpt.HOST
        torch.set_num_threads(1)
    model, ids, targets = gpt.make_step(shape, device)
    folder = tempfile.mkdtemp()

    def bare() -> None:
        model(ids, targets).backward()
        for parameter in model.parameters():
            parameter.grad = None

    def make_debugger(name: str, options: dict[str, str]) -> PrecisionDebugger:
        config = os.path.join(folder, f"{name}.json")
        with open(config, "w") as file:
            mode = options.get("summary_mode", "statistics")
            json.dump({"task": "statistics", "statistics": {"summary_mode": mode}}, file)
        return PrecisionDebugger(
            config, dump_path=os.path.join(folder, name), level=options["level"]
        )

    def captured(debugger: PrecisionDebugger) -> None:
        debugger.start(model)
        bare()
        debugger.stop()
        debugger.step()

    print(f"{shape}\n{device}, torch {torch.__version__}, median of {arguments.rounds}")
    titles = ("ms", "bare", "x bare", "next", "extra MB")
    print(f"{'':22}" + "".join(f"  {title:>8}" for title in titles))
    for name, options in WAYS.items():
        # One debugger for all its steps, as in a training; making it is not part of a step.
        run = functools.partial(captured, make_debugger(name, options)) if options else bare
        rounds = []
        # The first rounds compile kernels and fill caches.
        for round_number in range(arguments.rounds + 3):
            # The bare step beside each, so that a noisy machine disturbs both alike.
            three = [measure_step(step, device) for step in (bare, run, bare)]
            if round_number >= 3:
                rounds.append(three)
        base, median, after = (
            statistics.median(three[i][0] for three in rounds) * 1e3 for i in range(3)
        )
        extra = max(with_tool[1] - before[1] for before, with_tool, _ in rounds) / 1e6
        cells = (
            f"{median:.1f}",
            f"{base:.1f}",
            f"{median / base:.2f}",
            f"{after:.1f}",
            f"{extra:.1f}",
        )
        print(f"{name:22}" + "".join(f"  {cell:>8}" for cell in cells))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
