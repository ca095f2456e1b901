"""The tensors of a step's records, each looked at once.

The output of one call is the input of the next, and a view shows the memory of its base. What was
found of a tensor holds as long as it is alive and nobody has written into its memory: its version,
which views share with their base, is the same. A parameter may be given other memory, which raises
no version. Addresses are handed out again and do not count without the tensor that owns them.

Only the table refers to tensors, weakly, and lets go of them when it is told to: torch exchanges
what is inside a tensor only if nobody refers to it (`torch.utils.swap_tensors`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tensorprobe.store.leaf_encode import EncodesItself, encode_tensor, read_drafts
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.summary import host
from tensorprobe.summary.checksum import Checked
from tensorprobe.summary.host import PLAIN_DTYPES
from tensorprobe.summary.layout import merge_layout, merged_layout
from tensorprobe.summary.statistics import Measured
from tensorprobe.system.extensions import load_compiled

__all__ = [
    "Numbers",
    "PendingPart",
    "PendingTensor",
    "PendingTensorTable",
    "is_plain",
    "make_pending_tensor",
]

Numbers = tuple[Measured, "Checked | None"]

_DTYPE_NAMES = {dtype: str(dtype) for dtype in PLAIN_DTYPES}
# Past this many, the drafts of freed tensors are dropped from the table.
_MANY = 4096
_NO_VERSION = -1

# Where a view lies in memory: its address, and what it shows from there on.
_AddressRange = tuple[object, ...]


class PendingTensor(EncodesItself):
    """A tensor of a record, whose numbers may still be on their way."""

    __slots__ = (
        "_text",
        "checked",
        "dtype",
        "file",
        "measured",
        "memory",
        "requires_grad",
        "shape",
        "version",
    )

    def __init__(self, tensor: torch.Tensor, measured: Measured, checked: Checked | None) -> None:
        self.measured = measured
        self.checked = checked
        self.dtype = tensor.dtype
        self.shape = tensor.shape
        self.requires_grad = tensor.requires_grad
        # Its data, perhaps still on their way to the disk.
        self.file: PendingFile | None = None
        # An inference tensor has none, so nobody knows when it changes.
        self.version = _NO_VERSION if tensor.is_inference() else tensor._version
        # Where a parameter lies: `p.data = …` gives it another place.
        self.memory = tensor.data_ptr() if type(tensor) is torch.nn.Parameter else None
        self._text: str | None = None

    def as_json(self) -> str:
        """Return the tensor's record, now that its numbers and its data are there."""
        if self._text is None:
            self._text = _usual_text(self) or self.encode(self.requires_grad)
        return self._text

    def encode(self, requires_grad: bool, form: str | None = None) -> str:
        """Return the record of the tensor, or of one of this form that it is a part of."""
        numbers = self.measured.numbers
        if numbers is None:
            raise ValueError("numbers that did not come")
        return encode_tensor(
            _DTYPE_NAMES[self.dtype],
            self.shape,
            *numbers,
            requires_grad,
            None if self.checked is None else str(self.checked),
            None if self.file is None else self.file.data_name,
            form=form,
        )


_usual_text = read_drafts(PendingTensor, _DTYPE_NAMES.__getitem__)


def _set_up_compiled() -> Any:
    """Return what looks at tensors with fewer steps of Python, where it is built."""
    compiled = load_compiled(
        "tensorprobe.capture._calls", "set_up_pending_tensors", "make_pending_tensor"
    )
    if compiled is not None:
        exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        traits = (*host.PLAIN_TRAITS, _NO_VERSION, torch.nn.Parameter)
        compiled.set_up_pending_tensors(PendingTensor, *traits, exchange)
    return compiled


_compiled = _set_up_compiled()
make_pending_tensor: Callable[[torch.Tensor, Measured, Checked | None], PendingTensor] = (
    PendingTensor if _compiled is None else _compiled.make_pending_tensor
)
"""Makes the draft of a plain tensor."""
is_plain: Callable[[torch.Tensor], bool] = (
    host.is_plain if _compiled is None else _compiled.is_plain
)
"""As `host.is_plain`."""


class PendingPart(EncodesItself):
    """A tensor of some other form, whose numbers are those of a part of it."""

    __slots__ = ("_form", "_part", "_requires_grad")

    def __init__(self, part: PendingTensor, *, requires_grad: bool, form: str) -> None:
        self._part = part
        self._requires_grad = requires_grad
        self._form = form

    @property
    def part(self) -> PendingTensor:
        """The part whose numbers stand for the tensor."""
        return self._part

    def as_json(self) -> str:
        """Return the tensor's record, now that its numbers are there."""
        return self._part.encode(self._requires_grad, self._form)


