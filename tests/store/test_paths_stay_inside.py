"""Whatever a dump says, no file outside its folder is opened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorprobe.errors import UnsafeFileError
from tensorprobe.records import TensorValue
from tensorprobe.store import open_dump

SECRET = b"\x93NUMPY not really"


def write_dump(folder: Path, data_name: str) -> None:
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1], "data_name": data_name}
    dump = {"task": "tensor", "level": "L1", "data": {"Torch.a.0.forward": {"input_args": [leaf]}}}
    (folder / "dump_tensor_data").mkdir(parents=True)
    (folder / "dump.json").write_text(json.dumps(dump))


def load_the_tensor(folder: Path) -> None:
    part = open_dump(folder).parts[0]
    (value,) = part.call("Torch.a.0.forward").inputs or ()
    assert isinstance(value, TensorValue)
    part.load(value)


@pytest.mark.parametrize(
    "data_name", ["../../x", "../../../x", "a/../../../x", "/etc/passwd", "..", "a\0b"]
)
def test_a_name_that_leads_out_is_refused(tmp_path: Path, data_name: str) -> None:
    (tmp_path / "x").write_bytes(SECRET)
    folder = tmp_path / "dump" / "rank"
    write_dump(folder, data_name)
    with pytest.raises(UnsafeFileError, match=r"leads out of its folder .*; it was not opened"):
        load_the_tensor(folder)
    assert "leads out of its folder" in str(open_dump(folder).gaps[0])


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path, what: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.pt").write_bytes(SECRET)
    folder = tmp_path / "rank"
    write_dump(folder, "x.pt")
    data = folder / "dump_tensor_data"
    if what == "file":
        (data / "x.pt").symlink_to(outside / "x.pt")
    else:
        data.rmdir()
        data.symlink_to(outside)
    with pytest.raises(UnsafeFileError, match="is a link that leads out of its folder"):
        load_the_tensor(folder)
    assert "is a link that leads out" in str(open_dump(folder).gaps[0])


@pytest.mark.parametrize("name", ["dump.json", "stack.json", "construct.json"])
def test_a_json_file_behind_an_outward_link_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "rank"
    write_dump(folder, "x.pt")
    (tmp_path / "elsewhere.json").write_text("{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "elsewhere.json")
    if name == "dump.json":
        with pytest.raises(UnsafeFileError, match="is a link that leads out"):
            open_dump(folder)
    else:
        assert any("is a link that leads out" in str(gap) for gap in open_dump(folder).gaps)


def test_a_rank_folder_behind_an_outward_link_is_refused_and_the_others_open(
    tmp_path: Path,
) -> None:
    write_dump(tmp_path / "elsewhere", "x.pt")
    write_dump(tmp_path / "dump" / "step0" / "rank0", "x.pt")
    (tmp_path / "dump" / "step0" / "rank1").symlink_to(tmp_path / "elsewhere")
    dump = open_dump(tmp_path / "dump")
    assert [part.label for part in dump.parts] == ["step0/rank0"]
    assert "is a link that leads out of its folder" in str(dump.unopened[0])


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "rank"
    write_dump(folder, "x.npy")
    header = (
        b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(117)
        + b"\n"
    )
    (folder / "dump_tensor_data" / "real.npy").write_bytes(header + b"\0\0\0\0")
    (folder / "dump_tensor_data" / "x.npy").symlink_to("real.npy")
    load_the_tensor(folder)


@pytest.mark.parametrize("path", ["/etc/passwd", "forward_real_data/../../x.pt", 5])
def test_a_legacy_data_path_cannot_leave_either(tmp_path: Path, path: object) -> None:
    entry = {"Torch.a.0": {"args": [{"type": "torch.Tensor", "datapath": path}], "kwargs": {}}}
    (tmp_path / "forward_info_1.json").write_text(json.dumps(entry))
    (tmp_path / "backward_info_1.json").write_text("{}")
    (gap,) = open_dump(tmp_path).gaps
    assert "leads out" in gap.problem or "does not lead into forward_real_data" in gap.problem
