"""Tell `a + b` from `a.add(b)`: torch hands both over as the same function.

The instruction that the caller's frame is at says which it was. The answer is the same each time
that instruction runs, so it is worked out once per place.
"""

from __future__ import annotations

import dis
import inspect
import sys
from types import CodeType, FrameType
from typing import Any

__all__ = ["MAGIC_NAMES", "instructions_of", "is_reflected", "operator_at"]

_BINARY = {
    "+": "add", "&": "and", "//": "floordiv", "<<": "lshift", "@": "matmul", "*": "mul",
    "%": "mod", "|": "or", "**": "pow", ">>": "rshift", "-": "sub", "/": "truediv", "^": "xor",
}  # fmt: skip
_COMPARE = {
    "<": "__lt__",
    "<=": "__le__",
    "==": "__eq__",
    "!=": "__ne__",
    ">": "__gt__",
    ">=": "__ge__",
}
_UNARY = {"UNARY_NEGATIVE": "__neg__", "UNARY_INVERT": "__invert__", "UNARY_POSITIVE": "__pos__"}
# Python 3.10 has an instruction per operator.
_OLD_BINARY = {
    "ADD": "add", "AND": "and", "FLOOR_DIVIDE": "floordiv", "LSHIFT": "lshift",
    "MATRIX_MULTIPLY": "matmul", "MULTIPLY": "mul", "MODULO": "mod", "OR": "or", "POWER": "pow",
    "RSHIFT": "rshift", "SUBTRACT": "sub", "TRUE_DIVIDE": "truediv", "XOR": "xor",
}  # fmt: skip
_REFLECTED = frozenset(("add", "mul", "and", "or", "xor"))
MAGIC_NAMES = frozenset(
    (
        *(f"__{way}{base}__" for way in ("", "i", "r") for base in (*_BINARY.values(), "div")),
        *_COMPARE.values(),
        *_UNARY.values(),
    )
)
"""Of operators, those that torch has no method for among them."""

# What an operand was loaded from: whether that is a global variable, its name, and those of
# attributes; or a number that is written there; None: something else.
_Operand = tuple[Any, ...] | str | None
_NUMBER = "number"
_UNKNOWN = object()
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_NO_EFFECT = frozenset(("CACHE", "EXTENDED_ARG", "NOP"))
# Of a dict that only its frame has: the frame, the name for it here, and the question.
_OWN_COUNT = 3

# By the code's id: a code's own hash reads all of it, each time. What is in here keeps the codes
# alive, so that no id is handed out again.
_instructions: dict[int, tuple[CodeType, dict[int, dis.Instruction]]] = {}
_operands: dict[tuple[int, int], tuple[_Operand, _Operand]] = {}
_known: dict[tuple[int, int, bool], str | None] = {}


def operator_at(frame: FrameType, *, is_other_first: bool = False) -> str | None:
    """Return the magic name of the operator that a frame is executing, or None if it calls.

    Args:
        frame: the frame that torch was called from.
        is_other_first: the left operand is no tensor, so the operator is the reflected one.
    """
    key = (id(frame.f_code), frame.f_lasti, is_other_first)
    try:
        return _known[key]
    except KeyError:
        name = _known[key] = _name_of(frame, is_other_first)
        return name


def _name_of(frame: FrameType, is_other_first: bool) -> str | None:
    instruction = instruction_at(frame)
    if instruction is None:
        return None
    name, symbol = instruction.opname, instruction.argrepr
    if name == "BINARY_OP":
        base = _BINARY.get(symbol.removesuffix("=") if symbol not in ("<=", ">=") else symbol)
        is_in_place = symbol.endswith("=")
    elif name.startswith(("BINARY_", "INPLACE_")):
        base = _OLD_BINARY.get(name.partition("_")[2])
        is_in_place = name.startswith("INPLACE_")
    elif name == "COMPARE_OP":
        return _COMPARE.get(symbol.strip().removeprefix("bool(").removesuffix(")"))
    else:
        return _UNARY.get(name)
    if base is None:
        return None
    if is_in_place:
        return f"__i{'div' if base == 'truediv' else base}__"
    return f"__r{base}__" if is_other_first and base in _REFLECTED else f"__{base}__"


