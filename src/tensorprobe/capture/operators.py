"""Tell `a + b` from `a.add(b)`: torch hands both over as the same function.

The instruction that the caller's frame is at says which it was. The answer is the same each time
that instruction runs, so it is worked out once per place.
"""

from __future__ import annotations

import dis
from types import CodeType, FrameType

__all__ = ["instructions_of", "is_right_operand", "operator_at"]

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

# By the code's id: a code's own hash reads all of it, each time. What is in here keeps the codes
# alive, so that no id is handed out again.
_instructions: dict[int, tuple[CodeType, dict[int, dis.Instruction]]] = {}
_right_names: dict[tuple[int, int], str | None] = {}
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


def is_right_operand(frame: FrameType, value: object) -> bool:
    """Whether a value stands right of the operator that a frame is executing, if that shows.

    Only an operand that was loaded by its name shows itself; for any other the answer is no.
    """
    key = (id(frame.f_code), frame.f_lasti)
    if key not in _right_names:
        _right_names[key] = _right_name(frame)
    name = _right_names[key]
    if name is None:
        return False
    return frame.f_locals.get(name, frame.f_globals.get(name)) is value


def _right_name(frame: FrameType) -> str | None:
    instructions = instructions_of(frame.f_code)
    before = [found for offset, found in instructions.items() if offset < frame.f_lasti]
    loads = [found for found in before[-3:] if found.opname != "CACHE"]
    if not loads or not loads[-1].opname.startswith(
        ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")
    ):
        return None
    name = loads[-1].argval
    # Python 3.12 and later load two at once.
    right: str = name[-1] if isinstance(name, tuple) else name
    return right
