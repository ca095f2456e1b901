"""What one value, one call and one dump are: the frozen vocabulary between all rooms.

A call holds values; a value is a tensor's description or one of the other things that a call can
be given. `None` stands for itself. Nothing here reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from tensorprobe.names import Section, is_parameter_gradients

__all__ = [
    "CallRecord",
    "DeviceValue",
    "DictValue",
    "DtypeValue",
    "DumpInfo",
    "EllipsisValue",
    "Frame",
    "Gap",
    "GroupValue",
    "Leaf",
    "ListValue",
    "MemoryFormatValue",
    "Number",
    "PeerOpValue",
    "ReduceOpValue",
    "ScalarValue",
    "SizeValue",
    "SliceValue",
    "TensorValue",
    "UnknownValue",
    "Value",
    "flat_tensors",
    "results_of",
]

Number: TypeAlias = bool | int | float


@dataclass(frozen=True, slots=True)
class TensorValue:
    """One tensor: its type, its statistics and where its data is.

    Attributes:
        dtype: as torch prints it, `torch.float32`.
        shape: the sizes; `()` for a tensor without dimensions.
        max: largest element; None where it is not defined or was not recorded. So are the next.
        min: smallest element.
        mean: arithmetic mean.
        norm: L2 norm.
        requires_grad: None where it was not recorded.
        checksum: CRC-32 of the bytes in eight hex digits, as the older tools' "md5" is.
        data_name: the file with the data, relative to the dump's data folder; None without one.
        finite_max: largest finite element, where `max` is not finite and the tool recorded it.
        finite_min: smallest finite element, likewise.
        form: what the tensor is where it is none of the usual, with all that the others leave out:
            `DTensor [8, 4] (Shard(dim=0)) on mesh (dp=2)`. The numbers are those of the part that
            can be read: this rank's, or the values of a sparse or nested tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    max: Number | None = None
    min: Number | None = None
    mean: Number | None = None
    norm: Number | None = None
    requires_grad: bool | None = None
    checksum: str | None = None
    data_name: str | None = None
    finite_max: Number | None = None
    finite_min: Number | None = None
    form: str | None = None


@dataclass(frozen=True, slots=True)
class ScalarValue:
    """A number or a text; `type_name` is its class, also numpy's (`float32`)."""

    type_name: str
    value: bool | int | float | complex | str


@dataclass(frozen=True, slots=True)
class SliceValue:
    """A slice; missing parts are None."""

    start: int | None
    stop: int | None
    step: int | None


@dataclass(frozen=True, slots=True)
class EllipsisValue:
    """The `...` of an index."""


@dataclass(frozen=True, slots=True)
class SizeValue:
    """A `torch.Size`; -1 stands for what remains, where it is to be the shape of a view."""

    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DtypeValue:
    """A `torch.dtype`, as torch prints it."""

    name: str


@dataclass(frozen=True, slots=True)
class DeviceValue:
    """A device as the dump words it: `cuda:0`, or `cpu:None` for one without an index."""

    name: str

    @property
    def device(self) -> str:
        """The device as torch takes it, `cpu`."""
        return self.name.removesuffix(":None")


