"""Loading one tensor: bit for bit what torch and numpy load, and an error for all else."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import socket
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.dtypes import DTYPES, DType
from tensorprobe.errors import TensorFileError, TensorprobeError, UnsafeFileError
from tensorprobe.store.machine_memory import most_memory
from tensorprobe.store.tensor_bytes import pt_pieces
from tensorprobe.store.tensor_file import load_tensor
from tensorprobe.tensor_data import TensorData

SHARED = Path(os.environ.get("TENSORPROBE_SHARED", Path(__file__).resolve().parents[3] / "shared"))
pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    # What torch.load of 2.1 says of its own storages.
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)


def what_lacks(dtype: DType) -> str:
    """Why this torch cannot save such a tensor, or nothing."""
    found = getattr(torch, dtype.name.removeprefix("torch."), None)
    if found is None:
        return f"torch {torch.__version__} has no {dtype.name}"
    if hasattr(torch._utils, "_rebuild_tensor_v3"):
        return ""
    # An old torch saves what has a storage class of its own.
    can_save = found in torch.storage._dtype_to_storage_type_map()
    return "" if can_save else f"torch {torch.__version__} cannot save {dtype.name}"


def torch_dtype(dtype: DType) -> torch.dtype:
    if what_lacks(dtype):
        pytest.skip(what_lacks(dtype))
    found = getattr(torch, dtype.name.removeprefix("torch."))
    assert isinstance(found, torch.dtype)
    return found


def random_bytes(dtype: DType, numel: int, *, seed: int = 0) -> npt.NDArray[np.uint8]:
    high = 2 if dtype.kind == "bool" else 256
    return np.random.default_rng(seed).integers(0, high, numel * dtype.itemsize, dtype=np.uint8)


def random_storage(dtype: DType, numel: int, *, seed: int = 0) -> torch.Tensor:
    """A tensor of random bits: every NaN, every infinity."""
    if numel == 0:
        return torch.empty(0, dtype=torch_dtype(dtype))
    return torch.from_numpy(random_bytes(dtype, numel, seed=seed)).view(torch_dtype(dtype))


def torch_bytes(tensor: torch.Tensor) -> bytes:
    if tensor.numel() == 0:
        return b""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # torch takes any stride for contiguous where there is one element, but does not view it so.
    flat = plain.as_strided((plain.numel(),), (1,))
    return flat.view(torch.uint8).numpy().tobytes()


def without_nan_payloads(data: bytes, dtype: torch.dtype) -> list[float]:
    halves = torch.frombuffer(bytearray(data), dtype=dtype)
    return torch.nan_to_num(halves.double(), nan=1e300, posinf=2e300, neginf=-2e300).tolist()


# torch itself negates the NaNs of these in two ways: its vector code flips the sign, its scalar
# code rounds through float32. The same tensor gives both, depending on its strides.
HALVES = {
    torch.float16: torch.float16,
    torch.bfloat16: torch.bfloat16,
    torch.complex32: torch.float16,
}


def assert_same_as_torch(path: Path, *, is_trusted: bool = False) -> TensorData:
    theirs = torch.load(path, weights_only=not is_trusted, map_location="cpu")
    ours = load_tensor(path)
    assert ours.dtype.name == str(theirs.dtype)
    assert ours.shape == tuple(theirs.shape)
    assert ours.nbytes == theirs.nbytes
    mine, yours = ours.array.tobytes(), torch_bytes(theirs)
    if theirs.dtype in HALVES and (theirs.is_conj() or theirs.is_neg()) and mine != yours:
        half = HALVES[theirs.dtype]
        assert without_nan_payloads(mine, half) == without_nan_payloads(yours, half)
    else:
        assert mine == yours
    assert ours.array.flags.aligned
    assert not ours.array.flags.writeable
    return ours


def refusal(path: Path, error: type[TensorprobeError] = TensorFileError) -> str:
    with pytest.raises(TensorprobeError) as caught:
        load_tensor(path)
    assert type(caught.value) is error
    message = str(caught.value)
    assert message.isprintable()
    assert path.name in message
    return message


def rezip(source: Path, target: Path, *, method: int = zipfile.ZIP_STORED, **records: Any) -> None:
    """Copy a .pt file with some records replaced, added or (None) left out."""
    changes = {f"{name.replace('__', '/')}": content for name, content in records.items()}
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", method) as new:
        names = [name.partition("/")[2] for name in old.namelist()]
        folder = old.namelist()[0].partition("/")[0]
        for name in [*names, *(name for name in changes if name not in names)]:
            content = changes.get(name, b"" if name not in names else old.read(f"{folder}/{name}"))
            if content is not None:
                new.writestr(f"{folder}/{name}", content)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.pt"
    torch.save(torch.arange(24.0).reshape(4, 6), path)
    return path


# What torch saves.


@EVERY_DTYPE
@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (0,), (3, 0, 2), (2, 3, 4), (1, 1, 5, 1, 2)], ids=str
)
def test_every_dtype_and_shape_loads(dtype: DType, shape: tuple[int, ...], tmp_path: Path) -> None:
    count = int(np.prod(shape))
    torch.save(random_storage(dtype, count).reshape(shape), tmp_path / "a.pt")
    assert_same_as_torch(tmp_path / "a.pt")


@EVERY_DTYPE
def test_a_mapped_file_loads(dtype: DType, tmp_path: Path) -> None:
    tensor = random_storage(dtype, 300_000 // dtype.itemsize).reshape(2, -1).t()[3:, 1:]
    torch.save(tensor, tmp_path / "a.pt")
    ours = assert_same_as_torch(tmp_path / "a.pt")
    assert not ours.array.flags.owndata


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "a.pt"


@settings(max_examples=200, deadline=None)
@given(
    dtype=st.sampled_from([dtype for dtype in DTYPES.values() if not what_lacks(dtype)]),
    dimensions=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=5),
    offset=st.integers(0, 20),
    slack=st.integers(0, 9),
    conj=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_any_strides_and_offset_load(
    scratch: Path,
    dtype: DType,
    dimensions: list[tuple[int, int]],
    offset: int,
    slack: int,
    conj: bool,
    seed: int,
) -> None:
    shape = [size for size, _ in dimensions]
    strides = [step for _, step in dimensions]
    reach = offset + sum((size - 1) * step for size, step in dimensions if size) + 1
    tensor = random_storage(dtype, reach + slack, seed=seed).as_strided(shape, strides, offset)
    torch.save(tensor.conj() if conj else tensor, scratch)
    assert_same_as_torch(scratch)


def test_views_of_one_storage_load(tmp_path: Path) -> None:
    base = torch.arange(1000, dtype=torch.int32).reshape(10, 100)
    for number, view in enumerate([base[3], base[:, 7], base.t(), base[::3, 5:90:2], base[4, 5]]):
        torch.save(view, tmp_path / f"{number}.pt")
        assert_same_as_torch(tmp_path / f"{number}.pt")


NEGATABLE = ["uint8", "int8", "int16", "int32", "int64", "bfloat16", "float16", "float32"]
NEGATABLE += ["float64", "complex32", "complex64", "complex128"]


def test_an_expanded_tensor_stays_small(tmp_path: Path) -> None:
    size = most_memory() // 2 // 8
    for tensor in (torch.tensor(2.5), torch.tensor(1 + 2j).conj()):
        torch.save(tensor.expand(size), tmp_path / "a.pt")
        data = load_tensor(tmp_path / "a.pt")
        assert data.shape == (size,)
        assert data.nbytes == size * data.dtype.itemsize
        assert data.array[-1] == tensor.item()


def test_an_expanded_tensor_that_no_memory_holds_is_refused(tmp_path: Path) -> None:
    for tensor in (torch.tensor(2.5), torch.tensor(1 + 2j).conj()):
        torch.save(tensor.expand(1 << 50), tmp_path / "a.pt")
        assert "expanded tensor of" in refusal(tmp_path / "a.pt")
    # Windows that overlap are more than what lies in the file, too.
    torch.save(torch.zeros(1 << 12).as_strided((1 << 11,) * 4, (1, 1, 0, 0)), tmp_path / "a.pt")
    assert "expanded tensor of" in refusal(tmp_path / "a.pt")


@pytest.mark.parametrize("name", NEGATABLE)
def test_a_negated_tensor_is_resolved(name: str, tmp_path: Path) -> None:
    tensor = random_storage(DTYPES[f"torch.{name}"], 600)
    torch.save(torch._neg_view(tensor)[5::3], tmp_path / "a.pt")
    assert_same_as_torch(tmp_path / "a.pt")
    if name in ("complex64", "complex128"):
        torch.save(torch._neg_view(tensor.conj())[5::3], tmp_path / "b.pt")
        assert_same_as_torch(tmp_path / "b.pt")
        torch.save(tensor.conj().imag[1:], tmp_path / "c.pt")
        assert_same_as_torch(tmp_path / "c.pt")


@pytest.mark.parametrize("name", ["bool", "uint16", "float8_e5m2"])
def test_what_torch_cannot_negate_is_an_error(name: str, tmp_path: Path) -> None:
    torch.save(torch._neg_view(random_storage(DTYPES[f"torch.{name}"], 8)), tmp_path / "a.pt")
    assert "negated" in refusal(tmp_path / "a.pt")


@EVERY_DTYPE
def test_a_file_of_a_big_endian_machine_loads_as_torch_loads_it(
    dtype: DType, tmp_path: Path
) -> None:
    for tensor in (random_storage(dtype, 30)[4:].reshape(2, -1).t(), random_storage(dtype, 0)):
        torch.save(tensor, tmp_path / "little.pt")
        rezip(tmp_path / "little.pt", tmp_path / "big.pt", byteorder="big")
        assert_same_as_torch(tmp_path / "big.pt")


def test_a_file_without_byte_order_is_little_endian(saved: Path, tmp_path: Path) -> None:
    rezip(saved, tmp_path / "old.pt", byteorder=None)
    assert_same_as_torch(tmp_path / "old.pt")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_every_pickle_protocol_loads(protocol: int, tmp_path: Path) -> None:
    torch.save(torch.arange(6).reshape(2, 3).t(), tmp_path / "a.pt", pickle_protocol=protocol)
    assert load_tensor(tmp_path / "a.pt").array.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_parameters_and_tensors_with_attributes_load(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.randn(3))
    parameter.note = "x"  # type: ignore[attr-defined]
    tensor = torch.randn(3)
    tensor.note = {"a": [1]}  # type: ignore[attr-defined]
    for value in (torch.nn.Parameter(torch.randn(3)), parameter, tensor):
        torch.save(value, tmp_path / "a.pt")
        # torch 2.1 calls a parameter with a state unsafe.
        assert_same_as_torch(tmp_path / "a.pt", is_trusted=True)


@pytest.mark.parametrize("name", ["dot.dot.pt", "ünï cödé.pt", "no_suffix", "is.npy", "x" * 252])
def test_the_name_of_the_file_does_not_matter(name: str, tmp_path: Path) -> None:
    torch.save(torch.randn(3), tmp_path / name)
    assert_same_as_torch(tmp_path / name)


def test_records_at_odd_offsets_come_out_aligned(saved: Path, tmp_path: Path) -> None:
    for size in range(8):
        rezip(saved, tmp_path / "odd.pt", version="3" * size or None, **{".format_version": "1"})
        assert load_tensor(tmp_path / "odd.pt").array.tobytes() == torch_bytes(torch.load(saved))
        shifted = tmp_path / "shifted.pt"
        with zipfile.ZipFile(saved) as old, zipfile.ZipFile(shifted, "w") as new:
            new.writestr("saved/" + "p" * size, b"")
            for name in old.namelist():
                new.writestr(name, old.read(name))
        data = load_tensor(shifted)
        assert data.array.flags.aligned
        assert data.array.tobytes() == torch_bytes(torch.load(saved))


def test_a_zip_with_a_comment_loads(saved: Path) -> None:
    with zipfile.ZipFile(saved, "a") as archive:
        archive.comment = b"PK\x05\x06" * 5000
    assert load_tensor(saved).shape == (4, 6)


def test_a_path_may_be_a_text(saved: Path) -> None:
    assert load_tensor(str(saved)).shape == (4, 6)


def shared_files() -> Iterator[Path]:
    folder = SHARED / "peer_dumps"
    for suffix in ("pt", "npy"):
        yield from sorted(folder.rglob(f"*.{suffix}"))


def test_every_file_of_the_peer_dumps_loads() -> None:
    paths = list(shared_files())
    if not paths:
        pytest.skip(f"no peer dumps below {SHARED}")
    loaded = 0
    for path in paths:
        if path.suffix == ".npy":
            theirs = np.load(path, allow_pickle=False)
            ours = load_tensor(path)
            assert ours.array.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            assert ours.array.tobytes() == theirs.tobytes()
        else:
            assert_same_as_torch(path)
        loaded += 1
    assert loaded == len(paths)


# What numpy saves.


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in DTYPES.values() if dtype.native], ids=lambda dtype: dtype.name
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4), (3, 0)], ids=str)
@pytest.mark.parametrize("order", ["<", ">"])
def test_every_numpy_array_loads(
    dtype: DType, shape: tuple[int, ...], order: str, tmp_path: Path
) -> None:
    noise = random_bytes(dtype, int(np.prod(shape))).view(dtype.carrier).reshape(shape)
    array = noise.astype(dtype.carrier.newbyteorder(order))
    for layout in (array, np.asfortranarray(array)):
        np.save(tmp_path / "a.npy", layout)
        ours = load_tensor(tmp_path / "a.npy")
        assert ours.dtype is dtype
        assert ours.shape == layout.shape  # numpy's Fortran order makes one dimension of none
        theirs = np.load(tmp_path / "a.npy")
        assert ours.array.tobytes() == theirs.astype(dtype.carrier).tobytes()
        assert ours.array.flags.aligned
        assert not ours.array.flags.writeable


def test_a_mapped_numpy_array_loads(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((300, 400))
    for layout in (array, np.asfortranarray(array), array.astype(">f8")):
        np.save(tmp_path / "a.npy", layout)
        np.testing.assert_array_equal(load_tensor(tmp_path / "a.npy").array, array)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr':'<f4','fortran_order':False,'shape':(2,3)}",
        "{'shape': (2L, 3L), 'fortran_order': False, 'descr': '<f4'}   \n",
        '{"descr": "<f4", "fortran_order": False, "shape": (2, 3,)}\n',
        " { 'descr' : 'f4' , 'fortran_order' : False , 'shape' : ( 2 , 3 ) , } ",
    ],
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_of_other_writers_are_understood(header: str, version: int, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    numbers = np.arange(6, dtype=np.float32)
    magic = b"\x93NUMPY" + bytes([version, 0])
    path.write_bytes(magic + length + header.encode() + numbers.tobytes() + b"trailing")
    data = load_tensor(path)
    assert data.array.flags.aligned
    assert data.array.tolist() == numpy_rows(numbers)


def numpy_rows(numbers: np.ndarray) -> list[list[float]]:
    rows: list[list[float]] = numbers.reshape(2, 3).tolist()
    return rows


# Files that cannot be opened.


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "gone.pt")
    (tmp_path / "file").write_text("x")
    assert "does not exist" in refusal(tmp_path / "file" / "gone.pt")
    assert "cannot be read" in refusal(tmp_path / ("x" * 300))
    with pytest.raises(TensorFileError, match="cannot be read"):
        load_tensor(f"{tmp_path}/a\0b.pt")


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder.pt").mkdir()
    assert "is a folder" in refusal(tmp_path / "folder.pt")


def test_a_pipe_a_socket_and_a_device_are_errors(tmp_path: Path, monkeypatch: Any) -> None:
    os.mkfifo(tmp_path / "fifo.pt")
    assert "is a pipe" in refusal(tmp_path / "fifo.pt")
    assert "is a pipe" in refusal(Path("/dev/zero"))
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.pt")
        assert "is a pipe" in refusal(Path("s.pt"))


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.pt").symlink_to(tmp_path / "a.pt")
    assert "cannot be read" in refusal(tmp_path / "a.pt")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_that_may_not_be_read_is_an_error(saved: Path) -> None:
    saved.chmod(0)
    # The modules are loaded before the change of user, who may not be able to read them.
    code = (
        "import os, sys\n"
        "from tensorprobe.store.tensor_file import load_tensor\n"
        "from tensorprobe.errors import TensorFileError\n"
        "os.seteuid(65534)\n"
        "try: load_tensor(sys.argv[1])\n"
        "except TensorFileError as err: print(err)\n"
    )
    assert "may not be read by this user; change its permissions" in run_python(code, saved)


@pytest.mark.parametrize("name", ["a.pt", "a.npy"])
def test_an_empty_file_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert "is empty" in refusal(tmp_path / name)


def test_a_name_stays_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(TensorFileError) as caught:
        load_tensor(tmp_path / "a\n\x1b[2Jb.pt")
    assert r"a\n\x1b[2Jb.pt" in str(caught.value)


def test_descriptors_and_mappings_are_given_back(tmp_path: Path) -> None:
    torch.save(torch.zeros(100_000), tmp_path / "large.pt")
    torch.save(torch.zeros(10), tmp_path / "small.pt")
    (tmp_path / "bad.pt").write_bytes((tmp_path / "large.pt").read_bytes()[:-1])
    errors = []
    before = os.listdir("/proc/self/fd")
    small = [load_tensor(tmp_path / "small.pt") for _ in range(10)]
    assert os.listdir("/proc/self/fd") == before
    for _ in range(10):
        load_tensor(tmp_path / "large.pt")
        try:
            load_tensor(tmp_path / "bad.pt")
        except TensorFileError as err:
            errors.append(err)
    assert os.listdir("/proc/self/fd") == before
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert len(small) == len(errors) == 10


# Files that hold something else.


def test_the_old_form_of_torch_save_is_named(tmp_path: Path) -> None:
    torch.save(torch.zeros(3), tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert "before version 1.6" in refusal(tmp_path / "a.pt")


def test_a_bare_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"a": 1}))
    assert "not loaded" in refusal(tmp_path / "a.pt", UnsafeFileError)


def test_any_other_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_text("hello, world")
    assert "neither a .pt nor a .npy" in refusal(tmp_path / "a.pt")


def test_a_program_in_the_pickle_is_refused(saved: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    command = f"cos\nsystem\n(X{chr(len(str(canary)) + 6)}\0\0\0touch {canary}tR."
    rezip(saved, tmp_path / "evil.pt", **{"data.pkl": command.encode()})
    assert "os.system" in refusal(tmp_path / "evil.pt", UnsafeFileError)
    assert not canary.exists()


def test_archives_of_something_else_are_named(saved: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.zeros(3))
    assert ".npz archive" in refusal(tmp_path / "a.npz")
    rezip(saved, tmp_path / "script.pt", **{"constants.pkl": b"."})
    assert "TorchScript" in refusal(tmp_path / "script.pt")
    rezip(saved, tmp_path / "other.pt", **{"data.pkl": None})
    assert "no data.pkl" in refusal(tmp_path / "other.pt")
    rezip(saved, tmp_path / "packed.pt", method=zipfile.ZIP_DEFLATED)
    assert "compressed" in refusal(tmp_path / "packed.pt")
    torch.save({"a": torch.zeros(3)}, tmp_path / "dict.pt")
    assert "holds a dict, not one tensor" in refusal(tmp_path / "dict.pt")
    torch.save({f"{i}": torch.zeros(1) for i in range(9000)}, tmp_path / "many.pt")
    assert "holds a dict, not one tensor" in refusal(tmp_path / "many.pt")
    with zipfile.ZipFile(tmp_path / "huge.pt", "w") as archive:
        for number in range(20_001):
            archive.writestr(f"a/{number}", b"")
    assert "20001 records" in refusal(tmp_path / "huge.pt")


def test_damaged_records_are_errors(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    rezip(saved, path, data__0=None)
    assert "record is missing" in refusal(path)
    rezip(saved, path, data__0=b"\0" * 95)
    assert "record is too short" in refusal(path)
    rezip(saved, path, byteorder=b"middle")
    assert "byte order" in refusal(path)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("saved/data.pkl", b".")
    assert "two records of the same name" in refusal(saved)


def test_a_tensor_that_reaches_beyond_its_record_is_an_error(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        program = archive.read("saved/data.pkl")
    for old, new in [
        (b"QK\0K\x04K\x06\x86", b"QK\x01K\x04K\x06\x86"),
        (b"QK\0K\x04K\x06\x86", b"QK\0K\x05K\x06\x86"),
        (b"K\x06K\x01\x86", b"K\x07K\x01\x86"),
        (b"K\x06K\x01\x86", b"K\x06\x8a\x08" + b"\xff" * 7 + b"\x7f\x86"),
        (b"K\x04K\x06\x86", b"\x8a\x08" + b"\xff" * 7 + b"\x7fK\x06\x86"),
    ]:
        assert program.count(old) == 1
        rezip(saved, tmp_path / "bad.pt", **{"data.pkl": program.replace(old, new)})
        assert "reaches beyond its record" in refusal(tmp_path / "bad.pt")


def test_a_shape_that_numpy_cannot_hold_is_an_error(tmp_path: Path) -> None:
    torch.save(torch.zeros(()).expand((1,) * 70), tmp_path / "a.pt")
    assert "70 dimensions" in refusal(tmp_path / "a.pt")
    torch.save(torch.zeros((), dtype=torch.uint8).expand(1 << 40, 1 << 22), tmp_path / "a.pt")
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path) as archive:
        program = archive.read("a/data.pkl").replace(b"\x8a\x04\0\0\x40\0", b"")
        grown = program.replace(b"\x8a\x06\0\0\0\0\0\x01", b"\x8a\x08\0\0\0\0\0\0\0\x40")
    assert grown != program
    rezip(path, tmp_path / "b.pt", **{"data.pkl": grown})
    assert "expanded tensor of" in refusal(tmp_path / "b.pt")


def test_numpy_files_without_numbers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([{"a": 1}], dtype=object))
    assert "not loaded" in refusal(path, UnsafeFileError)
    for array, said in [
        (np.zeros(2, [("a", "<f4"), ("b", "<i8")]), "a structured array"),
        (np.zeros(2, "V2"), "V2"),
        (np.array(["text"]), "U4"),
        (np.zeros(2, "datetime64[s]"), "M8"),
        (np.zeros(2, np.longdouble), "f16"),
    ]:
        np.save(path, array)
        message = refusal(path)
        assert said in message
        assert "astype" in message


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"\x01",
        b"\x01\x00",
        b"\x09\x00\x10\x00" + b" " * 16,
        b"\x01\x00\xff\xff" + b" " * 100,
        b"\x02\x00\xff\xff\xff\xff" + b" " * 100,
        b"\x01\x00\x10\x00" + b"(" * 16,
        b"\x01\x00\x02\x00{}",
        b"\x01\x00\x3d\x00{'descr': '<f4', 'fortran_order': False, 'shape': (9999), }  ",
        b"\x01\x00\x3d\x00{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }   ",
        b"\x01\x00\x3d\x00{'descr': '<f4', 'fortran_order': False, 'shape': (a, b), } ",
        b"\x01\x00\x3d\x00{'descr': '<f3', 'fortran_order': False, 'shape': (), }      ",
        b"\x01\x00\x3d\x00{'descr': '\x1b[m', 'fortran_order': False, 'shape': (), }     ",
        b"\x02\x00\x10\x27\0\0" + (b"{" + b"'descr':''," * 2000)[:10000],
        b"\x02\x00\x10\x27\0\0" + b"{" + b" " * 9998 + b"x",
    ],
)
def test_a_damaged_numpy_header_is_an_error(rest: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY" + rest)
    refusal(tmp_path / "a.npy")


def test_a_huge_numpy_shape_is_an_error(tmp_path: Path) -> None:
    text = b"{'descr': '|u1', 'fortran_order': True, 'shape': (0, " + b"9" * 18 + b", 99999), }"
    for header in (text, text.replace(b"(0,", b"(1,")):
        length = struct.pack("<H", len(header))
        (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\0" + length + header)
        refusal(tmp_path / "a.npy")


# Damage of every kind.


def saved_bytes(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def small_files() -> dict[str, bytes]:
    files = {
        "plain.pt": saved_bytes(torch.arange(6.0).reshape(2, 3)),
        "conj.pt": saved_bytes(torch.zeros(3, dtype=torch.complex64).conj()[1:]),
        "parameter.pt": saved_bytes(torch.nn.Parameter(torch.zeros(3))),
        "empty.pt": saved_bytes(torch.zeros(0, 4)),
    }
    young, shape = DTYPES["torch.uint16"], (2, 2, 2, 2)
    if what_lacks(young):
        files["v3.pt"] = b"".join(pt_pieces(TensorData(young, np.zeros(shape, np.uint16))))
    else:
        files["v3.pt"] = saved_bytes(torch.zeros(shape, dtype=torch.uint16).transpose(0, 2))
    for name, array in {
        "c.npy": np.arange(6.0).reshape(2, 3),
        "f.npy": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
    }.items():
        file = io.BytesIO()
        np.save(file, array)
        files[name] = file.getvalue()
    return files


def test_every_truncation_of_a_pt_file_is_an_error(tmp_path: Path) -> None:
    whole = small_files()["plain.pt"]
    path = tmp_path / "a.pt"
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(TensorFileError):
            load_tensor(path)


def damaged_copies(count: int) -> Iterator[bytes]:
    chance = random.Random(20240607)
    files = list(small_files().values())
    for number in range(count):
        data = bytearray(chance.choice(files))
        if number % 4 == 0:
            del data[chance.randrange(len(data)) :]
        elif number % 4 == 1:
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(1, 9)] = chance.randbytes(chance.randrange(9))
        else:
            for _ in range(1 << chance.randrange(5)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield bytes(data)


FUZZ = """
import json, resource, struct, sys
import numpy as np
from tensorprobe.errors import TensorprobeError
from tensorprobe.store.tensor_file import load_tensor

