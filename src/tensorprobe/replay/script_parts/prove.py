"""Show the fault that blame found: what two runs recorded, and a device gives, against float64.

recorded inputs ─► on the device ───────────┐
└► in float64 on the CPU ───┴► error of each recorded result, and of the device's
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tensorprobe.replay.script_parts.repeat import (
    Call,
    Run,
    load_tensors,
    make_candidate,
    make_reference,
    results_of_node,
)

__all__ = ["Proof", "measure", "prove"]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What is to be shown.

    Attributes:
        name: the call.
        call: how its forward is made.
        is_backward: whether its gradients are looked at.
        tolerances: the error up to which each recorded result is rounding.
        at_fault: the result that is at fault; others count where they are further off than those of
            the trusted run.
    """

    name: str
    call: Call
    is_backward: bool
    tolerances: Sequence[float]
    at_fault: int


def measure(proof: Proof, device: str) -> Iterator[tuple[int, float, float, float, float]]:
    """Yield for each result: number, errors of the run, the trusted run, the device, tolerance."""
    saved = load_tensors()
    made = make_candidate(proof.call, saved, torch.device(device))
    exact = make_reference(proof.call, saved, autocast=made.autocast)
    ours, theirs = _results_of(proof, made), _results_of(proof, exact)
    for index, tolerance in enumerate(proof.tolerances):
        recorded, reference = saved[f"recorded.{index}"], saved[f"reference.{index}"]
        wanted, got = _match(theirs, reference), _match(ours, reference)
        if wanted is None or got is None:
            continue
        run_error = _error(recorded, wanted) if recorded.shape == wanted.shape else float("inf")
        trusted = _error(reference, wanted)
        limit = tolerance if index == proof.at_fault else max(tolerance, 10 * trusted)
        yield index, run_error, trusted, _error(got, wanted), limit


def prove(proof: Proof, device: str) -> int:
    """Print the errors and say whether the device shows the fault; returns the exit code."""
    print(f"{proof.name}: errors against float64, relative to the size of the result")
    print(f"{'result':<10}{'recorded':>14}{'reference':>14}{device:>14}{'tolerance':>14}")
    is_bad, is_shown = False, False
    for index, *errors in measure(proof, device):
        is_bad = is_bad or errors[2] > errors[3]
        is_shown = is_shown or index == proof.at_fault
        print(f"{index:<10}" + "".join(f"{item:>14.3e}" for item in errors))
    if not is_shown and not is_bad:
        print("the result at fault cannot be made here", file=sys.stderr)
        return 2
    print(
        "the device shows the fault" if is_bad else "this device computes it right; the run did not"
    )
    return int(is_bad)


def _results_of(proof: Proof, run: Run) -> list[torch.Tensor]:
    """Return what a recorded result may be: tools record different gradients of a call."""
    if not proof.is_backward:
        return list(run.named.values())
    gradients = [tensor for place, tensor in run.named.items() if place.startswith("backward")]
    of_node = results_of_node(run.outputs, run.sent)
    return [*(item for item in of_node if item is not None), *gradients]


def _match(results: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor | None:
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
                continue
    return min(shaped, key=lambda item: _error(like, item)) if shaped else None


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference over the norm; infinite where NaN or inf stand apart."""
    wide = torch.complex128 if got.is_complex() or wanted.is_complex() else torch.float64
    a, b = got.detach().cpu().to(wide), wanted.detach().cpu().to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, torch.zeros_like(a), a - b).norm()
    if difference.isnan():
        return float("inf")
    size = b[b.isfinite()].norm()
    return float(difference / size) if size else float(difference)
