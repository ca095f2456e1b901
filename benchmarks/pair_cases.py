"""The pairs that `blame_pairs.py` makes: models, precisions, noise, and the fault of each.

The file is longer than 500 lines because it is a table, and tables are read best in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pair_kernels import (
    Planted,
    again,
    biased_mean,
    flipped_bit,
    hard_sigmoid,
    leaky,
    low_accumulation,
    missing_bias,
    no_sum_term,
    noise,
    on,
    one_element,
    overwritten,
    saturated,
    scale,
    shifted,
    softmax_over,
    swapped,
    tanh_gelu,
    through,
    truncated,
    unbiased_norm,
    with_item,
)
from torch import nn

__all__ = ["BF16", "CASES", "F16", "F32", "SECOND_CASES", "Case"]

aten = torch.ops.aten
Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """One pair: a model, its precision, the candidate's noise, and the fault in one kernel.

    `prepare` changes how the candidate runs (channels_last, ulp, threads, mkldnn, math attention);
    `tweak` changes its model, which is a fault; `reference_noise` is the other run's. `expects`
    says what a right answer is: the `call` that the fault changes first, one of the `stretch` of
    calls that only one run makes, the call where other `state` enters, or that the runs differ
    from the `start`.
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
    expects: str = "call"

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


def eps_of(layer: str, value: float) -> Callable[[nn.Module], None]:
    def tweak(model: nn.Module) -> None:
        setattr(model.get_submodule(layer), "eps", value)  # noqa: B010 - it is no tensor.

    return tweak


def weight_of(layer: str, change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], None]:
    def tweak(model: nn.Module) -> None:
        weight = model.get_parameter(layer)
        weight.copy_(change(weight))

    return tweak


def low_rank(model: nn.Module) -> None:
    model.get_submodule("slope").weight.mul_(0.9)  # type: ignore[operator]


def old_places(model: nn.Module) -> None:
    """A buffer that was made for another window."""
    model.index = model.index.flip(0)  # type: ignore[operator]


SECOND_CASES = [
    # Constants and scales.
    Case("mobile_batchnorm_eps_kernel", "mobile", F32, "f64",
         (aten.native_batch_norm, 1, again(aten.native_batch_norm, with_item(7, 1e-2)))),
    Case("mobile_bf16_batchnorm_momentum", "mobile", BF16, "f64",
         (aten.native_batch_norm, 0, scale(1.02))),
    Case("windows_layernorm_eps_argument", "windows", F32, "device",
         tweak=eps_of("norms.1", 1e-3)),
    Case("gat_leaky_slope", "gat", F32, "scatter",
         (aten.leaky_relu, 0, again(aten.leaky_relu, with_item(1, 0.01)))),
    Case("wave_prelu_state", "wave", F32, "f64", tweak=low_rank),
    Case("translator_linear_scale_1e-4", "translator", F32, "device",
         (aten.addmm, 9, scale(1.0001))),
    Case("windows_qk_scale", "windows", F32, "device", (aten.mul, 0, scale(8**0.5 / 24**0.5))),
    Case("scan_softplus_beta", "scan", F32, "splitk",
         (aten.softplus, 0, on(0, lambda t, a: torch.log1p(torch.exp(2 * a[0])) / 2))),
    # Approximations.
    Case("windows_gelu_tanh", "windows", F32, "device", (aten.gelu, 1, on(0, tanh_gelu))),
    Case("clicks_sigmoid_hard", "clicks", F32, "f64", (aten.sigmoid, 0, on(0, hard_sigmoid))),
    Case("gat_exp_fast_1e-4", "gat", F32, "scatter", (aten.exp, 1, noise(1e-4))),
    Case("points_rsqrt_norm_1e-5", "points", F32, "splitk",
         (aten.linalg_vector_norm, 1, noise(3e-5))),
    # Precision and accumulation.
    Case("windows_bf16_linear_lowacc", "windows", BF16, "",
         (aten.addmm, 1, on(0, low_accumulation))),
    Case("experts_bf16_bmm_lowacc", "experts", BF16, "", (aten.bmm, 1, on(0, low_accumulation))),
    Case("windows_bf16_linear_truncated", "windows", BF16, "", (aten.addmm, 2, on(0, truncated))),
    Case("mobile_conv_in_bf16", "mobile", F32, "f64", (aten.convolution, 4, through(BF16))),
    Case("denoiser_groupnorm_in_fp16", "denoiser", F32, "device",
         (aten.native_group_norm, 2, through(F16))),
    Case("scan_cumsum_in_fp16", "scan", F32, "splitk", (aten.cumsum, 1, through(F16))),
    Case("experts_softmax_in_bf16", "experts", F32, "splitk", (aten._softmax, 0, through(BF16))),
    # Indices, masks, places.
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
    # Nothing wrong.
    *(Case(f"benign_{m}_{n}_{k}", m, d, n, None, k, p, a)
      for m, d, n, k, p, a in (
          ("mobile", F32, "device", "mix", "", None), ("mobile", BF16, "f64", "L1", "", None),
          ("mobile", F32, "", "L1", "channels_last", None), ("wave", F32, "device", "L1", "", None),
          ("wave", F32, "f64", "L1", "", BF16), ("tagger", BF16, "f64", "mix", "", None),
          ("tagger", F32, "", "L1", "mkldnn", None), ("translator", F32, "tf32", "L1", "", None),
          ("translator", BF16, "device", "L1", "", None),
          ("translator", F32, "", "L1", "sdpa", None),
          ("windows", F32, "f64", "L1", "", F16), ("windows", BF16, "device", "mix", "", None),
          ("denoiser", F32, "tf32", "L1", "", None),
          ("denoiser", F32, "", "L1", "channels_last", None),
          ("denoiser", BF16, "device", "L1", "", None), ("gat", F32, "scatter", "L1", "", None),
          ("gat", BF16, "device", "L1", "", None), ("clicks", F32, "device", "L0", "", None),
          ("scan", BF16, "f64", "L1", "", None), ("scan", F32, "", "L1", "ulp", None),
          ("points", F32, "device", "L1", "", None), ("points", BF16, "f64", "L1", "", None),
          ("vae", F32, "device", "L1", "", None), ("experts", BF16, "device", "L1", "", None),
          ("experts", F32, "scatter", "L1", "", F16))),
]  # fmt: skip
