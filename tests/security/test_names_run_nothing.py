"""No name in a dump leads to anything but an operation of torch; nothing is replaced here.

The commands run as they are; then the folders, the processes and the state of torch are what they
were.
"""

from __future__ import annotations

import csv
import json
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hostile import TEXT, call, everything_below, run, tensor, write_data, write_dump

from tensorprobe.errors import RebuildError
from tensorprobe.names import API_TYPES
from tensorprobe.replay.forbidden import why_operator_is_forbidden
from tensorprobe.replay.functions import find_callable
from tensorprobe.replay.users import find_users_function

SHELL = call(TEXT)
# Each ran, or was reached, when names were walked through attributes.
ONCE_RAN: dict[str, dict[str, Any]] = {
    "os.system": SHELL,
    "Torch.os.system": SHELL,
    "Functional.torch.os.system": SHELL,
    "VF.os.system": SHELL,
    "Torch.serialization.os.system": SHELL,
    "posix.system": SHELL,
    "builtins.exec": call({"type": "str", "value": "open('PWNED','w')"}),
    "builtins.eval": call({"type": "str", "value": "open('PWNED','w')"}),
    "builtins.open": call({"type": "str", "value": "PWNED"}, {"type": "str", "value": "w"}),
    "subprocess.getoutput": SHELL,
    "shutil.rmtree": call({"type": "str", "value": "victim"}),
    "Torch.ctypes.CDLL": call({"type": "str", "value": "./victim/library.so"}),
    "Torch.ops.load_library": call({"type": "str", "value": "./victim/library.so"}),
    "Custom.load_library": call({"type": "str", "value": "./victim/library.so"}),
    "Torch.classes.load_library": call({"type": "str", "value": "./victim/library.so"}),
    "Torch.load": call({"type": "str", "value": "victim/pickle.pt"}),
    "numpy.load": call({"type": "str", "value": "victim/pickle.pt"}),
    "Torch.save": call(tensor(2), {"type": "str", "value": "PWNED"}),
    "Torch.hub.load": call({"type": "str", "value": "victim"}, {"type": "str", "value": "go"}),
    "Torch.from_file": call({"type": "str", "value": "PWNED"}, {"type": "bool", "value": True}),
    "Aten.from_file": call({"type": "str", "value": "PWNED"}, {"type": "bool", "value": True}),
    "Torch.UntypedStorage.from_file": call({"type": "str", "value": "PWNED"}),
    "Torch._C._VariableFunctions.from_file": call({"type": "str", "value": "PWNED"}),
    "Custom.aten.from_file": call({"type": "str", "value": "PWNED"}),
    "Custom.debugprims.load_tensor": call({"type": "str", "value": "victim/pickle.pt"}),
    "Torch._import_dotted_name": call({"type": "str", "value": "this"}),
    "Torch.set_default_dtype": call({"type": "torch.dtype", "value": "torch.float64"}),
    "Torch.manual_seed": call({"type": "int", "value": 1}),
    "Torch.random.manual_seed": call({"type": "int", "value": 1}),
    "Torch.set_num_threads": call({"type": "int", "value": 1}),
    "Torch.use_deterministic_algorithms": call({"type": "bool", "value": True}),
    "Torch.set_grad_enabled": call({"type": "bool", "value": False}),
    "Torch.compile": call(tensor(2)),
    "Torch._from_blob": call({"type": "int", "value": 4096}),
    "Tensor.set_": call(tensor(2)),
    "Tensor.share_memory_": call(tensor(2)),
    "Tensor.__reduce_ex__": call(tensor(2), {"type": "int", "value": 2}),
    "Tensor.__class__": call(tensor(2)),
    "Tensor.__init_subclass__": call(tensor(2)),
    "Tensor.apply_": call(tensor(2), TEXT),
    "Tensor.backward": call(tensor(2)),
}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder with what the names above would read or delete, and a module that must not load."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "library.so").write_bytes(b"\x7fELF")
    (folder / "pickle.pt").write_bytes(b"cos\nsystem\n(S'touch PWNED'\ntR.")
    (folder / "hubconf.py").write_text("open('PWNED', 'w')\ndef go(): pass\n")
    return folder


