"""One list of each fact, held against torch."""

from __future__ import annotations

import pytest
import torch

import tensorprobe.operations.facts as table
from tensorprobe.operations.calls import is_exact_call, is_overwritten, is_uninitialised
from tensorprobe.operations.facts import (
    ADDING,
    EXACT,
    OVERWRITING,
    RANDOM,
    SCALING,
    STEPWISE_IN_HALVES,
    UNINITIALISED,
    WRITES_UNSEEN,
    Fact,
    facts_of,
    undetermined_outputs,
)
from tensorprobe.records import CallRecord, ScalarValue, TensorValue

SCHEMAS = {
    schema.name.partition("::")[2]: schema
    for schema in torch._C._jit_get_all_schemas()
    if schema.name.startswith("aten::")
}
KNOWN = {
    *SCHEMAS,
    *dir(torch),
    *dir(torch.Tensor),
    *dir(torch.nn.functional),
    *dir(torch.linalg),
    # Of torch_npu, of other builds of torch, and of torch 2.1.
    *("npu", "_batch_norm_with_update", "_fused_adagrad_", "rnn_tanh", "rnn_relu"),
    *("_scaled_dot_product_cudnn_attention", "chalf", "rms_norm"),
    *("npu_dropout", "_npu_dropout", "npu_dropout_with_byte_mask", "dropout_with_byte_mask"),
}


FACTS = {name: fact for name, fact in vars(table).items() if isinstance(fact, Fact)}


@pytest.mark.parametrize("name", sorted(FACTS))
def test_a_fact_names_operations_of_torch_in_their_plainest_spelling(name: str) -> None:
    odd = [word for word in FACTS[name] if word not in KNOWN]
    # Kernels that Python's own names stand for: `rsub` is one, the others have none.
    assert not {word for word in odd if not word.startswith("r")}
    fact = FACTS[name]
    doubled = [word for word in fact if word.endswith("_") and word.rstrip("_") in fact]
    assert not [word for word in doubled if not word.startswith("__")]


def test_spellings_of_an_operation_share_its_facts() -> None:
    assert "__iadd__" in ADDING
    assert "add_.Tensor" in ADDING
    assert "__rsub__" in ADDING
    assert "__itruediv__" in SCALING
    # What a number is divided by is no factor of the result.
    assert "__rtruediv__" not in SCALING
    # `div` may round to whole numbers, the operator does not.
    assert "div_.Tensor_mode" in STEPWISE_IN_HALVES
    assert "__truediv__" not in STEPWISE_IN_HALVES
    assert "clamp_" in EXACT
    assert facts_of("add") == facts_of("__iadd__")


def test_what_writes_over_its_argument_is_no_copy_that_does_not() -> None:
    assert "fill_.Scalar" in OVERWRITING
    assert "fill" not in OVERWRITING
    for name in OVERWRITING:
        assert hasattr(torch.Tensor, name)
        assert SCHEMAS[name].is_mutable
    assert is_overwritten("Aten.fill_.Scalar.0.forward")
    assert is_overwritten("Tensor.set_.0.forward")
    assert not is_overwritten("Tensor.copy_.0.backward")


def test_uninitialised_memory_is_known_by_any_overload() -> None:
    assert is_uninitialised("Aten.empty.memory_format.3.forward")
    assert is_uninitialised("Tensor.resize_.0.forward")
    assert not is_uninitialised("Module.empty.Linear.forward.0")
    assert "new_empty" in UNINITIALISED


def test_what_draws_is_told_by_its_name_and_not_by_a_part_of_it() -> None:
    assert "randint.low" in RANDOM
    assert "normal_" in RANDOM
    # `2 & x`, and a division by how far the input spreads.
    assert "__rand__" not in RANDOM
    assert "log_normalize" not in RANDOM


def test_every_random_operator_of_torch_draws() -> None:
    seeded = set()
    for name in SCHEMAS:
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None and any(
            torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags
            for overload in packet.overloads()
        ):
            seeded.add(name)
    listed = {name for name in RANDOM if name in SCHEMAS}
    # dropout and its like are made of bernoulli_ or native_dropout.
    made_of_others = {"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"}
    assert listed - seeded <= made_of_others | {"_fused_dropout"}


@pytest.mark.parametrize(
    ("name", "dtype", "kwargs", "is_exact"),
    [
        ("Torch.abs", "torch.float32", {}, True),
        # The size of a complex number is a root.
        ("Tensor.__abs__", "torch.complex64", {}, False),
        ("Torch.neg", "torch.complex64", {}, True),
        ("Tensor.scatter_", "torch.float32", {}, True),
        ("Tensor.scatter_", "torch.float32", {"reduce": ScalarValue("str", "add")}, False),
        ("Aten.scatter.reduce", "torch.float32", {}, False),
        ("Tensor.round_", "torch.float32", {"decimals": ScalarValue("int", 2)}, False),
        ("Tensor.round_", "torch.float32", {"decimals": ScalarValue("int", 0)}, True),
    ],
)
def test_what_a_call_is_given_may_have_it_compute(
    name: str, dtype: str, kwargs: dict[str, ScalarValue], is_exact: bool
) -> None:
    given = TensorValue(dtype, (4,), 1.0, 0.0, 0.5, 1.0)
    assert is_exact_call(CallRecord(f"{name}.0.forward", (given,), kwargs, (given,))) is is_exact


def test_kernels_that_torch_does_not_know_are_told_by_how_their_names_end() -> None:
    assert "npu_batch_norm" in WRITES_UNSEEN and "batch_norm_backward" not in WRITES_UNSEEN


def test_results_of_which_there_are_many_right_ones() -> None:
    assert undetermined_outputs("linalg.svd") == undetermined_outputs("svd") == (0, 2)
    assert undetermined_outputs("linalg_svd") == (0, 2)
    assert undetermined_outputs("linalg.eigvals") == (0,)
    assert undetermined_outputs("relu") == ()


def test_writes_that_raise_no_version_are_found_in_torch() -> None:
    """An example: running statistics are written, and their version stays."""
    mean, var = torch.zeros(3), torch.ones(3)
    before = mean._version
    torch.nn.functional.batch_norm(torch.randn(4, 3), mean, var, training=True)
    assert mean.abs().sum() > 0
    assert mean._version == before
    assert "batch_norm" in WRITES_UNSEEN
