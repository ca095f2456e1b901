"""What it costs to keep the real data of a step: bytes on the disk, and time.

    python benchmarks/capture_data.py [--rounds 7] [--folder .] [--peer PYTHON]

Task tensor, level mix, on the CPU. Every round runs the bare step, the captured step and a loop
that writes the same bytes, each distinct file once, with plain file writes; the table holds
medians. Both writers must find the same conditions, or one of them measures the machine:

- Before each of the three, the same bytes are written three times and freed again, so that whoever
  needs memory, the page cache and the step itself, gets some that was in use just before. A virtual
  machine gives memory that was free for some seconds back to its host, and to get it again took
  eight times as long as to write into it. Once would be enough for the plain writes alone.
- Files are emptied and put aside, and removed at the end: ext4 looks past inodes that were freed
  a short time ago, one by one, which took a millisecond a file.

`--peer`, or TENSORPROBE_PEER_PYTHON, is a Python that has msprobe 8.2.1: it captures the
same step, and the bytes are compared. Bytes are blocks of the disk; a file with many names counts
once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

PEER_STEP = """
import json, sys
sys.path.insert(0, sys.argv[1])
import gpt
from msprobe.pytorch import PrecisionDebugger

model, ids, targets = gpt.make_step(gpt.CPU, "cpu")
config = sys.argv[2] + "/config.json"
settings = {"scope": [], "list": [], "data_mode": ["all"]}
with open(config, "w") as file:
    json.dump({"task": "tensor", "dump_path": sys.argv[2] + "/dump", "rank": [], "step": [],
               "level": "mix", "tensor": settings}, file)
debugger = PrecisionDebugger(config_path=config)
debugger.start(model)
model(ids, targets).backward()
debugger.stop()
debugger.step()
"""


def distinct_files(folder: Path) -> dict[int, Path]:
    """Return one path for each file below a folder, however many names it has."""
    return {path.stat().st_ino: path for path in folder.rglob("*") if path.is_file()}


def bytes_on_disk(folder: Path) -> int:
    """Return the bytes of the blocks that the files below a folder take."""
    return sum(path.stat().st_blocks * 512 for path in distinct_files(folder).values())


def measure_peer(python: str, folder: Path) -> int:
    """Return the bytes that msprobe writes for the step."""
    home = str(Path(__file__).parent)
    subprocess.run(
        [python, "-c", PEER_STEP, home, str(folder)], check=True, stdout=sys.stderr, env=_peer_env()
    )
    return bytes_on_disk(folder / "dump")


def _peer_env() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def put_aside(folder: Path) -> None:
    """Empty all files below a folder, and let its name go."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
    folder.rename(tempfile.mkdtemp(dir=folder.parent, prefix="aside"))


def warm_memory(contents: list[bytes], folder: Path) -> None:
    """Have more memory free than anything here needs, all of it in use just before."""
    copies = [folder / f"warm{number}" for number in range(3)]
    for copy in copies:
        copy.mkdir()
        for number, content in enumerate(contents):
            (copy / str(number)).write_bytes(content)
    for copy in copies:
        put_aside(copy)


def write_plainly(contents: list[bytes], folder: Path) -> float:
    """Write contents into as many files; returns the seconds."""
    folder.mkdir()
    start = time.perf_counter()
    for number, content in enumerate(contents):
        with open(folder / str(number), "wb") as file:
            file.write(content)
    seconds = time.perf_counter() - start
    put_aside(folder)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the files go")
    parser.add_argument("--peer", default=os.environ.get("TENSORPROBE_PEER_PYTHON"))
    arguments = parser.parse_args()

    import gpt
    import torch

    from tensorprobe.capture import PrecisionDebugger

    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    model, ids, targets = gpt.make_step(gpt.CPU, "cpu")

    def bare() -> None:
        model(ids, targets).backward()
        for parameter in model.parameters():
            parameter.grad = None

    def captured() -> None:
        debugger.start(model)
        bare()
        debugger.stop()
        debugger.step()

    times: dict[str, list[float]] = {"bare step": [], "captured step": [], "plain writes": []}
    ours = 0
    contents: list[bytes] = []
    debugger = PrecisionDebugger(task="tensor", dump_path=folder / "dump", level="mix")
    for round_number in range(arguments.rounds + 2):
        seconds = {}
        for name, run in (("bare step", bare), ("captured step", captured)):
            warm_memory(contents, folder)
            start = time.perf_counter()
            run()
            seconds[name] = time.perf_counter() - start
        if not contents:
            ours = bytes_on_disk(folder / "dump")
            files = distinct_files(folder / "dump").values()
            contents = [path.read_bytes() for path in files]
        put_aside(folder / "dump")
        warm_memory(contents, folder)
        seconds["plain writes"] = write_plainly(contents, folder / "plain")
        # The first rounds fill caches and buffers.
        if round_number >= 2:
            for name, value in seconds.items():
                times[name].append(value)
    debugger.close()
    theirs = measure_peer(arguments.peer, folder) if arguments.peer else None
    shutil.rmtree(folder)

    medians = {name: statistics.median(values) for name, values in times.items()}
    plain = medians["plain writes"]
    cost = medians["captured step"] - medians["bare step"]
    print(f"{gpt.CPU}\ntorch {torch.__version__}, median of {arguments.rounds}")
    for name, value in (*medians.items(), ("captured minus bare", cost)):
        print(f"{name:22}  {value * 1e3:8.1f} ms  {value / plain:5.2f} x plain writes")
    print(f"{'on the disk':22}  {ours / 1e6:8.1f} MB in {len(contents)} files")
    if theirs is not None:
        print(f"{'msprobe on the disk':22}  {theirs / 1e6:8.1f} MB  {ours / theirs:5.2f} of it")


if __name__ == "__main__":
    main()
