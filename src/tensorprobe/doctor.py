"""Find out what tensorprobe has to work with on this machine.

torch is imported in a child process: where the import itself crashes, that is the finding.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import shutil
import signal
import subprocess
import sys

from tensorprobe._version import __version__
from tensorprobe.metrics.kernel import compiled
from tensorprobe.older_tools import owner_of_msprobe
from tensorprobe.report.rows import Finding
from tensorprobe.system.crc32 import MODULE as CRC32_MODULE
from tensorprobe.system.extensions import load_compiled

__all__ = ["examine"]

_SLOW_IMPORT_SECONDS = 120

_ASK_TORCH = """
import json, torch
devices = ["cpu"]
for kind in ("cuda", "npu", "xpu", "mps"):
    module = getattr(torch, kind, None)
    # Of mps only torch.backends knows in torch 2.1.
    homes = [module, getattr(torch.backends, kind, None)]
    if any(getattr(home, "is_available", bool)() for home in homes):
        count = getattr(module, "device_count", lambda: 1)()
        name = getattr(module, "get_device_name", lambda index: kind)
        devices += [f"{kind}:{index} {name(index)}" for index in range(count)]
print(json.dumps({"version": torch.__version__, "devices": devices}))
"""


def examine() -> list[Finding]:
    """Examine this machine."""
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return [
        Finding("tensorprobe", __version__),
        Finding("python", python),
        *_examine_torch(),
        _examine_kernel(),
        _examine_compiled("compiled checksum", CRC32_MODULE),
        _examine_compiled("compiled reader", "tensorprobe.store._leaf_walk"),
        _examine_compiled("compiled opener", "tensorprobe.store._zip_open"),
        _examine_compiled("compiled row maker", "tensorprobe.compare._plain_rows"),
        _examine_compiled("compiled row writer", "tensorprobe.report._row_text"),
        _examine_package("numpy", "needed for everything"),
        _examine_package("jiter", "dump.json is read with the standard library, four times slower"),
        _examine_package("yaml", "YAML files cannot be read", distribution="pyyaml"),
        _examine_package("rich", "show and doctor need it"),
        _examine_package("triton", "GPU statistics use torch operations"),
        _examine_package("ray", "work stays on this machine; install tensorprobe[ray]"),
        _examine_older_names(),
        _examine_program(("chromium", "chromium-browser", "google-chrome"), "pages are not tested"),
    ]


def _examine_torch() -> list[Finding]:
    try:
        answer = subprocess.run(  # noqa: S603 - our own interpreter and our own text
            [sys.executable, "-c", _ASK_TORCH],
            capture_output=True,
            text=True,
            timeout=_SLOW_IMPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        slow = f"the import took more than {_SLOW_IMPORT_SECONDS} s"
        return [Finding("torch", slow, is_good=False)]
    if answer.returncode < 0:
        name = signal.Signals(-answer.returncode).name
        return [Finding("torch", f"the import died with {name}", is_good=False)]
    if answer.returncode:
        lines = answer.stderr.strip().splitlines()
        return [Finding("torch", lines[-1] if lines else "the import failed", is_good=False)]
    told = json.loads(answer.stdout.strip().splitlines()[-1])
    return [Finding("torch", told["version"]), Finding("devices", ", ".join(told["devices"]))]


def _examine_kernel() -> Finding:
    if compiled():
        return Finding("compiled kernel", "present")
    return Finding("compiled kernel", "absent: numpy is used, slower, same results", is_good=False)


def _examine_compiled(what: str, module: str) -> Finding:
    if load_compiled(module) is not None:
        return Finding(what, "present")
    return Finding(what, "absent: Python does its work, slower, same results", is_good=False)


def _examine_package(module: str, without: str, *, distribution: str | None = None) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(module, f"absent: {without}", is_good=False)
    try:
        return Finding(module, importlib.metadata.version(distribution or module))
    except importlib.metadata.PackageNotFoundError:
        return Finding(module, "present, version unknown")


def _examine_older_names() -> Finding:
    text, is_good = owner_of_msprobe()
    return Finding("msprobe", text, is_good=is_good)


def _examine_program(names: tuple[str, ...], without: str) -> Finding:
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return Finding(names[0], path)
    return Finding(names[0], f"absent: {without}", is_good=False)
