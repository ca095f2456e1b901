"""What seed 001 shows of api_accuracy_checker works as it is written."""

from __future__ import annotations

import csv
import json
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
from script_runs import Ended, run_script, run_shell
from seed_scripts import copy_compat
from seed_table import block

MODEL = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))

def train_step(batch):
    model(batch).sum().backward()
"""
WITH_LOADER = f"""{MODEL}
for batch in DataLoader(torch.arange(24.0).view(6, 4), batch_size=2):
    train_step(batch)
print("went on")
"""
WITHOUT_LOADER = f"""{MODEL}
for batch in torch.arange(24.0).view(3, 2, 4):
%s
    train_step(batch)
"""


def train(folder: Path) -> Ended:
    return run_script(f"{block('001-3').code}{WITH_LOADER}", folder, name="main.py")


def read(folder: Path, kind: str) -> dict[str, object]:
    (file,) = folder.glob(f"{kind}_info_*.json")
    found: dict[str, object] = json.loads(file.read_text())
    return found


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """An ATT_HOME with the pre-check in it, and a captured step in the folder of run_ut."""
    home = tmp_path / "att"
    folder = copy_compat(home / "debug/accuracy_tools", "api_accuracy_checker")
    run = tmp_path / "train"
    run.mkdir()
    train(run)
    target = folder / "api_accuracy_checker" / "run_ut"
    for kind in ("forward", "backward", "stack"):
        (file,) = run.glob(f"{kind}_info_*.json")
        (target / f"{kind}_info_0.json").write_bytes(file.read_bytes())
    return home


def run_tool(home: Path, text: str) -> Ended:
    return run_shell(text, home, environment={"ATT_HOME": str(home)})


def test_the_import_alone_captures_the_second_iteration_and_ends_the_run(tmp_path: Path) -> None:
    ended = train(tmp_path)
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == block("001-5").code.strip()
    assert "went on" not in ended.out
    forward, stacks = read(tmp_path, "forward"), read(tmp_path, "stack")
    assert forward and set(forward) == set(stacks)
    assert read(tmp_path, "backward")
    lines = json.dumps(stacks)
    assert "main.py" in lines


def test_a_loop_without_a_dataloader_opens_the_switch_itself(tmp_path: Path) -> None:
    switch = textwrap.indent(textwrap.dedent(block("001-4").code), "    ")
    ended = run_script(WITHOUT_LOADER % switch, tmp_path, name="main.py")
    assert "Traceback" not in ended.err or block("001-5").code.strip() in ended.err, ended
    forward = read(tmp_path, "forward")
    assert any("linear" in name for name in forward) and set(forward) == set(
        read(tmp_path, "stack")
    )


def test_the_configuration_moves_the_dump_and_keeps_real_data(tmp_path: Path) -> None:
    (tmp_path / "my/dump/path").mkdir(parents=True)
    code = block("001-3").code + block("001-6").code
    ended = run_script(f"{code}{WITH_LOADER}", tmp_path, name="main.py")
    assert ended.err.splitlines()[-1] == block("001-5").code.strip(), ended
    folder = tmp_path / "my/dump/path"
    assert read(folder, "forward") and not list(tmp_path.glob("*_info_*.json"))
    assert list((folder / "forward_real_data").rglob("*.pt"))
    assert list((folder / "backward_real_data").rglob("*.pt"))


def test_run_ut_in_its_folder_judges_every_call(tools: Path) -> None:
    ended = run_tool(tools, block("001-7").code)
    assert ended.code == 0, ended
    folder = tools / "debug/accuracy_tools/api_accuracy_checker/run_ut"
    for kind in ("result", "details"):
        (file,) = folder.glob(f"accuracy_checking_{kind}*.csv")
        with file.open(encoding="utf-8-sig", newline="") as text:
            rows = list(csv.DictReader(text))
        assert rows
        if kind == "result":
            verdicts = {row["API name"]: row["Forward Test Success"] for row in rows}
            backward = {row["Backward Test Success"].strip() for row in rows}
    assert set(verdicts.values()) == {"pass"} and "pass" in backward, verdicts
    assert any("linear" in name for name in verdicts)


# A fault of the device, which is the CPU here: its float32 is off by one in a hundred.
FAULT = """
import torch
right = torch.nn.functional.linear
def linear(input, weight, bias=None):
    result = right(input, weight, bias)
    return result * 1.01 if result.dtype is torch.float32 else result
