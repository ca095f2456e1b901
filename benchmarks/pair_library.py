"""Small models of the transformers library, and one of two ranks, for `blame_pairs.py`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from pair_models import Built
from torch import Tensor, nn

__all__ = ["LIBRARY"]

_TEXT = {"vocab_size": 60, "num_hidden_layers": 2}
_EAGER = {"attn_implementation": "eager"}


def _build(name: str, config: str, dtype: torch.dtype, **options: Any) -> nn.Module:
    library: Any = import_module("transformers")
    module: nn.Module = getattr(library, name)(getattr(library, config)(**options))
    return module.to(dtype)


def _language(module: nn.Module, *, masked: bool = False) -> Callable[[], Tensor]:
    """A text model's own loss, the last words of one text padded where that is asked for."""
    ids = torch.randint(3, 60, (3, 12))
    more: dict[str, Tensor] = {}
    if masked:
        mask = torch.ones(3, 12, dtype=torch.long)
        mask[1, 9:] = 0
        more["attention_mask"] = mask
    return lambda: module(input_ids=ids, labels=ids, **more).loss


def mamba(dtype: torch.dtype) -> Built:
    model = _build("MambaForCausalLM", "MambaConfig", dtype, **_TEXT, hidden_size=24,
                   state_size=4, time_step_rank=4, use_cache=False)  # fmt: skip
    return model, _language(model)


def bloom(dtype: torch.dtype) -> Built:
    model = _build("BloomForCausalLM", "BloomConfig", dtype, vocab_size=60, hidden_size=32,
                   n_layer=2, n_head=4, use_cache=False, **_EAGER)  # fmt: skip
    return model, _language(model, masked=True)


def bloom_with_dropout(dtype: torch.dtype) -> Built:
    model = _build("BloomForCausalLM", "BloomConfig", dtype, vocab_size=60, hidden_size=32,
                   n_layer=2, n_head=4, use_cache=False, hidden_dropout=0.1,
                   attention_dropout=0.1, **_EAGER)  # fmt: skip
    return model, _language(model, masked=True)


def neox(dtype: torch.dtype) -> Built:
    model = _build("GPTNeoXForCausalLM", "GPTNeoXConfig", dtype, **_TEXT, hidden_size=32,
                   num_attention_heads=4, intermediate_size=48, max_position_embeddings=32,
                   use_cache=False, attention_dropout=0.0, hidden_dropout=0.0,
                   **_EAGER)  # fmt: skip
    return model, _language(model)


def qwen(dtype: torch.dtype) -> Built:
    model = _build("Qwen2MoeForCausalLM", "Qwen2MoeConfig", dtype, **_TEXT, hidden_size=24,
                   num_attention_heads=2, num_key_value_heads=1, intermediate_size=40,
                   moe_intermediate_size=16, shared_expert_intermediate_size=32, num_experts=4,
                   num_experts_per_tok=2, max_position_embeddings=32, use_cache=False,
                   **_EAGER)  # fmt: skip
    return model, _language(model, masked=True)


def deberta(dtype: torch.dtype) -> Built:
    model = _build("DebertaV2ForMaskedLM", "DebertaV2Config", dtype, **_TEXT, hidden_size=24,
                   num_attention_heads=2, intermediate_size=40, max_position_embeddings=32,
                   relative_attention=True, position_buckets=8, norm_rel_ebd="layer_norm",
                   share_att_key=True, pos_att_type=["p2c", "c2p"], hidden_dropout_prob=0.0,
                   attention_probs_dropout_prob=0.0)  # fmt: skip
    return model, _language(model, masked=True)


def whisper(dtype: torch.dtype) -> Built:
    model = _build("WhisperForConditionalGeneration", "WhisperConfig", dtype, vocab_size=60,
                   num_mel_bins=8, d_model=24, encoder_layers=2, decoder_layers=2,
                   encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=40,
                   decoder_ffn_dim=40, max_source_positions=12, max_target_positions=16,
                   dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                   decoder_start_token_id=1, use_cache=False, **_EAGER)  # fmt: skip
    sound, words = torch.randn(2, 8, 24).to(dtype), torch.randint(3, 60, (2, 9))
    return model, lambda: model(input_features=sound, labels=words).loss


def wav2vec(dtype: torch.dtype) -> Built:
    model = _build("Wav2Vec2ForCTC", "Wav2Vec2Config", dtype, vocab_size=12, hidden_size=24,
                   num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
                   conv_dim=[16, 16, 16], conv_stride=[5, 2, 2], conv_kernel=[10, 3, 2],
                   num_feat_extract_layers=3, num_conv_pos_embeddings=8,
                   num_conv_pos_embedding_groups=2, hidden_dropout=0.0, attention_dropout=0.0,
                   feat_proj_dropout=0.0, final_dropout=0.0, activation_dropout=0.0, layerdrop=0.0,
                   mask_time_prob=0.0, apply_spec_augment=False, pad_token_id=0,
                   ctc_loss_reduction="mean", **_EAGER)  # fmt: skip
    sound, words = torch.randn(2, 400).to(dtype), torch.randint(1, 12, (2, 5))
    return model, lambda: model(sound, labels=words).loss


def convnext(dtype: torch.dtype) -> Built:
    model = _build("ConvNextForImageClassification", "ConvNextConfig", dtype, num_channels=3,
                   patch_size=2, hidden_sizes=[8, 16], depths=[2, 2], num_stages=2, image_size=16,
                   layer_scale_init_value=0.5, num_labels=5)  # fmt: skip
    batch = torch.randn(3, 3, 16, 16).to(dtype), torch.randint(0, 5, (3,))
    return model, lambda: model(pixel_values=batch[0], labels=batch[1]).loss


def clip(dtype: torch.dtype) -> Built:
    shared = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
              "num_attention_heads": 2, "projection_dim": 16}  # fmt: skip
    model = _build("CLIPModel", "CLIPConfig", dtype, projection_dim=16,
                   text_config={**shared, "vocab_size": 60, "max_position_embeddings": 16,
                                "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
                   vision_config={**shared, "image_size": 16, "patch_size": 4},
                   **_EAGER)  # fmt: skip
    ids = torch.randint(3, 60, (3, 9))
    ids[:, -1] = 2
    mask = torch.ones_like(ids)
    pixels = torch.randn(3, 3, 16, 16).to(dtype)
    return (
        model,
        lambda: (
            model(input_ids=ids, attention_mask=mask, pixel_values=pixels, return_loss=True).loss
        ),
    )


def segformer(dtype: torch.dtype) -> Built:
    model = _build("SegformerForSemanticSegmentation", "SegformerConfig", dtype, num_channels=3,
                   num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
                   patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 2],
                   mlp_ratios=[2, 2], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                   classifier_dropout_prob=0.0, drop_path_rate=0.0, decoder_hidden_size=16,
                   num_labels=4)  # fmt: skip
    pixels, labels = torch.randn(2, 3, 16, 16).to(dtype), torch.randint(0, 4, (2, 16, 16))
    return model, lambda: model(pixel_values=pixels, labels=labels).loss


LIBRARY: dict[str, Callable[[torch.dtype], Built]] = {
    "mamba": mamba, "bloom": bloom, "bloomdrop": bloom_with_dropout, "neox": neox, "qwen": qwen,
    "deberta": deberta, "whisper": whisper, "wav2vec": wav2vec, "convnext": convnext, "clip": clip,
    "segformer": segformer,
}  # fmt: skip
