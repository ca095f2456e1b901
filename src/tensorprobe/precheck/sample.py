"""Of a large result that is in doubt, run again only some rows: those that are furthest off.

    both results ─► the furthest rows, and some in between ─► the call with these rows of its inputs

Rows along a dimension are those of the inputs that have as many dimensions and as many rows. It is
not known beforehand whether a row of the result depends on these alone: the caller sees whether
the part gives what the whole gave there, and runs the whole again if it does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tensorprobe.replay.both_sides import BothSides

__all__ = ["Sample", "is_worth_a_sample", "samples_of"]

_KNOWN = frozenset(("Functional", "Torch", "Tensor", "VF", "Aten"))
# Smaller results are run again as a whole.
_LARGE = 1 << 18
# One row of so many is taken, but not fewer or more of them than these.
_ONE_OF = 8
_FEWEST_ROWS = 4
_MOST_ROWS = 64
_ATTEMPTS = 2
_PIECES = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """Some rows of the tensors of a call.

    Attributes:
        ndim: how many dimensions those tensors have.
        dimension: along which rows are taken.
        count: how many rows there are.
        places: those that are taken.
    """

    ndim: int
    dimension: int
    count: int
    places: torch.Tensor

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return these rows of a tensor; of one that does not have them, all of it."""
        if tensor.ndim != self.ndim or tensor.shape[self.dimension] != self.count:
            return tensor
        return tensor.index_select(self.dimension, self.places)


def is_worth_a_sample(api_type: str, result: torch.Tensor) -> bool:
    """Whether a part of a result is run again first: if it is large, and the function is torch's.

    Those look at what they are given; of others nobody knows what they do with fewer rows.
    """
    return api_type in _KNOWN and result.numel() >= _LARGE


def samples_of(
    sides: BothSides, ours: torch.Tensor, theirs: torch.Tensor
) -> Iterator[tuple[Sample, BothSides]]:
    """Yield parts of a call that may tell as much of a result as all of it; none if none may.

    Args:
        sides: the call.
        ours: the device's result, on the CPU.
        theirs: the reference's, in its own precision.
    """
    inputs = sides.inputs()
    # The first is a batch's more often than not, whose rows have nothing to do with each other.
    dimensions = sorted(range(ours.ndim - 1), key=lambda place: (place != 0, -ours.shape[place]))
    long = [dimension for dimension in dimensions if ours.shape[dimension] >= 2 * _ONE_OF]
    for dimension in long[:_ATTEMPTS]:
        places = _furthest_rows(ours, theirs, dimension)
        sample = Sample(ours.ndim, dimension, ours.shape[dimension], places)
        if 2 * sum(map(torch.numel, map(sample.of, inputs))) < sum(map(torch.numel, inputs)):
            yield sample, sides.part(sample.of)


def _furthest_rows(ours: torch.Tensor, theirs: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return the places of rows: a third each off by most, by most of its size, and in between."""
    count = ours.shape[dimension]
    # In pieces, so that no wide copy of the whole is made.
    pieces = [
        (_squares(right - left, dimension), _squares(right, dimension))
        for left, right in zip(
            ours.tensor_split(_PIECES, dimension),
            theirs.tensor_split(_PIECES, dimension),
            strict=True,
        )
    ]
    errors, sizes = (torch.cat(found) for found in zip(*pieces, strict=True))
    wanted = max(_FEWEST_ROWS, min(count // _ONE_OF, _MOST_ROWS))
    share = max(1, wanted // 3)
    furthest = torch.cat(
        (
            errors.topk(share).indices,
            (errors / sizes).nan_to_num_(0.0).topk(share).indices,
            torch.linspace(0, count - 1, max(1, wanted - 2 * share)).long(),
        )
    )
    return torch.tensor(sorted(set(furthest.tolist())))


def _squares(values: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return the sum of the squares of each row along a dimension that is not the last."""
    if dimension == 0 and values.is_contiguous():
        whole: torch.Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
        return whole.double().square()
    # First what lies side by side: all at once would jump through the memory.
    norms: torch.Tensor = torch.linalg.vector_norm(values, dim=-1)
    squares = norms.double().square()
    others = [place for place in range(squares.ndim) if place != dimension]
    return squares.sum(others) if others else squares
