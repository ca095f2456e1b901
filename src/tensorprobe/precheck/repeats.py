"""Run the reference of a call again: more precisely, or with noise, where a result is in doubt.

Nothing is run before it is asked for, and one noisy run after the other: most doubts are settled
by the first, and more runs only explain more. What was run is kept for the other results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from tensorprobe.dtypes import roundoff_of
from tensorprobe.operations.facts import COARSE_IN_HALVES, PARTLY_IN_HALVES, STEPWISE_IN_HALVES
from tensorprobe.precheck.noise import RoundingNoise, disturb
from tensorprobe.replay.both_sides import BothSides, Noise
from tensorprobe.replay.refusals import REFUSALS
from tensorprobe.replay.side import Side
from tensorprobe.replay.stopwatch import Stopwatch
from tensorprobe.rounding import tolerances

__all__ = ["Repeats"]

# Whether all of a result errs to one side is told by the runs alone, however many elements it has:
# of four runs none errs as much as a sound result in one of a hundred cases, of twelve in one of
# thousands. Most doubts are settled by the first.
_NOISY_RUNS = 12
# Of large calls a run takes long, and in most of them errors to both sides cancel.
_LARGE = 1_000_000
_FEW_RUNS = 4
_CPU = torch.device("cpu")
_NO_SIDE = Side([])


class Repeats:
    """Further runs of one call, as many as are asked for.

    Args:
        sides: the call; both of its sides have been run.
        part: the same call with a part of its inputs, if only that is to be run again.
    """

    def __init__(self, sides: BothSides, part: BothSides | None = None) -> None:
        self._whole = sides
        self._sides = part or sides
        self._precise: Side | None = None
        watch = sides.watch
        self._noisy = _Kept(self._make_noisy(), watch)
        self._moved = _Kept(self._make_moved(), watch)
        self._as_recorded = _Kept(self._run_as_recorded(), watch)
        self._by_element: bool | None = None

    @property
    def is_half_by_element(self) -> bool:
        """Whether each element is a function of one element of each input, all of them halves."""
        if self._by_element is None:
            with self._whole.watch.phase("noise"):
                self._by_element = self._is_half_by_element()
        return self._by_element

    def precise(self) -> Side | None:
        """Return the reference in float64 where it was float32, which may itself be inexact.

        From then on every other run of the reference has that precision, too.
        """
        sides = self._sides
        if self._precise is None and sides.is_raised and sides.real is torch.float32:
            sides.real = torch.float64
            try:
                self._precise = self.again()
            except REFUSALS:
                # The CPU has no such kernel; float32 is the best there is.
                sides.real = torch.float32
                self._precise = _NO_SIDE
        return self._precise if self._precise is not _NO_SIDE else None

    def again(self) -> Side:
        """Run the reference once more.

        Raises:
            Exception: one of `REFUSALS`: the CPU refuses it.
        """
        with self._sides.watch.phase("noise"):
            side = self._sides.reference()
            if self._sides.sent:
                self._sides.send_back(side)
        return side

    def noisy(self) -> Iterator[Side]:
        """Return runs of the reference with rounding noise."""
        return iter(self._noisy)

    def cpu_as_recorded(self) -> Iterator[Side]:
        """Return what the CPU makes of the call in the recorded dtype: it errs too.

        None where it has no such kernel, or is the device itself: but what a run got once and for
        all is another result than this one.
        """
        return iter(self._as_recorded)

    def ill_conditioned(self) -> Iterator[Side]:
        """Return runs of the reference whose inputs are off by a rounding error, and nothing else.

        Of bfloat16 alone: for other dtypes the noisy runs do that, too. Not of a function of one
        number: nothing is rounded inside it before something else is added.
        """
        return iter(self._moved)

    # --- how they are made -------------------------------------------------------------------

    def _make_noisy(self) -> Iterator[Side]:
        yield from self._make_noise(inputs_only=False)

    def _make_moved(self) -> Iterator[Side]:
        if not self._is_noisy_inside and not self._is_elementwise():
            yield from self._make_noise(inputs_only=True)

    def _make_noise(self, *, inputs_only: bool) -> Iterator[Side]:
        sides = self._sides
        generator = torch.Generator().manual_seed(sides.seed)
        size = sum(tensor.numel() for tensor in sides.inputs())
        by_steps = self._is_noisy_inside
        moves_inputs = inputs_only or (by_steps and not self.is_half_by_element)
        for _ in range(_NOISY_RUNS if size < _LARGE else _FEW_RUNS):
            mode: AbstractContextManager[Any] = nullcontext()
            if not inputs_only:
                mode = RoundingNoise(sides.noisy_dtype, sides.unit, generator, by_steps=by_steps)
            move = partial(disturb, unit=self._input_unit(), generator=generator)
            noise = Noise(mode, move if moves_inputs else None)
            try:
                side = sides.reference(noise)
                if sides.sent:
                    with mode:
                        sides.send_back(side, noise)
            except REFUSALS:
                # Noise led it out of what it takes; the other runs tell enough.
                continue
            yield side

    def _run_as_recorded(self) -> Iterator[Side]:
        if self._sides.device.type == "cpu" and not self._is_a_matter_of_the_kernel():
            return
        try:
            side = self._sides.candidate(_CPU)
            if self._sides.sent:
                self._sides.send_back(side)
        except REFUSALS:
            # The CPU has no such kernel for this dtype; the noise stands alone.
            return
        yield side

    def _is_a_matter_of_the_kernel(self) -> bool:
        """Whether only the kernel of the recorded dtype tells what a sound result may be.

        Of a call that the run itself has made: which elements a NaN reaches, and where a kernel
        looks that finds its places, or adds up, in a half.
        """
        whole = self._whole
        if not whole.is_live:
            return False
        is_half = whole.unit > roundoff_of(torch.float32)
        if is_half and whole.api_name in COARSE_IN_HALVES | PARTLY_IN_HALVES:
            return True
        return any(not bool(torch.isfinite(tensor).all()) for tensor in whole.inputs())

    # --- what the noise depends on: of the whole call ----------------------------------------

    @property
    def _is_noisy_inside(self) -> bool:
        """Whether kernels compute in the recorded dtype: of bfloat16 nearly all use float32.

        There a rounding error more would hide an error of one per cent.
        """
        whole = self._whole
        return whole.noisy_dtype is not torch.bfloat16 or whole.api_name in STEPWISE_IN_HALVES

    def _input_unit(self) -> float:
        """Return by how much inputs move: a rounding error, and what adding them up is worth.

        A sum of n numbers is the exact sum of others that are off by sqrt(n) roundings at most,
        almost surely, however much of it cancels. Sums of halves are kept in float32.
        """
        whole = self._whole
        given = [*whole.inputs(), *(g for g in whole.sent if g is not None)]
        largest = max((tensor.numel() for tensor in given), default=1)
        least = min(whole.result_sizes, default=1)
        walk = min(math.sqrt(max(largest // max(least, 1), 1)), tolerances.LONGEST_WALK)
        if whole.unit > roundoff_of(torch.float32):
            return whole.unit + walk * roundoff_of(torch.float32)
        return whole.unit * walk

    def _is_half_by_element(self) -> bool:
        """Whether each element is a function of one element of each input, all of them halves.

        Kernels compute such a function in float32, so that only its steps and its result may be
        rounded. Every second element alone shows whether it depends on the others.
        """
        whole = self._whole
        if whole.unit <= roundoff_of(torch.float32) or whole.api_name in STEPWISE_IN_HALVES:
            return False
        sizes = {tensor.numel() for tensor in whole.inputs() if tensor.is_floating_point()}
        if sizes != set(whole.result_sizes) or len(sizes) != 1:
            return False

        def every_second(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.reshape(-1)[::2] if tensor.is_floating_point() else tensor

        try:
            outputs = whole.reference().outputs
            part = whole.part(every_second).reference().outputs
        except REFUSALS:
            return False
        pairs = [
            (every_second(one), other.reshape(-1))
            for one, other in zip(outputs, part, strict=False)
        ]
        return len(part) == len(outputs) and all(
            one.shape == other.shape and torch.allclose(one, other, equal_nan=True)
            for one, other in pairs
            if one.is_floating_point()
        )

    def _is_elementwise(self) -> bool:
        floats = [tensor for tensor in self._whole.inputs() if tensor.is_floating_point()]
        return len(floats) == 1 and set(self._whole.result_sizes) <= {floats[0].numel()}


class _Kept:
    """Runs that are made when they are first asked for, and kept."""

    def __init__(self, source: Iterator[Side], watch: Stopwatch) -> None:
        self._source = source
        self._watch = watch
        self._made: list[Side] = []

    def __iter__(self) -> Iterator[Side]:
        place = 0
        while True:
            if place == len(self._made):
                with self._watch.phase("noise"):
                    following = next(self._source, None)
                if following is None:
                    return
                self._made.append(following)
            yield self._made[place]
            place += 1
