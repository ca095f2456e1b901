"""What `import tensorprobe` offers is pinned: a change here is a change for every user."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tensorprobe


def test_the_public_names() -> None:
    assert tensorprobe.__all__ == [
        "Config",
        "Dump",
        "DumpWriter",
        "OnlineCheck",
        "PrecisionDebugger",
        "RankDump",
        "TensorprobeError",
        "__version__",
        "blame",
        "compare",
        "load_config",
        "merge_results",
        "module_dump",
        "module_dump_end",
        "open_dump",
        "overflow",
        "precheck",
        "register_function",
        "save",
        "seed_all",
    ]
    for name in tensorprobe.__all__:
        assert getattr(tensorprobe, name) is not None
    assert dir(tensorprobe) == tensorprobe.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = tensorprobe.nonsense


def test_the_import_needs_torch_and_numpy_alone() -> None:
    """Everything that a training machine may lack is made to fail."""
    program = (
        "import sys\n"
        "for name in ('jiter', 'yaml', 'rich', 'rich_argparse', 'polars'):\n"
        "    sys.modules[name] = None\n"
        "import tensorprobe\n"
        "for name in tensorprobe.__all__:\n"
        "    getattr(tensorprobe, name)\n"
        "import tempfile\n"
        "from tensorprobe.records import CallRecord, DumpInfo\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    with tensorprobe.DumpWriter(folder, DumpInfo()) as writer:\n"
        "        writer.write(CallRecord('Torch.a.0.forward', inputs=(None,)))\n"
        "    print([call.name for call in tensorprobe.open_dump(folder)])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "['Torch.a.0.forward']\n"
