"""Functions of torch that write into tensors and do not raise their version.

What is known of a tensor holds until its version is another one, so after these nothing is known.
"""

from __future__ import annotations

__all__ = ["WRITES_UNSEEN"]

WRITES_UNSEEN = frozenset(
    (
        # Running statistics.
        "batch_norm",
        "instance_norm",
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "_batch_norm_impl_index",
        "_batch_norm_with_update",
        "_native_batch_norm_legit",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
        "batch_norm_update_stats",
        # What observes activations, to quantize them.
        "fused_moving_avg_obs_fake_quant",
        "_fused_moving_avg_obs_fq_helper",
        # Gradients, by a GradScaler.
        "_amp_foreach_non_finite_check_and_unscale_",
        # Parameters.
        "_fused_adagrad_",
        "_fused_adam_",
        "_fused_adamw_",
        "_fused_sgd_",
        # Element by element, by a function of Python.
        "apply_",
        "map_",
        "map2_",
    )
)
"""Their names, of whatever they are called on."""
