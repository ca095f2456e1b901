"""Keep a failing call: its inputs, its outputs on both sides, and a script that repeats it alone.

    DIR/{call}/repro.py   tensors.pt: input.0 …   gradient.0   device.forward.output.0   reference.…

The script needs torch and nothing else, makes the call as the check did and judges it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tensorprobe.precheck.checked_call import CheckedCall
from tensorprobe.replay.both_sides import Repetition
from tensorprobe.replay.script import PARTS_OF_A_CHECK, KeptTensors, Script, source_of_value
from tensorprobe.replay.script_text import name_in_docstring

__all__ = ["save_error"]

_SAYS = """\
Repeat {name} alone: on a device as it was recorded, and more precisely on the CPU.

    python repro.py [DEVICE]

The call itself stands at the end. Exit code 1: a result is still off, as it was in the check; 0:
none is; 2: it cannot be made here.
"""
_LOST = "In the check this call ended its process, or had to be ended; so may this script.\n"


def save_error(
    folder: Path,
    name: str,
    checked: CheckedCall,
    *,
    device: torch.device,
    imports: Sequence[str] = (),
) -> Path:
    """Write everything about a failing call into a folder of its own and return that.

    Raises:
        OSError: it cannot be written.
        RebuildError: an argument cannot be written down.
    """
    # Which direction failed is in the results; only at L2 are both calls of their own.
    own = folder / name.removesuffix(".forward").replace("/", "_")
    own.mkdir(parents=True, exist_ok=True)
    repetition = checked.repetition
    if repetition is None:
        return own
    tensors = KeptTensors()
    arguments = tensors.arguments_of(repetition.call)
    if repetition.epsilon is not None:
        arguments += f", eps=given.if_wider({source_of_value(repetition.epsilon)})"
    for index, gradient in enumerate(repetition.gradients):
        if gradient is not None:
            tensors.keep(f"gradient.{index}", gradient)
    for output in checked.outputs:
        for side, tensor in (("device", output.candidate), ("reference", output.reference)):
            if tensor is not None:
                tensors.keep(f"{side}.{output.place}", tensor)
    script = Script(
        says=_SAYS.format(name=name_in_docstring(name)) + (_LOST if checked.was_lost else ""),
        parts=PARTS_OF_A_CHECK,
        function=repetition.call.path,
        arguments=arguments,
        settings={
            key: source_of_value(value)
            for key, value in _settings_of(checked, repetition).items()
            if value not in (None, (), {}, False, 0)
        },
        more=f"FAILURE = Failure(\n{_failure_of(checked)})\n\n\n"
        "def main(device):\n    return check(CALL, FAILURE, device)\n",
        main="main",
        device=str(device),
        imports=imports,
    )
    script.write(own, tensors.named)
    return own


def _settings_of(checked: CheckedCall, repetition: Repetition) -> dict[str, object]:
    places = [output.place for output in checked.outputs]
    written = [int(p.rpartition(".")[2]) for p in places if p.startswith("forward.input.")]
    is_dropout = checked.draw is not None and checked.draw.dropout is not None
    goes_back = any(place.startswith("backward") for place in places) or checked.was_lost
    return {
        "wider": dict(repetition.wider),
        "default": repetition.default,
        "half": repetition.half,
        "wants_gradients": goes_back,
        "gradients": len(repetition.gradients),
        "sends_ones": checked.was_lost or is_dropout,
        "copies": repetition.copies,
        "written": tuple(written),
        "sorts_along": repetition.sorts_along,
    }


def _failure_of(checked: CheckedCall) -> str:
    """Return the fields of `Failure` as source."""
    draw = checked.draw
    fields = {
        "limits": {
            output.place: output.judgement.limit
            for output in checked.outputs
            if output.judgement.verdict == "error"
        },
        "seed": None if draw is None else draw.seed,
        "dropout": None if draw is None else draw.dropout,
        "groups": None if draw is None else draw.groups,
        "chooses": checked.chooses,
        "is_lost": checked.was_lost,
    }
    return "".join(f"    {key}={source_of_value(value)},\n" for key, value in fields.items())
