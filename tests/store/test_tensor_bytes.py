"""Writing one tensor: what torch.save and numpy.save write, whole or not at all."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.dtypes import DTYPES, DType
from tensorprobe.errors import TensorFileError
from tensorprobe.store.tensor_bytes import npy_pieces, pt_pieces, write_whole_file
from tensorprobe.store.tensor_file import load_tensor
from tensorprobe.tensor_data import TensorData

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    # What torch.load of 2.1 says of its own storages.
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
SHAPES = [(), (1,), (5,), (0,), (3, 0, 2), (2, 3), (2, 3, 4), (2, 1, 3, 1, 2), (300,), (70_000,)]


def random_data(dtype: DType, shape: tuple[int, ...]) -> TensorData:
    high = 2 if dtype.kind == "bool" else 256
    count = int(np.prod(shape)) * dtype.itemsize
    noise = np.random.default_rng(count).integers(0, high, count, dtype=np.uint8)
    return TensorData(dtype, noise.view(dtype.carrier).reshape(shape))


def is_known_to_torch(dtype: DType) -> bool:
    """Whether this torch has such a file; an old one has it for what has a storage class."""
    found = getattr(torch, dtype.name.removeprefix("torch."), None)
    if hasattr(torch._utils, "_rebuild_tensor_v3"):
        return found is not None
    return found in torch.storage._dtype_to_storage_type_map()


def as_torch(data: TensorData) -> torch.Tensor:
    wanted = getattr(torch, data.dtype.name.removeprefix("torch."))
    if data.nbytes == 0:
        return torch.empty(data.shape, dtype=wanted)
    noise = torch.frombuffer(bytearray(data.array.tobytes()), dtype=wanted)
    return noise.reshape(data.shape)


def assert_same(tensor: torch.Tensor, data: TensorData) -> None:
    assert str(tensor.dtype) == data.dtype.name
    assert tuple(tensor.shape) == data.shape
    assert tensor.is_contiguous()
    if tensor.numel():
        flat = tensor.reshape(-1).view(torch.uint8)
        assert flat.numpy().tobytes() == data.array.tobytes()


@EVERY_DTYPE
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_reads_back_what_was_written(
    dtype: DType, shape: tuple[int, ...], tmp_path: Path
) -> None:
    data, path = random_data(dtype, shape), tmp_path / "a.pt"
    write_whole_file(path, pt_pieces(data))
    ours = load_tensor(path)
    assert ours.dtype is dtype
    assert ours.shape == shape
    assert ours.array.tobytes() == data.array.tobytes()
    if not is_known_to_torch(dtype):
        pytest.skip(f"torch {torch.__version__} cannot load {dtype.name}; tensorprobe did")
    assert_same(torch.load(path, weights_only=True), data)
    assert_same(torch.load(str(path), weights_only=True, mmap=True), data)
    assert_same(torch.load(path, weights_only=False), data)


@EVERY_DTYPE
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="torch's layout of 2.13")
def test_with_a_checksum_the_file_is_the_one_that_torch_writes(
    dtype: DType, shape: tuple[int, ...]
) -> None:
    data, theirs = random_data(dtype, shape), io.BytesIO()
    torch.save(as_torch(data), theirs)
    checksum = zlib.crc32(data.array.tobytes())
    assert b"".join(pt_pieces(data, checksum=checksum)) == theirs.getvalue()


@settings(max_examples=100, deadline=None)
@given(shape=st.lists(st.integers(0, 6), max_size=9))
def test_any_shape_is_read_back(shape: list[int]) -> None:
    young, old = DTYPES["torch.uint32"], DTYPES["torch.int32"]
    data = random_data(young if is_known_to_torch(young) else old, tuple(shape))
    file = io.BytesIO(b"".join(pt_pieces(data)))
    assert_same(torch.load(file, weights_only=True), data)


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="torch's layout of 2.13")
@pytest.mark.parametrize("size", [(1 << 32) + 5, (1 << 32) - 1, (1 << 32) - 2])
def test_a_file_beyond_4_gib_is_laid_out_as_torch_does(size: int, tmp_path: Path) -> None:
    # Neither array nor file takes room: nobody touches the pages, and the file has a hole.
    data = TensorData(DTYPES["torch.uint8"], np.zeros(size, np.uint8))
    header, elements, trailer = pt_pieces(data)
    assert len(elements) == size
    path = tmp_path / "archive.pt"
    with torch.serialization.skip_data():
        torch.save(torch.empty(size, dtype=torch.uint8), path)
    with path.open("r+b") as file:
        assert file.read(len(header)) == header
        file.seek(size - 1, os.SEEK_CUR)
        file.write(b"\x07")
        assert file.read() == trailer
    assert load_tensor(path).array[-2:].tolist() == [0, 7]
    mapped = torch.load(path, weights_only=True, mmap=True)
    assert mapped.shape == (size,)
    assert mapped[-2:].tolist() == [0, 7]


def test_the_zip_is_one_for_every_reader(tmp_path: Path) -> None:
    data, path = random_data(DTYPES["torch.int32"], (4, 5)), tmp_path / "a.pt"
    content = data.array.tobytes()
    write_whole_file(path, pt_pieces(data, checksum=zlib.crc32(content)))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "archive/data.pkl",
            "archive/.format_version",
            "archive/.storage_alignment",
            "archive/byteorder",
            "archive/data/0",
            "archive/version",
            "archive/.data/serialization_id",
        ]
        assert archive.read("archive/data/0") == content
        assert archive.read("archive/byteorder").decode() == sys.byteorder
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    assert path.read_bytes().index(content) % 64 == 0


def test_without_a_checksum_only_the_tensor_goes_unchecked(tmp_path: Path) -> None:
    data, path = random_data(DTYPES["torch.int32"], (4, 5)), tmp_path / "a.pt"
    write_whole_file(path, pt_pieces(data))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() == "archive/data/0"
        assert archive.getinfo("archive/data/0").CRC == 0
        assert archive.read("archive/version") == b"3\n"


def test_the_elements_are_not_copied() -> None:
    data = random_data(DTYPES["torch.float32"], (3, 4))
    for pieces in (pt_pieces(data), npy_pieces(data)):
        assert np.shares_memory(np.frombuffer(pieces[1], np.uint8), data.array)


@pytest.mark.parametrize("name", ["torch.float32", "torch.bfloat16"])
def test_what_is_not_contiguous_is_made_so(name: str, tmp_path: Path) -> None:
    whole = random_data(DTYPES[name], (6, 8)).array
    row = np.broadcast_to(whole[0], (3, 8))
    for array in (whole.T, whole[::2, ::-1], whole[:, 3], row, np.asfortranarray(whole)):
        data = TensorData(DTYPES[name], array)
        write_whole_file(tmp_path / "a.pt", pt_pieces(data))
        assert_same(torch.load(tmp_path / "a.pt", weights_only=True), data)


def test_what_was_loaded_can_be_written_again(tmp_path: Path) -> None:
    torch.save(torch.arange(100_000, dtype=torch.int16).reshape(100, -1).t(), tmp_path / "a.pt")
    write_whole_file(tmp_path / "b.pt", pt_pieces(load_tensor(tmp_path / "a.pt")))
    assert torch.equal(torch.load(tmp_path / "a.pt"), torch.load(tmp_path / "b.pt"))


@EVERY_DTYPE
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_npy_file_is_the_one_that_numpy_writes(dtype: DType, shape: tuple[int, ...]) -> None:
    data = random_data(dtype, shape)
    if not dtype.native:
        with pytest.raises(TensorFileError, match=rf"cannot hold {dtype.name}.*write a \.pt file"):
            npy_pieces(data)
        return
    theirs = io.BytesIO()
    np.save(theirs, data.array)
    assert b"".join(npy_pieces(data)) == theirs.getvalue()


def test_an_array_in_another_type_than_the_carrier_is_a_mistake() -> None:
    for array in (np.zeros(3, np.float32), np.zeros(3, ">u2")):
        with pytest.raises(TypeError, match="carried by uint16"):
            TensorData(DTYPES["torch.bfloat16"], array)


# The file on the disk.


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_text("old")
    with path.open() as reader:
        write_whole_file(path, [b"new", b"", memoryview(b"er")])
        assert reader.read() == "old"
    assert path.read_text() == "newer"
    write_whole_file(path, [])
    assert path.read_text() == ""
    assert [found.name for found in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("name", ["x" * 255, "ä" * 127, ".hidden", "-"])
def test_any_name_that_a_folder_can_hold_works(name: str, tmp_path: Path) -> None:
    write_whole_file(tmp_path / name, [b"content"])
    assert (tmp_path / name).read_bytes() == b"content"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_name_in_the_current_folder_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_whole_file(Path("a.pt"), [b"content"])
    assert (tmp_path / "a.pt").read_bytes() == b"content"


def test_more_pieces_than_one_call_takes_are_written_in_order(tmp_path: Path) -> None:
    pieces = [str(number).encode() * (number % 3) for number in range(5000)]
    write_whole_file(tmp_path / "a", pieces)
    assert (tmp_path / "a").read_bytes() == b"".join(pieces)


def test_many_threads_write_at_once(tmp_path: Path) -> None:
    def write(number: int) -> None:
        write_whole_file(tmp_path / f"{number % 50}", [b"%d" % number] * 1000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(400)))
    assert len(list(tmp_path.iterdir())) == 50
    for path in tmp_path.iterdir():
        assert len(set(path.read_bytes().decode())) <= 3


@pytest.mark.parametrize("target", ["missing/a.pt", "x" * 256, "folder"])
def test_the_error_of_the_system_comes_through_and_nothing_is_left(
    target: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=r"\[Errno"):
        write_whole_file(tmp_path / target, [b"content"])
    assert [found.name for found in tmp_path.iterdir()] == ["folder"]
    assert os.listdir("/proc/self/fd") == before


def test_a_disk_without_room_leaves_nothing_behind(tmp_path: Path) -> None:
    # A limit on the size of files cuts a write short and then fails the next, as a full disk does.
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from tensorprobe.store.tensor_bytes import write_whole_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "write_whole_file(Path(sys.argv[1]) / 'fits', [b'x' * 60_000, b'y' * 40_000])\n"
        "try:\n"
        "    write_whole_file(Path(sys.argv[1]) / 'a', [b'x' * 60_000, b'y' * 60_000])\n"
        "except OSError as err:\n"
        "    print(type(err).__name__, err.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("OSError 27"), done.stderr
    assert [found.name for found in tmp_path.iterdir()] == ["fits"]
    assert (tmp_path / "fits").stat().st_size == 100_000


def test_a_hidden_file_of_a_killed_process_is_not_in_the_way(tmp_path: Path) -> None:
    # The number of a process is used again: its left files have the names that come next.
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tensorprobe.store.tensor_bytes import write_whole_file\n"
        "folder = Path(sys.argv[1])\n"
        "for number in range(20):\n"
        "    (folder / f'.tmp-{os.getpid()}-{number}').write_text('left')\n"
        "write_whole_file(folder / 'a', [b'content'])\n"
        "print((folder / 'a').read_text(), len(list(folder.iterdir())))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["content", "21"], done.stderr