def instruction_at(frame: FrameType) -> dis.Instruction | None:
    """Return the instruction that a frame is executing."""
    return instructions_of(frame.f_code).get(frame.f_lasti)


def instructions_of(code: CodeType) -> dict[int, dis.Instruction]:
    """Return a code's instructions by their place, in order."""
    known = _instructions.get(id(code))
    if known is None:
        known = (code, {found.offset: found for found in dis.get_instructions(code)})
        _instructions[id(code)] = known
    return known[1]


def is_reflected(frame: FrameType, tensor: object) -> bool:
    """Whether the number stands left of the operator that a frame is executing, as in `2 * x`.

    A number that is written there shows itself, and so does a value that is loaded by its name, or
    by that of an attribute; for anything else on both sides the answer is no.

    Args:
        frame: executes an operator of a tensor and of something else.
        tensor: the tensor.
    """
    key = (id(frame.f_code), frame.f_lasti)
    if key not in _operands:
        _operands[key] = _read_operands(frame)
    left, right = _operands[key]
    if isinstance(left, str) or isinstance(right, str):
        return left == _NUMBER
    found = _value_of(frame, left)
    if found is not _UNKNOWN:
        return found is not tensor
    return _value_of(frame, right) is tensor


def _read_operands(frame: FrameType) -> tuple[_Operand, _Operand]:
    """Return what stands left and right of an operator."""
    before = [
        found
        for offset, found in instructions_of(frame.f_code).items()
        if offset < frame.f_lasti and found.opname not in _NO_EFFECT
    ]
    start, is_shared = _start_of_operand(before)
    if start is None:
        return None, None
    right = _describe_operand(before[start:])
    if is_shared:
        # Some instructions load two variables.
        return _describe_operand(before[start : start + 1], place=0), right
    del before[start:]
    start, _ = _start_of_operand(before)
    return (None if start is None else _describe_operand(before[start:])), right


def _start_of_operand(before: list[dis.Instruction]) -> tuple[int | None, bool]:
    """Return where the last value begins to be made, and whether the one below is made there."""
    missing = 1
    for at in range(len(before) - 1, -1, -1):
        found = before[at]
        if found.opcode in _JUMPS:
            break
        missing -= dis.stack_effect(found.opcode, found.arg, jump=False)
        if missing <= 0:
            return at, missing < 0
        if found.is_jump_target:
            # What ran before it is one of several ways.
            break
    return None, False


def _describe_operand(instructions: list[dis.Instruction], place: int = 1) -> _Operand:
    """Say what instructions load; of an instruction that loads two, the one at a place."""
    first, *others = instructions
    if not others and first.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
        return _NUMBER
    if not first.opname.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")):
        return None
    if any(found.opname != "LOAD_ATTR" for found in others):
        return None
    name = first.argval[place] if isinstance(first.argval, tuple) else first.argval
    return (first.opname == "LOAD_GLOBAL", name, *(found.argval for found in others))


def _value_of(frame: FrameType, operand: _Operand) -> object:
    """Return a value that was loaded, without running any code of the user's."""
    if operand is None or isinstance(operand, str):
        return _UNKNOWN
    is_global, name, *attributes = operand
    value = frame.f_globals.get(name, _UNKNOWN) if is_global else _variable(frame, name)
    for attribute in attributes:
        try:
            space = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return _UNKNOWN
        value = space.get(attribute, _UNKNOWN) if type(space) is dict else _UNKNOWN
    return value


def _variable(frame: FrameType, name: str) -> object:
    space = frame.f_locals
    value = space.get(name, _UNKNOWN)
    is_copy = type(space) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(space) == _OWN_COUNT:
        # Before Python 3.13 a frame keeps this copy of its variables, and so all of them alive.
        # Where the user has called locals(), he holds it, too; what exec() put there is no copy.
        code = frame.f_code
        for own in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            space.pop(own, None)
    return frame.f_globals.get(name, _UNKNOWN) if value is _UNKNOWN else value