torch.nn.functional.linear = linear
"""


def test_run_ut_keeps_what_fails_in_a_folder_of_its_own(tools: Path, tmp_path: Path) -> None:
    folder = tools / "debug/accuracy_tools/api_accuracy_checker/run_ut"
    (tmp_path / "faulty").mkdir()
    # Python runs this file before anything else, in every process.
    (tmp_path / "faulty/sitecustomize.py").write_text(FAULT)
    text = f"export PYTHONPATH={tmp_path / 'faulty'}\ncd {folder}\n{block('001-8').code}"
    ended = run_tool(tools, text)
    assert ended.code == 1, ended
    kept = sorted((folder / "ut_error_data").iterdir())
    assert [call.name for call in kept] == ["Functional.linear.0", "Functional.linear.1"]
    for call in kept:
        files = {file.name for file in call.iterdir()}
        assert files == {"repro.py", "tensors.pt"}
        tensors = set(torch.load(call / "tensors.pt", weights_only=True))
        assert any("input" in name for name in tensors), tensors
        assert {"device.forward.output.0", "reference.forward.output.0"} <= tensors, tensors
    (file,) = folder.glob("accuracy_checking_result*.csv")
    with file.open(encoding="utf-8-sig", newline="") as rows:
        failed = {
            row["API name"]
            for row in csv.DictReader(rows)
            if row["Forward Test Success"] not in ("pass", "SKIP")
        }
    assert failed == {"Functional.linear.0", "Functional.linear.1"}


def test_overflows_are_told_normal_from_abnormal(tools: Path) -> None:
    folder = tools / "debug/accuracy_tools/api_accuracy_checker/run_ut"
    numbers = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [3],
        "requires_grad": False,
    }
    call = {"args": [numbers | {"Max": 1000.0, "Min": 1000.0}], "kwargs": {}}
    (folder / "backward_info_0.json").write_text("{}")
    (folder / "forward_info_0.json").write_text(json.dumps({"Torch*exp*0": call}))
    ended = run_tool(tools, block("001-11").code)
    assert ended.code == 0, ended
    assert "The Torch.exp.0 overflow is a normal overflow." in ended.out, ended
    # The same call of other numbers, which no processor that is right makes infinite.
    data = folder / "forward_real_data/rank0/Torch*exp*0.0.pt"
    data.parent.mkdir(parents=True)
    torch.save(torch.ones(3), data)
    real = {"type": "torch.Tensor", "datapath": str(data), "requires_grad": False}
    both = {"Torch*exp*0": {"args": [real], "kwargs": {}}}
    (folder / "forward_info_0.json").write_text(json.dumps(both))
    ended = run_tool(tools, block("001-11").code)
    assert ended.code == 1, ended
    assert "The Torch.exp.0 overflow is an abnormal overflow." in ended.out, ended


def test_overflows_of_the_way_back_are_not_judged(tools: Path) -> None:
    folder = tools / "debug/accuracy_tools/api_accuracy_checker/run_ut"
    (folder / "forward_info_0.json").write_text("{}")
    ended = run_tool(tools, block("001-11").code)
    assert ended.code == 0, ended
    told = [line for line in ended.out.splitlines() if line.startswith("The ")]
    assert told and all(".backward overflow is not judged: " in line for line in told), ended


@pytest.mark.parametrize("key", ["001-1", "001-9"])
def test_the_path_of_the_repository_is_enough_to_import_it(key: str, tools: Path) -> None:
    """Where nothing of ours was installed under the older names."""
    use = 'python -c "import api_accuracy_checker as tool; print(tool.__file__)"'
    ended = run_tool(tools, f"unset PYTHONPATH\n{block(key).code}\n{use}")
    assert ended.code == 0 and ended.out.startswith(str(tools)), ended


def write_wheel(folder: Path, package: str) -> None:
    """Write a package without anything in it, newer than any that may be installed."""
    about = f"{package}-9999.dist-info"
    files = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 9999\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{package}-9999-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(
            f"{about}/RECORD", "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
        )


def test_the_packages_of_the_seed_install_and_are_not_needed(tmp_path: Path) -> None:
    """pip takes them from a folder here; what they are asked for is in tensorprobe itself."""
    code = block("001-2").code
    assert block("001-10").code == code
    command, action, *packages = code.split()
    assert (command, action, packages) == ("pip3", "install", ["tqdm", "prettytable", "pyyaml"])
    (tmp_path / "wheels").mkdir()
    for package in packages:
        write_wheel(tmp_path / "wheels", package)
    environment = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_TARGET": str(tmp_path / "packages"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    ended = run_shell(code, tmp_path, environment=environment)
    assert ended.code == 0, ended
    assert len(list((tmp_path / "packages").glob("*-9999.dist-info"))) == 3
