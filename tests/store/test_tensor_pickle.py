"""The pickle machine: what torch.save writes is understood, anything else is refused, unrun."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from counted_work import at_most_lines
from tensorprobe.dtypes import DTYPES
from tensorprobe.errors import TensorFileError, UnsafeFileError
from tensorprobe.store.tensor_pickle import TensorPickle, read_tensor_pickle, shown

pytestmark = pytest.mark.same_without_c


GLOBAL_TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0" + b"0X\x03\0\0\0cpuK\x06tQ"
HOOKS = b"\x89ccollections\nOrderedDict\n)R"
MOST_LINES = 400_000  # of Python for one pickle; the longest that is refused takes 210,000


def saved_pickle(value: Any, *, protocol: int = 2) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, pickle_protocol=protocol)
    with zipfile.ZipFile(file) as archive:
        return archive.read("archive/data.pkl")


def needs(name: str, *, form: str = "_rebuild_tensor_v3") -> Any:
    """Skip where torch does not have something, or has it but no form to save it in."""
    lacks = "" if hasattr(torch._utils, form) else f"cannot save torch.{name}"
    if not hasattr(torch, name):
        lacks = f"has no torch.{name}"
    return pytest.mark.skipif(bool(lacks), reason=f"torch {torch.__version__} {lacks}")


def read(data: bytes) -> TensorPickle:
    return read_tensor_pickle(data, where="a.pt")


def refusal(data: bytes, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        read(data)
    assert type(caught.value) is error
    message = str(caught.value)
    assert message.startswith("a.pt: ")
    assert message.isprintable()
    return message


class Subclass(torch.Tensor):
    pass


class Runs:
    """Pickles as a call of `os.system`."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


# What torch writes.


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_tensor_is_described(protocol: int) -> None:
    tensor = torch.zeros(40, dtype=torch.float64)[7:].as_strided((2, 3, 1, 2), (9, 2, 70000, 1), 8)
    assert read(saved_pickle(tensor, protocol=protocol)) == TensorPickle(
        storage_key="0",
        storage_dtype=DTYPES["torch.float64"],
        storage_numel=40,
        device="cpu",
        dtype=DTYPES["torch.float64"],
        offset=8,
        shape=(2, 3, 1, 2),
        stride=(9, 2, 70000, 1),
    )


@needs("uint32")
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_dtype_without_a_storage_class_is_described(protocol: int) -> None:
    found = read(saved_pickle(torch.zeros(3, dtype=torch.uint32), protocol=protocol))
    assert (found.dtype, found.storage_dtype) == (DTYPES["torch.uint32"], DTYPES["torch.uint8"])
    assert found.storage_numel == 12


def with_attribute(tensor: torch.Tensor) -> torch.Tensor:
    tensor.note = {"step": [1, 2.5, None, True], "dims": {3}}  # type: ignore[attr-defined]
    return tensor


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.nn.Parameter(torch.zeros(2, 3)),
        with_attribute(torch.nn.Parameter(torch.zeros(2, 3))),
        with_attribute(torch.zeros(2, 3)),
        torch.zeros(2, 3, requires_grad=True),
    ],
    ids=["parameter", "parameter with state", "tensor with attributes", "leaf"],
)
def test_what_surrounds_a_tensor_is_passed_over(tensor: torch.Tensor, protocol: int) -> None:
    assert read(saved_pickle(tensor, protocol=protocol)).shape == (2, 3)


def test_conjugate_and_negative_bits_are_read() -> None:
    tensor = torch.zeros(3, dtype=torch.complex64)
    assert read(saved_pickle(tensor.conj())).conj
    assert read(saved_pickle(tensor.conj().imag)).neg
    plain = read(saved_pickle(tensor))
    assert not plain.conj
    assert not plain.neg


def test_the_device_is_told_and_large_numbers_are_read() -> None:
    data = saved_pickle(torch.zeros(6).as_strided((1, 1), (1 << 40, 1)))
    found = read(data.replace(b"X\x03\0\0\0cpu", b"X\x05\0\0\0npu:0"))
    assert found.device == "npu:0"
    assert found.stride == (1 << 40, 1)