def dump_of_all(folder: Path, *, error: float) -> Path:
    """Write a dump in which every one of them overflowed, then a call whose result is off."""
    given = torch.linspace(0, 1, 8)
    result = write_data(
        folder, "odd.pt", torch.full((4,), float("inf")) if not error else given[:4]
    )
    calls = {
        f"{name}.0.forward": {**record, "output": [result]} for name, record in ONCE_RAN.items()
    }
    sound = call(
        write_data(folder, "given.pt", given),
        outputs=[write_data(folder, "exp.pt", given.exp() * (1 + error))],
    )
    infinite = call(tensor(4), outputs=[tensor(4, Max=float("inf"))])
    calls |= {"Torch.exp.0.forward": sound, "Torch.exp.1.forward": infinite}
    return write_dump(folder, calls, task="tensor")


@pytest.mark.parametrize("command", ["precheck", "overflow", "blame", "compare"])
def test_what_once_ran_is_a_skipped_call(command: str, victim: Path) -> None:
    """All of them in one dump, beside a call that is sound."""
    work, output = victim.parent / "work", victim.parent / "results"
    work.mkdir()
    dumps = [
        dump_of_all(victim.parent / side, error=error)
        for side, error in (("candidate", 0.0), ("reference", 1e-2))
    ]
    before = everything_below(victim, *dumps)
    arguments: dict[str, list[str | Path]] = {
        "precheck": ["precheck", dumps[0], "-o", output, "--jobs", "2"],
        "overflow": ["overflow", dumps[0], "-o", output],
        "blame": ["blame", *dumps],
        "compare": ["compare", *dumps, "-o", output, "--blame"],
    }
    answer = run(work, *arguments[command])
    assert answer.returncode in (0, 1), answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr
    assert list(work.iterdir()) == []
    assert everything_below(victim, *dumps) == before
    # It went on to the calls behind them.
    results = "".join(path.read_text() for path in output.glob("*.csv"))
    assert {
        "precheck": "Torch.exp.0,pass" in results,
        "overflow": "The Torch.exp.1 overflow is not judged: the dump holds no" in answer.stdout,
        "blame": "43 calls, 42 differ, 1 replayed" in answer.stdout,
        "compare": "43 calls, 42 differ, 1 replayed" in answer.stdout,
    }[command], answer.stdout


def test_every_one_of_them_is_refused_with_a_reason() -> None:
    for name in ONCE_RAN:
        with pytest.raises(RebuildError) as caught:
            find_callable(f"{name}.0.forward")
        assert name.rpartition(".")[2] in str(caught.value)


# --- many more, made by a generator ------------------------------------------------------------


def paths_from(root: Any, prefix: str, depth: int) -> Iterator[str]:
    """Yield every attribute path of at most so many steps that ends at something callable."""
    seen: set[int] = set()
    waiting = [(root, prefix, depth)]
    while waiting:
        holder, path, left = waiting.pop()
        for name in dir(holder):
            found = vars(holder).get(name) if hasattr(holder, "__dict__") else None
            if found is None:
                continue
            if callable(found):
                yield f"{path}.{name}"
            is_new = id(found) not in seen and issubclass(type(found), (type, ModuleType))
            if left > 1 and is_new:
                seen.add(id(found))
                waiting.append((found, f"{path}.{name}", left - 1))


@cache
def generated_names() -> list[str]:
    roots = [
        (torch, "Torch"),
        (torch, "Functional.torch"),
        (torch.Tensor, "Tensor"),
        (torch.nn.functional, "Functional"),
        (torch.ops, "Custom"),
        (torch.ops, "Torch.ops"),
        (torch.ops.aten, "Aten"),
    ]
    names = {name for root, prefix in roots for name in paths_from(root, prefix, 3)}
    for module in {found.name for found in pkgutil.iter_modules()} | set(sys.stdlib_module_names):
        names |= {f"{module}.{name}" for name in ("main", "system", "run", "load", "open", "exec")}
    for name, module in list(sys.modules.items()):
        if "." not in name:
            names |= {f"{name}.{each}" for each in vars(module) if callable(vars(module)[each])}
    return sorted(names)


