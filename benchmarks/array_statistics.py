"""How fast statistics and checksum of one array are read, against torch.sum and zlib.

Run it with `python benchmarks/array_statistics.py`. torch.sum reads every byte and does next to
nothing with it, so its rate is what this machine's memory gives. The two take turns and the best
of several rounds counts, so that other work on the machine disturbs both alike.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from functools import partial

# Some processors announce AMX and stop a process that uses it; see CONTRIBUTING.md.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import numpy as np
import torch

from tensorprobe.dtypes import DTYPES
from tensorprobe.metrics.kernel import compiled
from tensorprobe.metrics.statistics import measure_array
from tensorprobe.system.crc32 import crc32, load_crc32

SIZE = 256 << 20
ROUNDS = 25
# The least ratio that we want.
GOALS = {"float32": 1 / 2, "float16": 1 / 3, "bfloat16": 1 / 3, "float64": 0.0, "int64": 0.0}

CHECKSUMS = (
    ("4 KiB", 4 << 10, 1),
    ("1 MiB", 1 << 20, 1),
    ("256 MiB, 1 thread", SIZE, 1),
    ("256 MiB", SIZE, None),
)


def main() -> None:
    print(f"compiled kernel: {'yes' if compiled() else 'no, numpy'}")
    print(f"{torch.get_num_threads()} threads, {SIZE >> 20} MiB, best of {ROUNDS} rounds")
    print(f"{'dtype':<10}{'statistics':>12}{'torch.sum':>12}{'ratio':>8}{'goal':>8}")
    for name, goal in GOALS.items():
        tensor = make_tensor(getattr(torch, name))
        dtype = DTYPES[f"torch.{name}"]
        array = tensor.view(torch.uint8).numpy().view(dtype.carrier)
        ours, theirs = race(partial(measure_array, array, dtype), tensor.sum)
        ratio = theirs / ours
        wanted = f"{goal:.2f}" if goal else ""
        print(f"{name:<10}{rate(ours):>12}{rate(theirs):>12}{ratio:>8.2f}{wanted:>8}")
    compiled_crc32 = load_crc32()
    print(f"\nCRC-32 by {'zlib' if compiled_crc32 is None else compiled_crc32.ways[-1]}")
    print(f"{'':<20}{'ours':>12}{'zlib':>12}{'ratio':>8}")
    for name, size, threads in CHECKSUMS:
        array = np.random.default_rng(0).integers(0, 256, size, np.uint8)
        repeats = max(1, (1 << 22) // size)
        address = array.ctypes.data
        ours, theirs = race(
            repeat(partial(crc32, address, size, threads=threads), repeats),
            repeat(partial(zlib.crc32, array.data), repeats),
        )
        done = size * repeats
        ratio = theirs / ours
        print(f"{name:<20}{rate(ours, done):>12}{rate(theirs, done):>12}{ratio:>8.2f}")


def make_tensor(dtype: torch.dtype) -> torch.Tensor:
    """Return normally distributed numbers, repeated until SIZE is full."""
    some = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * 100
    return some.to(dtype).repeat(SIZE // dtype.itemsize // some.numel())


def race(*runners: Callable[[], object]) -> list[float]:
    """Return the shortest time of each runner in seconds."""
    times = np.full((ROUNDS, len(runners)), np.inf)
    for round_times in times:
        for lane, runner in enumerate(runners):
            # torch's threads go on spinning for a while after their work.
            time.sleep(0.03)
            start = time.perf_counter()
            runner()
            round_times[lane] = time.perf_counter() - start
    return [float(best) for best in times.min(axis=0)]


def repeat(runner: Callable[[], object], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            runner()

    return run


def rate(seconds: float, size: int = SIZE) -> str:
    return f"{size / seconds / 1e9:.1f} GB/s"


if __name__ == "__main__":
    main()
