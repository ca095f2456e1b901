"""Every name that a capture gives leads back to its function."""

from __future__ import annotations

import warnings

import pytest
import torch

from tensorprobe.capture.apis import ApiTable
from tensorprobe.errors import RebuildError
from tensorprobe.replay.functions import find_callable
from tensorprobe.replay.users import import_modules

# Seen by a capture, and never called because a file says so.
FORBIDDEN = {
    "_clear_non_serializable_cached_data", "apply_", "const_data_ptr", "map2_", "map_",
    "module_load", "record_stream", "resize", "resize_", "resize_as", "resize_as_",
    "resize_as_sparse_", "set_", "sparse_resize_", "sparse_resize_and_clear_",
}  # fmt: skip


def test_every_function_that_torch_lets_be_watched_is_found_again() -> None:
    table = ApiTable()
    by_name: dict[str, list[object]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for functions in torch.overrides.get_overridable_functions().values():
            for function in functions:
                api = table.look_up(function)
                if api is not None:
                    name = f"{api.api_type}.{api.api_name}.0.forward"
                    by_name.setdefault(name, []).append(function)
        assert len(by_name) > 1000
        lost = {}
        for name, known in by_name.items():
            try:
                assert find_callable(name) in known, name
            except RebuildError as err:
                lost[name] = str(err)
    # What is left out is forbidden on purpose, with its reason.
    # A class, which torch tells of where it is entered.
    lost.pop("Torch.autocast.0.forward", None)
    assert [name for name, reason in lost.items() if "is not made again: it " not in reason] == []
    assert {name.split(".")[1] for name in lost} <= FORBIDDEN


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("Tensor.__idiv__.0.forward", torch.Tensor.__idiv__),
        ("Tensor.__div__.1.forward", torch.Tensor.__div__),
        ("Tensor.__nonzero__.1.forward", torch.Tensor.__nonzero__),
        ("Tensor.__imatmul__.1.forward", torch.Tensor.__matmul__),
        ("Torch.linalg.norm.0.forward", torch.linalg.norm),
        ("Torch.fft.fft.0.forward", torch.fft.fft),
        ("VF.lstm.99.forward", torch._VF.lstm),
        ("Aten.add.Tensor.3.backward", torch.ops.aten.add.Tensor),
        ("Aten.mm.3.forward", torch.ops.aten.mm),
        ("Custom.aten.mm.default.3.forward", torch.ops.aten.mm.default),
    ],
)
def test_names_of_each_kind(name: str, function: object) -> None:
    assert find_callable(name) == function


def test_a_property_is_read() -> None:
    tensor = torch.arange(6).reshape(2, 3)
    assert torch.equal(find_callable("Tensor.T.0.forward")(tensor), tensor.T)


def test_a_function_of_the_users_module_is_found_by_its_prefix() -> None:
    import colorsys

    import_modules(("colorsys",))
    assert find_callable("colorsys.rgb_to_hsv.0.forward") is colorsys.rgb_to_hsv


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Distributed.all_reduce.0.forward", "needs the other ranks"),
        ("Torch.no_such_thing.0.forward", r"there is no Torch\.no_such_thing in torch"),
        ("Custom.no_such.thing.0.forward", "import the module that registers it with --import"),
        ("MyOps.f.0.forward", r"MyOps\.f is not known here; give the module .* with --import"),
        ("NPU.npu_rms_norm.0.forward", "there is no NPU"),
        ("Module.fc.Linear.forward.0", "no call of a function"),
        ("nonsense", "not the name of a call"),
    ],
)
def test_what_cannot_be_found_says_why(name: str, reason: str) -> None:
    with pytest.raises(RebuildError, match=reason):
        find_callable(name)
