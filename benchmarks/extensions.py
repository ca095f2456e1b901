"""What each compiled part buys: the time of its work without it, over that with it.

    python benchmarks/extensions.py [--rounds 15] [--device cuda] [--only host] [--parts _crc32]

    a worker process with everything compiled ─┐
    a worker process for each part, without it ┴─► each works in turn ─► a ratio in every round

Workers stay alive, so that only the work is timed. In every round each does the same work once, its
best of a few; a part's ratio is taken within a round, so that a noisy machine disturbs both alike.
Host-bound work on the CPU runs on one thread and is timed by the processor's clock, as is what
reads and writes tables; captures of larger models are timed by the wall's. The table gives the
median of the ratios and their quarters (between them lies the middle half), beside the ratio of the
two fastest rounds. `no change` is another worker with everything: what it shows is noise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from tensorprobe.system.extensions import PARTS, SWITCH

CAPTURE = tuple(part for part in PARTS if part.startswith("capture."))
HOST = (
    *(part for part in CAPTURE if part not in ("capture._write_pool", "capture._kept")),
    "store._entry_text",
)
KEPT = ("capture._calls", "capture._write_pool", "capture._kept")
DEVICE = (*HOST, "summary._launch")
Work = Callable[[], float]


def capture_work(folder: Path, shape_name: str, device: str, options: dict[str, str]) -> Work:
    """Return what captures steps of a GPT and returns the seconds of the fastest."""
    import gpt
    import torch

    from tensorprobe.capture import PrecisionDebugger

    is_small = shape_name == "HOST"
    if is_small:
        torch.set_num_threads(1)
    model, ids, targets = gpt.make_step(getattr(gpt, shape_name), device)
    config = folder / "config.json"
    task, mode = options.get("task", "statistics"), options.get("summary_mode", "statistics")
    config.write_text(json.dumps({"task": task, "statistics": {"summary_mode": mode}}))
    debugger = PrecisionDebugger(
        config, dump_path=folder / "dump", level=options["level"], task=task
    )
    # Where several threads work, or a device does, the processor's clock counts what waits.
    clock = time.process_time if is_small and device == "cpu" else time.perf_counter

    def step() -> float:
        if device != "cpu":
            torch.cuda.synchronize()
        start = clock()
        debugger.start(model)
        model(ids, targets).backward()
        debugger.stop()
        debugger.step()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds = clock() - start
        for parameter in model.parameters():
            parameter.grad = None
        if options.get("task") == "tensor":
            shutil.rmtree(folder / "dump", ignore_errors=True)
        return seconds

    for _ in range(3):
        step()
    return lambda: min(step() for _ in range(6 if is_small and task != "tensor" else 2))


def timed(work: Callable[[], object]) -> Work:
    """Return what does some work once and returns the processor's seconds."""

    def run() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    run()
    return run


def read_work(folder: Path) -> Work:
    """Return what reads all values of a dump."""
    from make_dump import make_dump

    from tensorprobe import open_dump

    path = make_dump(folder, 10)
    return timed(lambda: [1 for part in open_dump(path).parts for _ in part.read_leaves()])


def compare_statistics_work(folder: Path) -> Work:
    """Return what compares two dumps of statistics."""
    from compare import make_statistics
    from tensorprobe import compare

    candidate, reference = make_statistics(folder / "made", 5_000)
    number = iter(range(10**6))
    return timed(
        lambda: compare(candidate, reference, folder / f"out{next(number)}", formats=("csv",))
    )


def compare_tensors_work(folder: Path) -> Work:
    """Return what compares two dumps with the data of many small tensors."""
    import gpt
    import torch

    from tensorprobe import compare
    from tensorprobe.capture import PrecisionDebugger

    for side in ("candidate", "reference"):
        model, ids, targets = gpt.make_step(gpt.HOST, "cpu")
        if side == "reference":
            with torch.no_grad():
                model.head.weight += 1e-4
        debugger = PrecisionDebugger(dump_path=folder / side, task="tensor", level="mix")
        debugger.start(model)
        model(ids, targets).backward()
        debugger.stop()
        debugger.step()
        debugger.close()
    number = iter(range(10**6))
    return timed(
        lambda: compare(
            folder / "candidate" / "step0",
            folder / "reference" / "step0",
            folder / f"out{next(number)}",
            formats=("csv",),
        )
    )


def load_work(folder: Path) -> Work:
    """Return what loads small tensor files."""
    import torch

    from tensorprobe.store.tensor_file import load_tensor

    paths = [folder / f"{number}.pt" for number in range(200)]
    for path in paths:
        torch.save(torch.randn(64, 64), path)
    return timed(lambda: [load_tensor(path) for _ in range(5) for path in paths])


def table_work(folder: Path, name: str) -> Work:
    """Return what writes a table of results."""
    import random

    from tensorprobe.report.csv_table import write_csv
    from tensorprobe.report.table import Table
    from tensorprobe.report.xlsx import write_xlsx

    numbers = random.Random(0)
    header = tuple(f"column {number}" for number in range(27))
    rows: list[tuple[str | float, ...]] = [
        (
            *(f"Functional.linear.{number}.forward.input.0", "torch.float32", "[8, 1024]", "True"),
            *(numbers.gauss(0, 1) for _ in range(22)),
            "",
        )
        for number in range(5_000)
    ]
    if name == "csv":
        return timed(lambda: write_csv(folder / "table.csv", Table("result", header, rows)))
    return timed(lambda: write_xlsx(folder / "table.xlsx", [Table("result", header, rows)]))