class _Memory:
    """Numbers of parts of the memory that one tensor owns, by the views that showed them."""

    __slots__ = ("alive", "numbers", "version")

    def __init__(self, owner: torch.Tensor) -> None:
        self.alive = weakref.ref(owner)
        self.version = owner._version
        self.numbers: dict[_AddressRange, Numbers] = {}


class PendingTensorTable:
    """The drafts of tensors that are still what they were.

    Args:
        is_ordered: whether numbers depend on the order of the elements, as a checksum does.

    Attributes:
        known: the drafts and their tensors, by the ids of those; always this object.
        find: returns the draft of a tensor, if nobody has written into it since; else None.
    """

    def __init__(self, *, is_ordered: bool) -> None:
        self._is_ordered = is_ordered
        self.known: dict[int, tuple[PendingTensor, weakref.ref[torch.Tensor]]] = {}
        self._owners: dict[int, _Memory] = {}
        self._limit = _MANY
        self.find: Callable[[torch.Tensor], PendingTensor | None] = (
            self._find if _compiled is None else partial(_compiled.find_pending_tensor, self.known)
        )

    def parts(self) -> dict[str, Any]:
        """Return what _fast_recorder.c finds drafts with, by the names that it knows."""
        return {
            "drafts": self.known,
            "owners": self._owners,
            "memory_class": _Memory,
            "merge": merge_layout,
            "many": _MANY,
        }

    def _find(self, tensor: torch.Tensor) -> PendingTensor | None:
        known = self.known.get(id(tensor))
        # An id is handed out again once its object is gone.
        if known is None or known[1]() is not tensor:
            return None
        draft = known[0]
        # `module.half()` gives a parameter other data of another type.
        if draft.version != tensor._version or draft.dtype is not tensor.dtype:
            return None
        if draft.memory is not None and (
            draft.memory != tensor.data_ptr() or draft.shape != tensor.shape
        ):
            return None
        return draft

    def find_numbers(self, tensor: torch.Tensor) -> Numbers | None:
        """Return the numbers of the memory that a view shows, where they were taken before."""
        owner = tensor._base
        if owner is None:
            return None
        draft = self.find(owner)
        if draft is not None and self._shows_all(tensor, owner):
            return draft.measured, draft.checked
        memory = self._memory_of(owner)
        return None if memory is None else memory.numbers.get(self._address_range_of(tensor))

    def keep(self, tensor: torch.Tensor, draft: PendingTensor, *, has_place: bool = False) -> None:
        """Remember the draft of a tensor, and with it the numbers of the memory it shows.

        Args:
            tensor: the tensor.
            draft: its draft.
            has_place: whether it is no view, or its numbers were found here: the next view of that
                memory finds them, too.
        """
        if draft.version == _NO_VERSION:
            return
        if len(self.known) >= self._limit:
            # The tables stay the same objects, which `find` knows.
            for key in [key for key, (_, alive) in self.known.items() if alive() is None]:
                del self.known[key]
            for key in [key for key, memory in self._owners.items() if memory.alive() is None]:
                del self._owners[key]
            self._limit = max(_MANY, 2 * len(self.known))
        self.known[id(tensor)] = (draft, weakref.ref(tensor))
        if has_place:
            return
        owner = tensor._base
        if owner is not None:
            memory = self._memory_of(owner)
            if memory is None:
                memory = self._owners[id(owner)] = _Memory(owner)
            memory.numbers[self._address_range_of(tensor)] = (draft.measured, draft.checked)

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget one tensor."""
        self.known.pop(id(tensor), None)
        self._owners.pop(id(tensor), None)

    def clear(self) -> None:
        """Forget everything."""
        self.known.clear()
        self._owners.clear()

    def _memory_of(self, owner: torch.Tensor) -> _Memory | None:
        memory = self._owners.get(id(owner))
        if memory is None or memory.alive() is not owner or memory.version != owner._version:
            return None
        return memory

    def _shows_all(self, view: torch.Tensor, owner: torch.Tensor) -> bool:
        """Whether a view shows all elements of its owner, in the same order if that matters."""
        if view.numel() != owner.numel() or view.dtype != owner.dtype:
            return False
        return self._address_range_of(view) == self._address_range_of(owner)

    def _address_range_of(self, view: torch.Tensor) -> _AddressRange:
        address, dtype = view.data_ptr(), view.dtype
        if view.is_conj() or view.is_neg():
            # Not what is in memory.
            return (address, dtype, view.shape, view.stride(), view.is_conj(), view.is_neg())
        if view.is_contiguous():
            return (address, dtype, view.numel())
        if self._is_ordered:
            return (address, dtype, view.shape, view.stride())
        layout = merged_layout(view)
        if len(layout) == 1 and layout[0][0] == 1:
            # All of it is there, in another order.
            return (address, dtype, view.numel())
        return (address, dtype, layout)
