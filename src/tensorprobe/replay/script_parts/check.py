"""Judge a call that failed the pre-check as that did: the same two sides, the same limits.

call ─► on the device, and wider on the CPU ─► each result that failed against its limit
└► of a call that draws random numbers: what holds of any draw
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tensorprobe.replay.chosen_places import hold_equal_values
from tensorprobe.replay.script_parts.draws import (
    judge_distribution,
    judge_dropout,
    judge_dropout_gradient,
)
from tensorprobe.replay.script_parts.repeat import (
    Call,
    load_tensors,
    make_candidate,
    make_reference,
)
from tensorprobe.rounding import tolerances

__all__ = ["UNABLE", "Failure", "check"]


# What torch says where a device has no kernel of that kind.
UNABLE = re.compile(
    "not (yet )?(implemented|supported|available)|NotImplemented|out of memory", re.I
)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What failed.

    Attributes:
        limits: how far off each result that failed may be, by its place; None: not at all.
        seed: of the random numbers that the device draws, if it draws some.
        dropout: the share that is zero, of a dropout.
        groups: how many parts of a result are drawn together.
        chooses: the function, where it chooses places, and the dimension that they count along.
        is_lost: whether it ended its process, so that there was no result.
    """

    limits: Mapping[str, float | None]
    seed: int | None = None
    dropout: float | None = None
    groups: int | None = None
    chooses: tuple[str, int | None] | None = None
    is_lost: bool = False


def check(call: Call, failure: Failure, device_name: str) -> int:
    """Make the call on both sides and say whether it fails; returns the exit code."""
    saved = load_tensors()
    try:
        device = torch.device(device_name)
        torch.zeros(1, device=device)
    except (AssertionError, RuntimeError) as err:
        return _say_impossible(err)
    try:
        candidate = make_candidate(call, saved, device, failure.seed or 0)
    except Exception as err:
        return _judge_refusal(call, saved, err)
    try:
        if failure.dropout is not None:
            return _judge_dropout(failure, failure.dropout, saved["input.0"], candidate.named)
        seed = 0 if failure.seed is None else failure.seed + 1
        reference = make_reference(call, saved, seed, autocast=candidate.autocast)
    except Exception as err:
        return _say_impossible(err)
    if len(candidate.outputs) != len(reference.outputs):
        count = f"{len(candidate.outputs)} results, the reference {len(reference.outputs)}"
        print(f"the device gave {count}: FAILED")
        return 1
    is_off = False
    for place in dict.fromkeys((*candidate.named, *reference.named, *failure.limits)):
        ours, theirs = candidate.named.get(place), reference.named.get(place)
        is_wrong, text = _judge(failure, place, ours, theirs, saved)
        is_failed = is_wrong and place in failure.limits
        is_off = is_off or is_failed
        print(f"{place}: {text}" + (": FAILED" if is_failed else ""))
    if failure.is_lost:
        print("the process lives; what it gives was never judged")
    return int(is_off)


def _say_impossible(err: BaseException) -> int:
    print(f"the call cannot be made here: {type(err).__name__}: {err}", file=sys.stderr)
    return 2


def _judge_refusal(call: Call, saved: Mapping[str, torch.Tensor], err: Exception) -> int:
    """Let a device fail that refuses what the CPU runs."""
    if UNABLE.search(f"{type(err).__name__}: {err}"):
        return _say_impossible(err)
    try:
        make_reference(call, saved)
    except Exception:
        return _say_impossible(err)
    print(f"the device refuses the call: {type(err).__name__}: {err}; the CPU runs it: FAILED")
    return 1


def _judge_dropout(
    failure: Failure, share: float, given: torch.Tensor, results: Mapping[str, torch.Tensor]
) -> int:
    result = results["forward.output.0"].detach().cpu()
    found = {"forward.output.0": judge_dropout(given, result, share, groups=failure.groups)}
    gradients = [tensor for place, tensor in results.items() if place.startswith("backward")]
    if gradients:
        found["backward.output.0"] = judge_dropout_gradient(given, result, gradients[0].cpu())
    for place, drawn in found.items():
        print(f"{place}: {drawn.message}" + (": FAILED" if drawn.verdict == "error" else ""))
    return int(any(drawn.verdict == "error" for drawn in found.values()))


def _judge(
    failure: Failure,
    place: str,
    ours: torch.Tensor | None,
    theirs: torch.Tensor | None,
    saved: Mapping[str, torch.Tensor],
) -> tuple[bool, str]:
    """Return whether a result is wrong, and what was found."""
    if ours is None or theirs is None:
        side = "reference" if ours is None else "device"
        return ours is not theirs, f"only the {side} has one"
    ours, theirs = _plain(ours), _plain(theirs)
    if ours.shape != theirs.shape:
        return True, f"the device gave the shape {list(ours.shape)}, wanted {list(theirs.shape)}"
    limit = failure.limits.get(place)
    if failure.seed is not None:
        spread = 0.0 if limit is None else limit / 2
        drawn = judge_distribution(ours, theirs, groups=failure.groups, spread=spread)
        return drawn.verdict == "error", drawn.message
    if _is_rounded(ours) is not _is_rounded(theirs):
        return bool(ours.numel()), f"the device gave {ours.dtype}, the reference {theirs.dtype}"
    if not _is_rounded(ours):
        if ours.dtype != theirs.dtype:
            return True, f"the device gave {ours.dtype}, the reference {theirs.dtype}"
        text = f"{int((ours != theirs).sum())} of {ours.numel()} elements differ"
        is_choice = failure.chooses is not None and ours.dtype == torch.int64
        if failure.chooses is not None and is_choice and saved["input.0"].dim() >= ours.dim():
            name, axis = failure.chooses
            if hold_equal_values(name, saved["input.0"], ours, theirs, axis):
                return False, f"{text}, and equal values stand there"
        return not torch.equal(ours, theirs), text
    return _judge_rounded(ours, theirs, limit)


def _judge_rounded(
    ours: torch.Tensor, theirs: torch.Tensor, limit: float | None
) -> tuple[bool, str]:
    # The best that the dtype can hold of the reference.
    theirs = theirs.to(ours.dtype) if theirs.is_complex() is ours.is_complex() else theirs
    wide = torch.complex128 if theirs.is_complex() or ours.is_complex() else torch.float64
    ours, theirs = ours.to(wide), theirs.to(wide)
    if wide is torch.complex128:
        ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
    is_finite = torch.isfinite(ours) & torch.isfinite(theirs)
    odd = int((~is_finite & (ours != theirs) & ~(ours.isnan() & theirs.isnan())).sum())
    error, rows = (ours - theirs)[is_finite], theirs[is_finite]
    size = float(rows.norm())
    error = error.abs()
    is_equal = not bool(error.any())
    distance = 0.0 if is_equal else float(error.norm()) / size if size else float("inf")
    parts = 2 if wide is torch.complex128 else 1
    typical = size / max(rows.numel() / parts, 1) ** 0.5
    worst = 0.0 if is_equal else float((error / (rows.abs() + typical)).max())
    text = f"distance {distance:.3e}, an element off by {worst:.3e}"
    if odd:
        text += f"; {odd} of {ours.numel()} elements are NaN or infinite on one side only"
    if limit is None:
        return bool(odd) or not is_equal, text
    text += f"; the limit is {limit:.3e}, of an element {tolerances.ONE_ELEMENT * limit:.3e}"
    return bool(odd) or distance > limit or worst > tolerances.ONE_ELEMENT * limit, text


def _is_rounded(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the host, its numbers where they seem to be."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.cpu().resolve_conj().resolve_neg()
