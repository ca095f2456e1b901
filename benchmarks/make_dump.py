"""Make a dump.json of a wanted size in the layout of msprobe, for the benchmarks.

python benchmarks/make_dump.py FOLDER --megabytes 250
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

APIS = ("linear", "layer_norm", "softmax", "gelu", "dropout", "embedding", "cross_entropy")
SHAPES = ([8, 1024, 1024], [1024], [4096, 1024], [8, 16, 1024, 1024], [32000, 1024])


def make_leaf(numbers: random.Random) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": numbers.choice(("torch.float32", "torch.bfloat16")),
        "shape": numbers.choice(SHAPES),
        "Max": numbers.gauss(3, 1),
        "Min": numbers.gauss(-3, 1),
        "Mean": numbers.gauss(0, 1e-3),
        "Norm": abs(numbers.gauss(100, 10)),
        "requires_grad": numbers.random() < 0.5,
    }


def make_entry(numbers: random.Random, direction: str) -> dict[str, Any]:
    if direction == "backward":
        return {"input": [make_leaf(numbers)], "output": [make_leaf(numbers) for _ in range(3)]}
    return {
        "input_args": [make_leaf(numbers) for _ in range(3)],
        "input_kwargs": {"dim": {"type": "int", "value": -1}},
        "is_recompute": False,
        "output": [make_leaf(numbers)],
    }


def make_dump(folder: Path, megabytes: float) -> Path:
    """Write `folder`/step0/rank0/dump.json of about that size; the same one every time."""
    rank = folder / "step0" / "rank0"
    rank.mkdir(parents=True, exist_ok=True)
    path = rank / "dump.json"
    numbers = random.Random(0)
    with path.open("w", encoding="ascii") as file:
        file.write('{\n "task": "statistics",\n "level": "L1",\n "framework": "pytorch",\n')
        file.write(' "dump_data_dir": null,\n "data": {')
        count = 0
        while file.tell() < megabytes * 1e6:
            for direction in ("forward", "backward"):
                name = f"Functional.{APIS[count % len(APIS)]}.{count}.{direction}"
                entry = json.dumps(make_entry(numbers, direction), indent=1).replace("\n", "\n  ")
                file.write(
                    f'{"," if count or direction == "backward" else ""}\n  "{name}": {entry}'
                )
            count += 1
        file.write("\n }\n}")
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=250)
    arguments = parser.parse_args()
    print(make_dump(arguments.folder, arguments.megabytes))
