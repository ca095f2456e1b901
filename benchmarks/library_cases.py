"""The pairs of `blame_pairs.py --set library`: models of the transformers library (`pair_library`).

Besides faults in one kernel there are those of the code around: a call too many or too few, another
mask, other data, weights or random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pair_cases import BF16, F32, Case, eps_of, weight_of
from pair_kernels import (
    again,
    flipped_bit,
    low_accumulation,
    missing_bias,
    negated_half,
    no_sum_term,
    noise,
    on,
    one_element,
    overwritten,
    saturated,
    scale,
    shifted,
    shifted_last,
    tanh_gelu,
    through,
    truncated,
)
from torch import Tensor, nn

__all__ = ["LIBRARY_CASES"]

aten = torch.ops.aten
Tweak = Callable[[nn.Module], None]


def given(**changes: Callable[[], Tensor | None]) -> Tweak:
    """Call the model with other arguments, made before anything is recorded."""

    def tweak(model: nn.Module) -> None:
        values = {name: make() for name, make in changes.items()}

        def replace(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, **values}

        model.register_forward_pre_hook(replace, with_kwargs=True)

    return tweak


def padded_at(*places: tuple[int, int]) -> Callable[[], Tensor]:
    """A mask of texts of which some words are hidden."""

    def make() -> Tensor:
        mask = torch.ones(3, 12, dtype=torch.long)
        for row, first in places:
            mask[row, first:] = 0
        return mask

    return make


def other_words(rows: int, columns: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(3, 60, (rows, columns), generator=torch.Generator().manual_seed(9))


def multiplied(layer: str, factor: float) -> Tweak:
    """One more call: what a layer gives is multiplied."""

    def tweak(model: nn.Module) -> None:
        model.get_submodule(layer).register_forward_hook(lambda _, args, result: result * factor)

    return tweak


def left_out(layer: str) -> Tweak:
    """One call less: a layer hands on what it is given."""

    def tweak(model: nn.Module) -> None:
        parent, _, name = layer.rpartition(".")
        setattr(model.get_submodule(parent), name, nn.Identity())

    return tweak


def gradient_times(layer: str, factor: float) -> Tweak:
    """A hook that changes a gradient between two calls, where nothing is recorded."""

    def tweak(model: nn.Module) -> None:
        def scaled(gradient: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                return gradient * factor

        def watch(_: nn.Module, args: Any, result: Tensor) -> None:
            result.register_hook(scaled)  # type: ignore[no-untyped-call]

        model.get_submodule(layer).register_forward_hook(watch)

    return tweak


def other_seed(model: nn.Module) -> None:
    model.register_forward_pre_hook(lambda *_: [torch.manual_seed(77)][:0] or None)


def all_weights(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight.add_(0.02 * torch.randn(weight.shape, generator=generator).to(weight))


def other_dropout(chance: float) -> Tweak:
    def tweak(model: nn.Module) -> None:
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Dropout)]
        layers[len(layers) // 2].p = chance

    return tweak


LIBRARY_CASES = [
    # Wrong constants and scales.
    Case("mamba_softplus_threshold", "mamba", F32, "f64",
         (aten.softplus, 1, again(aten.softplus, lambda args: [args[0], 1.02]))),
    Case("mamba_rmsnorm_mean_scale_1e-3", "mamba", F32, "splitk", (aten.mean, 1, scale(1.001))),
    Case("neox_layernorm_eps_argument", "neox", F32, "device",
         tweak=eps_of("gpt_neox.layers.1.input_layernorm", 1e-2)),
    Case("neox_linear_scale_1e-4", "neox", F32, "splitk", (aten.addmm, 5, scale(1.0001))),
    Case("bloom_bf16_layernorm_scale_2e-2", "bloom", BF16, "f64",
         (aten.native_layer_norm, 3, scale(1.02))),
    Case("whisper_L0_layernorm_eps", "whisper", F32, "f64", level="L0",
         tweak=eps_of("model.encoder.layers.1.final_layer_norm", 1e-2)),
    Case("convnext_mix_layernorm_scale", "convnext", F32, "",
         (aten.native_layer_norm, 4, scale(1.003)), "mix"),
    # Precision.
    Case("qwen_bf16_linear_low_accumulation", "qwen", BF16, "f64",
         (aten.addmm, 4, on(0, low_accumulation))),
    Case("clip_bf16_linear_truncated", "clip", BF16, "", (aten.addmm, 9, on(0, truncated))),
    Case("deberta_bmm_through_bf16", "deberta", F32, "f64", (aten.bmm, 6, through(BF16))),
    Case("wav2vec_conv_through_bf16", "wav2vec", F32, "splitk",
         (aten.convolution, 1, through(BF16))),
    Case("whisper_amp_softmax_noise_1e-2", "whisper", F32, "f64", (aten._softmax, 3, noise(1e-2)),
         autocast=BF16),
    # Approximations.
    Case("neox_gelu_tanh", "neox", F32, "splitk", (aten.gelu, 1, on(0, tanh_gelu))),
    Case("mamba_exp_noise_1e-4", "mamba", F32, "f64", (aten.exp, 2, noise(1e-4))),
    Case("clip_sigmoid_noise_3e-5", "clip", F32, "splitk", (aten.sigmoid, 1, noise(3e-5))),
    Case("qwen_rsqrt_noise_2e-4", "qwen", F32, "device", (aten.rsqrt, 3, noise(2e-4))),
    # Gradients alone.
    Case("bloom_bwd_softmax_no_sum", "bloom", F32, "f64",
         (aten._softmax_backward_data, 1, on(0, no_sum_term))),
    Case("convnext_bwd_conv_weight_scale", "convnext", F32, "splitk",
         (aten.convolution_backward, 2, scale(1.01, 1))),
    Case("deberta_bwd_gather_overwrites", "deberta", F32, "",
         (aten.scatter_add, 1, on(0, overwritten))),
    Case("whisper_bwd_layernorm_noise_1e-3", "whisper", F32, "splitk",
         (aten.native_layer_norm_backward, 5, noise(1e-3))),
    Case("segformer_bwd_upsample_scale_1e-2", "segformer", F32, "f64",
         (aten.upsample_bilinear2d_backward, 1, scale(1.01))),
    Case("neox_bwd_hook_scale_2e-2", "neox", F32, "", expects="state",
         tweak=gradient_times("gpt_neox.layers.0.mlp.dense_h_to_4h", 1.02)),
    Case("mamba_bwd_mm_noise_1e-3", "mamba", F32, "splitk", (aten.mm, 20, noise(1e-3))),
    # Randomness.
    Case("bloom_dropout_chance", "bloomdrop", F32, "", tweak=other_dropout(0.2)),
    Case("bloom_dropout_seed", "bloomdrop", F32, "", tweak=other_seed),
    # Indices and places.
    Case("qwen_index_shifted", "qwen", F32, "f64", (aten.index, 2, on(0, shifted))),
    Case("whisper_embedding_shifted", "whisper", F32, "", (aten.embedding, 1, on(0, shifted))),
    Case("deberta_gather_shifted", "deberta", F32, "splitk", (aten.gather, 2, on(0, shifted_last))),
    # Calls too many, calls too few.
    Case("clip_extra_scale", "clip", F32, "f64", expects="stretch",
         tweak=multiplied("text_model.encoder.layers.1.mlp.fc1", 1.002)),
    Case("wav2vec_missing_norm", "wav2vec", F32, "splitk", expects="stretch",
         tweak=left_out("wav2vec2.encoder.layers.0.final_layer_norm")),
    Case("segformer_missing_activation", "segformer", F32, "", expects="stretch",
         tweak=left_out("decode_head.activation")),
    # Single elements and what is not finite.
    Case("convnext_conv_bit", "convnext", F32, "f64",
         (aten.convolution, 3, one_element(lambda x: flipped_bit(x, 26), place=77))),
    Case("bloom_linear_largest", "bloom", F32, "splitk",
         (aten.addmm, 6, one_element(lambda x: x * 1.3))),
    Case("deberta_masked_nan", "deberta", F32, "f64",
         (aten.bmm, 0, one_element(lambda x: math.nan, place=2 * 144 + 10))),
    Case("wav2vec_linear_saturated", "wav2vec", F32, "f64", (aten.addmm, 6, on(0, saturated))),
    Case("segformer_linear_missing_bias", "segformer", F32, "f64",
         (aten.addmm, 5, on(0, missing_bias))),
    Case("clip_linear_negated", "clip", F32, "device", (aten.addmm, 15, on(0, negated_half))),
    # Masks.
    Case("bloom_mask_missing", "bloom", F32, "", expects="stretch",
         tweak=given(attention_mask=lambda: None)),
    Case("neox_mask_added", "neox", F32, "", expects="stretch",
         tweak=given(attention_mask=padded_at((1, 9)))),
    Case("qwen_mask_other", "qwen", F32, "", expects="state",
         tweak=given(attention_mask=padded_at((0, 9)))),
    # Weights and data.
    Case("mamba_one_weight", "mamba", F32, "f64", expects="state",
         tweak=weight_of("backbone.layers.1.mixer.x_proj.weight", lambda w: w * 1.003)),
    Case("wav2vec_one_bias_dropped", "wav2vec", F32, "splitk", expects="state",
         tweak=weight_of("wav2vec2.encoder.layers.1.attention.k_proj.bias", torch.zeros_like)),
    Case("qwen_weights", "qwen", F32, "f64", expects="start", tweak=all_weights),
    Case("neox_data", "neox", F32, "", expects="start", tweak=given(input_ids=other_words(3, 12))),
    Case("convnext_data", "convnext", F32, "splitk", expects="start",
         tweak=given(pixel_values=lambda: torch.randn(3, 3, 16, 16))),
    # Nothing is wrong.
    Case("benign_mamba_f64", "mamba", F32, "f64"),
    Case("benign_mamba_bf16_splitk", "mamba", BF16, "splitk"),
    Case("benign_bloom_batches", "bloom", F32, "batches"),
    Case("benign_bloom_amp_f64", "bloom", F32, "f64", autocast=BF16),
    Case("benign_neox_tf32", "neox", F32, "tf32"),
    Case("benign_neox_ulp", "neox", F32, "", None, "L1", "ulp"),
    Case("benign_qwen_device", "qwen", F32, "device"),
    Case("benign_qwen_scatter", "qwen", F32, "scatter"),
    Case("benign_deberta_device_mix", "deberta", F32, "device", None, "mix"),
    Case("benign_whisper_threads", "whisper", F32, "", None, "L1", "threads"),
    Case("benign_whisper_bf16_f64", "whisper", BF16, "f64"),
    Case("benign_wav2vec_mkldnn", "wav2vec", F32, "", None, "L1", "mkldnn"),
    Case("benign_wav2vec_splitk_L0", "wav2vec", F32, "splitk", None, "L0"),
    Case("benign_convnext_channels_last", "convnext", F32, "", None, "L1", "channels_last"),
    Case("benign_convnext_bf16_f64", "convnext", BF16, "f64"),
    Case("benign_clip_batches", "clip", F32, "batches"),
    Case("benign_segformer_sdpa", "segformer", F32, "", None, "L1", "sdpa"),
    Case("benign_segformer_device", "segformer", F32, "device"),
]  # fmt: skip
