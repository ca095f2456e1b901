"""One tensor as it lies in memory or in a mapped file: a torch dtype and the bits that carry it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from tensorprobe.dtypes import DType, widen

__all__ = ["TensorData"]


# No __eq__: arrays compare element by element, so a generated one would only raise.
@dataclass(frozen=True, slots=True, eq=False)
class TensorData:
    """One dense tensor without torch.

    >>> import numpy as np
    >>> from tensorprobe.dtypes import DTYPES
    >>> data = TensorData(DTYPES["torch.bfloat16"], np.array([0x3F80, 0xC000], np.uint16))
    >>> data.shape, data.nbytes, data.values().tolist()
    ((2,), 4, [1.0, -2.0])

    Attributes:
        dtype: what torch calls the dtype.
        array: the bits in `dtype.carrier`; from a file it is read-only, perhaps mapped and lazily
            paged, perhaps strided (an expanded tensor has strides of 0).

    Raises:
        TypeError: the array is not in the carrier of the dtype.
    """

    dtype: DType
    array: npt.NDArray[Any]

    def __post_init__(self) -> None:
        # A byte-swapped or wider array would be written out as other numbers, in silence.
        if self.array.dtype != self.dtype.carrier:
            raise TypeError(
                f"{self.dtype.name} is carried by {self.dtype.carrier}, got {self.array.dtype}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self.array.shape

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, which is more than the file holds for an expanded tensor."""
        return self.array.nbytes

    def values(self) -> npt.NDArray[Any]:
        """Return the values in a numpy type that holds them all, without a copy where it can."""
        return widen(self.array, self.dtype)