@dataclass(frozen=True, slots=True)
class MemoryFormatValue:
    """A memory format, `channels_last`."""

    name: str


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A process group: its ranks, and an id that is the same on all of them."""

    ranks: tuple[int, ...]
    group_id: str


@dataclass(frozen=True, slots=True)
class ReduceOpValue:
    """A reduction of a collective, `RedOpType.SUM`."""

    name: str


@dataclass(frozen=True, slots=True)
class PeerOpValue:
    """One send or receive of a batch of them."""

    op: str
    peer: int
    tag: int
    group_id: str
    tensor: Value


@dataclass(frozen=True, slots=True)
class ListValue:
    """A list or a tuple of values."""

    items: tuple[Value, ...]
    is_tuple: bool = False


@dataclass(frozen=True, slots=True)
class DictValue:
    """A dict, named tuple or data class of values, in its own order."""

    items: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """Something that is none of the others: its type is kept, and what is known of it."""

    type_name: str
    text: str = ""


Value: TypeAlias = (
    TensorValue
    | ScalarValue
    | SliceValue
    | EllipsisValue
    | SizeValue
    | DtypeValue
    | DeviceValue
    | MemoryFormatValue
    | GroupValue
    | ReduceOpValue
    | PeerOpValue
    | ListValue
    | DictValue
    | UnknownValue
    | None
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a call that is no container, with its name, its place and how it is sent."""

    name: str
    section: Section
    path: tuple[str, ...]
    value: Value
    peer_op: PeerOpValue | None = None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call: what went in and what came out, forward or backward.

    A section that was not recorded is None; one that was recorded empty is empty.

    Attributes:
        name: the call's name in the grammar of `tensorprobe.names`.
        inputs: positional arguments; backward: the gradients of the outputs.
        kwargs: keyword arguments.
        outputs: results; backward: the gradients of the inputs.
        parameters: a module's parameters; of a parameters_grad record, their gradients.
        saved: the one value of a record that the user saved by name.
        is_recompute: whether activation checkpointing ran the call again; None: not known.
        defaults: what a collective took because its caller said nothing of it: the group with its
            ranks, the operation, the root. No values of the call, and not compared.
    """

    name: str
    inputs: tuple[Value, ...] | None = None
    kwargs: Mapping[str, Value] | None = None
    outputs: tuple[Value, ...] | None = None
    parameters: Mapping[str, Value] | None = None
    saved: tuple[Value] | None = None
    is_recompute: bool | None = None
    defaults: Mapping[str, Value] | None = None

    def leaves(self, *, with_empty: bool = False) -> Iterator[Leaf]:
        """Yield every value that is no container: inputs, keywords, parameters, outputs.

        A value's name is the call's, its section and the way down. Keyword values stand under
        `.kwargs.{key}` if they have data and under `.input.{key}` if not, as in the older tools.
        An empty list or dict has no leaf, as there, unless `with_empty` asks for one.

        >>> call = CallRecord("Torch.cat.0.forward", inputs=(ListValue((None, None)),))
        >>> [leaf.name for leaf in call.leaves()]
        ['Torch.cat.0.forward.input.0.0', 'Torch.cat.0.forward.input.0.1']
        """
        for section, shown, path, value in self._top_values():
            for leaf in _walk(self.name + shown, section, path, value):
                if with_empty or not isinstance(leaf.value, (ListValue, DictValue)):
                    yield leaf

    def _top_values(self) -> Iterator[tuple[Section, str, tuple[str, ...], Value]]:
        for index, value in enumerate(self.inputs or ()):
            yield "input", ".input", (str(index),), value
        for key, value in (self.kwargs or {}).items():
            yield "kwargs", ".input", (key,), value
        is_gradients = is_parameter_gradients(self.name)
        for key, value in (self.parameters or {}).items():
            yield (
                ("", "", (key,), value)
                if is_gradients
                else (
                    "parameters",
                    ".parameters",
                    (key,),
                    value,
                )
            )
        for index, value in enumerate(self.outputs or ()):
            yield "output", ".output", (str(index),), value
        for value in self.saved or ():
            yield "", "", (), value


def _walk(prefix: str, section: Section, path: tuple[str, ...], value: Value) -> Iterator[Leaf]:
    if isinstance(value, ListValue) and value.items:
        for index, item in enumerate(value.items):
            yield from _walk(prefix, section, (*path, str(index)), item)
    elif isinstance(value, DictValue) and value.items:
        for key, item in value.items:
            yield from _walk(prefix, section, (*path, key), item)
    elif isinstance(value, PeerOpValue):
        for leaf in _walk(prefix, section, path, value.tensor):
            yield replace(leaf, peer_op=value)
    else:
        name = ".".join((prefix, *path))
        if section == "kwargs" and isinstance(value, TensorValue) and value.data_name is not None:
            name = ".".join((prefix.removesuffix(".input"), "kwargs", *path))
        yield Leaf(name, section, path, value)


def flat_tensors(values: Sequence[Value] | None) -> Iterator[TensorValue | None]:
    """Yield the tensors of a section in order; None stands for anything else."""
    for value in values or ():
        if isinstance(value, ListValue):
            yield from flat_tensors(value.items)
        elif isinstance(value, DictValue):
            yield from flat_tensors([item for _, item in value.items])
        else:
            yield value if isinstance(value, TensorValue) else None


def results_of(call: CallRecord) -> list[TensorValue | None]:
    """Return the tensors that a call gave: its outputs, or the gradients of its parameters."""
    if is_parameter_gradients(call.name):
        return list(flat_tensors(list((call.parameters or {}).values())))
    return list(flat_tensors(call.outputs))


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a call stack."""

    path: str
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        return f"File {self.path}, line {self.line}, in {self.function}, \n {self.source}"


Tool = Literal["tensorprobe", "msprobe", "api_accuracy_checker", "ptdbg_ascend"]


@dataclass(frozen=True, slots=True)
class DumpInfo:
    """What is known of one rank's dump as a whole.

    Attributes:
        rank: the rank; None for a run that was not distributed or a tool that kept only a process
            id.
        step: the training step; None where the tool kept none.
        process: the process id, where the folder or file is named by it.
        task: statistics, tensor, overflow_check or structure.
        level: L0, L1, L2, mix or debug; None where the tool had no levels.
        framework: pytorch.
        tool: who wrote it.
        tool_version: that tool's version, where the files tell.
        torch_version: the torch that was watched, where the files tell.
        python_version: the Python that ran, where the files tell.
        devices: the devices of that run, where the files tell.
        complete: False for a dump whose run ended before it was closed.
        run: a mark that all steps of one process's run share, the greater the later it began.
    """

    rank: int | None = None
    step: int | None = None
    process: int | None = None
    task: str = "statistics"
    level: str | None = None
    framework: str = "pytorch"
    tool: Tool = "tensorprobe"
    tool_version: str | None = None
    torch_version: str | None = None
    python_version: str | None = None
    devices: tuple[str, ...] = field(default=())
    complete: bool = True
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that a dump should hold and does not: the file, and what is wrong with it."""

    path: Path
    problem: str

    def __str__(self) -> str:
        named = str(self.path) in self.problem
        return self.problem if named else f"{self.path}: {self.problem}"
