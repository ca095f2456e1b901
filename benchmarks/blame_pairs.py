"""Make pairs of dumps with planted faults, and benign ones, for `benchmarks/blame.py`.

    python benchmarks/blame_pairs.py FOLDER [--only NAME] [--set first] [--recorder msprobe]
    python benchmarks/blame_pairs.py FOLDER --random SEED --count N [--models second]

Each pair is one training step of a small model (`pair_models.py`), captured by tensorprobe or, where
that is installed, by msprobe. Faults are planted below the recorded API, in one ATen kernel
(`pair_kernels.py`), or in the candidate's model; noise (other kernels, other precision) is everywhere.
Which call is at fault is found without the tool: it is the first whose bits change when the fault is
added to an otherwise identical run. A set of random pairs draws the model, the type, the noise, the
kernel and the fault; what changes nothing, or less than three times the noise, is drawn again.
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
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from pair_kernels import (
    Kernels,
    Planted,
    again,
    biased_mean,
    flipped_bit,
    hard_sigmoid,
    leaky,
    low_accumulation,
    missing_bias,
    negated_half,
    no_sum_term,
    noise,
    on,
    one_element,
    overwritten,
    rational_tanh,
    saturated,
    scale,
    shifted,
    softmax_over,
    stale,
    swapped,
    tanh_gelu,
    through,
    truncated,
    unbiased_norm,
    with_item,
)
from pair_models import FIRST, MODELS, SECOND, THIRD
from torch import nn

aten = torch.ops.aten
Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """One pair: a model, its precision, the candidate's noise, and the fault in one kernel.

    `prepare` changes how the candidate runs (channels_last, ulp, threads, mkldnn, math attention);
    `tweak` changes its model, which is a fault; `reference_noise` is the other run's.
    """

    name: str
    model: str
    dtype: torch.dtype = torch.float32
    noise: str = ""
    fault: Planted | None = None
    level: str = "L1"
    prepare: str = ""
    autocast: torch.dtype | None = None
    tweak: Callable[[nn.Module], None] | None = None
    reference_noise: str = ""
    seed: int = 5

    @property
    def is_benign(self) -> bool:
        """Whether nothing is wrong with the candidate."""
        return self.fault is None and self.tweak is None


F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CASES = [
    Case("bert_linear_scale_1e-3", "bert", F32, "f64", (aten.addmm, 4, scale(1.001))),
    Case("bert_linear_missing_bias", "bert", F32, "splitk", (aten.addmm, 3, on(0, missing_bias))),
    Case("bert_gelu_tanh", "bert", F32, "f64", (aten.gelu, 1, on(0, tanh_gelu))),
    Case("bert_layernorm_unbiased", "bert", F32, "splitk",
         (aten.native_layer_norm, 2, scale((23 / 24) ** 0.5))),
    Case("bert_bf16_linear_lowacc", "bert", BF16, "f64", (aten.addmm, 7, on(0, low_accumulation))),
    Case("bert_bf16_linear_truncated", "bert", BF16, "", (aten.addmm, 5, on(0, truncated))),
    Case("bert_softmax_noise_1e-4", "bert", F32, "f64", (aten._softmax, 1, noise(1e-4))),
    Case("bert_bwd_softmax_no_sum", "bert", F32, "splitk",
         (aten._softmax_backward_data, 0, on(0, no_sum_term))),
    Case("bert_bwd_layernorm_scale", "bert", F32, "tf32",
         (aten.native_layer_norm_backward, 1, scale(1.02))),
    Case("bert_embedding_shifted", "bert", F32, "", (aten.embedding, 0, on(0, shifted))),
    Case("t5_mean_biased", "t5", F32, "f64", (aten.mean, 2, on(0, biased_mean))),
    Case("t5_bmm_element", "t5", F32, "splitk", (aten.bmm, 3, one_element(lambda x: x * 2**10))),
    Case("t5_relu_backward_leak", "t5", F32, "", (aten.threshold_backward, 1, on(0, leaky))),
    Case("t5_bwd_mm_noise_1e-3", "t5", F32, "f64", (aten.mm, 40, noise(1e-3))),
    Case("vit_conv_saturated", "vit", F32, "f64", (aten.convolution, 0, on(0, saturated))),
    Case("vit_bf16_layernorm_scale_2e-2", "vit", BF16, "f64",
         (aten.native_layer_norm, 3, scale(1.02))),
    Case("vit_linear_nan", "vit", F32, "splitk",
         (aten.addmm, 8, one_element(lambda x: float("nan")))),
    Case("vit_tf32_linear_scale_5e-3", "vit", F32, "tf32", (aten.addmm, 6, scale(1.005))),
    Case("lstm_log_softmax_noise_3e-4", "lstm", F32, "splitk", (aten._log_softmax, 0, noise(3e-4))),
    Case("lstm_mix_embedding_backward", "lstm", F32, "",
         (aten.embedding_dense_backward, 0, scale(1.01)), "mix"),
    Case("images_batchnorm_unbiased", "images", F32, "f64",
         (aten.native_batch_norm, 1, on(0, unbiased_norm))),
    Case("images_maxpool_shifted", "images", F32, "",
         (aten.max_pool2d_with_indices, 0, on(0, shifted))),
    Case("images_convback_weight_half", "images", F32, "f64",
         (aten.convolution_backward, 1, scale(0.5, 1))),
    Case("images_tanh_noise_2e-5", "images", F32, "f64", (aten.tanh, 0, noise(2e-5))),
    Case("images_mix_sigmoid_scale", "images", F32, "splitk", (aten.sigmoid, 0, scale(1.0005)),
         "mix"),
    Case("images_bf16_conv_bitflip", "images", BF16, "f64",
         (aten.convolution, 1, one_element(lambda x: x / 256))),
    Case("bert_amp_linear_noise_1e-2", "bert", F32, "f64", (aten.addmm, 6, noise(1e-2)),
         autocast=BF16),
    Case("vit_amp_bwd_gelu_scale_3e-2", "vit", F32, "f64", (aten.gelu_backward, 0, scale(1.03)),
         autocast=BF16),
    Case("t5_amp_rsqrt_scale_2e-2", "t5", F32, "splitk", (aten.rsqrt, 2, scale(1.02)),
         autocast=BF16),
    Case("lstm_bf16_linear_scale_5e-2", "lstm", BF16, "f64", (aten.addmm, 0, scale(1.05))),
    Case("vit_L0_linear_scale_1e-3", "vit", F32, "f64", (aten.addmm, 7, scale(1.001)), "L0"),
    Case("images_L0_bwd_conv_noise_1e-3", "images", F32, "splitk",
         (aten.convolution_backward, 1, noise(1e-3)), "L0"),
    Case("benign_bert_amp_f64", "bert", F32, "f64", autocast=BF16),
    Case("benign_t5_amp_splitk", "t5", F32, "splitk", autocast=BF16),
    Case("benign_vit_L0_f64", "vit", F32, "f64", None, "L0"),
    Case("benign_lstm_bf16_f64", "lstm", BF16, "f64"),
    Case("benign_images_bf16_f64", "images", BF16, "f64", None, "mix"),
    Case("benign_bert_tf32_mix", "bert", F32, "tf32", None, "mix"),
    Case("benign_bert_f64", "bert", F32, "f64"),
    Case("benign_bert_bf16_f64", "bert", BF16, "f64"),
    Case("benign_t5_splitk", "t5", F32, "splitk"),
    Case("benign_t5_bf16_splitk", "t5", BF16, "splitk"),
    Case("benign_vit_tf32", "vit", F32, "tf32"),
    Case("benign_lstm_mix_f64", "lstm", F32, "f64", None, "mix"),
    Case("benign_images_f64", "images", F32, "f64"),
    Case("benign_images_channels_last", "images", F32, "", None, "L1", "channels_last"),
    Case("benign_images_ulp", "images", F32, "", None, "L1", "ulp"),
    Case("benign_vit_bf16_splitk", "vit", BF16, "splitk"),
]  # fmt: skip


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
    except BaseException:
        import traceback

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
        found = compare_runs(folder, planted, case.level)
        shutil.rmtree(folder / "clean")
        if isinstance(found, str):
            shutil.rmtree(folder)
            return found
        expected = {"kind": "fault", "level": case.level, **found}
    (folder / "expected.json").write_text(json.dumps(expected))
    print(f"{case.name:<44}{', '.join(expected['culprits'])}", flush=True)
    return None


def compare_runs(folder: Path, planted: str | None, level: str) -> dict[str, Any] | str:
    """Return the calls that are right answers: the first whose results the fault changes."""
    changed, clean, trusted = (read_calls(folder / side) for side in ("npu", "clean", "bench"))
    found: list[str] = []
    arrived: str | None = None
    magnitude = noise_there = 0.0
    for name, call in changed.items():
        if ".parameters_grad" in name:
            continue
        twin = clean.get(name, {})
        outputs = {key: path for key, path in call.items() if key.startswith("output")}
        if not found:
            differing = [key for key, path in outputs.items() if not same(path, twin.get(key))]
            if differing:
                inputs = {k: p for k, p in call.items() if not k.startswith("output")}
                touched = any(not same(p, twin.get(k)) for k, p in inputs.items())
                if touched and (level == "L0" or planted in (None, name)):
                    return "the fault sits in what is not recorded"
                found.append(name)
                reference = trusted.get(name, {})
                for key in differing:
                    magnitude = max(magnitude, distance(outputs[key], twin.get(key)))
                    noise_there = max(noise_there, distance(twin.get(key), reference.get(key)))
            elif arrived is None and "backward" in name:
                inputs = {k: p for k, p in call.items() if k.startswith("input")}
                if any(not same(path, twin.get(key)) for key, path in inputs.items()):
                    arrived = name
        elif name.startswith("Module.") and parents(folder).get(found[0]) == name:
            found.append(name)
            break
    if not found and arrived is None:
        grads = [n for n, c in changed.items() if ".parameters_grad" in n and any(
            not same(path, clean.get(n, {}).get(key)) for key, path in c.items())]  # fmt: skip
        if not grads:
            return "nothing changes"
        return {"culprits": [grads[0], grads[0].replace("parameters_grad", "backward.0")],
                "gap": False, "magnitude": None}  # fmt: skip
    if math.isfinite(magnitude) and magnitude < 3 * noise_there:
        return f"{magnitude:.1e} is hidden by noise of {noise_there:.1e}"
    result = {"culprits": found, "gap": False, "magnitude": magnitude, "noise": noise_there}
    if planted is None or planted in found or planted.startswith("Module"):
        return result
    if arrived is not None and "backward" in planted and planted in changed:
        return {**result, "culprits": [planted], "gap": True}
    return f"planted in {planted}, shows in {found}, arrives at {arrived}"


def parents(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in (folder / "npu").rglob("construct.json"):
        for name, parent in json.loads(path.read_text()).items():
            found[name] = parent[0] if isinstance(parent, list) else parent
    return found


def read_calls(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the files of each call's tensors by their places."""
    path = next(folder.rglob("dump.json"))
    data = json.loads(path.read_text())["data"]
    files = path.parent / "dump_tensor_data"
    found: dict[str, dict[str, Path]] = {}
    for name, call in data.items():
        found[name] = places = {}

        def walk(value: Any, place: str, places: dict[str, Path] = places) -> None:
            if isinstance(value, dict) and value.get("data_name"):
                places[place] = files / value["data_name"]
            elif isinstance(value, dict):
                for key, item in value.items():
                    walk(item, f"{place}.{key}")
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    walk(item, f"{place}.{index}")

        for section, value in call.items():
            walk(value, section)
    return found