def checksum_work(folder: Path) -> Work:
    """Return what takes the checksum of memory that fits a cache."""
    import ctypes

    from tensorprobe.system.crc32 import crc32

    memory = ctypes.create_string_buffer(1 << 20)
    return timed(lambda: [crc32(ctypes.addressof(memory), 1 << 20) for _ in range(30)])


TENSOR = {"task": "tensor", "level": "mix"}
WORKLOADS: dict[str, tuple[tuple[str, ...], Callable[[Path, str], Work]]] = {
    "host L0": (HOST, lambda f, d: capture_work(f, "HOST", d, {"level": "L0"})),
    "host L1": (HOST, lambda f, d: capture_work(f, "HOST", d, {"level": "L1"})),
    "host mix": (HOST, lambda f, d: capture_work(f, "HOST", d, {"level": "mix"})),
    "host md5 mix": (
        (*HOST, "_crc32"),
        lambda f, d: capture_work(f, "HOST", d, {"level": "mix", "summary_mode": "md5"}),
    ),
    "host data": (KEPT, lambda f, d: capture_work(f, "HOST", d, TENSOR)),
    "large mix": (
        (*DEVICE, "metrics._kernel"),
        lambda f, d: capture_work(f, "CPU" if d == "cpu" else "GPU", d, {"level": "mix"}),
    ),
    "large data": (
        (*KEPT, "metrics._kernel"),
        lambda f, d: capture_work(f, "CPU", d, TENSOR),
    ),
    "read leaves": (("store._leaf_walk",), lambda f, d: read_work(f)),
    "compare statistics": (
        ("store._leaf_walk", "compare._plain_rows", "report._row_text"),
        lambda f, d: compare_statistics_work(f),
    ),
    "compare tensors": (
        ("store._zip_open", "store._leaf_walk", "metrics._kernel", "report._row_text"),
        lambda f, d: compare_tensors_work(f),
    ),
    "load tensors": (("store._zip_open", "_crc32"), lambda f, d: load_work(f)),
    "table csv": (("report._row_text",), lambda f, d: table_work(f, "csv")),
    "table xlsx": (("report._row_text",), lambda f, d: table_work(f, "xlsx")),
    "checksum": (("_crc32",), lambda f, d: checksum_work(f)),
}
NO_CHANGE = "no change"


def serve(workload: str, device: str, folder: Path) -> None:
    """Do a piece of work for each line that comes in, and answer with its seconds."""
    answers = sys.stdout
    # What the work says is not for us.
    sys.stdout = sys.stderr
    work = WORKLOADS[workload][1](folder, device)
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(work()), file=answers, flush=True)


class Worker:
    """A process that does one piece of work whenever it is asked, without one part or none."""

    def __init__(self, workload: str, device: str, without: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._what = f"the worker for {workload} without {without or 'nothing'}"
        environment = {**os.environ, SWITCH: without}
        command = [sys.executable, __file__, "--serve", workload, "--device", device]
        self._process = subprocess.Popen(
            [*command, "--folder", str(folder)],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def await_answer(self) -> str:
        """Return the next line that the process says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{self._what} ended")
        return line

    def run(self) -> float:
        """Return the seconds that the work takes."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(json.loads(self.await_answer()))

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate()


def measure(workload: str, parts: list[str], device: str, rounds: int) -> None:
    """Print one row for each part."""
    with tempfile.TemporaryDirectory() as folder:
        names = ["", NO_CHANGE, *parts]
        workers = {
            name: Worker(
                workload, device, "" if name == NO_CHANGE else name, Path(folder, name or "all")
            )
            for name in names
        }
        for worker in workers.values():
            worker.await_answer()
        times: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds + 1):
            # Nobody is always the first.
            turned = names[number % len(names) :] + names[: number % len(names)]
            for name in turned:
                seconds = workers[name].run()
                if number:
                    times[name].append(seconds)
        for worker in workers.values():
            worker.close()
    base = times[""]
    for name in names[1:]:
        ratios = [mine / whole for mine, whole in zip(times[name], base, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        best = min(times[name]) / min(base)
        print(
            f"{workload:20} {device:5} {name:22} {min(base) * 1e3:9.2f} ms"
            f"  {middle:6.3f}  ({low:.3f} to {high:.3f})  best {best:6.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="workloads whose name begins so, with commas")
    parser.add_argument("--parts", default="", help="only these parts, with commas")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.device, arguments.folder)
        return
    wanted = tuple(arguments.only.split(","))
    chosen = set(arguments.parts.split(",")) if arguments.parts else set(PARTS)
    for workload, (parts, _) in WORKLOADS.items():
        if workload.startswith(wanted):
            if arguments.device != "cpu" and parts is HOST:
                parts = DEVICE
            asked = [part for part in parts if part in chosen]
            measure(workload, asked, arguments.device, arguments.rounds)


if __name__ == "__main__":
    main()
