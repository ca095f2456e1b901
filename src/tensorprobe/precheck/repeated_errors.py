"""Whether a device errs alike for other inputs: a fault does, rounding does not.

    inputs, moved a little; gradients, turned row by row ─► both sides again ─► errors ─► how much
    they resemble each other, as they are and as shares of the results

What a kernel rounds on its way is another matter for each input: where sums are kept in a half, the
errors for two inputs have nothing to do with each other. A wrong factor, a wrong element, a wrong
order of an approximation are there again. What a large term of a sum swallows is there again, too,
until some of its terms point the other way: so the rows of the gradients that are sent back do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch

from tensorprobe.precheck.judge import Resemblance
from tensorprobe.replay.both_sides import BothSides
from tensorprobe.replay.refusals import REFUSALS
from tensorprobe.replay.side import Side
from tensorprobe.rounding import tolerances

__all__ = ["resemblance_of"]

# The more elements share the errors, the fewer runs show whether they resemble each other.
_RUNS = ((1024, 1), (16, 3), (0, 7))
# So many random numbers are drawn, which takes longer than a kernel; a prime, so that no two rows
# of a tensor get the same.
_DRAWN = 65521


def resemblance_of(
    sides: BothSides,
    candidate: torch.Tensor,
    reference: torch.Tensor,
    pick: Callable[[Side], torch.Tensor | None],
) -> Resemblance:
    """Say whether the errors of a result are there again where inputs are a little different.

    Args:
        sides: the call.
        candidate: one of the device's results, on the CPU.
        reference: the precise one.
        pick: returns that result of a side, on the CPU.
    """
    given = (*sides.inputs(), *(sent for sent in sides.sent if sent is not None))
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in given):
        return Resemblance(is_alike=True, shared_by=0.0)
    first = _errors(candidate, reference)
    shared = _shared_by(first[0])
    if sides.is_live and _is_gone(sides, candidate, reference, pick):
        return Resemblance(is_alike=True, shared_by=shared)
    errors = [first]
    for number in range(next(runs for least, runs in _RUNS if shared >= least)):
        moved = _moved_call(sides, sides.seed + number, candidate.numel())
        try:
            ours, theirs = map(pick, moved.run_both_again())
        except REFUSALS:
            continue
        if ours is not None and theirs is not None and ours.shape == candidate.shape:
            errors.append(_errors(ours, theirs))
    if len(errors) == 1:
        return Resemblance(is_alike=True, shared_by=0.0)
    likeness = max(_mean_resemblance(kind) for kind in zip(*errors, strict=True))
    is_alike = likeness > (
        tolerances.ALIKE if shared >= tolerances.ENOUGH_TO_CANCEL else tolerances.ALIKE_IF_FEW
    )
    return Resemblance(is_alike, shared)


def _is_gone(
    sides: BothSides,
    candidate: torch.Tensor,
    reference: torch.Tensor,
    pick: Callable[[Side], torch.Tensor | None],
) -> bool:
    """Whether an error is gone when the call is made again with the very same inputs.

    A call of a run that goes on was made once, and whatever went wrong then need not go wrong
    again. Rounding may differ where a kernel adds up in any order, but not be gone. Of few elements
    it may be by chance, unless the device is the CPU, whose kernels keep to their order.
    """
    if candidate.numel() < tolerances.ENOUGH_TO_CANCEL and sides.device.type != "cpu":
        return False
    try:
        again = pick(sides.candidate(sides.device))
    except REFUSALS:
        return False
    if again is None or again.shape != candidate.shape:
        return False
    before, after = (
        float(torch.linalg.vector_norm(_errors(side, reference)[0])) for side in (candidate, again)
    )
    return after < tolerances.GONE_SHARE * before


def _errors(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the error of each element, and its share of the element; those of few as of many."""
    truth, error = theirs.detach().reshape(-1), ours.detach().reshape(-1)
    if truth.is_complex():
        truth, error = torch.view_as_real(truth), torch.view_as_real(error)
    truth = truth.double().nan_to_num_(0.0, 0.0, 0.0)
    error = error.double().sub_(truth).nan_to_num_(0.0, 0.0, 0.0)
    squares = truth.square()
    typical = squares.mean()
    share = error * truth / (squares + typical) if float(typical) else error
    return error, share


def _shared_by(error: torch.Tensor) -> float:
    """Return among how many elements an error is shared out: all, or those few that have most."""
    squares = error.square()
    fourth = float(squares.square().sum())
    return float(squares.sum()) ** 2 / fourth if fourth else 0.0


def _mean_resemblance(errors: Sequence[torch.Tensor]) -> float:
    """Return how much errors point the same way, each with each; of one element, too."""
    found = []
    for one, other in combinations(errors, 2):
        norms = float(torch.linalg.vector_norm(one) * torch.linalg.vector_norm(other))
        found.append(float((one * other).sum()) / norms if norms else 0.0)
    return sum(found) / len(found)


def _moved_call(sides: BothSides, seed: int, size: int) -> BothSides:
    """Return the call with similar inputs; for sums over many rows some of these are turned."""

    def turn(tensor: torch.Tensor) -> torch.Tensor:
        is_sum = tensor.ndim >= 2 and tensor.numel() >= tolerances.SUMMED_ROWS * size
        if not is_sum or not tensor.is_floating_point():
            return tensor
        generator = torch.Generator().manual_seed(seed + tensor.numel())
        rows = (*tensor.shape[:-1], 1)
        signs = torch.randint(0, 2, rows, generator=generator) * 2 - 1
        return tensor * signs.to(tensor.dtype)

    def move(tensor: torch.Tensor) -> torch.Tensor:
        moved = _move(tensor, seed)
        # An operator of a backward pass has its gradients among its inputs.
        return turn(moved) if sides.is_backward else moved

    moved = sides.part(move)
    moved.sent = tuple(None if sent is None else turn(sent) for sent in moved.sent)
    return moved


def _move(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a tensor of similar numbers; the same ones for the same seed."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    shrunk = (1 - tolerances.MOVED_SHARE * _shares(tensor.numel(), seed)).view(tensor.shape)
    wide = tensor.detach().to(torch.complex64 if tensor.is_complex() else torch.float32)
    return (wide * shrunk).to(tensor.dtype)


def _shares(count: int, seed: int) -> torch.Tensor:
    """Return random numbers from 0 to 1; of very many the first ones again and again."""
    generator = torch.Generator().manual_seed(seed + count)
    shares = torch.rand(min(count, _DRAWN), generator=generator)
    return shares if count <= _DRAWN else shares.repeat(-(-count // _DRAWN))[:count]