def same(path: Path, other: Path | None) -> bool:
    if other is None:
        return False
    a, b = torch.load(path), torch.load(other)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def distance(path: Path | None, other: Path | None) -> float:
    if path is None or other is None:
        return math.inf
    a, b = torch.load(path).double(), torch.load(other).double()
    if a.shape != b.shape:
        return math.inf
    size = float(b.norm())
    return float((a - b).norm()) / size if size else math.inf


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

    class Listed(Kernels):
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


def eps_of(layer: str, value: float) -> Callable[[nn.Module], None]:
    def tweak(model: nn.Module) -> None:
        model.get_submodule(layer).eps = value

    return tweak


def weight_of(layer: str, change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], None]:
    def tweak(model: nn.Module) -> None:
        weight = model.get_parameter(layer)
        weight.copy_(change(weight))

    return tweak


def low_rank(model: nn.Module) -> None:
    model.get_submodule("slope").weight.mul_(0.9)  # type: ignore[operator, union-attr]


def old_places(model: nn.Module) -> None:
    """A buffer that was made for another window."""
    model.index = model.index.flip(0)  # type: ignore[union-attr, operator]


SECOND_CASES = [
    # Constants and scales.
    Case("mobile_batchnorm_eps_kernel", "mobile", F32, "f64",
         (aten.native_batch_norm, 1, again(aten.native_batch_norm, with_item(7, 1e-2)))),
    Case("mobile_bf16_batchnorm_momentum", "mobile", BF16, "f64",
         (aten.native_batch_norm, 0, scale(1.02))),
    Case("windows_layernorm_eps_argument", "windows", F32, "device",
         tweak=eps_of("norms.1", 1e-3)),
    Case("denoiser_groupnorm_groups", "denoiser", F32, "device",
         (aten.native_group_norm, 1, again(aten.native_group_norm, with_item(6, 2)))),
    Case("denoiser_sdpa_scale_3e-3", "denoiser", F32, "splitk",
         (aten._scaled_dot_product_flash_attention_for_cpu, 0, scale(1.003))),
    Case("gat_leaky_slope", "gat", F32, "scatter",
         (aten.leaky_relu, 0, again(aten.leaky_relu, with_item(1, 0.01)))),
    Case("wave_prelu_state", "wave", F32, "f64", tweak=low_rank),
    Case("translator_linear_scale_1e-4", "translator", F32, "device", (aten.addmm, 9, scale(1.0001))),
    Case("windows_qk_scale", "windows", F32, "device", (aten.mul, 0, scale(8**0.5 / 24**0.5))),
    Case("scan_softplus_beta", "scan", F32, "splitk",
         (aten.softplus, 0, on(0, lambda t, a: torch.log1p(torch.exp(2 * a[0])) / 2))),
    # Approximations.
    Case("windows_gelu_tanh", "windows", F32, "device", (aten.gelu, 1, on(0, tanh_gelu))),
    Case("wave_tanh_rational", "wave", F32, "f64", (aten.tanh, 2, on(0, rational_tanh))),
    Case("clicks_sigmoid_hard", "clicks", F32, "f64", (aten.sigmoid, 0, on(0, hard_sigmoid))),
    Case("gat_exp_fast_1e-4", "gat", F32, "scatter", (aten.exp, 1, noise(1e-4))),
    Case("points_rsqrt_norm_1e-5", "points", F32, "splitk",
         (aten.linalg_vector_norm, 1, noise(3e-5))),
    # Precision and accumulation.
    Case("windows_bf16_linear_lowacc", "windows", BF16, "", (aten.addmm, 1, on(0, low_accumulation))),
    Case("translator_bf16_addmm_lowacc", "translator", BF16, "",
         (aten.addmm, 12, on(0, low_accumulation))),
    Case("experts_bf16_bmm_lowacc", "experts", BF16, "", (aten.bmm, 1, on(0, low_accumulation))),
    Case("windows_bf16_linear_truncated", "windows", BF16, "", (aten.addmm, 2, on(0, truncated))),
    Case("mobile_conv_in_bf16", "mobile", F32, "f64", (aten.convolution, 4, through(BF16))),
    Case("denoiser_groupnorm_in_fp16", "denoiser", F32, "device",
         (aten.native_group_norm, 2, through(F16))),
    Case("scan_cumsum_in_fp16", "scan", F32, "splitk", (aten.cumsum, 1, through(F16))),
    Case("experts_softmax_in_bf16", "experts", F32, "splitk", (aten._softmax, 0, through(BF16))),
    # Indices, masks, places.
    Case("windows_table_offbyone", "windows", F32, "device",
         (aten.index, 0, on(0, lambda t, a: a[0][(a[1][0] + 1) % 49]))),
    Case("experts_index_copy_offbyone", "experts", F32, "splitk",
         (aten.index_copy, 0, on(0, lambda t, a: t.roll(1, 0)))),
    Case("gat_gather_wrong_end", "gat", F32, "scatter",
         (aten.index_select, 0, on(0, lambda t, a: a[0].index_select(0, (a[2] + 1) % 20)))),
    Case("translator_mask_missing", "translator", F32, "device",
         (aten.triu, 0, on(0, lambda t, a: torch.zeros_like(t)))),
    Case("tagger_mask_one_short", "tagger", F32, "f64",
         (aten.masked_fill, 0, on(0, lambda t, a: a[0].masked_fill(a[1].roll(1, 1), -1e4)))),
    Case("clicks_bag_offsets", "clicks", F32, "f64",
         (aten._embedding_bag, 1, on(0, lambda t, a: t.roll(1, 0)))),
    Case("windows_roll_wrong_way", "windows", F32, "device",
         (aten.roll, 2, on(0, lambda t, a: torch.roll(a[0], (2, 2), (1, 2))))),
    Case("points_max_first", "points", F32, "splitk",
         (aten.max, 1, lambda r, a: (a[0][..., :-1].max(2)[0], r[1]))),
    Case("denoiser_interpolate_shift", "denoiser", F32, "f64",
         (aten.upsample_nearest2d, 0, on(0, lambda t, a: t.roll(1, 3)))),
    # Reductions, terms, arguments.
    Case("tagger_softmax_wrong_dim", "tagger", F32, "splitk", (aten._softmax, 0, softmax_over(0))),
    Case("vae_sub_swapped", "vae", F32, "f64", (aten.sub, 0, on(0, swapped))),
    Case("clicks_linear_missing_bias", "clicks", F32, "splitk",
         (aten.addmm, 2, on(0, missing_bias))),
    Case("mobile_mean_unbiased", "mobile", F32, "f64", (aten.mean, 1, scale(16 / 15))),
    Case("gat_index_add_overwrites", "gat", F32, "device", (aten.index_add, 1, on(0, overwritten))),
    Case("scan_cumsum_exclusive", "scan", F32, "device",
         (aten.cumsum, 0, on(0, lambda t, a: t - a[0]))),
    # Single elements and what is not finite.
    Case("windows_bf16_bmm_bit", "windows", BF16, "device",
         (aten.bmm, 1, one_element(lambda x: flipped_bit(x, 26), place=77))),
    Case("denoiser_conv_bit", "denoiser", F32, "device",
         (aten.convolution, 3, one_element(lambda x: flipped_bit(x, 20), place=500))),
    Case("gat_exp_inf", "gat", F32, "scatter", (aten.exp, 0, one_element(lambda x: math.inf))),
    Case("tagger_masked_nan", "tagger", F32, "f64",
         (aten.addmm, 5, one_element(lambda x: math.nan, place=26))),
    Case("translator_fp16amp_softmax_overflow", "translator", F32, "",
         (aten.mul, 0, one_element(lambda x: math.inf)), autocast=F16),
    # Gradients only.
    Case("mobile_bwd_batchnorm_no_mean", "mobile", F32, "device",
         (aten.native_batch_norm_backward, 1, scale(1.01))),
    Case("denoiser_bwd_groupnorm_wgrad", "denoiser", F32, "device",
         (aten.native_group_norm_backward, 2, scale(0.5, 1))),
    Case("windows_bwd_softmax_missing", "windows", F32, "device",
         (aten._softmax_backward_data, 1, on(0, no_sum_term))),
    Case("clicks_bwd_relu_leak", "clicks", F32, "splitk",
         (aten.threshold_backward, 1, on(0, leaky))),
    Case("wave_bwd_conv_weight_noise_1e-3", "wave", F32, "f64",
         (aten.convolution_backward, 4, noise(1e-3, 1))),
    Case("points_bwd_max_scatter", "points", F32, "splitk", (aten.value_selecting_reduction_backward, 0, scale(0.5))),
    Case("gat_bwd_index_overwrite", "gat", F32, "scatter",
         (aten.index_select_backward, 0, scale(0.9))),
    Case("translator_mix_bwd_linear_dgrad_2e-3", "translator", F32, "device",
         (aten.mm, 4, noise(2e-3)), "mix"),
    Case("windows_amp_bwd_gelu_scale_4e-2", "windows", F32, "f64",
         (aten.gelu_backward, 0, scale(1.04)), autocast=BF16),
    Case("scan_bf16_bwd_silu_scale_5e-2", "scan", BF16, "device",
         (aten.silu_backward, 0, scale(1.05))),
    # State and randomness.
    Case("experts_gate_state", "experts", F32, "device",
         tweak=weight_of("gate.weight", lambda w: w * 1.01)),
    Case("windows_index_state", "windows", F32, "", tweak=old_places),
    Case("tagger_bf16_lstm_gate_5e-2", "tagger", BF16, "f64", (aten.addmm, 0, scale(1.05))),
    Case("vae_dropout_other_mask", "vae", F32, "f64",
         (aten.native_dropout, 0, lambda r, a: (r[0].flip(0), r[1].flip(0)))),
    # Nothing wrong.
    *(Case(f"benign_{m}_{n}_{k}", m, d, n, None, k, p, a)
      for m, d, n, k, p, a in (
          ("mobile", F32, "device", "mix", "", None), ("mobile", BF16, "f64", "L1", "", None),
          ("mobile", F32, "", "L1", "channels_last", None), ("wave", F32, "device", "L1", "", None),
          ("wave", F32, "f64", "L1", "", BF16), ("tagger", BF16, "f64", "mix", "", None),
          ("tagger", F32, "", "L1", "mkldnn", None), ("translator", F32, "tf32", "L1", "", None),
          ("translator", BF16, "device", "L1", "", None), ("translator", F32, "", "L1", "sdpa", None),
          ("windows", F32, "f64", "L1", "", F16), ("windows", BF16, "device", "mix", "", None),
          ("denoiser", F32, "tf32", "L1", "", None), ("denoiser", F32, "", "L1", "channels_last", None),
          ("denoiser", BF16, "device", "L1", "", None), ("gat", F32, "scatter", "L1", "", None),
          ("gat", BF16, "device", "L1", "", None), ("clicks", F32, "device", "L0", "", None),
          ("scan", BF16, "f64", "L1", "", None), ("scan", F32, "", "L1", "ulp", None),
          ("points", F32, "device", "L1", "", None), ("points", BF16, "f64", "L1", "", None),
          ("vae", F32, "device", "L1", "", None), ("experts", BF16, "device", "L1", "", None),
          ("experts", F32, "scatter", "L1", "", F16))),
]  # fmt: skip


GROUPS = {"first": FIRST, "second": SECOND, "third": THIRD}
SETS = {"first": CASES, "second": SECOND_CASES}


if __name__ == "__main__":
    main()
