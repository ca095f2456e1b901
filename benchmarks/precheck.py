"""The pre-check of PyTorch's operator database and of a GPT step: verdicts, skips and time.

    python benchmarks/precheck.py [--device cpu] [--samples 3] [--every 1] [--jobs 1] [--only gpt]
                                  [--phases]

First the operator database (float32, float16, bfloat16 samples, captured on the CPU): how many
calls are judged, which are skipped and why, and every call that is reported as an error. Then one
training step of the benchmarks' GPT with two layers: the time of the pre-check, less the time to
start a worker, against the bare time in the calls on both sides. The bare time is that of each
call's first run, device and reference, forward and backward; nothing else that the check does is
in it. A table says where all the rest goes; with --phases also for the calls that take longest.

The database's own operators that PyTorch computes wrongly are known by name; any other error fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import gpt
import operator_database
import torch

from tensorprobe.capture import PrecisionDebugger
from tensorprobe.precheck import PrecheckReport, precheck_dump
from tensorprobe.precheck.command import skip_reasons
from tensorprobe.replay.stopwatch import PHASES

# torch 2.13 on the CPU: matrix_exp of halves returns garbage, of 0.1 times a random matrix 1e30.
KNOWN_WRONG = ("Torch.matrix_exp.", "Torch.linalg.matrix_exp.")
JUDGED_GOAL = 0.97
TIME_GOAL = 3.0


def check_database(device: str, folder: Path, samples: int, every: int, jobs: int) -> bool:
    captured = operator_database.capture_database(folder / "dump", samples=samples, every=every)
    start = time.perf_counter()
    precheck_dump(folder / "dump", folder / "start", devices=[device], include=["Torch.abs.0."])
    startup = time.perf_counter() - start
    report = precheck_dump(folder / "dump", folder, devices=[device], jobs=jobs)
    total, skipped = len(report.lines), report.counts["SKIP"]
    errors = [line for line in report.lines if line.verdict == "error"]
    known = [line for line in errors if line.name.startswith(KNOWN_WRONG)]
    print(
        f"operator database: {captured.operators} operators, {captured.samples} samples, ", end=""
    )
    print(f"{total} calls captured")
    print(f"  verdicts: {report.counts}, in {report.seconds:.0f} s with {jobs} worker(s)")
    print(f"  judged: {(total - skipped) / total:.2%} (goal {JUDGED_GOAL:.0%})")
    _print_ratio(report, report.seconds * jobs, startup * jobs, "no goal: tiny tensors")
    _print_phases(report, report.seconds * jobs, startup * jobs)
    print("  skipped:")
    for reason, count in skip_reasons(report).most_common():
        print(f"    {count:5}  {reason}")
    print(f"  errors: {len(errors)}, of which PyTorch itself is known to be wrong: {len(known)}")
    for line in errors:
        print(f"    {line.name} [{line.forward}/{line.backward}] {line.message[:160]}")
    is_judged = (total - skipped) / total >= JUDGED_GOAL
    return is_judged and len(errors) == len(known) if device == "cpu" else is_judged


def check_gpt(device: str, folder: Path, *, shows_calls: bool, large: bool) -> bool:
    shape = replace(gpt.CPU if device == "cpu" else gpt.GPU, layers=2)
    if large:
        shape = replace(shape, width=512, length=512, batch=4, vocabulary=8000)
    model, ids, targets = gpt.make_step(shape, device)
    debugger = PrecisionDebugger(dump_path=str(folder / "gpt"), task="tensor", level="L1")
    debugger.start(model)
    model(ids, targets).backward()
    debugger.stop()
    debugger.step()
    debugger.close()
    # A pre-check of one small call is the start-up alone.
    start = time.perf_counter()
    precheck_dump(folder / "gpt", folder / "start", devices=[device], include=["flatten.1."])
    startup = time.perf_counter() - start
    start = time.perf_counter()
    report = precheck_dump(folder / "gpt", folder / "out", devices=[device])
    whole = time.perf_counter() - start
    print(f"GPT step, {shape.layers} layers, {shape.dtype} on {device}: {report.counts}")
    ratio = _print_ratio(report, whole, startup, f"goal {TIME_GOAL}")
    _print_phases(report, whole, startup)
    if shows_calls:
        _print_slowest(report)
    _print_worst(report)
    return not report.has_errors and ratio <= TIME_GOAL


def _print_ratio(report: PrecheckReport, whole: float, startup: float, goal: str) -> float:
    bare = report.device_seconds + report.reference_seconds
    ratio = (whole - startup) / bare
    print(f"  whole {whole:.1f} s, start-up {startup:.1f} s, bare calls {bare:.1f} s ", end="")
    print(f"(device {report.device_seconds:.1f}, reference {report.reference_seconds:.1f})")
    print(f"  (whole - start-up) / bare: {ratio:.2f} ({goal})")
    return ratio


def _print_phases(report: PrecheckReport, whole: float, startup: float) -> None:
    """Say where the time goes; what is left is traffic with the workers, and files."""
    bare = report.device_seconds + report.reference_seconds
    known = sum(report.phases.values())
    rows = {**report.phases, "between calls": whole - startup - known}
    print("  phase              seconds   × bare")
    for phase in (*PHASES, "between calls"):
        seconds = rows.get(phase, 0.0)
        print(f"    {phase:15} {seconds:9.2f} {seconds / bare:8.2f}")
    print(f"    {'all in workers':15} {known:9.2f} {known / bare:8.2f}")


def _print_slowest(report: PrecheckReport, count: int = 15) -> None:
    print("  the calls that take longest, in milliseconds:")
    print("    " + "".join(f"{phase:>10}" for phase in PHASES))
    slowest = sorted(report.lines, key=lambda line: -sum(line.phases.values()))
    for line in slowest[:count]:
        cells = "".join(f"{line.phases.get(phase, 0.0) * 1e3:10.1f}" for phase in PHASES)
        print(f"    {cells}  {line.name} [{line.forward}/{line.backward}]")


def _print_worst(report: PrecheckReport) -> None:
    for line in report.worst_first()[:20]:
        print(f"    {line.name} [{line.forward}/{line.backward}] {line.message[:160]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=3, help="of each operator and dtype")
    parser.add_argument("--every", type=int, default=1, help="take every N-th operator")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--phases", action="store_true", help="also of the slowest calls")
    parser.add_argument("--large", action="store_true", help="a larger GPT, on the CPU")
    parser.add_argument("--only", choices=("database", "gpt"))
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    try:
        is_good = True
        if arguments.only != "gpt":
            is_good = check_database(
                arguments.device, folder, arguments.samples, arguments.every, arguments.jobs
            )
        if arguments.only != "database":
            is_good &= check_gpt(
                arguments.device, folder, shows_calls=arguments.phases, large=arguments.large
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("all goals are met" if is_good else "a goal is missed")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
