"""Keep a failing call: its inputs, its outputs on both sides, and a script that repeats it alone.

    DIR/{call}/repro.py   input.0.pt …   gradient.0.pt   device.forward.output.0.pt   reference.….pt

The script needs torch and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import torch

from tensorprobe.precheck.checked_call import CheckedCall
from tensorprobe.replay.script_text import ArgumentSource, name_in_docstring
from tensorprobe.store.tensor_bytes import write_whole_file

__all__ = ["save_error"]

_SCRIPT = '''\
"""Repeat {name} alone: on {device} in the recorded dtype, and on the CPU in float64.

    python repro.py [DEVICE]

Exit code 1: a result is still off, as it was in the check; 0: none is; 2: it cannot be made here.
{remark}"""

import sys
from pathlib import Path

import torch

try:
    {imports}
except ImportError as err:
    print(f"{{err}}; its folder must be in PYTHONPATH", file=sys.stderr)
    sys.exit(2)

HERE = Path(__file__).parent
device = torch.device(sys.argv[1] if len(sys.argv) > 1 else {device!r})
# What the distance of each result may be that failed; an element may be off by four times that.
LIMITS = {limits}
# Of a call that draws random numbers: both sides draw others, and their distributions are compared.
SEED = {seed}


def arguments(change):
    def load(name, requires_grad=False):
        tensor = change(torch.load(HERE / name, weights_only=True))
        return tensor.requires_grad_() if requires_grad else tensor

    return {args}, {kwargs}


def find():
    return {function}


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return []
    return [tensor for item in value for tensor in tensors_in(item)]


def run(change, seed=0):
    args, kwargs = arguments(change)
    leaves = [t for t in tensors_in([args, kwargs]) if t.requires_grad]
    if {copies}:
        swap = {{id(leaf): leaf.clone() for leaf in leaves}}

        def copied(value):
            if isinstance(value, (list, tuple)):
                return type(value)(copied(item) for item in value)
            return swap.get(id(value), value) if isinstance(value, torch.Tensor) else value

        args, kwargs = copied(args), {{key: copied(item) for key, item in kwargs.items()}}
    torch.manual_seed(seed)
    result = find()(*args, **kwargs)
    outputs = tensors_in(result) or tensors_in(args[:1])
    roots, sent = [], []
    for index, output in enumerate(outputs):
        path = HERE / f"gradient.{{index}}.pt"
        if not (leaves and output.requires_grad):
            continue
        if path.exists():
            roots.append(output)
            sent.append(torch.load(path, weights_only=True).to(output.device, output.dtype))
        elif {was_lost}:
            # It did not live to get any.
            roots.append(output)
            sent.append(torch.ones_like(output))
    found = torch.autograd.grad(roots, leaves, sent, allow_unused=True) if roots else ()
    named = [(f"output {{i}}", t) for i, t in enumerate(outputs)]
    return named + [(f"gradient {{i}}", t) for i, t in enumerate(found) if t is not None]


def gap_between(ours, theirs):
    values = torch.cat((ours.flatten(), theirs.flatten())).contiguous()
    shares = [
        torch.searchsorted(side.flatten().sort().values, values, right=True) / side.numel()
        for side in (ours, theirs)
    ]
    return (shares[0] - shares[1]).abs().max().item()


def raised(tensor):
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


try:
    if SEED is None:
        candidate, reference = run(lambda tensor: tensor.to(device)), run(raised)
    else:
        candidate = run(lambda tensor: tensor.to(device), SEED)
        reference = run(lambda tensor: tensor, SEED + 1)
except Exception as err:
    print(f"the call cannot be made here: {{type(err).__name__}}: {{err}}", file=sys.stderr)
    sys.exit(2)
is_off = len(candidate) != len(reference)
for (name, ours), (_, theirs) in zip(candidate, reference):
    dtype, ours, theirs = ours.dtype, raised(ours.detach().cpu()), raised(theirs.detach())
    if SEED is not None:
        if ours.is_complex():
            ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
        gap = gap_between(ours, theirs) if ours.numel() and theirs.numel() else 0.0
        limit = LIMITS.get(name, 2.7 * (2 / max(ours.numel(), 1)) ** 0.5)
        wrong = gap > limit or ours.shape != theirs.shape
        text = f"the distributions are {{gap:.3g}} apart; the limit is {{limit:.3g}}"
        text += ": FAILED" if wrong else ""
        is_off = is_off or wrong
    elif ours.dtype.is_floating_point or ours.dtype.is_complex:
        # What the dtype can hold of the reference.
        theirs = raised(theirs.to(dtype))
        finite = torch.isfinite(ours) & torch.isfinite(theirs)
        same = finite | (ours == theirs) | (torch.isnan(ours) & torch.isnan(theirs))
        error = torch.where(finite, ours - theirs, 0).abs()
        rows = torch.where(finite, theirs, 0)
        size = rows.norm().item() or 1.0
        distance = error.norm().item() / size
        largest = error.max().item() if error.numel() else 0.0
        text = f"distance {{distance:.3e}}, largest error {{largest:.3e}}"
        odd = int((~same).sum())
        if odd:
            text += f"; {{odd}} of {{ours.numel()}} elements are NaN or infinite on one side only"
        if name in LIMITS:
            mean = size / max(int(finite.sum()), 1) ** 0.5
            worst = (error / (rows.abs() + mean)).max().item() if ours.numel() else 0.0
            wrong = bool(odd) or distance > LIMITS[name] or worst > 4 * LIMITS[name]
            text += f"; the limit is {{LIMITS[name]:.3e}}" + (": FAILED" if wrong else "")
            is_off = is_off or wrong
    else:
        odd = int((ours != theirs).sum())
        text = f"{{odd}} of {{ours.numel()}} elements differ"
        is_off = is_off or bool(odd)
    print(f"{{name}}: {{text}}")
sys.exit(1 if is_off else 0)
'''

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
    """
    # Which direction failed is in the results; only at L2 are both calls of their own.
    own = folder / name.removesuffix(".forward").replace("/", "_")
    own.mkdir(parents=True, exist_ok=True)
    if checked.call is not None:
        source = _source_into(own)
        args = source.write(tuple(checked.call.args))
        kwargs = source.write(dict(checked.call.kwargs))
        script = _SCRIPT.format(
            name=name_in_docstring(name),
            device=str(device),
            imports="\n    ".join(f"import {module}" for module in imports) or "pass",
            remark=_LOST if checked.was_lost else "",
            seed=checked.draw_seed,
            was_lost=checked.was_lost,
            args=args,
            kwargs=kwargs,
            function=checked.call.path,
            copies=checked.copies_leaves,
            limits=_limits_of(checked),
        )
        write_whole_file(own / "repro.py", [script.encode()])
    for index, gradient in enumerate(checked.gradients):
        if gradient is not None:
            torch.save(gradient.detach().cpu().clone(), own / f"gradient.{index}.pt")
    for output in checked.outputs:
        for side, tensor in (("device", output.candidate), ("reference", output.reference)):
            if tensor is not None:
                torch.save(tensor.detach().clone(), own / f"{side}.{output.place}.pt")
    return own


def _limits_of(checked: CheckedCall) -> dict[str, float]:
    """Return the limits of the results that failed, by the names that the script gives them."""
    forward = [o for o in checked.outputs if o.place.startswith("forward.output")]
    backward = [o for o in checked.outputs if o.place.startswith("backward")]
    return {
        f"{kind} {index}": output.judgement.limit
        for kind, outputs in (("output", forward), ("gradient", backward))
        for index, output in enumerate(outputs)
        if output.judgement.verdict == "error" and output.judgement.limit is not None
    }


def _source_into(folder: Path) -> ArgumentSource:
    """Return what writes arguments as source and their tensors as files."""
    count = itertools.count()

    def write_tensor(tensor: torch.Tensor) -> str:
        name = f"input.{next(count)}.pt"
        torch.save(tensor.detach().clone(), folder / name)
        return f"load({name!r}, requires_grad={tensor.requires_grad})"

    return ArgumentSource(write_tensor)
