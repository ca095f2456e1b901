"""Dumps that are well-formed and hold what nobody expects, for tests of every command.

    chance ─► calls of real names with odd arguments, sound calls in between ─► a dump's files

Every number comes from the given `random.Random`, so that one seed gives one dump.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from tensorprobe.dtypes import DTYPES
from tensorprobe.store.layout import DATA_FOLDER, FORMAT_VERSION, OWN_KEY

__all__ = ["SOUND", "OddDump", "Tool", "write_odd_dump", "write_other_run"]

Tool = Literal["tensorprobe", "msprobe", "api_accuracy_checker", "ptdbg_ascend"]
Entry = tuple[str, Any]

# Calls that any command must still answer for, whatever stands around them.
SOUND = (
    "Functional.relu.700.forward",
    "Torch.add.700.forward",
    "Tensor.exp.700.forward",
)

# These wait for another process, ask the user, or are no computation.
_NOT_NAMED = (
    "backward", "from_file", "hub", "load", "manual_seed", "save", "set_", "share_memory",
    "storage", "to_file", "__dlpack", "__reduce", "__setstate__", "register_", "requires_grad_",
    "resize", "_make_subclass", "dlpack", "numpy", "__array", "pin_memory", "record_stream",
    "__cuda", "compile", "set_default", "set_num", "init_", "seed", "as_subclass", "_torch_",
)  # fmt: skip

# Between the small ones and those that no memory holds there is none: whoever repeats a call with
# the arguments of a file would fill this machine's memory, which is another test's.
_WHOLE = (
    0, 1, -1, 2, 3, 7, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63),
    -(2**63) - 1, 2**64, 10**30, 10**400, -(10**400),
)  # fmt: skip
_ENDLESS = "a number of five thousand digits"
_FLOATS = (
    0.0, -0.0, 1.0, 0.5, -2.5, 1e-300, 5e-324, 1e300, 1.7e308, 3.5e38, 65504.0, math.nan, math.inf,
    -math.inf,
)  # fmt: skip
_TEXTS = (
    "", "mean", "sum", "none", "constant", "reflect", "ij,jk->ik", "cpu", "a" * 300, "\n\x1b[31m",
    "\ud800", "=1+1", "‮", "torch.float32", "os.system",
)  # fmt: skip
_DTYPES = (
    "torch.float32", "torch.float64", "torch.float16", "torch.bfloat16", "torch.int64",
    "torch.int32", "torch.int16", "torch.int8", "torch.uint8", "torch.uint16", "torch.uint32",
    "torch.uint64", "torch.bool", "torch.complex64", "torch.complex128", "torch.complex32",
    "torch.float8_e4m3fn", "torch.float8_e5m2", "torch.float8_e4m3fnuz", "torch.float8_e5m2fnuz",
    "torch.float8_e8m0fnu", "torch.float4_e2m1fn_x2", "torch.qint8", "torch.quint8",
    "torch.qint32", "torch.quint4x2", "torch.bits8", "torch.int4", "torch.uint1",
    "torch.nonsense", "torch.", "", "float32", "torch.Tensor", "torch.nn", "torch.save",
    "torch.__name__",
)  # fmt: skip
_TYPE_NAMES = (
    "int", "float", "bool", "str", "complex", "complex64", "complex128", "float32", "float64",
    "int8", "int64", "uint64", "bool_", "str_", "bytes_", "datetime64", "timedelta64", "void",
    "object_", "generic", "number", "longdouble", "clongdouble", "record", "flexible", "dtype",
    "ndarray", "NoneType", "ellipsis", "slice", "function", "Generator", "", "type", "list",
    "dict", "torch.nn.Parameter", "torch.Generator",
)  # fmt: skip
_KEYS = (
    "dim", "dtype", "device", "out", "inplace", "p", "reduction", "weight", "size", "shape",
    "keepdim", "input", "self", "memory_format", "requires_grad", "layout", "generator", "eps",
    "mode", "", "a.b", "0", "not a name", "class", "\x1b[2J", "type", "stride",
)  # fmt: skip
_ODD_NAMES = (
    "", ".", "...", "forward", "Torch.add", "Torch.add.0", "Torch.add.0.sideways",
    "Torch.add.-1.forward", "Torch.add.1" + "0" * 30 + ".forward", "Torch.add.007.forward",
    "Torch..0.forward", ".add.0.forward", "Torch.add.0.forward.input.0", "nonsense",
    "Module.forward.0", "Module.a.B.forward.1" + "0" * 30, "Module..A.forward.0",
    "Module.fc.Linear.parameters_grad.1" + "0" * 30, "Distributed.nonsense",
    "Distributed..0.forward", "Aten.0.forward", "x.0.debug", "Torch.ad\nd.0.forward", "a" * 20000,
    "Torch.add.٣.forward", "Torch.no_such_function.0.forward", "Nowhere.add.0.forward",
    "Functional.relu.1.backward.forward", "Torch.relu.²3.forward", "Module.a.B.backward.²",
)  # fmt: skip


@dataclass(frozen=True)
class OddDump:
    """One dump: what to give to a command, and the sound calls in it."""

    path: Path
    sound: tuple[str, ...]


@cache
def _real_names() -> tuple[str, ...]:
    """The names of torch's functions and methods as a dump has them, in one order."""
    found = set()
    for owner, prefix in (
        (torch, "Torch"),
        (torch.nn.functional, "Functional"),
        (torch.Tensor, "Tensor"),
    ):
        for name in dir(owner):
            is_wanted = not any(part in name for part in _NOT_NAMED)
            if is_wanted and (prefix == "Tensor" or not name.startswith("_")):
                thing = getattr(owner, name)
                if callable(thing) and not isinstance(thing, type):
                    found.add(f"{prefix}.{name}")
    overridable = {
        name for names in torch.overrides.get_overridable_functions().values() for name in names
        for name in (getattr(name, "__name__", ""),)
    }  # fmt: skip
    return tuple(sorted(name for name in found if name.partition(".")[2] in overridable))


