"""Make pairs of dumps with planted faults, and benign ones, for `benchmarks/blame.py`.

    python benchmarks/blame_pairs.py FOLDER [--only NAME]

Each pair is one training step of a small model, captured by tensorprobe. Faults are planted below
the recorded API, in one ATen kernel; noise (other kernels, other precision) is everywhere. Which
call is at fault is found without the tool: it is the first whose bits change when the fault is
added to an otherwise identical run.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.records import TensorValue

aten = torch.ops.aten
Tensor = torch.Tensor
Change = Callable[[Any, tuple[Any, ...]], Any]

PRODUCTS = {
    aten.mm,
    aten.addmm,
    aten.bmm,
    aten.baddbmm,
    aten.convolution,
    aten.convolution_backward,
}
KERNELS = PRODUCTS | {
    aten.native_layer_norm,
    aten.native_layer_norm_backward,
    aten._softmax,
    aten._softmax_backward_data,
    aten.gelu,
    aten.gelu_backward,
    aten.tanh,
    aten.native_batch_norm,
    aten.native_batch_norm_backward,
    aten.sum,
    aten.mean,
}


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs some kernels in another way, and one of them wrongly."""

    def __init__(self, noise: str, fault: tuple[Any, int, Change] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noise, self.fault, self.seen = noise, fault, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        packet = func.overloadpacket
        # What a kernel is made of here is not part of the run, so nothing of it is recorded.
        with torch._C.DisableTorchFunction():
            result = self.run(func, packet, args, kwargs or {})
            if self.fault is not None and packet is self.fault[0]:
                self.seen += 1
                if self.seen - 1 == self.fault[1]:
                    result = self.fault[2](result, args)
        return result

    def run(self, func: Any, packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a kernel in the way that this noise means."""
        if self.noise == "f64" and packet in KERNELS:
            shorts = {t.dtype for t in flat(args) if t.is_floating_point()}
            wide = func(*mapped(args, lambda t: t.double()), **kwargs)
            short = min(shorts, key=lambda d: torch.finfo(d).bits) if shorts else torch.float32
            return mapped(wide, lambda t: t.to(short))
        if self.noise == "tf32" and packet in PRODUCTS:
            return func(*mapped(args, tf32), **kwargs)
        if self.noise == "splitk" and packet in (aten.mm, aten.bmm):
            a, b = args
            half = a.shape[-1] // 2
            return func(a[..., :half], b[..., :half, :]) + func(a[..., half:], b[..., half:, :])
        if self.noise == "splitk" and packet is aten.addmm:
            bias, a, b = args
            half = a.shape[-1] // 2
            return a[:, half:] @ b[half:] + (a[:, :half] @ b[:half] + bias)
        return func(*args, **kwargs)


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in flat(item)] if isinstance(value, (list, tuple)) else []


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    return value


def tf32(t: Tensor) -> Tensor:
    if t.dtype != torch.float32:
        return t
    bits = t.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


# --- faults --------------------------------------------------------------------------------------


def on(index: int, change: Callable[[Tensor, tuple[Any, ...]], Any]) -> Change:
    """Change one of a kernel's results."""

    def run(result: Any, args: tuple[Any, ...]) -> Any:
        if isinstance(result, Tensor):
            return change(result, args)
        items = list(result)
        items[index] = change(items[index], args)
        return tuple(items)

    return run


def scale(factor: float, index: int = 0) -> Change:
    return on(index, lambda t, _: t * factor)


def noise(size: float, index: int = 0) -> Change:
    generator = torch.Generator().manual_seed(7)
    return on(index, lambda t, _: t * (1 + size * torch.randn(t.shape, generator=generator).to(t)))


def one_element(change: Callable[[float], float], index: int = 0) -> Change:
    def run(t: Tensor, _: tuple[Any, ...]) -> Tensor:
        t = t.clone(memory_format=torch.contiguous_format)
        place = int(t.abs().reshape(-1).argmax())
        t.view(-1)[place] = change(float(t.view(-1)[place]))
        return t

    return on(index, run)


def shifted(t: Tensor, _: tuple[Any, ...]) -> Tensor:
    return t.roll(1, 0)


def missing_bias(t: Tensor, args: tuple[Any, ...]) -> Any:
    return t - args[0]


def low_accumulation(t: Tensor, args: tuple[Any, ...]) -> Any:
    bias, a, b = args
    total = bias.to(torch.bfloat16).expand_as(t)
    for k in range(a.shape[1]):
        total = (total + a[:, k : k + 1].to(torch.bfloat16) * b[k].to(torch.bfloat16)).bfloat16()
    return total.to(t.dtype)


def truncated(t: Tensor, args: tuple[Any, ...]) -> Any:
    bias, a, b = args
    exact = torch.addmm(bias.float(), a.float(), b.float())
    return (exact.view(torch.int32) & ~0xFFFF).view(torch.float32).to(t.dtype)


def tanh_gelu(t: Tensor, args: tuple[Any, ...]) -> Any:
    return functional.gelu(args[0], approximate="tanh")


def leaky(t: Tensor, args: tuple[Any, ...]) -> Any:
    return torch.where(args[1] <= 0, args[0] * 0.01, t)


def no_sum_term(t: Tensor, args: tuple[Any, ...]) -> Any:
    return args[0] * args[1]


def biased_mean(t: Tensor, args: tuple[Any, ...]) -> Any:
    return t * 24 / 23


def saturated(t: Tensor, _: tuple[Any, ...]) -> Tensor:
    limit = float(t.abs().reshape(-1).kthvalue(int(0.995 * t.numel())).values)
    return t.clamp(-limit, limit)


def unbiased_norm(t: Tensor, args: tuple[Any, ...]) -> Any:
    n = args[0].numel() // args[0].shape[1]
    return t * ((n - 1) / n) ** 0.5


# --- models --------------------------------------------------------------------------------------


def text(module: nn.Module, **more: Tensor) -> Callable[[], Tensor]:
    ids = torch.randint(0, 60, (3, 11))
    return lambda: module(input_ids=ids, **more).last_hidden_state.float().pow(2).mean()


def bert(dtype: torch.dtype) -> tuple[nn.Module, Callable[[], Tensor]]:
    library: Any = import_module("transformers")

    model = library.BertModel(
        library.BertConfig(
            vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            attn_implementation="eager",
        ),
        add_pooling_layer=False,
    ).to(dtype)  # fmt: skip
    return model, text(model)


def t5(dtype: torch.dtype) -> tuple[nn.Module, Callable[[], Tensor]]:
    library: Any = import_module("transformers")

    model = library.T5Model(
        library.T5Config(vocab_size=60, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3,
                 dropout_rate=0.0)
    ).to(dtype)  # fmt: skip
    return model, text(model, decoder_input_ids=torch.randint(0, 60, (3, 7)))


def vit(dtype: torch.dtype) -> tuple[nn.Module, Callable[[], Tensor]]:
    library: Any = import_module("transformers")

    model = library.ViTModel(
        library.ViTConfig(
            hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
            image_size=16, patch_size=4, attn_implementation="eager",
        ),
        add_pooling_layer=False,
    ).to(dtype)  # fmt: skip
    pixels = torch.randn(3, 3, 16, 16).to(dtype)
    return model, lambda: model(pixel_values=pixels).last_hidden_state.float().pow(2).mean()


class Recurrent(nn.Module):
    """An LSTM that classifies texts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.lstm = nn.LSTM(16, 20, batch_first=True)
        self.head = nn.Linear(20, 5)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logarithm of the chance of each class."""
        states, _ = self.lstm(self.embedding(ids))
        chances: Tensor = functional.log_softmax(self.head(states[:, -1]), -1)
        return chances


def lstm(dtype: torch.dtype) -> tuple[nn.Module, Callable[[], Tensor]]:
    model = Recurrent().to(dtype)
    ids, targets = torch.randint(0, 40, (6, 9)), torch.randint(0, 5, (6,))
    return model, lambda: functional.nll_loss(model(ids).float(), targets)


class Images(nn.Module):
    """Convolutions down and up, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 16, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(12), nn.BatchNorm2d(16)])
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.middle, self.head = nn.Linear(8 * 64, 30), nn.Linear(30, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Return four numbers for each image."""
        x = functional.max_pool2d(functional.relu(self.norms[0](self.first(images))), 2)
        x = functional.leaky_relu(self.norms[1](self.second(x)))
        x = functional.avg_pool2d(torch.sigmoid(self.up(x)), 2)
        result: Tensor = self.head(torch.tanh(self.middle(x.flatten(1))))
        return result


def images(dtype: torch.dtype) -> tuple[nn.Module, Callable[[], Tensor]]:
    model = Images().to(dtype)
    given, wanted = torch.randn(4, 3, 16, 16).to(dtype), torch.randn(4, 4)
    return model, lambda: functional.smooth_l1_loss(model(given).float(), wanted)


MODELS = {"bert": bert, "t5": t5, "vit": vit, "lstm": lstm, "images": images}


@dataclass(frozen=True)
class Case:
    """One pair: a model, its precision, the candidate's noise, and the fault in one kernel."""

    name: str
    model: str
    dtype: torch.dtype = torch.float32
    noise: str = ""
    fault: tuple[Any, int, Change] | None = None
    level: str = "L1"
    prepare: str = ""
    autocast: torch.dtype | None = None


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


def capture(case: Case, folder: Path, *, noise: str, fault: bool, prepare: str = "") -> None:
    torch.manual_seed(5)
    model, compute_loss = MODELS[case.model](case.dtype)
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases of 0 and weights of 1 hide faults.
            parameter.add_(0.05 * torch.randn(parameter.shape).to(parameter))
    if prepare == "channels_last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    elif prepare == "ulp":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.nextafter(parameter, parameter + 1))
    debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level=case.level)
    planted = case.fault if fault else None
    kernels = Kernels(noise, planted)
    debugger.start(model)
    casting = torch.autocast("cpu", case.autocast, enabled=case.autocast is not None)
    with kernels, casting:
        compute_loss().backward()  # type: ignore[no-untyped-call]
    debugger.stop()
    debugger.step()
    debugger.close()
    if planted is not None and kernels.seen <= planted[1]:
        raise SystemExit(f"{case.name}: {planted[0]} ran {kernels.seen} times only")


def make(case: Case, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    capture(case, folder / "bench", noise="", fault=False)
    capture(case, folder / "npu", noise=case.noise, fault=True, prepare=case.prepare)
    culprits = []
    if case.fault is not None:
        capture(case, folder / "clean", noise=case.noise, fault=False, prepare=case.prepare)
        culprits = first_change(folder / "npu", folder / "clean")
        shutil.rmtree(folder / "clean")
    kind = "benign" if case.fault is None else "fault"
    (folder / "expected.json").write_text(json.dumps({"kind": kind, "culprits": culprits}))
    print(f"{case.name:<36}{', '.join(culprits)}", flush=True)


def first_change(changed: Path, clean: Path) -> list[str]:
    """Return the first call with other outputs, and the module around it if that is all it does."""
    part, other = open_dump(changed).parts[0], open_dump(clean).parts[0]
    found: list[str] = []
    for call in part.calls():
        if ".parameters_grad" in call.name:
            continue
        twin = other.call(call.name)
        for leaf, before in zip(call.leaves(), twin.leaves(), strict=True):
            if leaf.section != "output" or not isinstance(leaf.value, TensorValue):
                continue
            assert isinstance(before.value, TensorValue)
            same = part.load(leaf.value).array.tobytes() == other.load(before.value).array.tobytes()
            if not same:
                if not found:
                    found.append(call.name)
                elif part.parent(found[0]) == call.name:
                    return [*found, call.name]
                break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    for case in CASES:
        if arguments.only in case.name:
            make(case, arguments.folder / case.name)


if __name__ == "__main__":
    main()
