"""The training scripts that the seeds' blocks stand in, as a user of each tool has them."""

from __future__ import annotations

import shutil
from pathlib import Path

from conftest import REPOSITORY

__all__ = ["BEGIN", "END", "TOOLS", "copy_compat"]

# How each tool watches what stands between: a script that is captured once, step 0 alone.
BEGIN = {
    "msprobe": (
        "from msprobe.pytorch import PrecisionDebugger\n"
        "debugger = PrecisionDebugger(dump_path='./dump', level='L1', task='tensor')\n"
        "debugger.start()\n"
    ),
    "ptdbg_ascend": (
        "from ptdbg_ascend import *\n"
        "import torch\n"
        "set_dump_path('./dump', dump_tag='all')\n"
        "register_hook(torch.nn.Linear(2, 2), acc_cmp_dump, rank=0)\n"
        "set_dump_switch('ON')\n"
    ),
    "api_accuracy_checker": (
        "import api_accuracy_checker.dump as DP\n"
        "DP.msCheckerConfig.update_config(enable_dataloader=False)\n"
        "DP.dump.set_dump_switch('ON')\n"
    ),
}
END = {
    "msprobe": "debugger.stop()\ndebugger.step()\n",
    "ptdbg_ascend": "set_dump_switch('OFF')\n",
    "api_accuracy_checker": "DP.dump.set_dump_switch('OFF')\n",
}
TOOLS = tuple(BEGIN)


def copy_compat(target: Path, *names: str) -> Path:
    """Lay packages of the older names where a seed has them; a test may edit their files there."""
    for name in names:
        source = REPOSITORY / "compat" / "src" / name
        assert source.is_dir(), f"there is no {name} in compat/src"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target / name, ignore=ignored)
    return target
