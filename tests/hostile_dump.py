"""A dump whose every text tries to command the terminal, hide, reorder or forge a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unicodedata import category

import torch

# An escape sequence, one of C1, a mark that turns the order around, a space without a width, a
# return and an end of line in three spellings; behind each of these a line of its own would start.
FORGED = "forged line"
HOSTILE = (
    "\x1b[2J\x9b31m\u202e\u2066\u200f\u061c\u200b\ufeff[red]"
    f"\r{FORGED}\n{FORGED}\u2028{FORGED}\x85{FORGED}"
)
OUR_SIGNS = frozenset("\n")


def write_hostile_dump(folder: Path, *, is_off: bool = False, task: str = "tensor") -> Path:
    """Write a dump of one rank; `is_off` for the side whose results differ."""
    rank = folder / "step0" / "rank"
    data = rank / "dump_tensor_data"
    data.mkdir(parents=True)

    def tensor(name: str, values: torch.Tensor, **more: Any) -> dict[str, Any]:
        torch.save(values, data / f"{name}.pt")
        numbers = values.double()
        return {
            "type": "torch.Tensor",
            "dtype": str(values.dtype),
            "shape": list(values.shape),
            "Max": numbers.max().item(),
            "Min": numbers.min().item(),
            "Mean": numbers.mean().item(),
            "Norm": numbers.norm().item(),
            "requires_grad": False,
            "data_name": f"{name}.pt",
        } | more

    start = torch.linspace(-1, 1, 12).reshape(3, 4)
    shift = 1.0 if is_off else 0.0
    calls: dict[str, Any] = {}

    def add(name: str, value: torch.Tensor, args: list[Any], **kwargs: Any) -> None:
        number = len(calls)
        given = tensor(f"in{number}", start)
        made = tensor(f"out{number}", value)
        calls[name] = {
            "input_args": [given, *args],
            "input_kwargs": kwargs,
            "output": [made],
        }

    text = {"type": "str", "value": HOSTILE}
    add(f"Module.{HOSTILE}.Linear.forward.0", start, [])
    add("Functional.relu.0.forward", start.relu() + shift, [])
    add("Functional.pad.0.forward", start, [{"type": "torch.Size", "value": [1, 1]}, text])
    add("Functional.gelu.0.forward", start, [], approximate=text)
    add("Torch.sum.0.forward", start.sum() + shift, [], **{HOSTILE: text})
    add("Torch.exp.0.forward", start.exp() + shift, [{"type": HOSTILE, "value": HOSTILE}])
    add(f"Functional.{HOSTILE}.0.forward", start + shift, [text])
    add(f"Torch.{HOSTILE}.7.forward", start, [{"type": "torch.dtype", "value": HOSTILE}])
    add(f"Tensor.mul{HOSTILE}.0.forward", torch.tensor([float("inf"), 1.0]), [text])
    add("Tensor.div.0.forward", torch.tensor([float("inf"), 1.0]), [text])
    calls["Torch.cos.0.forward"] = {
        "input_args": [
            tensor("in", start, dtype=HOSTILE),
            tensor("in", start, data_name=f"no{HOSTILE}.pt"),
            tensor("in", start, type=HOSTILE),
        ],
        "input_kwargs": {},
        "output": [tensor("broken", start)],
    }
    (data / "broken.pt").write_bytes(b"\x80\x02c" + HOSTILE.encode() + b"\nx\n.")
    header = {
        "task": task,
        "level": HOSTILE,
        "framework": "pytorch",
        "dump_data_dir": str(data),
        "tensorprobe": {"format": 1, "version": HOSTILE, "run": HOSTILE},
        "torch_version": HOSTILE,
        "data": calls,
    }
    (rank / "dump.json").write_text(json.dumps(header))
    # Of another run, which is told.
    other = folder / "step1" / "rank"
    other.mkdir(parents=True)
    header |= {"tensorprobe": {"format": 1, "run": "2026"}, "data": {"Torch.a.0.forward": {}}}
    (other / "dump.json").write_text(json.dumps(header))
    frame = f'File "/a{HOSTILE}.py", line 3, in {HOSTILE}, \n {HOSTILE}'
    stacks = {"0": [list(calls), [frame, frame]]}
    (rank / "stack.json").write_text(json.dumps(stacks))
    parents = dict.fromkeys(calls, f"Module.{HOSTILE}.Linear.forward.0")
    (rank / "construct.json").write_text(json.dumps(parents))
    return folder


def commands_in(text: str) -> Iterator[str]:
    """Yield what of a text a terminal would obey, and the lines that are not ours."""
    for sign in sorted(set(text) - OUR_SIGNS):
        if category(sign) in ("Cc", "Cf", "Zl", "Zp"):
            yield f"U+{ord(sign):04X}"
    for line in text.splitlines():
        if line.lstrip(" │").startswith(FORGED):
            yield line
