"""Make pairs of dumps with planted faults, and benign ones, for `benchmarks/blame.py`.

    python benchmarks/blame_pairs.py FOLDER [--only NAME] [--set first] [--recorder msprobe]
    python benchmarks/blame_pairs.py FOLDER --set library       models of the transformers library
    python benchmarks/blame_pairs.py FOLDER --random SEED --count N [--models second]

Each pair (`pair_cases.py`) is one training step of a small model (`pair_models.py`), captured by
tensorprobe or, where that is installed, by msprobe. Faults are planted below the recorded API, in
one ATen kernel (`pair_kernels.py`), or in the candidate's model; noise (other kernels, other
precision) is everywhere. Which call is at fault is found without the tool (`pair_truth.py`). A set
of random pairs draws the model, the type, the noise, the kernel and the fault; what changes
nothing, or less than three times the noise, is drawn again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from library_cases import LIBRARY_CASES
from pair_cases import BF16, CASES, F16, F32, SECOND_CASES, Case
from pair_kernels import (
    Kernels,
    flipped_bit,
    negated_half,
    noise,
    on,
    one_element,
    saturated,
    scale,
    shifted,
    stale,
    through,
)
from pair_library import LIBRARY
from pair_models import FIRST, SECOND, THIRD, Built
from pair_models import MODELS as OWN_MODELS
from pair_truth import compare_runs, read_runs
from torch import nn

aten = torch.ops.aten
Tensor = torch.Tensor
MODELS: dict[str, Callable[[torch.dtype], Built]] = {**OWN_MODELS, **LIBRARY}


# --- making a pair -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """How one run of a pair is made."""

    noise: str = ""
    fault: bool = False
    prepare: str = ""


def run_step(case: Case, side: Side, start: Callable[[nn.Module], Kernels]) -> Kernels:
    """Train one step and return what the kernels saw."""
    torch.manual_seed(case.seed)
    model, compute_loss = MODELS[case.model](case.dtype)
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases of 0 and weights of 1 hide faults.
            parameter.add_(0.05 * torch.randn(parameter.shape).to(parameter))
        if side.fault and case.tweak is not None:
            case.tweak(model)
        if side.prepare == "ulp":
            for parameter in model.parameters():
                parameter.copy_(torch.nextafter(parameter, parameter + 1))
    if side.prepare == "channels_last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if side.prepare == "threads":
        torch.set_num_threads(2)
    attention = torch.nn.attention.SDPBackend.MATH
    kernels = start(model)
    torch.manual_seed(case.seed + 1)
    casting = torch.autocast("cpu", case.autocast, enabled=case.autocast is not None)
    with torch.backends.mkldnn.flags(enabled=side.prepare != "mkldnn"), kernels, casting:
        if side.prepare == "sdpa":
            with torch.nn.attention.sdpa_kernel(attention):
                compute_loss().backward()  # type: ignore[no-untyped-call]
        else:
            compute_loss().backward()  # type: ignore[no-untyped-call]
    if side.prepare == "threads":
        torch.set_num_threads(1)
    return kernels


def capture(case: Case, folder: Path, side: Side) -> str | None:
    """Record a step with tensorprobe."""
    debugger: Any = import_module("tensorprobe").PrecisionDebugger(
        task="tensor", dump_path=str(folder), level=case.level
    )
    planted = case.fault if side.fault else None

    def start(model: nn.Module) -> Kernels:
        debugger.start(model)
        return Kernels(side.noise, planted)

    kernels = run_step(case, side, start)
    debugger.stop()
    debugger.step()
    debugger.close()
    if planted is not None and kernels.seen.get(planted[0], 0) <= planted[1]:
        raise SystemExit(f"{case.name}: {planted[0]} ran too seldom")
    return None


def capture_peer(case: Case, folder: Path, side: Side) -> str | None:
    """Record a step with msprobe, in a process of its own; return the call with the fault."""
    folder.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        log = (folder / "log.txt").read_text()
        if status:
            raise RuntimeError(f"{case.name}: {log[-1500:]}")
        culprit = (folder / "culprit.txt").read_text()
        (folder / "log.txt").unlink()
        (folder / "culprit.txt").unlink()
        return culprit or None
    status = 1
    try:
        log_file = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(log_file, 1)
        os.dup2(log_file, 2)
        (folder / "culprit.txt").write_text(record_peer(case, folder, side) or "")
        status = 0
    except BaseException:  # noqa: BLE001 - whatever ends the child is told by its parent.
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def record_peer(case: Case, folder: Path, side: Side) -> str | None:
    peer: Any = import_module("msprobe.pytorch")
    hooks: Any = import_module("msprobe.core.hook_manager").BaseHookManager
    settings = folder / "config.json"
    settings.write_text(
        json.dumps(
            {"task": "tensor", "dump_path": str(folder), "rank": [], "step": [],
             "level": case.level, "tensor": {"scope": [], "list": [], "data_mode": ["all"]}}
        )
    )  # fmt: skip
    debugger = peer.PrecisionDebugger(config_path=str(settings))
    thread = threading.get_ident()

    def call_name() -> str | None:
        collector = debugger.service.data_collector
        name: str | None = collector.data_processor.current_api_or_module_name
        return name

    def hush(quiet: bool) -> None:
        hooks.inner_switch[thread] = quiet

    def start(model: nn.Module) -> Kernels:
        debugger.start(model)
        planted = case.fault if side.fault else None
        return Kernels(
            side.noise, planted, is_recorder=lambda: bool(hooks.inner_switch[thread]),
            call_name=call_name, hush=hush,
        )  # fmt: skip

    kernels = run_step(case, side, start)
    debugger.stop()
    debugger.step()
    settings.unlink()
    return kernels.culprit


Recorder = Callable[[Case, Path, Side], "str | None"]


def make(case: Case, folder: Path, record: Recorder) -> str | None:
    """Make a pair; return why it is no use, or None."""
    shutil.rmtree(folder, ignore_errors=True)
    candidate = Side(case.noise, True, case.prepare)
    record(case, folder / "bench", Side(case.reference_noise))
    planted = record(case, folder / "npu", candidate)
    expected: dict[str, Any] = {"kind": "benign", "culprits": [], "level": case.level}
    if not case.is_benign:
        record(case, folder / "clean", Side(case.noise, False, case.prepare))
        if case.expects == "call":
            found = compare_runs(folder, planted, case.level)
        else:
            found = read_runs(case, folder)
        shutil.rmtree(folder / "clean")
        if isinstance(found, str):
            shutil.rmtree(folder)
            return found
        expected = {"kind": "fault", "level": case.level, **found}
    (folder / "expected.json").write_text(json.dumps(expected))
    print(f"{case.name:<44}{', '.join(expected['culprits'])}", flush=True)
    return None


# --- random pairs --------------------------------------------------------------------------------

SIZES = (3e-5, 1e-4, 1e-3, 1e-2, 5e-2)


def draw_case(number: int, seed: int, models: list[str], *, benign: bool) -> Case:
    dice = random.Random(f"{seed}/{number}")
    model = dice.choice(models)
    dtype, autocast = dice.choice(
        [(F32, None)] * 5 + [(BF16, None)] * 2 + [(F32, BF16)] * 2 + [(F32, F16)]
    )
    level = dice.choice(["L1"] * 7 + ["mix"] * 2 + ["L0"])
    kinds = ["f64", "splitk", "device", "device", "tf32", "scatter", ""]
    if dtype is BF16 or autocast is not None:
        kinds = ["f64", "device", "scatter", ""]
    noise_kind = dice.choice(kinds)
    prepare = ""
    if noise_kind == "":
        prepare = dice.choice(["threads", "mkldnn", "ulp", "sdpa", "channels_last", ""])
        images = ("mobile", "denoiser", "windows", "vae", "spatial", "pairs")
        if prepare == "channels_last" and model not in images:
            prepare = "mkldnn"
    case = Case(
        "", model, dtype, noise_kind, None, level, prepare, autocast, seed=dice.randrange(1000)
    )
    if dice.random() < 0.2:
        case = replace(case, noise="", reference_noise=noise_kind)
    precision = {None: str(dtype)[6:], BF16: "bf16amp", F16: "fp16amp"}[autocast]
    label = f"{number:03d}_{model}_{precision}_{level}_{noise_kind or prepare or 'twice'}"
    if benign:
        return replace(case, name=f"benign_{label}")
    if dice.random() < 0.06:
        return replace(case, name=f"{label}_state", tweak=other_weight(dice.random()))
    kernel, nth, outputs = dice.choice(list_kernels(case))
    index = dice.randrange(outputs)
    size = dice.choice(SIZES)
    changes = {
        f"scale_{size}": scale(1 + size, index),
        f"noise_{size}": noise(size, index),
        f"noise_{size}_": noise(size, index),
        "bit": one_element(lambda x: flipped_bit(x, 27), index, place=dice.randrange(10**6)),
        "nan": one_element(lambda x: math.nan, index, place=dice.randrange(10**6)),
        "largest": one_element(lambda x: x * 1.3, index),
        "shifted": on(index, lambda t, a: shifted(t, a) if t.dim() else t * 2),
        "negated": on(index, negated_half),
        "half": scale(0.5, index),
        "row": stale() if index == 0 else scale(0.5, index),
        "saturated": on(index, lambda t, a: saturated(t, a) if t.numel() > 300 else t * 0.9),
        "bf16": through(BF16 if dtype is F32 else torch.float8_e4m3fn),
    }
    fault = dice.choice(list(changes))
    short = str(kernel).replace("aten.", "").strip("_")
    return replace(case, name=f"{label}_{short}.{nth}.{index}_{fault}",
                   fault=(kernel, nth, changes[fault]))  # fmt: skip


def other_weight(where: float) -> Callable[[nn.Module], None]:
    """Return a change of one parameter: what a wrong load or a stale copy leaves."""

    def tweak(model: nn.Module) -> None:
        weights = list(model.parameters())
        weights[int(where * len(weights))].mul_(1.03)

    return tweak


def list_kernels(case: Case) -> list[tuple[Any, int, int]]:
    """Return the kernels of a step that a fault may sit in: number of the call and of results."""
    found: list[tuple[Any, int, int]] = []

    class Listed(Kernels):  # type: ignore[no-untyped-call]
        def run(self, func: Any, packet: Any, args: Any, kwargs: Any) -> Any:
            result = super().run(func, packet, args, kwargs)
            tensors = list(result) if isinstance(result, (list, tuple)) else [result]
            aliases = any(r.alias_info is not None for r in func._schema.returns)
            if not aliases and packet not in UNUSED:
                floats = [t for t in tensors if isinstance(t, Tensor) and t.is_floating_point()]
                if floats and floats[0].numel() > 1:
                    found.append((packet, self.seen.get(packet, 0), 1))
                    if packet is aten.convolution_backward:
                        found[-1] = (packet, self.seen.get(packet, 0), 2)
            return result

    run_step(case, Side(), lambda model: Listed("", None))
    return found


UNUSED = {aten.detach, aten._to_copy, aten.empty, aten.empty_like, aten.randn_like, aten.bernoulli}
UNUSED |= {aten.zeros, aten.ones, aten.zeros_like, aten.ones_like, aten.full, aten.arange}
UNUSED |= {aten.new_zeros, aten.scalar_tensor, aten.native_dropout}


def make_random(
    folder: Path, seed: int, count: int, models: list[str], record: Recorder, *, benign: bool
) -> None:
    number = made = 0
    while made < count:
        number += 1
        case = draw_case(number, seed, models, benign=benign or made % 3 == 2)
        try:
            problem = make(case, folder / case.name, record)
        except RuntimeError as err:
            problem = str(err)
        if problem is None:
            made += 1
        else:
            shutil.rmtree(folder / case.name, ignore_errors=True)
            print(f"  {case.name}: {problem[-300:]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--set", choices=sorted(SETS), default="first")
    parser.add_argument("--recorder", choices=("tensorprobe", "msprobe"), default="tensorprobe")
    parser.add_argument("--random", type=int, help="draw pairs from this seed")
    parser.add_argument("--count", type=int, default=30, help="how many random pairs")
    parser.add_argument("--models", choices=sorted(GROUPS), default="second")
    parser.add_argument("--benign", action="store_true", help="random pairs without faults only")
    parser.add_argument("--part", type=int, default=0, help="make only every parts-th case")
    parser.add_argument("--parts", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record = capture
    if arguments.recorder == "msprobe":
        # Here, so that the processes that record need not import it.
        import_module("msprobe.pytorch")
        record = capture_peer
    if arguments.random is not None:
        models = sorted(GROUPS[arguments.models])
        make_random(
            arguments.folder, arguments.random, arguments.count, models, record,
            benign=arguments.benign,
        )  # fmt: skip
        return
    for case in SETS[arguments.set][arguments.part :: arguments.parts]:
        if arguments.only in case.name:
            try:
                problem = make(case, arguments.folder / case.name, record)
            except RuntimeError as err:
                problem = str(err)
            if problem is not None:
                shutil.rmtree(arguments.folder / case.name, ignore_errors=True)
                print(f"{case.name}: {problem[-300:]}", flush=True)


GROUPS: dict[str, Mapping[str, Callable[[torch.dtype], Built]]] = {
    "first": FIRST, "second": SECOND, "third": THIRD, "library": LIBRARY,
}  # fmt: skip
SETS = {"first": CASES, "second": SECOND_CASES, "library": LIBRARY_CASES}


if __name__ == "__main__":
    main()
