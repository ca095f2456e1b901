"""Ways around the layers that somebody who tried hard has found, each closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hostile import call, run, tensor, value, write_data, write_dump

from conftest import REPOSITORY
from tensorprobe import open_dump
from tensorprobe.blame.repro import write_repro
from tensorprobe.blame.run import investigate
from tensorprobe.precheck.checker import Checker
from tensorprobe.replay.pool import Order, run_orders
from tensorprobe.replay.rebuild import rebuild_call
from tensorprobe.replay.script_text import ArgumentSource

GIVEN = torch.linspace(0.1, 1, 8)
INDICES = torch.tensor([[[[-(2**40), 2**40]]]])

# What each call is refused for, before torch sees its arguments.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Tensor.new": (call(tensor(4), cdata=value(0x4141414141)), "does not count it"),
    "Tensor._cdata": (call(tensor(4)), "addresses of memory"),
    "Aten._reshape_alias": (
        call(tensor(4), size=value([4000000]), stride=value([1])),
        "looks beyond them",
    ),
    "Custom.aten._reshape_alias.default": (
        call(tensor(4), value([4000000]), value([1])),
        "looks beyond them",
    ),
    "Tensor.as_strided": (call(tensor(4), value([2]), value([1]), value(-3)), "looks beyond them"),
    "Aten._convert_indices_from_csr_to_coo": (call(tensor(4), tensor(4)), "without a check"),
    "Aten._sobol_engine_initialize_state_": (call(tensor(4), value(10**6)), "without a check"),
    "Aten._test_check_tensor": (call(tensor(4)), "scaffolding"),
    "Tensor.unbind": (call(tensor(2**22)), "pieces"),
    "Tensor.tolist": (call(tensor(2**22)), "pieces"),
    "Tensor.split": (call(tensor(2**24), value(2)), "pieces"),
    "Tensor.chunk": (call(tensor(2**24), value(2**24)), "pieces"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_is_refused_before_torch_sees_it(name: str, tmp_path: Path) -> None:
    record, reason = REFUSED[name]
    part = open_dump(write_dump(tmp_path, {f"{name}.0.forward": record})).part()
    result = Checker(part, torch.device("cpu"), "random").check(f"{name}.0.forward")
    assert result.forward == "SKIP"
    assert reason in result.message


def test_indices_beyond_what_they_point_into_are_refused(tmp_path: Path) -> None:
    image = write_data(tmp_path, "image.pt", torch.ones(1, 1, 4, 4))
    small = write_data(tmp_path, "small.pt", torch.ones(1, 1, 1, 2))
    places = write_data(tmp_path, "places.pt", INDICES)
    sizes = [value([2, 2]), value([2, 2]), value([0, 0]), value([1, 1]), value(False)]
    scores = write_data(tmp_path, "scores.pt", torch.zeros(4, 1, 5))
    labels = write_data(tmp_path, "labels.pt", torch.tensor([[2**30, 1]]))
    calls = {
        "Aten.max_pool2d_with_indices_backward.0.forward": call(small, image, *sizes, places),
        "Functional.ctc_loss.0.forward": call(scores, labels, value([4]), value([2])),
    }
    part = open_dump(write_dump(tmp_path, calls, task="tensor")).part()
    for name in calls:
        result = Checker(part, torch.device("cpu"), "real").check(name)
        assert (result.forward, "its indices are not within" in result.message) == ("SKIP", True)


@pytest.mark.parametrize("key", ["check_invariants", "unsafe"])
def test_checks_of_torch_stay_on(key: str, tmp_path: Path) -> None:
    record = call(tensor(4), value("max"), lengths=tensor(1, dtype="torch.int64"))
    record["input_kwargs"][key] = value(key == "unsafe")
    part = open_dump(write_dump(tmp_path, {"Torch.segment_reduce.0.forward": record})).part()
    rebuilt = rebuild_call(
        part.call("Torch.segment_reduce.0.forward"), lambda v: torch.ones(v.shape), is_made=False
    )
    assert rebuilt.kwargs[key] is (key != "unsafe")


def test_a_proof_is_written_without_making_the_call(tmp_path: Path) -> None:
    """The command itself has no limits: of a call that never ends it writes down the arguments."""
    endless = {"Torch.special.laguerre_polynomial_l.0.forward": [value(2**52)]}
    dumps = []
    for side, error in (("candidate", 1e-2), ("reference", 0.0)):
        given = write_data(tmp_path / side, "given.pt", GIVEN)
        off = write_data(tmp_path / side, "off.pt", GIVEN * (1 + error))
        calls = {name: call(given, *more, outputs=[off]) for name, more in endless.items()}
        dumps.append(write_dump(tmp_path / side, calls, task="tensor"))
    found = investigate(*dumps, timeout=2)
    assert found.conclusion.culprit in endless
    script = write_repro(found.ordered[0], tmp_path / "proof")
    assert str(2**52) in script.read_text()


LOOK = """
import torch
from tensorprobe.errors import RebuildError
from tensorprobe.replay.bounds import require_bounded_result