# --- values --------------------------------------------------------------------------------------


def _pick(chance: random.Random, *choices: Callable[[random.Random], Any]) -> Any:
    return chance.choice(choices)(chance)


def _size(chance: random.Random) -> Any:
    if chance.random() < 0.8:
        return chance.choice((0, 1, 2, 2, 3, 4, 5))
    return chance.choice(
        (-1, 2**53, 2**62, 2**63 - 1, 2**63, 10**30, 10**400, True, 1.0, None, "3")
    )


def _shape(chance: random.Random) -> Any:
    kind = chance.random()
    if kind < 0.6:
        return [chance.randrange(1, 5) for _ in range(chance.randrange(5))]
    if kind < 0.9:
        return [_size(chance) for _ in range(chance.randrange(5))]
    return chance.choice(
        (
            [1] * 30,
            [2] * 55,
            [1] * 65,
            [1] * 1000,
            [2**32] * 3,
            [2**62, 0],
            [0, 2**62, 2**62],
            [10**9] * 9,
            None,
            "2, 3",
            {"a": 1},
            5,
            [[2]],
        )
    )


def _statistic(chance: random.Random) -> Any:
    kind = chance.random()
    if kind < 0.5:
        return chance.uniform(-3, 3)
    if kind < 0.95:
        return chance.choice((*_FLOATS, *_WHOLE, None, True, False))
    return chance.choice(("", "1.0", "nan", [], [1.0], {}, {"a": 1}, _ENDLESS))


def _tensor(chance: random.Random) -> dict[str, Any]:
    is_odd = chance.random() < 0.5
    low, high = sorted((chance.uniform(-3, 3), chance.uniform(-3, 3)))
    leaf: dict[str, Any] = {
        "type": "torch.Tensor",
        "dtype": chance.choice(_DTYPES) if is_odd else "torch.float32",
        "shape": _shape(chance),
        "Max": high,
        "Min": low,
        "Mean": (low + high) / 2,
        "Norm": abs(low) + abs(high),
        "requires_grad": chance.random() < 0.5,
    }
    if is_odd:
        for key in chance.sample(("Max", "Min", "Mean", "Norm"), chance.randrange(5)):
            leaf[key] = _statistic(chance)
        if chance.random() < 0.2:
            leaf["requires_grad"] = chance.choice((None, "yes", 1, [], 10**400))
        if chance.random() < 0.2:
            leaf["md5"] = chance.choice((None, "", "zz", "0" * 8, "f" * 5000, 7, [], "1e5", "-1"))
        if chance.random() < 0.1:
            leaf["Max_finite"] = leaf["Min_finite"] = _statistic(chance)
        if chance.random() < 0.1:
            leaf[chance.choice(tuple(leaf))] = chance.choice((None, [], {}, 10**400, "", True))
        if chance.random() < 0.1:
            del leaf[chance.choice(tuple(leaf))]
        if chance.random() < 0.1:
            leaf["form"] = chance.choice(("sparse_coo [2]", "nested", "BatchedTensor", "", 3, "x"))
    return leaf


