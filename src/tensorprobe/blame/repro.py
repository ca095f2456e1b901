"""Write a proof: one script with its inputs that shows a culprit's fault with torch alone.

DIR/repro.py         runs the call on a device and in float64, and shows every error
DIR/test_repro.py    the same as a pytest
DIR/tensors.pt       the recorded inputs and results, as torch.save writes them
"""

from __future__ import annotations

import io
import itertools
import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from tensorprobe.blame.call_split import flat_tensors, results_of
from tensorprobe.blame.ranks import RankSuspect
from tensorprobe.blame.sides import Side
from tensorprobe.errors import NameFormatError, RebuildError, ReportError
from tensorprobe.names import ApiCall, forward_of, parse_call
from tensorprobe.records import TensorValue
from tensorprobe.replay.rebuild import rebuild_call
from tensorprobe.replay.script_text import ArgumentSource, name_in_docstring
from tensorprobe.report.table import new_report

__all__ = ["write_repro"]

# Of a result that could not be replayed.
_UNKNOWN = 1e-3
_OF_TORCH = frozenset(("Aten", "Functional", "Tensor", "Torch", "VF"))


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
    tensors: dict[str, torch.Tensor] = {}
    source = _Source(mine, tensors)
    function, arguments = source.call()
    gradients = source.gradients()
    places = [f"output.{i}" for i, v in enumerate(results_of(mine.call)) if v is not None]
    mine.keep(tensors, "recorded", [v for v in results_of(mine.call) if v is not None])
    other.keep(tensors, "reference", [v for v in results_of(other.call) if v is not None])
    script = _SCRIPT.format(
        name=name_in_docstring(name),
        direction=call.direction,
        summary=f"{suspect.times:.3g} times what rounding explains"
        if math.isfinite(suspect.times)
        else "exact",
        function=function,
        arguments=arguments,
        gradients=gradients,
        tolerance=repr(_tolerances(entry, places)),
        count=len(places),
        at_fault=places.index(suspect.value_path) if suspect.value_path in places else -1,
    )
    root = Path(folder)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise ReportError(f"{str(root)!r} cannot be made: {err.strerror or err}") from err
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    for file_name, content in (
        ("tensors.pt", buffer.getvalue()),
        ("repro.py", script.encode()),
        ("test_repro.py", _TEST.encode()),
    ):
        with (
            new_report(root / file_name) as descriptor,
            os.fdopen(os.dup(descriptor), "wb") as file,
        ):
            file.write(content)
    return root / "repro.py"


class _Recorded:
    """One side's record of the call, and of its forward call."""

    def __init__(self, side: Side, name: str, forward: str) -> None:
        self.side = side
        if name not in side.calls or forward not in side.calls:
            raise RebuildError(f"no proof of {name}: its record is not complete")
        self.call, self.forward = side.calls[name], side.calls[forward]
        self.is_backward = name != forward

    def keep(
        self, tensors: dict[str, torch.Tensor], prefix: str, values: Sequence[TensorValue]
    ) -> None:
        for index, value in enumerate(values):
            tensors[f"{prefix}.{index}"] = self.side.load(value).clone()


class _Source:
    """Turns the recorded call into Python source; its tensors go into a dictionary."""

    def __init__(self, recorded: _Recorded, tensors: dict[str, torch.Tensor]) -> None:
        self._recorded, self._tensors = recorded, tensors
        # By the identity of the tensor, which `_tensors` keeps alive.
        self._names: dict[int, tuple[str, bool]] = {}
        self._source = ArgumentSource(self._given, lambda dtype: f"wide({dtype})")

    def call(self) -> tuple[str, str]:
        """Return the function's path and its arguments."""
        count = itertools.count()

        def load(value: TensorValue) -> torch.Tensor:
            return self._keep(f"input.{next(count)}", value)

        rebuilt = rebuild_call(self._recorded.forward, load, is_made=False)
        return rebuilt.path, self._source.call(rebuilt.args, rebuilt.kwargs)

    def gradients(self) -> str:
        """Return the list of the gradients that were sent back."""
        values = flat_tensors(self._recorded.call.inputs) if self._recorded.is_backward else ()
        found = [
            None if value is None else self._keep(f"gradient.{index}", value)
            for index, value in enumerate(values)
        ]
        return self._source.write(found)

    def _keep(self, name: str, value: TensorValue) -> torch.Tensor:
        tensor = self._tensors[name] = self._recorded.side.load(value).clone()
        self._names[id(tensor)] = name, value.requires_grad is not False
        return tensor

    def _given(self, tensor: torch.Tensor) -> str:
        return "given({!r}, {})".format(*self._names[id(tensor)])


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