def test_the_first_rebuild_function_is_understood() -> None:
    data = b"ctorch._utils\n_rebuild_tensor\n(" + STORAGE + b"K\0K\x06\x85K\x01\x85tR."
    assert read(data).shape == (6,)


def test_pickles_that_differ_little_are_told_apart_also_after_very_many() -> None:
    for _ in range(2):
        for size in range(5000):
            data = saved_size(size)
            assert read(data).shape == (size,)
            assert read(data).shape == (size,)


def saved_size(size: int) -> bytes:
    shape = b"M" + size.to_bytes(2, "little") + b"\x85"
    return GLOBAL_TENSOR + b"(" + STORAGE + b"K\0" + shape + b"K\x01\x85" + HOOKS + b"tR."


# Tensors that are not dense, and things that are not one tensor.


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=layout)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.eye(2).to_sparse(), "a sparse tensor"),
        (lambda: torch.eye(2).to_sparse_csr(), "a sparse tensor"),
        (lambda: torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8), "a quantized"),
        pytest.param(
            lambda: nested(torch.strided),
            "a nested tensor",
            marks=needs("nested", form="_rebuild_nested_tensor"),
        ),
        pytest.param(lambda: nested(torch.jagged), "a nested tensor", marks=needs("jagged")),
        (lambda: torch.zeros(2, device="meta"), "a meta tensor"),
        (lambda: torch.zeros(2).as_subclass(Subclass), "Subclass"),
        pytest.param(
            lambda: torch.zeros(2, dtype=torch.bits8), "torch.bits8", marks=needs("bits8")
        ),
        pytest.param(
            lambda: torch.empty(2, dtype=torch.float4_e2m1fn_x2),
            "torch.float4_e2m1fn_x2",
            marks=needs("float4_e2m1fn_x2"),
        ),
    ],
)
def test_a_tensor_that_is_not_dense_is_named(make: Any, said: str) -> None:
    message = refusal(saved_pickle(make()), TensorFileError)
    assert said in message
    assert "save it" in message


def test_a_tensor_in_the_old_form_of_an_npu_is_named() -> None:
    data = b"ctorch_npu.utils.storage\n_rebuild_npu_tensor\n(" + STORAGE + b"tR."
    assert "an NPU's tensor" in refusal(data, TensorFileError)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": torch.zeros(2)}, "a dict"),
        (OrderedDict(a=torch.zeros(2)), "a dict"),
        (torch.nn.Linear(2, 2).state_dict(), "a dict"),
        ([torch.zeros(2)], "a list"),
        ((torch.zeros(2), torch.zeros(2)), "a tuple"),
        ("text", "a text"),
        (3, "an integer"),
        (3.5, "a float"),
        (True, "a bool"),
        (None, "None"),
        (torch.zeros(2).untyped_storage(), "a storage"),
        (torch.float32, "torch.float32"),
        (torch.zeros(2, 3).shape, "a tuple"),
        ({f"layer{i}": torch.zeros(1) for i in range(3000)}, "a dict"),
        ([torch.zeros(1) for i in range(3000)], "a list"),
        (tuple(torch.zeros(1) for i in range(3000)), "a tuple"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_something_else_than_one_tensor_is_named(value: Any, said: str, protocol: int) -> None:
    data = saved_pickle(value, protocol=protocol)
    assert f"holds {said}, not one tensor" in refusal(data, TensorFileError)


def test_a_long_record_of_which_only_the_start_is_read_is_named() -> None:
    data = saved_pickle({f"layer{i}": torch.zeros(1) for i in range(100)})
    with pytest.raises(TensorFileError, match="holds a dict, not one tensor"):
        read_tensor_pickle(data[:1000], where="a.pt", cut=True)


# Hostile pickles.


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_call_of_code_is_refused_and_not_run(protocol: int, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    data = pickle.dumps(Runs(f"touch {canary}"), protocol=protocol)
    message = refusal(data, UnsafeFileError)
    assert f"{os.system.__module__}.system" in message
    assert "not run" in message
    assert not canary.exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"cos\nsystem\n(X\x02\0\0\0idtR.", "os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", "os.system"),
        (b"(X\x02\0\0\0idios\nsystem\n.", "os.system"),
        (b"cbuiltins\neval\nX\x01\0\0\x001\x85R.", "builtins.eval"),
        (b"ctorch\nload\n.", "torch.load"),
        (b"ctorch._utils\n_import_dotted_name\n.", "_import_dotted_name"),
        (b"ctorch.storage\n_load_from_bytes\n.", "_load_from_bytes"),
        (b"ccollections\nOrderedDict\n)\x81.", "NEWOBJ"),
        (b"ccollections\nOrderedDict\n)}\x92.", "NEWOBJ"),
        (b"(ccollections\nOrderedDict\no.", "OBJ"),
        (b"\x82\x01.", "EXT"),
        (b"ctorch\nTensor\n}b.", "BUILD"),
        (GLOBAL_TENSOR + b"(" + STORAGE + b"K\0K\x06\x85K\x01\x85" + HOOKS + b"tR}b.", "BUILD"),
        (b"X\x03\0\0\0abcQ.", "outside"),
        (b"(X\x06\0\0\0moduletQ.", "outside"),
        (b"c\x1b[2Jevil\nna\xcc\x88me\n.", "evil"),
        (b"c" + b"a" * 5000 + b"\nb\n.", "aaa..."),
    ],
)
def test_what_no_tensor_needs_is_refused_by_name(data: bytes, said: str) -> None:
    message = refusal(data, UnsafeFileError)
    assert said in message
    assert len(message) < 500