def _plain(chance: random.Random) -> Any:
    return chance.choice((*_WHOLE, *_FLOATS, *_TEXTS, True, False, None, _ENDLESS))


def _scalar(chance: random.Random) -> Any:
    kind = chance.random()
    if kind < 0.3:
        return {"type": "int", "value": chance.choice((*_WHOLE, _ENDLESS))}
    if kind < 0.5:
        return {"type": "float", "value": chance.choice(_FLOATS)}
    if kind < 0.6:
        return {"type": "complex", "value": chance.choice(("1+2j", "nan+infj", "", "1e999j", 3))}
    if kind < 0.7:
        return {"type": "str", "value": chance.choice(_TEXTS)}
    value = _plain(chance) if chance.random() < 0.9 else chance.choice(([], {}, [1, 2], {"a": 1}))
    return {"type": chance.choice(_TYPE_NAMES), "value": value}


def _part(chance: random.Random) -> Any:
    return chance.choice((None, None, 0, 1, 2, -1, *_WHOLE, True, 1.5, "1"))


def _other(chance: random.Random) -> Any:
    dims = [chance.choice((0, 1, 2, -1, 2**62, 10**30)) for _ in range(chance.randrange(4))]
    return chance.choice(
        (
            None,
            {"type": "slice", "value": [_part(chance), _part(chance), chance.choice((0, 1, -1))]},
            {"type": "slice", "value": [_part(chance) for _ in range(chance.choice((3, 3, 2)))]},
            {"type": "ellipsis", "value": "..."},
            {"type": "torch.Size", "value": dims},
            {"type": "torch.Size", "value": [1] * 100},
            {"type": "torch.dtype", "value": chance.choice(_DTYPES)},
            {"type": "torch.device", "value": chance.choice(("cpu", "cuda:7", "", "meta", "x:y"))},
            {"type": "torch.memory_format", "format": chance.choice(("channels_last", "", "save"))},
            {"type": "torch.ProcessGroup", "group_ranks": dims, "group_id": chance.choice(_WHOLE)},
            {"type": "torch.distributed.ReduceOp", "value": chance.choice(_TEXTS)},
            {"class_type": "torch.distributed.P2POp", "op": "isend", "peer": 10**400, "tag": -1,
             "tensor": _tensor(chance)},
            {"type": "torch.layout", "value": "torch.strided"},
            {"type": chance.choice(_TYPE_NAMES)},
            {"value": 3},
            {"type": 7, "value": 3},
        )
    )  # fmt: skip


def _value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if kind < 0.45:
        return _tensor(chance)
    if kind < 0.65:
        return _scalar(chance)
    if kind < 0.85 or depth > 3:
        return _other(chance)
    if kind < 0.93:
        return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind < 0.97:
        keys = chance.sample(_KEYS, chance.randrange(4))
        return {key: _value(chance, depth + 1) for key in keys}
    if kind < 0.985:
        return _plain(chance)
    nested: Any = 1
    for _ in range(chance.choice((20, 150, 190, 250))):
        nested = [nested] if chance.random() < 0.5 else {"a": nested}
    return nested


def _section(chance: random.Random) -> Any:
    if chance.random() < 0.03:
        return chance.choice((None, {}, 3, "x", [[]], {"0": 1}))
    return [_value(chance) for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4)))]


def _named(chance: random.Random) -> Any:
    if chance.random() < 0.03:
        return chance.choice((None, [], 3, "x"))
    count = chance.choice((0, 0, 1, 2))
    return {key: _value(chance) for key in chance.sample(_KEYS, count)}


# --- calls ---------------------------------------------------------------------------------------


def _record(chance: random.Random) -> dict[str, Any]:
    record = {
        "input_args": _section(chance),
        "input_kwargs": _named(chance),
        "output": _section(chance),
    }
    if chance.random() < 0.1:
        record["is_recompute"] = chance.choice((True, False, None, 3, "x"))
    if chance.random() < 0.1:
        record["tuples"] = chance.choice(([["input", "0"]], [], 3, [[]], [["input", 0]], "x"))
    return record