calls = {
    "zeros": ([2**31],), "full": ([2**31], 1.0), "randn": ([2**31],), "ones": ([2**31],),
    "arange": (2**31,), "eye": (2**16,), "empty": ([2**31],),
}
for name, arguments in calls.items():
    try:
        require_bounded_result(name, getattr(torch.ops.aten, name), arguments, {})
        print(name, "has room")
    except RebuildError:
        pass
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak")
def test_to_look_at_a_result_ahead_allocates_nothing() -> None:
    limits = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))\n"
    answer = subprocess.run(
        [sys.executable, "-c", limits + LOOK], capture_output=True, text=True, check=True
    )
    (peak,) = answer.stdout.split()
    assert int(peak) < 1_500_000


def test_long_names_do_not_fill_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    """The limit of time holds, whatever waits behind the call that never ends."""
    long = "Torch." + "\U0001f600" * 2000
    calls = {"Torch.special.legendre_polynomial_p.0.forward": call(tensor(4), value(10**15))}
    calls |= {f"{long}.{number}.forward": call(tensor(4)) for number in range(8)}
    dump = write_dump(tmp_path / "dump", calls)
    answer = run(tmp_path, "precheck", dump, "-o", "out", "--timeout", "4")
    assert "no answer within 4 s" in answer.stdout
    assert answer.returncode in (1, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends children with their parent")
def test_no_worker_outlives_its_command(tmp_path: Path) -> None:
    calls = {"Torch.special.legendre_polynomial_p.0.forward": call(tensor(4), value(10**15))}
    dump = write_dump(tmp_path / "dump", calls)
    with subprocess.Popen(
        [sys.executable, "-m", "tensorprobe", "precheck", str(dump), "-o", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        until = time.monotonic() + 60
        while not (workers := psutil.Process(process.pid).children()):
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(workers, timeout=20)
    assert gone and not alive


NONSENSE = {
    "no JSON": b"nonsense\n",
    "no object": b"[1]\n",
    "nothing was asked": b'{"x": 1}\n' * 50,
    "depth": b"[" * 200_000 + b"\n",
    "digits": b'{"x": ' + b"9" * 5000 + b"}\n",
    "bytes": b"\xff\xfe\n",
}
FAKE = """
import os, sys
answers = os.fdopen(int(sys.argv[2]), "wb", buffering=0)
orders = os.fdopen(int(sys.argv[1]), "rb", buffering=0)
orders.read(1 << 16)
answers.write(b'{{"ready": true, "device": "cpu"}}\\n')
orders.read(1 << 16)
answers.write({nonsense!r})
orders.read()
"""


@pytest.mark.parametrize("kind", NONSENSE)
def test_what_a_worker_says_is_not_believed_unseen(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker_of_a_stranger.py").write_text(FAKE.format(nonsense=NONSENSE[kind]))
    paths = [str(tmp_path), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    answers = list(
        run_orders(
            [Order("part", "Torch.exp.0.forward")],
            {},
            devices=["cpu"],
            timeout=10,
            module="worker_of_a_stranger",
            read=lambda told: told["wanted"],
        )
    )
    ((order, answer),) = answers
    assert order.name == "Torch.exp.0.forward"
    assert (answer.found, "answered what no worker answers" in answer.loss) == (None, True)


@pytest.mark.parametrize("kind", [np.longdouble, np.clongdouble, np.float16, np.int8])
def test_every_number_of_numpy_can_be_written_down(kind: Any) -> None:
    text = ArgumentSource(lambda tensor: "").write(kind(3))
    assert eval(text) == 3


def test_a_keyword_that_python_keeps_for_itself_is_quoted() -> None:
    text = ArgumentSource(lambda tensor: "").call((), {"__debug__": 1, "ｄｉｍ": 2, "dim": 3})
    assert compile(f"f({text})", "script", "eval")
    assert text == "**{'__debug__': 1}, **{'ｄｉｍ': 2}, dim=3"


def test_halves_of_signs_end_no_command(tmp_path: Path) -> None:
    calls = {
        "Torch.exp.0.forward": call(tensor(4)),
        "Torch.add.0.forward": call(tensor(4), {"type": "str", "value": "\ud800"}),
        "Torch.add.1.forward": call(
            tensor(4), {"type": "\udfff", "value": "x"}, **{"\ud800": value(1)}
        ),
        "Torch.add.2.forward": call(tensor(4, dtype="\ud800")),
        "\ud800.add.2.forward": call(tensor(4)),
    }
    dump = write_dump(tmp_path / "dump", calls)
    for words in (
        ("show", dump),
        ("precheck", dump, "-o", "out"),
        ("overflow", dump, "-o", "out"),
        ("compare", dump, dump, "-o", "out"),
        ("blame", dump, dump),
    ):
        answer = run(tmp_path, *words)
        assert answer.returncode in (0, 1, 2), (words, answer.stderr)
        assert "Traceback" not in answer.stderr + answer.stdout
    results = "".join(path.read_text() for path in (tmp_path / "out").glob("*result*.csv"))
    assert "Torch.exp.0,pass" in results


@pytest.mark.parametrize(
    ("text", "told"),
    [("__all__ = None\n", ""), ("import sys\nsys.exit(3)\n", "sys_exits_here cannot be imported")],
)
def test_a_module_that_does_odd_things_is_named(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "sys_exits_here.py").write_text(text)
    dump = write_dump(tmp_path / "dump", {"Torch.exp.0.forward": call(tensor(4))})
    answer = run(tmp_path, "precheck", dump, "-o", "out", "--import", "sys_exits_here")
    assert answer.returncode == (2 if told else 0)
    assert told in answer.stderr
    assert answer.stderr.count("\n") <= 1
