"""Arguments that calls give by their position have names."""

from __future__ import annotations

import inspect

import pytest
from torch.nn import functional

from tensorprobe.blame.argument_names import _NAMES, name_argument


@pytest.mark.parametrize("operation", sorted(_NAMES))
def test_the_names_are_those_of_torch(operation: str) -> None:
    function = getattr(functional, operation, None)
    try:
        known = list(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pytest.skip("torch does not tell its arguments")
    names = _NAMES[operation].split()
    if known[:1] == ["args"]:
        pytest.skip("torch does not tell its arguments")
    wanted = [name for name in known if not name.startswith("_")]
    assert names[1:] == wanted[1 : len(names)]


def test_only_functions_whose_order_is_known_are_named() -> None:
    assert name_argument("Functional.layer_norm.0.forward", "input.4") == "input.4 (eps)"
    assert name_argument("Torch.batch_norm.0.forward", "input.7") == "input.7"
    assert name_argument("Tensor.softmax.0.forward", "input.1") == "input.1 (dim)"
    assert name_argument("Functional.layer_norm.0.forward", "kwargs.eps") == "kwargs.eps"
    assert name_argument("Functional.layer_norm.0.forward", "input.9") == "input.9"
    assert name_argument("Module.norm.LayerNorm.forward.0", "input.1") == "input.1"