def _odd_call(chance: random.Random, number: int, odd_names: bool) -> list[Entry]:
    kind = chance.random()
    if kind < 0.7:
        name = f"{chance.choice(_real_names())}.{number}"
        calls: list[Entry] = [(f"{name}.forward", _record(chance))]
        if chance.random() < 0.4:
            calls.append((f"{name}.backward", {"input": _section(chance),
                                               "output": _section(chance)}))  # fmt: skip
        return calls
    if kind < 0.85:
        module = f"Module.m{number}.Linear"
        record = _record(chance) | {"parameters": _named(chance)}
        gradients = {key: [_value(chance)] for key in chance.sample(_KEYS, 2)}
        return [
            (f"{module}.forward.0", record),
            (f"{module}.parameters_grad", gradients),
            (f"{module}.backward.0", {"input": _section(chance), "output": _section(chance)}),
        ]
    if kind < 0.9:
        name = chance.choice(("all_reduce", "batch_isend_irecv", "broadcast", "all_gather"))
        return [(f"Distributed.{name}.{number}.forward", _record(chance))]
    if kind < 0.97:
        name = chance.choice(_ODD_NAMES)
        return [(name if odd_names else f"Torch.abs.{number}.forward", _record(chance))]
    return [(f"Torch.add.{number}.forward", chance.choice((None, [], 3, "x", True, {})))]


def _sound_tensor(low: float, high: float, shape: Sequence[int]) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(shape),
        "Max": high,
        "Min": low,
        "Mean": (low + high) / 2,
        "Norm": abs(low) + abs(high),
        "requires_grad": False,
    }


def _sound_calls() -> list[Entry]:
    given, made = _sound_tensor(-1.0, 2.0, (2, 3)), _sound_tensor(0.0, 2.0, (2, 3))
    hot, huge = _sound_tensor(90.0, 200.0, (2, 3)), _sound_tensor(1.2e39, math.inf, (2, 3))
    two = {"type": "int", "value": 2}
    plus_two = _sound_tensor(1.0, 4.0, (2, 3))
    return [
        (SOUND[0], {"input_args": [given], "input_kwargs": {}, "output": [made]}),
        (SOUND[1], {"input_args": [given, two], "input_kwargs": {}, "output": [plus_two]}),
        (SOUND[2], {"input_args": [hot], "input_kwargs": {}, "output": [huge]}),
    ]


# --- files ---------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    # Python itself writes no number of so many digits.
    return json.dumps(value).replace(f'"{_ENDLESS}"', "9" * 5000)


