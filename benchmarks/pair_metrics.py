"""How fast a pair of arrays is measured, against torch.sum over the same bytes.

Run it with `python benchmarks/pair_metrics.py`. torch.sum reads every byte and does next to nothing
with it, so its rate is what this machine's memory gives. It sums both arrays, one after the other.
The two take turns and the best of several rounds counts, so that other work on the machine disturbs
both alike. The arrays differ by noise, so that nothing can be skipped.
"""

from __future__ import annotations

import os
from functools import partial

# Some processors announce AMX and stop a process that uses it; see CONTRIBUTING.md.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from array_statistics import race

from tensorprobe.dtypes import DTYPES
from tensorprobe.metrics.kernel import load_kernel
from tensorprobe.metrics.pair import measure_pair
from tensorprobe.tensor_data import TensorData

SIZE = 256 << 20
# The least ratio that we want.
GOALS = {
    ("float32", "float32"): 1 / 2,
    ("float16", "float16"): 1 / 3,
    ("bfloat16", "bfloat16"): 1 / 3,
    ("bfloat16", "float32"): 0.0,
    ("float64", "float64"): 0.0,
    ("int64", "int64"): 0.0,
}


def main() -> None:
    kernel = load_kernel()
    print(f"compiled kernel: {kernel.pair_variants()[0] if kernel else 'no, numpy'}")
    print(f"{torch.get_num_threads()} threads, {SIZE >> 20} MiB a side (the wider one)")
    print(f"{'dtypes':<20}{'pair':>12}{'torch.sum':>12}{'ratio':>8}{'goal':>8}")
    for names, goal in GOALS.items():
        dtypes = [getattr(torch, name) for name in names]
        count = SIZE // max(dtype.itemsize for dtype in dtypes)
        tensors = [
            make_tensor(dtype, count, noise) for dtype, noise in zip(dtypes, (1e-3, 0), strict=True)
        ]
        sides = [as_data(tensor) for tensor in tensors]
        ours, theirs = race(partial(measure_pair, *sides), partial(sum_all, tensors))
        size = sum(side.nbytes for side in sides)
        wanted = f"{goal:.2f}" if goal else ""
        print(
            f"{' / '.join(dict.fromkeys(names)):<20}{size / ours / 1e9:>7.1f} GB/s"
            f"{size / theirs / 1e9:>7.1f} GB/s{theirs / ours:>8.2f}{wanted:>8}"
        )


def make_tensor(dtype: torch.dtype, count: int, noise: float) -> torch.Tensor:
    """Return normally distributed numbers, repeated; noise is relative to each."""
    some = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * 100
    some *= 1 + noise * torch.randn(1 << 20, generator=torch.Generator().manual_seed(1))
    return some.to(dtype).repeat(count // some.numel())


def sum_all(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.sum()


def as_data(tensor: torch.Tensor) -> TensorData:
    dtype = DTYPES[str(tensor.dtype)]
    return TensorData(dtype, tensor.view(torch.uint8).numpy().view(dtype.carrier))


if __name__ == "__main__":
    main()
