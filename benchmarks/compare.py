"""How long `tensorprobe compare` takes, side by side with msprobe on the same files.

Whole commands, start-up included, with a warm file cache; the ways take turns.

    python benchmarks/compare.py [--rounds 3] [--peer /path/to/bin/msprobe] [--million]

Real data: two runs of the 4-layer GPT of the capture benchmark, level mix, task tensor; one weight
of the second run is disturbed. `cat` reads the same bytes. Our own capture links the tensors that
several calls share; with --peer there is a second pair, captured by msprobe, where each has a file
of its own, 2.7 GB in all.
Statistics: dumps of 20,000 calls (60,000 rows), and with --million of 1,000,000 rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GIGABYTE = 1e9
CAPTURE = """
import sys
sys.path.insert(0, {benchmarks!r})
import torch
from gpt import CPU, make_step
from {module} import PrecisionDebugger
model, ids, targets = make_step(CPU, "cpu")
if sys.argv[2] == "reference":
    with torch.no_grad():
        model.blocks[1].up.weight += 1e-4 * torch.randn(model.blocks[1].up.weight.shape)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="tensor", level="mix")
debugger.start(model)
model(ids, targets).backward()
debugger.stop()
debugger.step()
"""


def capture_pair(folder: Path, peer: str = "") -> tuple[Path, Path]:
    """Capture the two runs of the GPT in processes of their own, by us or by msprobe."""
    module = "msprobe.pytorch" if peer else "tensorprobe"
    program = CAPTURE.format(benchmarks=str(Path(__file__).parent), module=module)
    python = str(Path(peer).with_name("python")) if peer else sys.executable
    for side in ("candidate", "reference"):
        command = [python, "-c", program, str(folder / side), side]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder / "candidate", folder / "reference"


def make_statistics(folder: Path, calls: int) -> tuple[Path, Path]:
    """Write two statistics dumps whose calls have three tensors each."""
    for side in ("candidate", "reference"):
        path = folder / side / "step0" / "rank0" / "dump.json"
        path.parent.mkdir(parents=True)
        numbers, noise = random.Random(0), random.Random(side)
        with path.open("w", encoding="ascii") as file:
            file.write('{\n "task": "statistics",\n "level": "L1",\n "framework": "pytorch",\n')
            file.write(' "dump_data_dir": null,\n "data": {')
            for number in range(calls):
                leaves = [
                    {
                        "type": "torch.Tensor",
                        "dtype": "torch.float32",
                        "shape": [8, 1024, 1024],
                        "Max": numbers.gauss(3, 1) * (1 + 1e-4 * noise.random()),
                        "Min": numbers.gauss(-3, 1),
                        "Mean": numbers.gauss(0, 1e-3) + 1e-6 * noise.random(),
                        "Norm": abs(numbers.gauss(100, 10)),
                        "requires_grad": True,
                    }
                    for _ in range(3)
                ]
                entry = {
                    "input_args": leaves[:2],
                    "input_kwargs": {},
                    "is_recompute": False,
                    "output": leaves[2:],
                }
                text = json.dumps(entry, indent=1).replace("\n", "\n  ")
                comma = "," if number else ""
                file.write(f'{comma}\n  "Functional.linear.{number}.forward": {text}')
            file.write("\n }\n}")
    return folder / "candidate" / "step0", folder / "reference" / "step0"


def run(command: list[str]) -> tuple[float, float]:
    """Return the seconds and the largest memory in GB of one command."""
    # As it is once installed: Python may keep the bytecode of what it imports.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    error = process.stderr.read() if process.stderr is not None else b""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{command} failed: {error.decode()[-2000:]}")
    return seconds, usage.ru_maxrss * 1024 / GIGABYTE


def ours(candidate: Path, reference: Path, output: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "tensorprobe", "compare", str(candidate), str(reference)]
    return [*command, "-o", str(output), *options]


def theirs(peer: str, candidate: Path, reference: Path, output: Path) -> list[str]:
    config = output.parent / "compare.json"
    paths = [next(side.rglob("dump.json")) for side in (candidate, reference)]
    config.write_text(
        json.dumps(
            {
                "npu_path": str(paths[0]),
                "bench_path": str(paths[1]),
                "is_print_compare_log": False,
            }
        )
    )
    output.mkdir(exist_ok=True)
    return [peer, "-f", "pytorch", "compare", "-i", str(config), "-o", str(output)]


def table(title: str, ways: dict[str, list[str]], rounds: int, output: Path) -> None:
    """Run every way in turn and print medians."""
    print(f"\n## {title}\n\n| command | seconds | memory GB |\n|---|---|---|")
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, command in ways.items():
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir()
            measured[name].append(run(command))
    for name, results in measured.items():
        seconds = statistics.median(seconds for seconds, _ in results)
        memory = max(memory for _, memory in results)
        print(f"| {name} | {seconds:.2f} | {memory:.2f} |", flush=True)


def compare_real(root: Path, peer: str, arguments: argparse.Namespace) -> None:
    """Compare two captured runs, which are deleted afterwards."""
    output = root / "output"
    candidate, reference = capture_pair(root / "real", peer)
    files = [str(file) for side in (candidate, reference) for file in side.rglob("*.pt")]
    size = sum(os.path.getsize(file) for file in files) / GIGABYTE
    listing = root / "files"
    listing.write_text("\0".join(files))
    ways = {
        "cat": ["sh", "-c", f"xargs -0 cat < '{listing}' > /dev/null"],
        "tensorprobe compare": ours(candidate, reference, output),
        "tensorprobe compare --format csv": ours(candidate, reference, output, "--format", "csv"),
    }
    if arguments.peer:
        ways["msprobe compare"] = theirs(arguments.peer, candidate, reference, output)
    tool = "msprobe" if peer else "tensorprobe"
    title = f"Real data, captured by {tool}: {len(files)} files, {size:.2f} GB"
    table(title, ways, arguments.rounds, output)
    shutil.rmtree(root / "real")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", default="", help="msprobe's command; left out without it")
    parser.add_argument("--million", action="store_true", help="also 1,000,000 rows")
    parser.add_argument("--only", default="", help="real or statistics")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        root = Path(folder)
        output = root / "output"
        if arguments.only != "statistics":
            for peer in dict.fromkeys(("", arguments.peer)):
                compare_real(root, peer, arguments)
        if arguments.only == "real":
            return
        counts = (20_000, 333_334) if arguments.million else (20_000,)
        for calls in counts:
            candidate, reference = make_statistics(root / str(calls), calls)
            ways = {
                "tensorprobe compare --format csv": ours(
                    candidate, reference, output, "--format", "csv"
                ),
                "tensorprobe compare": ours(candidate, reference, output),
            }
            if calls > 20_000:
                ways.pop("tensorprobe compare")
            elif arguments.peer:
                ways["msprobe compare"] = theirs(arguments.peer, candidate, reference, output)
            title = f"Statistics: {calls:,} calls, {3 * calls:,} rows"
            table(title, ways, 1 if calls > 20_000 else arguments.rounds, output)


if __name__ == "__main__":
    main()