def _give_data(entries: list[Entry], folder: Path, chance: random.Random) -> None:
    """Give tensors of a dump files, some of which hold something else than the record says."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in entries:
        if not isinstance(record, dict):
            continue
        for section in ("input_args", "output", "input"):
            values = record.get(section)
            for index, leaf in enumerate(values if isinstance(values, list) else ()):
                if isinstance(leaf, dict) and leaf.get("type") == "torch.Tensor":
                    kind = "input" if section != "output" else "output"
                    _give_file(leaf, f"{name[:80]}.{kind}.{index}", folder, name in SOUND, chance)


def _give_file(
    leaf: dict[str, Any], stem: str, folder: Path, is_sound: bool, chance: random.Random
) -> None:
    if not is_sound and chance.random() < 0.3:
        leaf["data_name"] = chance.choice(("", "missing.pt", "../x.pt", 3, "a\0b", ".", "/x", None))
        return
    if any(sign in stem for sign in "/\0\n\ud800") or "\ud800" in stem:
        return
    leaf["data_name"] = f"{stem}.pt"
    path = folder / f"{stem}.pt"
    if path.exists():
        path.unlink()
    torch.save(_data_of(leaf, is_sound, chance), path)
    if not is_sound and chance.random() < 0.1:
        data = path.read_bytes()
        path.write_bytes(chance.choice((b"", data[: len(data) // 2], b"x" * 50, data[::-1])))


def _data_of(leaf: dict[str, Any], is_sound: bool, chance: random.Random) -> Any:
    shape = leaf.get("shape")
    sizes = [size if type(size) is int and 0 <= size < 6 else 2 for size in shape] if isinstance(
        shape, list) and len(shape) < 8 else [2]  # fmt: skip
    dtype = getattr(torch, str(leaf.get("dtype")).removeprefix("torch."), None)
    if not is_sound and chance.random() < 0.25:
        sizes = [chance.randrange(4) for _ in range(chance.randrange(4))]
    if not is_sound and chance.random() < 0.2:
        dtype = chance.choice((torch.float64, torch.int64, torch.bool, torch.complex64))
    low, high = leaf.get("Min"), leaf.get("Max")
    is_given = isinstance(low, float) and isinstance(high, float)
    start, end = (low, high) if is_given else (-1.0, 1.0)
    count = math.prod(sizes)
    values = torch.linspace(start, end, max(count, 1), dtype=torch.float64)[:count].reshape(sizes)
    if is_sound and math.isinf(end):
        values = torch.full_like(values, math.inf)
    if chance.random() < 0.05 and not is_sound:
        values = torch.ones((), dtype=torch.float64).expand(sizes)
    # Others can be neither converted to nor saved in every torch.
    is_known = isinstance(dtype, torch.dtype) and str(dtype) in DTYPES
    return values.to(dtype if is_known else torch.float32)


def _write_entries(
    path: Path, entries: Sequence[Entry], *, task: str, tool: Tool, level: str, in_lines: bool
) -> None:
    header: dict[str, Any] = {
        "task": task,
        "level": level,
        "framework": "pytorch",
        "dump_data_dir": None,
    }
    if tool == "tensorprobe":
        header[OWN_KEY] = {"format": FORMAT_VERSION, "version": "0"}
    if in_lines:
        top = "".join(f" {_json(key)}: {_json(value)},\n" for key, value in header.items())
        body = ",\n".join(f"  {_json(name)}: {_json(record)}" for name, record in entries)
        text = f'{{\n{top} "data": {{\n{body}\n }}\n}}\n'
    else:
        top = "".join(f"{_json(key)}: {_json(value)}, " for key, value in header.items())
        body = ", ".join(f"{_json(name)}: {_json(record)}" for name, record in entries)
        text = f'{{{top}"data": {{{body}}}}}'
    path.write_text(text)


def _as_checker(name: str, record: Any) -> Entry:
    own = record if isinstance(record, dict) else {}
    return name.removesuffix(".forward").replace(".", "*"), {
        "args": own.get("input_args"),
        "kwargs": own.get("input_kwargs"),
    }


def _ptdbg_lines(entries: Sequence[Entry]) -> list[str]:
    lines = []
    for name, record in entries:
        if not isinstance(record, dict):
            continue
        for section in ("input_args", "output"):
            values = record.get(section)
            for index, leaf in enumerate(values if isinstance(values, list) else ()):
                if not isinstance(leaf, dict) or leaf.get("type") != "torch.Tensor":
                    continue
                place = "input" if section == "input_args" else "output"
                call = name.replace(".", "_")
                statistics = [leaf.get(key) for key in ("Max", "Min", "Mean", "Norm")]
                line = [f"{call}_{place}.{index}", 0, leaf.get("md5", []), leaf.get("dtype"),
                        leaf.get("shape"), statistics]  # fmt: skip
                lines.append(_json(line))
    return lines


def write_odd_dump(
    folder: Path,
    chance: random.Random,
    *,
    tool: Tool = "tensorprobe",
    task: str = "statistics",
    calls: int = 6,
    odd_names: bool = True,
) -> OddDump:
    """Write a dump with as many odd calls, and the sound ones between them.

    Args:
        folder: a rank's folder; it is made.
        chance: where every choice comes from.
        tool: whose format it has.
        task: statistics, tensor or overflow_check.
        calls: how many odd calls, each with its backward or its module.
        odd_names: whether some have names that are no call's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = [entry for number in range(calls) for entry in _odd_call(chance, number, odd_names)]
    for entry in _sound_calls():
        entries.insert(chance.randrange(len(entries) + 1), entry)
    if tool == "api_accuracy_checker":
        path = folder / "forward_info_1.json"
        found = dict(_as_checker(*entry) for entry in entries if entry[0].endswith(".forward"))
        path.write_text(_json(found))
        return OddDump(path, SOUND)
    if tool == "ptdbg_ascend":
        path = folder / "api_stack_dump.pkl"
        path.write_text("\n".join(_ptdbg_lines(entries)) + "\n")
        return OddDump(path, SOUND)
    if chance.random() < 0.2:
        entries.append(chance.choice(entries[:-1]))
    entries = [entry for entry in entries if entry[0] not in SOUND] + [
        entry for number, entry in enumerate(entries)
        if entry[0] in SOUND and entry[0] not in {name for name, _ in entries[:number]}
    ]  # fmt: skip
    chance.shuffle(entries)
    if task != "statistics":
        _give_data(entries, folder / DATA_FOLDER, chance)
    level = chance.choice(("L1", "L1", "mix", "L2"))
    in_lines = chance.random() < 0.8
    path = folder / "dump.json"
    _write_entries(path, entries, task=task, tool=tool, level=level, in_lines=in_lines)
    return OddDump(path, SOUND)


