"""What a step costs while it is captured, as a ratio to the bare step in the same run.

    python benchmarks/capture.py [--device cuda] [--rounds 7]

One process runs all ways in turn, so that a noisy machine disturbs all alike; the table holds
medians. With `--device cuda` also the largest extra memory of the device.
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

WAYS: dict[str, dict[str, str] | None] = {
    "bare": None,
    "imported, not started": {},
    "L0": {"level": "L0"},
    "L1": {"level": "L1"},
    "mix": {"level": "mix"},
    "L1 md5": {"level": "L1", "summary_mode": "md5"},
}


def time_step(run: Callable[[], None], device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    device = arguments.device
    shape = gpt.CPU if device == "cpu" else gpt.GPU
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

    times: dict[str, list[float]] = {name: [] for name in WAYS}
    memory: dict[str, int] = {}
    for round_number in range(arguments.rounds + 2):
        for name, options in WAYS.items():
            if device != "cpu":
                torch.cuda.reset_peak_memory_stats()
            # One debugger is current at a time; making it is not part of a step.
            debugger = make_debugger(name, options) if options else None
            run = bare if debugger is None else functools.partial(captured, debugger)
            seconds = time_step(run, device)
            # The first rounds compile kernels and fill caches.
            if round_number >= 2:
                times[name].append(seconds)
                if device != "cpu":
                    memory[name] = torch.cuda.max_memory_allocated()
    shutil.rmtree(folder)
    base = statistics.median(times["bare"])
    print(f"{shape}\n{device}, torch {torch.__version__}, median of {arguments.rounds}")
    print(f"{'':22}  {'ms':>8}  {'x bare':>7}  {'extra MB':>8}")
    for name in WAYS:
        median = statistics.median(times[name])
        extra = (memory[name] - memory["bare"]) / 1e6 if memory else 0.0
        print(f"{name:22}  {median * 1e3:8.1f}  {median / base:7.2f}  {extra:8.1f}")


if __name__ == "__main__":
    main()
