"""What a step costs while its operators are checked, against the bare work of it.

    python benchmarks/online.py [--device cuda] [--rounds 5] [--jobs 0]

The bare work: the step once on the device, and every operator of it once more on the CPU, one after
the other, on copies of the same inputs in the reference's precision; nothing is compared. One
process runs each way in turn, so that a noisy machine disturbs all alike; the table holds medians.
With `--largest` the largest errors by operator, as a table.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import gpt
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tensorprobe import OnlineCheck
from tensorprobe.replay.precision import raise_dtype, reference_dtype

_SMALL = gpt.Shape(2, 256, 8, 128, 4, 1000, torch.float32)


class OnceMore(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operator once more on the CPU, and looks at nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
            return func(*args, **kwargs)
        floats = [t.dtype for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        wide = reference_dtype(floats)
        given = tree_map(lambda value: _copied(value, wide), (args, kwargs))
        result = func(*args, **kwargs)
        try:
            func(*given[0], **given[1])
        except (RuntimeError, NotImplementedError):
            # What the CPU takes in the same dtypes alone, or not at all.
            given = tree_map(lambda value: _copied(value, None), (args, kwargs))
            with suppress(RuntimeError, NotImplementedError):
                func(*given[0], **given[1])
        return result


def _copied(value: Any, wide: torch.dtype | None) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.dtype):
        return value if wide is None else raise_dtype(value, wide)
    if not isinstance(value, torch.Tensor):
        return value
    dtype = value.dtype if wide is None else raise_dtype(value.dtype, wide)
    return value.detach().to("cpu", dtype, copy=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--largest", action="store_true", help="the largest errors by operator")
    arguments = parser.parse_args()
    device = arguments.device
    shapes = {"GPT, 2 layers of 256": _SMALL, "GPT, 4 layers of 256": gpt.CPU}
    folder = tempfile.mkdtemp()
    print(f"{device}, torch {torch.__version__}, median of {arguments.rounds}")
    titles = ("step ms", "bare ms", "ms", "x bare", "us/op", "failed")
    print(f"{'':22}" + "".join(f"  {title:>8}" for title in titles))
    for dtype in (torch.float32, torch.bfloat16):
        for name, shape in shapes.items():
            model, ids, targets = gpt.make_step(shape, "cpu")
            model, ids, targets = model.to(device, dtype), ids.to(device), targets.to(device)

            def step() -> None:
                model(ids, targets).backward()  # noqa: B023 - called before the next shape
                for parameter in model.parameters():  # noqa: B023 - as above
                    parameter.grad = None

            reports: list[Any] = []

            def checked() -> None:
                with OnlineCheck(path=folder, jobs=arguments.jobs, quiet=True) as check:
                    step()
                reports.append(check.report)  # noqa: B023 - as above

            def once_more() -> None:
                with OnceMore():  # type: ignore[no-untyped-call]
                    step()

            ways: tuple[Callable[[], None], ...] = (step, once_more, checked)
            rounds = [[_seconds(way, device) for way in ways] for _ in range(arguments.rounds + 1)]
            plain, bare, ours = (
                statistics.median(times) * 1e3 for times in zip(*rounds[1:], strict=True)
            )
            report = reports[-1]
            cells = (
                f"{plain:.1f}",
                f"{bare:.1f}",
                f"{ours:.1f}",
                f"{ours / bare:.2f}",
                f"{(ours - bare) * 1e3 / report.seen:.0f}",
                f"{report.failed}",
            )
            label = f"{name}, {str(dtype).removeprefix('torch.')}"
            print(f"{label:22}" + "".join(f"  {cell:>8}" for cell in cells))
            if arguments.largest:
                _print_largest(report.table)
    shutil.rmtree(folder)


def _seconds(run: Callable[[], None], device: str) -> float:
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _print_largest(table: Any) -> None:
    largest: dict[str, tuple[float, str]] = {}
    with open(table, newline="") as file:
        for row in csv.DictReader(file):
            distance = float(row["Relative Distance"] or 0)
            known = largest.get(row["Operator"], (-1.0, ""))
            if distance > known[0]:
                largest[row["Operator"]] = distance, row["MaxAbsErr"]
    print("| operator | largest relative distance | its largest error |\n|---|---|---|")
    for operator, (distance, error) in sorted(largest.items(), key=lambda item: -item[1][0]):
        if distance > 0:
            print(f"| {operator} | {distance:.2g} | {error} |")


if __name__ == "__main__":
    main()
