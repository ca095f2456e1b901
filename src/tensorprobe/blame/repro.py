"""Write a proof: one script with its inputs that shows a culprit's fault with torch alone.

DIR/repro.py         runs the call on a device and in float64, and shows every error
DIR/test_repro.py    the same as a pytest
DIR/tensors.pt       the recorded inputs and results, as torch.save writes them
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tensorprobe.blame.ranks import RankSuspect
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.errors import NameFormatError, RebuildError, ReportError
from tensorprobe.names import ApiCall, forward_of, parse_call
from tensorprobe.records import TensorValue, flat_tensors, results_of
from tensorprobe.replay.rebuild import rebuild_call
from tensorprobe.replay.script import PARTS_OF_A_PROOF, KeptTensors, Script, source_of_value
from tensorprobe.replay.script_text import name_in_docstring
from tensorprobe.store.tensor_bytes import write_whole_file

__all__ = ["write_repro"]

# Of a result that could not be replayed.
_UNKNOWN = 1e-3
_OF_TORCH = frozenset(("Aten", "Functional", "Tensor", "Torch", "VF"))
_HALVES = {"torch.float16": torch.float16, "torch.bfloat16": torch.bfloat16}
_SAYS = """\
Shows the fault of {name} ({summary}) with torch alone.

    python repro.py [DEVICE]      cpu, cuda, npu, ...

Runs the call on the device in the recorded types, and on the CPU in float64, with the inputs that
the run under test recorded. The call itself stands at the end. Exit code 1 if the device's result
is off by more than rounding, 2 if it gives none.
"""
_PROOF = """\
PROOF = Proof(
    name={name!r},
    call=CALL,
    is_backward={is_backward},
    tolerances={tolerances},
    at_fault={at_fault},
)


def main(device):
    return prove(PROOF, device)
"""


def write_repro(entry: RankSuspect, folder: str | os.PathLike[str]) -> Path:
    """Write the script, its test form and its tensors.

    Returns:
        The script.

    Raises:
        RebuildError: the call cannot be written down as one: a module, a collective, or a dump
            without data.
        ReportError: the folder cannot be written.
    """
    suspect, context = entry.suspect, entry.analysis.context
    name = suspect.call
    try:
        call, forward_name = parse_call(name), forward_of(name)
    except NameFormatError as err:
        raise RebuildError(f"no proof of {name}: {err}") from err
    if not isinstance(call, ApiCall) or call.api_type not in _OF_TORCH:
        raise RebuildError(
            f"no proof of {name}: only a call of a torch function can be written down as a script; "
            "capture at level L1 or mix to narrow it down"
        )
    mine = _Recorded(context.candidate, name, forward_name)
    other_name = next(
        (p.reference.name for p in context.pairs if p.name == name and p.reference), name
    )
    other = _Recorded(context.reference, other_name, forward_of(other_name))
    tensors = KeptTensors()
    rebuilt = rebuild_call(mine.forward, mine.kept_input(tensors), is_made=False)
    arguments = tensors.arguments_of(rebuilt)
    sent = list(flat_tensors(mine.call.inputs)) if mine.is_backward else []
    mine.keep(tensors, "gradient", sent)
    results = [value for value in results_of(mine.call) if value is not None]
    mine.keep(tensors, "recorded", results)
    other.keep(tensors, "reference", [v for v in results_of(other.call) if v is not None])
    places = [f"output.{i}" for i, v in enumerate(results_of(mine.call)) if v is not None]
    first = next(flat_tensors(mine.forward.outputs), None)
    says = _SAYS.format(
        name=name_in_docstring(name),
        summary=f"{suspect.times:.3g} times what rounding explains"
        if math.isfinite(suspect.times)
        else "exact",
    )
    script = Script(
        says=says,
        parts=PARTS_OF_A_PROOF,
        function=rebuilt.path,
        arguments=arguments,
        settings={
            "wider": source_of_value(_WIDER),
            "half": source_of_value(None if first is None else _HALVES.get(first.dtype)),
            "wants_gradients": repr(mine.is_backward),
            "gradients": repr(len(sent)),
            "copies": "True",
        },
        more=_PROOF.format(
            name=name_in_docstring(name),
            is_backward=mine.is_backward,
            tolerances=_tolerances(entry, places),
            at_fault=places.index(suspect.value_path) if suspect.value_path in places else -1,
        ),
        main="main",
        device="cpu",
    )
    root = Path(folder)
    try:
        path = script.write(root, tensors.named)
        write_whole_file(root / "test_repro.py", [_TEST.encode()])
    except OSError as err:
        raise ReportError(f"{str(root)!r} cannot be made: {err.strerror or err}") from err
    return path


# Every float becomes the one in which errors are measured.
_WIDER = {
    dtype: torch.float64
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype is not torch.float64
}


class _Recorded:
    """One side's record of the call, and of its forward call."""

    def __init__(self, side: RecordedRun, name: str, forward: str) -> None:
        self._side = side
        if name not in side.calls or forward not in side.calls:
            raise RebuildError(f"no proof of {name}: its record is not complete")
        self.call, self.forward = side.calls[name], side.calls[forward]
        self.is_backward = name != forward

    def kept_input(self, tensors: KeptTensors) -> Callable[[TensorValue], torch.Tensor]:
        """Return what loads an input of the call and keeps it."""
        count = itertools.count()

        def load(value: TensorValue) -> torch.Tensor:
            tensor = self._side.load(value).clone()
            wants_gradient = self.is_backward and value.requires_grad is not False
            tensors.keep(f"input.{next(count)}", tensor, wants_gradient=wants_gradient)
            return tensor

        return load

    def keep(self, tensors: KeptTensors, prefix: str, values: Sequence[TensorValue | None]) -> None:
        for index, value in enumerate(values):
            if value is not None:
                tensors.keep(f"{prefix}.{index}", self._side.load(value).clone())


def _tolerances(entry: RankSuspect, places: Sequence[str]) -> list[float]:
    """Return the relative error up to which each result is rounding.

    Of the result at fault that is half way, in orders of magnitude, between the errors of both
    runs; others may be ten times as far off as they were.
    """
    split = entry.analysis.context.splits.get(entry.suspect.call)
    known = {} if split is None else {output.place: output for output in split.outputs}
    found = []
    for place in places:
        output = known.get(place)
        if output is None:
            found.append(_UNKNOWN)
            continue
        mine = min(output.candidate.relative, 1.0)
        other = max(output.reference.relative, 2.0**-53)
        at_fault = output.place == entry.suspect.value_path
        found.append(math.sqrt(mine * other) if at_fault else 10 * max(mine, other))
    return found


_TEST = '''"""The proof as a test: passes on a device that computes the call right.

    TENSORPROBE_DEVICE=npu pytest test_repro.py
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import repro  # noqa: E402


def test_the_recorded_run_shows_the_fault():
    assert any(recorded > limit for _, recorded, _, _, limit in repro.measure(repro.PROOF, "cpu"))


def test_the_device_computes_what_float64_gives():
    device = os.environ.get("TENSORPROBE_DEVICE", "cpu")
    for index, _, _, here, limit in repro.measure(repro.PROOF, device):
        assert here <= limit, f"result {index} is off by {here:.3e}, wanted at most {limit:.3e}"
'''