@pytest.mark.parametrize(
    "data", [b"", b".", b"\x80\x02", b"R.", b"(.", b"t.", b"s.", b"}s.", b"u."]
)
def test_an_empty_or_unbalanced_pickle_is_an_error(data: bytes) -> None:
    refusal(data, TensorFileError)


@pytest.mark.parametrize(
    "data",
    [
        b"h\x05.",
        b"j\xff\xff\xff\xff.",
        b"q\x05.",
        b"\x94.",
        b"X\xff\xff\xff\xffabc.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"B\xff\xff\xff\xffabc.",
        b"X\x02\0\0\0\xff\xfe.",
        b"c\xff\nb\n.",
        b"ctorch.",
        b"\x8a\xff\x01.",
        b"G\0\0.",
        b"\x93.",
        b"K\x01K\x02\x93.",
        b"]K\x01s.",
        b"}K\x01a.",
        b"}(K\x01u.",
        b"K\x01K\x02R.",
        b"ctorch\nfloat32\n)R.",
        b"ctorch\nFloatStorage\n)R.",
        b"2.",
        b"0.",
        b"\xff.",
    ],
)
def test_memo_misses_and_broken_opcodes_are_errors(data: bytes) -> None:
    refusal(data, TensorFileError)


@pytest.mark.parametrize(
    "arguments",
    [
        b")",
        b"(NNNNNNt",
        b"(" + STORAGE + b"K\0K\x06\x85K\x01\x85" + b"t",
        b"(" + STORAGE + b"K\0K\x06\x85)" + HOOKS + b"t",
        b"(" + STORAGE + b"K\0K\x06K\x01" + HOOKS + b"t",
        b"(" + STORAGE + b"K\0]K\x01\x85" + HOOKS + b"t",
        b"(" + STORAGE + b"\x88K\x06\x85K\x01\x85" + HOOKS + b"t",
        b"(" + STORAGE + b"J\xff\xff\xff\xffK\x06\x85K\x01\x85" + HOOKS + b"t",
        b"(" + STORAGE + b"K\0J\xff\xff\xff\xff\x85K\x01\x85" + HOOKS + b"t",
        b"(" + STORAGE + b"K\0K\x06\x85J\xff\xff\xff\xff\x85" + HOOKS + b"t",
        b"(" + STORAGE + b"K\0\x8a\x09" + b"\xff" * 8 + b"\0\x85K\x01\x85" + HOOKS + b"t",
        b"(" + STORAGE + b"K\0K\x06\x85K\x01\x85" + HOOKS + b"]t",
        b"(" + STORAGE + b"K\0K\x06\x85K\x01\x85" + HOOKS + b"}}t",
    ],
)
def test_wrong_arguments_of_a_tensor_are_errors(arguments: bytes) -> None:
    refusal(GLOBAL_TENSOR + arguments + b"R.", TensorFileError)