_SCRIPT = '''"""Shows the fault of {name} ({summary}) with torch alone.

    python repro.py [DEVICE]      cpu, cuda, npu, ...

Runs the call on the device in the recorded types, and on the CPU in float64, with the inputs that
the run under test recorded. Exit code 1 if the device's result is off by more than rounding.
"""

import sys
from pathlib import Path

import torch

TENSORS = torch.load(Path(__file__).with_name("tensors.pt"), weights_only=True)
TOLERANCES = {tolerance}
COUNT = {count}
# The result that is at fault; others count where they are further off than the reference's.
AT_FAULT = {at_fault}


def run(device, exact):
    """Make the call; exact means in float64 on the CPU."""
    leaves = []

    def wide(dtype):
        return torch.float64 if exact and dtype.is_floating_point else dtype

    def given(name, needs_gradient):
        tensor = TENSORS[name].to(device)
        if tensor.is_floating_point():
            tensor = tensor.to(wide(tensor.dtype))
            if "{direction}" == "backward" and not name.startswith("gradient"):
                tensor = tensor.detach().requires_grad_(needs_gradient)
                leaves.append(tensor)
                return tensor.clone()
        elif not name.startswith("gradient"):
            leaves.append(tensor)
        return tensor

    def call(*args, **kwargs):
        return {function}(*args, **kwargs)

    with torch.set_grad_enabled("{direction}" == "backward"):
        outputs = flat(call({arguments}))
    if "{direction}" == "forward":
        return [item for item in outputs if isinstance(item, torch.Tensor)]
    gradients = {gradients}
    pairs = [
        (out, gradient)
        for out, gradient in zip(outputs, gradients)
        if isinstance(out, torch.Tensor) and out.grad_fn is not None and gradient is not None
    ]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    starts, arriving = [out for out, _ in pairs], [gradient for _, gradient in pairs]
    found = torch.autograd.grad(starts, wanted, arriving, allow_unused=True, retain_graph=True)
    node = pairs[0][0].grad_fn
    try:
        of_node = node(*[gradient for _, gradient in pairs])
    except (RuntimeError, TypeError):
        of_node = ()
    of_node = of_node if isinstance(of_node, tuple) else (of_node,)
    return [item for item in (*of_node, *found) if item is not None]


def flat(value):
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat(part)]
    return [value]


def error(got, wanted):
    """Return the norm of the difference over the norm; infinite where NaN or inf stand apart."""
    a, b = got.detach().cpu().to(torch.float64), wanted.detach().cpu().to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, torch.zeros_like(a), a - b).norm()
    if difference.isnan():
        return float("inf")
    size = b[b.isfinite()].norm()
    return float(difference / size) if size else float(difference)


def match(results, like):
    """Return the result that a recorded one is: of its shape, and the nearest of those."""
    shaped = []
    for item in results:
        if item.shape == like.shape:
            shaped.append(item)
        elif item.numel() == like.numel():
            shaped.append(item.T if item.T.shape == like.shape else item.reshape(like.shape))
        elif item.numel() > like.numel() and item.dim() >= like.dim():
            try:
                shaped.append(item.sum_to_size(like.shape))
            except RuntimeError:
                pass
    return min(shaped, key=lambda item: error(like, item)) if shaped else None


def measure(device):
    """Yield for each result: number, errors of the run, the reference, the device, tolerance."""
    exact, here = run("cpu", True), run(device, False)
    for index in range(COUNT):
        wanted = match(exact, TENSORS[f"reference.{{index}}"])
        got = match(here, TENSORS[f"reference.{{index}}"])
        if wanted is None or got is None:
            continue
        recorded = TENSORS[f"recorded.{{index}}"]
        run_error = error(recorded, wanted) if recorded.shape == wanted.shape else float("inf")
        trusted = error(TENSORS[f"reference.{{index}}"], wanted)
        limit = TOLERANCES[index]
        if index != AT_FAULT:
            limit = max(limit, 10 * trusted)
        yield index, run_error, trusted, error(got, wanted), limit


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    print("{name}: errors against float64, relative to the size of the result")
    print(f"{{'result':<10}}{{'recorded':>14}}{{'reference':>14}}{{device:>14}}{{'tolerance':>14}}")
    bad = 0
    for index, *errors in measure(device):
        bad += errors[2] > errors[3]
        print(f"{{index:<10}}" + "".join(f"{{item:>14.3e}}" for item in errors))
    print("the device shows the fault" if bad else "this device computes it right; the run did not")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
'''

_TEST = '''"""The proof as a test: passes on a device that computes the call right.

    TENSORPROBE_DEVICE=npu pytest test_repro.py
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import repro  # noqa: E402


def test_the_recorded_run_shows_the_fault():
    assert any(recorded > limit for _, recorded, _, _, limit in repro.measure("cpu"))


def test_the_device_computes_what_float64_gives():
    device = os.environ.get("TENSORPROBE_DEVICE", "cpu")
    for index, _, _, here, limit in repro.measure(device):
        assert here <= limit, f"result {index} is off by {here:.3e}, wanted at most {limit:.3e}"
'''
