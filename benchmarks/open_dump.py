"""How long opening a large dump.json takes, against parsing it with jiter alone.

Each way runs in a process of its own, in turn, several times; the table gives medians of the
processor's seconds, ratios to jiter in the same run, and the largest memory in multiples of the
file's size.

    python benchmarks/open_dump.py [--megabytes 250] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from make_dump import make_dump

WAYS = {
    # With the collector paused, which is jiter at its best: five times faster on such a file.
    "jiter alone": (
        "import jiter, pathlib\n"
        "gc.disable()\n"
        "data = jiter.from_json(pathlib.Path(PATH).read_bytes())"
    ),
    "open_dump": "from tensorprobe import open_dump\ndump = open_dump(PATH)\ncount = len(dump)",
    "open_dump, read_leaves": (
        "from tensorprobe import open_dump\n"
        "dump = open_dump(PATH)\n"
        "count = sum(1 for part in dump.parts for call in part.read_leaves())\n"
        "assert count == len(dump)"
    ),
    "open_dump, every call read": (
        "from tensorprobe import open_dump\n"
        "dump = open_dump(PATH)\n"
        "count = sum(1 for call in dump)\n"
        "assert count == len(dump)"
    ),
    "open_dump, every call kept": (
        "from tensorprobe import open_dump\ndump = open_dump(PATH)\ncalls = list(dump)"
    ),
}

# The imports are not part of what is measured; the memory of the interpreter is taken off.
PROGRAM = """
import gc, json, resource, sys, time
import jiter, numpy, tensorprobe.store
PATH = sys.argv[1]
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
before, start = peak(), time.process_time()
{way}
print(json.dumps([time.process_time() - start, peak() - before]))
"""


def measure(way: str, path: Path) -> tuple[float, float]:
    program = PROGRAM.replace("{way}", way)
    answer = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    seconds, memory = json.loads(answer.stdout)
    return seconds, memory / path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=250)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = make_dump(Path(folder), arguments.megabytes)
        rounds = [
            {name: measure(way, path) for name, way in WAYS.items()}
            for _ in range(arguments.rounds)
        ]
    base = statistics.median(results["jiter alone"][0] for results in rounds)
    print(f"dump.json of {arguments.megabytes:g} MB, median of {arguments.rounds}")
    print(f"{'':28}  {'seconds':>8}  {'x jiter':>8}  {'x file size in memory':>21}")
    for name in WAYS:
        seconds = statistics.median(results[name][0] for results in rounds)
        memory = statistics.median(results[name][1] for results in rounds)
        print(f"{name:28}  {seconds:8.2f}  {seconds / base:8.2f}  {memory:21.2f}")


if __name__ == "__main__":
    main()