@pytest.mark.parametrize(
    "pid",
    [
        b"(X\x07\0\0\0storagetQ",
        b"(X\x07\0\0\0storageNX\x01\0\0\x000X\x03\0\0\0cpuK\x06tQ",
        b"(X\x07\0\0\0storagectorch\nfloat32\nX\x01\0\0\x000X\x03\0\0\0cpuK\x06tQ",
        b"(X\x07\0\0\0storagectorch\nFloatStorage\nK\0X\x03\0\0\0cpuK\x06tQ",
        b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000NK\x06tQ",
        b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ\xff\xff\xff\xfftQ",
    ],
)
def test_a_strange_storage_is_an_error(pid: bytes) -> None:
    with pytest.raises((TensorFileError, UnsafeFileError)):
        read(pid + b".")


def test_a_class_may_not_follow_where_no_class_belongs() -> None:
    head = b"ctorch._tensor\n_rebuild_from_type_v2\n(" + GLOBAL_TENSOR
    assert "evil.Class" in refusal(head + b"cevil\nClass\n.", TensorFileError)
    assert "evil.Class" in refusal(head + b")cevil\nClass\n.", UnsafeFileError)
    refusal(head + b"NN)tR.", TensorFileError)
    refusal(b"ctorch._tensor\n_rebuild_from_type_v2\n(]]NNtR.", TensorFileError)


# Bombs: little input, much work or memory.


def doubled_tuple(times: int) -> bytes:
    return b")q\x00" + b"h\x00h\x00\x86q\x00" * times


@pytest.mark.parametrize(
    "data",
    [
        b"Nr" + struct.pack("<I", 0xFFFFFFFF) + b"j" + struct.pack("<I", 0xFFFFFFFF) + b".",
        b"(" * 1_000_000,
        b"]" * 1_000_000,
        b"N" * 1_000_000 + b"t.",
        b")" + b"\x85" * 19_000 + b".",
        b"(" * 9_000 + b"t" * 9_000 + b".",
        b"]" * 9_000 + b"a" * 8_999 + b".",
        doubled_tuple(70) + b".",
        b"}" + doubled_tuple(70) + b"Ns.",
        doubled_tuple(70) + b"Q.",
        doubled_tuple(70) + b"h\x00\x93.",
        GLOBAL_TENSOR + doubled_tuple(70) + b"R.",
        doubled_tuple(70) + b"h\x00R.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(" + doubled_tuple(70) + b"h\0h\0h\0tR.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(" + doubled_tuple(70) + b"ca\nb\n.",
        b"ctorch\nSize\n" + doubled_tuple(70) + b"\x85R.",
        b"]q\x00h\x00a.",
        b"]q\x00(" + b"h\x00" * 9_000 + b"eh\x00.",
    ],
)
def test_a_bomb_ends_soon(data: bytes) -> None:
    with at_most_lines(MOST_LINES), pytest.raises((TensorFileError, UnsafeFileError)):
        read(data)


def test_the_machine_knows_every_opcode_that_torch_uses_for_a_tensor() -> None:
    values = [
        torch.zeros(2, 3),
        torch.zeros(()),
        # Of a dtype without a storage class, where torch has one.
        torch.zeros(2, 3, 4, 5, dtype=getattr(torch, "uint16", torch.int16)),
        torch.nn.Parameter(torch.zeros(70_000)),
        torch.zeros(2, dtype=torch.complex64).conj(),
    ]
    for protocol in (2, 3, 4, 5):
        for value in values:
            data = saved_pickle(value, protocol=protocol)
            assert any(op.name == "BINPERSID" for op, _, _ in pickletools.genops(data))
            assert read(data).shape == tuple(value.shape)


def test_foreign_text_is_shown_on_one_line() -> None:
    assert shown("plain/ä.pt") == "plain/ä.pt"
    assert shown("a\nb\x1b[0m\udcff") == r"a\nb\x1b[0m\udcff"
    assert shown("x" * 100, limit=3) == "xxx..."