copies, scratch = open(sys.argv[1], "rb").read(), sys.argv[2]
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (128 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
loaded = refused = at = 0


def count(frame, event, argument):
    global lines
    lines += event == "line"
    assert lines < 20_000, frame
    return count


while at < len(copies):
    (size,) = struct.unpack_from("<I", copies, at)
    with open(scratch, "wb") as file:
        file.write(copies[at + 4 : at + 4 + size])
    at += 4 + size
    lines = 0
    sys.settrace(count)
    try:
        data = load_tensor(scratch)
    except TensorprobeError as err:
        assert str(err).isprintable() and str(err).startswith(scratch), err
        refused += 1
    else:
        if data.nbytes < 1 << 20:
            data.array.tobytes()
        loaded += 1
    finally:
        sys.settrace(None)
assert "torch" not in sys.modules
print(json.dumps([loaded, refused]))
"""


def run_python(code: str, *arguments: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_damaged_files_end_in_a_tensor_or_a_tensorprobe_error(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.write_bytes(
        b"".join(struct.pack("<I", len(data)) + data for data in damaged_copies(2000))
    )
    loaded, refused = json.loads(run_python(FUZZ, copies, tmp_path / "scratch"))
    assert loaded + refused == 2000
    assert min(loaded, refused) > 100


def test_loading_does_not_import_torch(saved: Path) -> None:
    np.save(saved.with_suffix(".npy"), np.zeros(3))
    code = (
        "import sys\n"
        "from tensorprobe.store.tensor_file import load_tensor\n"
        "from tensorprobe.store.tensor_bytes import npy_pieces, pt_pieces\n"
        "for path in sys.argv[1:]:\n"
        "    data = load_tensor(path)\n"
        "    data.values(), npy_pieces(data), pt_pieces(data)\n"
        "print('torch' in sys.modules)\n"
    )
    assert run_python(code, saved, saved.with_suffix(".npy")).split() == ["False"]
