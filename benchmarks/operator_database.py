"""PyTorch's own operator database as a dump: sample calls of its operators, captured with data.

python benchmarks/operator_database.py FOLDER [--samples 3] [--every 1]
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tensorprobe.capture import PrecisionDebugger

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Captured:
    """What was captured: operators that ran, calls of them, and the ones that would not run."""

    operators: int
    samples: int
    refused: tuple[str, ...]


def load_database() -> list[Any]:
    """Return the operators; the module around them wants a test package that they do not need."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def capture_database(folder: Path, *, samples: int, every: int = 1) -> Captured:
    """Run sample calls of every so-many-th operator, forward and backward, and capture them."""
    debugger = PrecisionDebugger(dump_path=str(folder), task="tensor", level="L1")
    ran: set[str] = set()
    refused: list[str] = []
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator in load_database()[::every]:
            for dtype in DTYPES:
                if not operator.supports_dtype(dtype, "cpu"):
                    continue
                for sample in _samples(operator, dtype, samples):
                    debugger.start()
                    try:
                        _run(operator, sample)
                        ran.add(operator.formatted_name)
                        count += 1
                    except Exception as err:  # noqa: BLE001 - whatever an operator raises here
                        refused.append(f"{operator.formatted_name} {dtype}: {type(err).__name__}")
                    finally:
                        debugger.stop()
    debugger.step()
    debugger.close()
    return Captured(len(ran), count, tuple(refused))


def _samples(operator: Any, dtype: torch.dtype, count: int) -> list[Any]:
    torch.manual_seed(0)
    wants_gradients = operator.supports_autograd and dtype in operator.supported_backward_dtypes(
        "cpu"
    )
    found = operator.sample_inputs("cpu", dtype, requires_grad=wants_gradients)
    return list(itertools.islice(found, count))


def _run(operator: Any, sample: Any) -> None:
    result = operator(sample.input, *sample.args, **sample.kwargs)
    roots = [tensor for tensor in _tensors(result) if tensor.requires_grad]
    if roots:
        with torch._C.DisableTorchFunction():
            gradients = [torch.randn_like(root) for root in roots]
        torch.autograd.backward(roots, gradients)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args()
    captured = capture_database(arguments.folder, samples=arguments.samples, every=arguments.every)
    print(f"{captured.operators} operators, {captured.samples} samples")
    for line in captured.refused:
        print("refused:", line)


if __name__ == "__main__":
    main()