def write_other_run(dump: OddDump, folder: Path, chance: random.Random) -> OddDump:
    """Write a second run of the same calls: some values are others, some calls are missing.

    The data files stay where they are: a few of the values name files of others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / dump.path.name
    if dump.path.suffix == ".pkl":
        lines = [
            line
            for line in dump.path.read_text().splitlines()
            if _is_sound_line(line) or chance.random() < 0.95
        ]
        path.write_text("\n".join(_ptdbg_shaken(line, chance) for line in lines) + "\n")
        return OddDump(path, dump.sound)
    whole = json.loads(dump.path.read_text().replace("9" * 5000, f'"{_ENDLESS}"'))
    is_checker = "data" not in whole
    entries: dict[str, Any] = whole if is_checker else whole["data"]
    shaken = []
    # Where the inputs agree a call is at fault itself, and is repeated.
    sections = ("output",) if chance.random() < 0.6 else None
    for name, record in entries.items():
        is_sound = name in dump.sound or name.replace("*", ".") + ".forward" in dump.sound
        if not is_sound and chance.random() < 0.05:
            continue
        shaken.append((name, record if is_sound else _shaken_call(record, chance, sections)))
    if is_checker:
        path.write_text(_json(dict(shaken)))
        return OddDump(path, dump.sound)
    data = dump.path.parent / DATA_FOLDER
    if data.exists() and not (folder / DATA_FOLDER).exists():
        _copy_data(data, folder / DATA_FOLDER, chance, ".output." if sections else "")
    tool: Tool = "tensorprobe" if OWN_KEY in whole else "msprobe"
    _write_entries(path, shaken, task=whole["task"], tool=tool, level=whole["level"], in_lines=True)
    return OddDump(path, dump.sound)


def _copy_data(source: Path, target: Path, chance: random.Random, part: str) -> None:
    """Copy files; some of those with this part in their names get what another one holds."""
    target.mkdir()
    files = sorted(source.iterdir())
    for file in files:
        is_kept = file.name.startswith(SOUND) or part not in file.name
        other = chance.choice(files) if not is_kept and chance.random() < 0.2 else file
        (target / file.name).write_bytes(other.read_bytes())


def _is_sound_line(line: str) -> bool:
    return any(name.replace(".", "_") in line for name in SOUND)


def _ptdbg_shaken(line: str, chance: random.Random) -> str:
    if chance.random() < 0.8 or _is_sound_line(line):
        return line
    if "9" * 5000 in line:
        return line
    return _json([*json.loads(line)[:5], [_statistic(chance) for _ in range(4)]])


def _shaken_call(record: Any, chance: random.Random, sections: Sequence[str] | None) -> Any:
    """Return a record with other values in these sections, or anywhere."""
    record = copy.deepcopy(record)
    if sections is None or not isinstance(record, dict):
        return _shaken(record, chance)
    return {
        key: _shaken(value, chance) if key in sections else value for key, value in record.items()
    }


def _shaken(value: Any, chance: random.Random) -> Any:
    """Return a record with a few leaves of another value."""
    if isinstance(value, dict):
        if value.get("type") == "torch.Tensor" and chance.random() < 0.3:
            key = chance.choice(("Max", "Min", "Mean", "Norm", "shape", "dtype", "md5"))
            odd = {"shape": _shape, "dtype": lambda c: c.choice(_DTYPES)}.get(key, _statistic)
            return value | {key: odd(chance)}
        if "value" in value and chance.random() < 0.2:
            return value | {"value": _plain(chance)}
        return {key: _shaken(item, chance) for key, item in value.items()}
    if isinstance(value, list):
        if value and chance.random() < 0.05:
            return value[:-1]
        return [_shaken(item, chance) for item in value]
    return value