def test_no_path_leads_anywhere_but_to_operations() -> None:
    """Whatever resolves is a function of torch that takes no path, and there is no second way."""
    names = generated_names()
    refused, resolved = [], {}
    loaded = set(sys.modules)
    for name in names:
        try:
            resolved[name] = find_callable(f"{name}.0.forward")
        except RebuildError:
            refused.append(name)
    assert len(refused) > 10_000
    assert set(sys.modules) == loaded
    # What other tests of this process imported for users is known by the names that they gave.
    of_torch = {
        name: function
        for name, function in resolved.items()
        if name.split(".")[0] in (*API_TYPES, "Custom") and "users_of_test" not in name
    }
    for name in resolved.keys() - of_torch.keys():
        assert "users_of_test" in name or find_users_function(name)
    deep = [name for name in of_torch if name.count(".") > 1 and name.split(".")[0] != "Aten"]
    rooms = {".".join(name.split(".")[:2]) for name in deep}
    # Other tests register libraries of their own; of torch's, those that serve itself are no way.
    libraries = {room.partition(".")[2] for room in rooms if room.startswith("Custom.")}
    assert [name for name in libraries if why_operator_is_forbidden(f"{name}::any")] == []
    assert {room for room in rooms if not room.startswith("Custom.")} <= {
        "Torch.fft", "Torch.functional", "Torch.linalg", "Torch.nested", "Torch.signal",
        "Torch.sparse", "Torch.special",
    }  # fmt: skip
    homes = {getattr(function, "__module__", None) for function in of_torch.values()}
    assert all(home is None or home.split(".")[0] == "torch" for home in homes), homes


@pytest.mark.parametrize("command", ["precheck", "overflow"])
def test_hundreds_of_other_paths_run_nothing(command: str, victim: Path) -> None:
    """Some of all paths go through the command itself, with a shell's text as argument."""
    refused = [name for name in generated_names() if not is_allowed(name)]
    chosen = refused[:: len(refused) // 400]
    assert len(chosen) >= 300
    infinite = tensor(4, Max=float("inf"))
    calls = {f"{name}.0.forward": call(TEXT, outputs=[infinite]) for name in chosen}
    work = victim.parent / "work"
    work.mkdir()
    dump = write_dump(victim.parent / "dump", calls)
    before = everything_below(victim, dump)
    answer = run(work, command, dump, "-o", victim.parent / "results")
    assert answer.returncode in (0, 2), answer.stderr
    assert list(work.iterdir()) == []
    assert everything_below(victim, dump) == before
    (path,) = (victim.parent / "results").glob("*_result_*.csv")
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    verdicts = {row.get("Forward Test Success", row.get("Verdict")) for row in rows}
    assert len(rows) >= 300
    assert verdicts <= {"SKIP", "not judged"}


WATCH = """
import json, os, sys, torch
from tensorprobe.errors import RebuildError
from tensorprobe.replay.functions import find_callable

def state():
    return [
        str(torch.get_default_dtype()), torch.get_num_threads(), torch.initial_seed(),
        torch.get_rng_state().sum().item(), torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_printoptions()
        if hasattr(torch, "get_printoptions") else 0, sorted(os.environ.items()), os.getcwd(),
        torch.is_autocast_enabled(), torch.get_float32_matmul_precision(),
        torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled,
    ]

def arguments():
    x = torch.ones(2, 2)
    return [(), ("PWNED",), (x,), (x, "PWNED"), (x, x), (x, 1), (2,), ("touch PWNED",),
            (False,), (x, (1, 1)), ([x, x],), (x, torch.float64)]

names = json.load(open(sys.argv[1]))
before, ran = state(), 0
with open(sys.argv[2], "w") as log:
    for name in names:
        try:
            function = find_callable(name + ".0.forward")
        except RebuildError:
            continue
        for given in arguments():
            log.write(f"{name} {given}\\n"); log.flush()
            random = torch.get_rng_state()
            try:
                function(*given)
                ran += 1
            except Exception:
                pass
            torch.set_rng_state(random)
            assert state() == before, (name, given)
print(ran)
"""


def test_what_resolves_touches_neither_files_nor_the_state_of_torch(tmp_path: Path) -> None:
    """Everything of torch that a name reaches is called, with paths among the arguments."""
    names = [name for name in generated_names() if is_allowed(name)]
    assert len(names) > 1500
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "names.json").write_text(json.dumps(names))
    (tmp_path / "watch.py").write_text(WATCH)
    import subprocess

    answer = subprocess.run(
        [sys.executable, tmp_path / "watch.py", tmp_path / "names.json", tmp_path / "log"],
        cwd=work,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert answer.returncode == 0, (answer.returncode, last, answer.stderr[-2000:])
    assert int(answer.stdout.split()[-1]) > 1000
    assert list(work.iterdir()) == []


def is_allowed(name: str) -> bool:
    try:
        find_callable(f"{name}.0.forward")
    except RebuildError:
        return False
    return True
