"""Build and parse the names of calls and of the values that go in and out of them.

This is the only place that takes a name apart. The grammar, by example:

    Functional.linear.0.forward              a call of an API: type, name, call number, direction
    Aten.add.Tensor.3.backward               an operator's overload is part of its name
    Distributed.all_reduce.1.forward         a collective
    Module.blocks.1.fc.Linear.forward.0      a call of a module: path, class, direction, call number
    Module.blocks.1.fc.Linear.parameters_grad[.0]    the gradients of a module's parameters
    layer.0.weight.2.debug                   a value saved by name

    {call}.input.0   {call}.input.1.0   {call}.output.0   {call}.kwargs.dim   {call}.input.dim
    {module call}.parameters.weight     {gradients}.weight                    {saved}.key.1

`str()` of what a parser returns is the text it was given.

A little past 500 lines: the grammar of all tools and all that reads it is best in one place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tensorprobe.errors import NameFormatError

__all__ = [
    "API_TYPES",
    "ApiCall",
    "CallName",
    "Direction",
    "ModuleCall",
    "ParameterGradients",
    "SavedValue",
    "Section",
    "ValueName",
    "api_or_module_of",
    "backward_of",
    "checker_key",
    "forward_of",
    "is_call_name",
    "is_forward",
    "is_parameter_gradients",
    "is_saved_value",
    "kind_of_call",
    "module_text",
    "other_gradients_name",
    "parse_call",
    "parse_checker_call",
    "parse_ptdbg_call",
    "parse_ptdbg_line",
    "parse_value",
    "ptdbg_name",
    "ptdbg_pattern",
    "split_model_index",
    "without_number",
]

Direction = Literal["forward", "backward"]
Section = Literal["input", "kwargs", "output", "parameters", ""]

API_TYPES = ("Tensor", "Torch", "Functional", "VF", "Aten", "Distributed", "NPU")
"""The types that the tools ship with; a registered custom prefix may be any other word."""

# No real name comes near this; a hostile one would only cost time.
_LONGEST_NAME = 10_000

# No leading zeros: the text must come back from the number. Eighteen digits fit any counter.
_NUMBER = r"0|[1-9][0-9]{0,17}"
_COUNTER = re.compile(_NUMBER)
_DIRECTION = r"(?P<direction>forward|backward)"
_API = rf"(?P<api_type>[^.]+)\.(?P<api_name>.+{{lazy}})\.(?P<number>{_NUMBER})\.{_DIRECTION}"
_MODULE = r"Module\.(?:(?P<module_path>.+{lazy})\.)?(?P<class_name>[^.]+)"
_MODULE_CALL = rf"{_MODULE}\.{_DIRECTION}\.(?P<number>{_NUMBER})"
_SAVED = rf"(?P<saved_name>.+{{lazy}})\.(?P<number>{_NUMBER})\.debug"


def _pattern(call: str, rest: str = "", *, leftmost: bool) -> re.Pattern[str]:
    """Compile a call's grammar: the leftmost reading for values, the rightmost for calls.

    A value's own keys stand right of its call and may look like anything, so the call ends as
    early as it can; a call's name may hold anything on its left, so it is read from the right.
    """
    return re.compile(call.replace("{lazy}", "?" if leftmost else "") + rest, re.DOTALL)


_CALL_PATTERNS = (
    _pattern(_MODULE_CALL, leftmost=False),
    _pattern(_MODULE, rf"\.parameters_grad(?:\.(?P<number>{_NUMBER}))?", leftmost=False),
    _pattern(_API, leftmost=False),
    _pattern(_SAVED, leftmost=False),
)
_SAVED_CALL = _CALL_PATTERNS[-1]
_PATH = r"(?:\.(?P<path>.+))?"
_VALUE_PATTERNS = (
    _pattern(_MODULE_CALL, rf"\.(?P<section>input|kwargs|output|parameters){_PATH}", leftmost=True),
    _pattern(
        _MODULE,
        rf"\.parameters_grad(?:\.(?P<number>{_NUMBER})(?=\.))?\.(?P<path>.+)",
        leftmost=True,
    ),
    _pattern(_API, rf"\.(?P<section>input|kwargs|output){_PATH}", leftmost=True),
    _pattern(_SAVED, _PATH, leftmost=True),
)
_SAVED_VALUE = _VALUE_PATTERNS[-1]


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call of a torch API, an ATen operator or a collective."""

    api_type: str
    api_name: str
    number: int
    direction: Direction

    def __str__(self) -> str:
        return f"{self.api_type}.{self.api_name}.{self.number}.{self.direction}"


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module. The path is empty for the model itself."""

    path: str
    class_name: str
    direction: Direction
    number: int

    def __str__(self) -> str:
        return f"{module_text(self.path, self.class_name)}.{self.direction}.{self.number}"


@dataclass(frozen=True, slots=True)
class ParameterGradients:
    """The gradients of one module's parameters; older tools write no number."""

    path: str
    class_name: str
    number: int | None = None

    def __str__(self) -> str:
        number = "" if self.number is None else f".{self.number}"
        return f"{module_text(self.path, self.class_name)}.parameters_grad{number}"


@dataclass(frozen=True, slots=True)
class SavedValue:
    """One value that the user saved under a name of their own."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}.{self.number}.debug"

    @property
    def gradient_of(self) -> str | None:
        """The name whose gradient this is, or None; a user's own `x_grad` reads the same."""
        return self.name.removesuffix("_grad") if self.name.endswith("_grad") else None


CallName: TypeAlias = ApiCall | ModuleCall | ParameterGradients | SavedValue


@dataclass(frozen=True, slots=True)
class ValueName:
    """One value of a call: in which section it stands, and the way down to it."""

    call: CallName
    section: Section
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [str(self.call)]
        if self.section:
            parts.append(self.section)
        parts.extend(self.path)
        return ".".join(parts)


def parse_call(text: str, *, saved: bool = False) -> CallName:
    """Take the name of a call apart.

    >>> parse_call("Functional.linear.0.forward")
    ApiCall(api_type='Functional', api_name='linear', number=0, direction='forward')
    >>> parse_call("Module.blocks.1.fc.Linear.backward.2")
    ModuleCall(path='blocks.1.fc', class_name='Linear', direction='backward', number=2)
    >>> parse_call("Module.fc.Linear.parameters_grad")
    ParameterGradients(path='fc', class_name='Linear', number=None)

    Args:
        text: the name.
        saved: read it as the name of a saved value whatever it looks like.

    Raises:
        NameFormatError: it is not the name of a call.
    """
    match = _first_match((_SAVED_CALL,) if saved else _CALL_PATTERNS, text)
    if match is None:
        raise NameFormatError(
            f"not the name of a call: {_shown(text)}; wanted "
            "{type}.{name}.{number}.forward, Module.{path}.{class}.forward.{number} "
            "or {name}.{number}.debug, with backward for the way back"
        )
    return _call_of(match)


def parse_value(text: str, *, saved: bool = False) -> ValueName:
    """Take the name of a value apart.

    >>> parse_value("VF.lstm.99.forward.input.1.0").path
    ('1', '0')
    >>> parse_value("Module.fc.Linear.forward.0.parameters.weight").section
    'parameters'
    >>> str(parse_value("Module.fc.Linear.parameters_grad.0.bias").call)
    'Module.fc.Linear.parameters_grad.0'

    Args:
        text: the name, without a file's suffix.
        saved: read it as the name of a saved value whatever it looks like.

    Raises:
        NameFormatError: it is not the name of a value.
    """
    match = _first_match((_SAVED_VALUE,) if saved else _VALUE_PATTERNS, text)
    if match is None:
        raise NameFormatError(
            f"not the name of a value: {_shown(text)}; wanted a call's name followed by "
            ".input, .output, .kwargs or .parameters and the way down, such as .input.0"
        )
    groups: dict[str, Any] = match.groupdict()
    path = groups["path"]
    section: Section = groups.get("section") or ""
    return ValueName(_call_of(match), section, tuple(path.split(".")) if path else ())


def kind_of_call(
    text: str,
) -> tuple[Literal["api", "module", "gradients", "saved"], Direction | None]:
    """Return what a call is, and its direction; `parse_call` says the same, but slower.

    >>> kind_of_call("Torch.matmul.0.forward"), kind_of_call("Module.fc.Linear.backward.2")
    (('api', 'forward'), ('module', 'backward'))

    Raises:
        NameFormatError: it is the name of no call.
    """
    # What a name really looks like; anything else is left to the grammar.
    head, _, last = text.rpartition(".")
    front, _, middle = head.rpartition(".")
    # No part of a usual name is empty.
    is_usual = "." in front and ".." not in f".{front}." and len(text) <= _LONGEST_NAME
    if text.startswith("Module."):
        if is_usual and _COUNTER.fullmatch(last) and middle in ("forward", "backward"):
            return "module", "forward" if middle == "forward" else "backward"
    elif is_usual and last in ("forward", "backward") and _COUNTER.fullmatch(middle):
        return "api", "forward" if last == "forward" else "backward"
    if is_parameter_gradients(text):
        return "gradients", None
    call = parse_call(text)
    if isinstance(call, ModuleCall):
        return "module", call.direction
    if isinstance(call, ApiCall):
        return "api", call.direction
    return ("gradients" if isinstance(call, ParameterGradients) else "saved"), None


def is_call_name(text: str) -> bool:
    """Whether a text is the name of a call; quick, for every call.

    >>> is_call_name("Torch.matmul.0.forward"), is_call_name("Torch.matmul")
    (True, False)
    """
    try:
        kind_of_call(text)
    except NameFormatError:
        return False
    return True


def backward_of(text: str) -> str:
    """Return the name of the backward call of a forward call; quick, for every call.

    >>> backward_of("Module.fc.Linear.forward.2"), backward_of("Torch.matmul.0.forward")
    ('Module.fc.Linear.backward.2', 'Torch.matmul.0.backward')
    """
    if text.endswith(".forward"):
        return text[: -len("forward")] + "backward"
    call, _, number = text.rpartition(".forward.")
    return f"{call}.backward.{number}" if call else text


def forward_of(text: str) -> str:
    """Return the name of the forward call that a backward call belongs to.

    >>> forward_of("Module.fc.Linear.backward.2")
    'Module.fc.Linear.forward.2'
    """
    call = parse_call(text)
    if isinstance(call, (ApiCall, ModuleCall)):
        return str(replace(call, direction="forward"))
    return text


def api_or_module_of(text: str) -> str:
    """Return whose call a forward or backward call is; quick, for every call.

    >>> api_or_module_of("Torch.matmul.0.forward"), api_or_module_of("Module.fc.Linear.forward.2")
    ('Torch.matmul', 'Module.fc.Linear')
    """
    return text.rsplit(".", 2)[0]


def is_parameter_gradients(text: str) -> bool:
    """Whether a call's name is that of a module's parameter gradients; quick, for every call.

    >>> is_parameter_gradients("Module.fc.Linear.parameters_grad.0")
    True
    """
    return ".parameters_grad" in text and _CALL_PATTERNS[1].fullmatch(text) is not None


def is_saved_value(text: str) -> bool:
    """Whether a name is that of a value which the user saved.

    >>> is_saved_value("loss.0.debug"), is_saved_value("Torch.relu.0.forward")
    (True, False)
    """
    return text.endswith(".debug") and _SAVED_CALL.fullmatch(text) is not None


def is_forward(text: str) -> bool:
    """Whether a name is that of a forward call; a name that is none of ours counts as one.

    >>> is_forward("Module.fc.Linear.backward.0"), is_forward("Torch.relu.0.forward")
    (False, True)
    """
    try:
        call = parse_call(text)
    except NameFormatError:
        return True
    return not isinstance(call, (ApiCall, ModuleCall)) or call.direction == "forward"


def other_gradients_name(text: str) -> str | None:
    """Return the other spelling of the first gradients of a module: with or without a number.

    >>> other_gradients_name("Module.fc.Linear.parameters_grad.0")
    'Module.fc.Linear.parameters_grad'
    >>> other_gradients_name("Module.fc.Linear.parameters_grad")
    'Module.fc.Linear.parameters_grad.0'
    """
    match = _CALL_PATTERNS[1].fullmatch(text) if ".parameters_grad" in text else None
    if match is None or match["number"] not in (None, "0"):
        return None
    return f"{text}.0" if match["number"] is None else text.removesuffix(".0")


def without_number(text: str) -> str:
    """Return what calls of the same API or module have in common; other texts come back.

    >>> without_number("Torch.relu.3.forward"), without_number("Module.fc.Linear.backward.1")
    ('Torch.relu.forward', 'Module.fc.Linear.backward')
    """
    try:
        call = parse_call(text)
    except NameFormatError:
        return text
    match call:
        case ApiCall(api_type, api_name, _, direction):
            return f"{api_type}.{api_name}.{direction}"
        case ModuleCall(path, class_name, direction, _):
            return f"{module_text(path, class_name)}.{direction}"
        case ParameterGradients(path, class_name, _):
            return f"{module_text(path, class_name)}.parameters_grad"
        case SavedValue(name, _):
            return f"{name}.debug"


def split_model_index(path: str) -> tuple[int, str]:
    """Split the path of a module that was given in a list of models into index and own path.

    Only the caller knows that models were given as a list: the first child of a Sequential looks
    the same.

    >>> split_model_index("0.blocks.1.fc")
    (0, 'blocks.1.fc')
    """
    index, _, rest = path.partition(".")
    if not re.fullmatch(_NUMBER, index):
        raise NameFormatError(f"the module path {_shown(path)} does not start with a model's index")
    return int(index), rest


# --- names of the tools before msprobe ---------------------------------------------------------

_CHECKER = re.compile(
    rf"(?P<api_type>[^.*]+)(?P<dot>[.*])(?P<api_name>.+)(?P=dot)(?P<number>{_NUMBER})", re.DOTALL
)
_PTDBG = re.compile(
    rf"(?P<owner>.+?)(?P<dot>[._])(?P<number>{_NUMBER})(?P=dot)(?P<direction>forward|backward)"
    rf"(?P=dot)(?P<section>input|output|stack_info)(?:\.(?P<path>.+))?",
    re.DOTALL,
)


def parse_checker_call(text: str, direction: Direction) -> ApiCall:
    """Translate a key of api_accuracy_checker; which file it stands in gives the direction.

    >>> str(parse_checker_call("Functional*conv2d*0", "forward"))
    'Functional.conv2d.0.forward'
    """
    match = _first_match((_CHECKER,), text)
    if match is None:
        raise NameFormatError(
            f"not a key of api_accuracy_checker: {_shown(text)}; wanted such as Functional*conv2d*0"
        )
    return ApiCall(match["api_type"], match["api_name"], int(match["number"]), direction)


def checker_key(call: ApiCall) -> str:
    """Return the key of a call in the files of api_accuracy_checker.

    >>> checker_key(ApiCall("Functional", "conv2d", 0, "backward"))
    'Functional*conv2d*0'
    """
    return f"{call.api_type}*{call.api_name}*{call.number}"


def ptdbg_name(call: ApiCall | ModuleCall) -> str:
    """Return what the values of a call begin with in a ptdbg_ascend pkl.

    >>> ptdbg_name(ApiCall("Tensor", "add_", 0, "forward"))
    'Tensor_add__0_forward'
    >>> ptdbg_name(ModuleCall("blocks.1.fc", "Linear", "backward", 2))
    'blocks.1.fc_Linear_2_backward'
    """
    if isinstance(call, ApiCall):
        return f"{call.api_type}_{call.api_name}_{call.number}_{call.direction}"
    path = f"{call.path}_" if call.path else ""
    return f"{path}{call.class_name}_{call.number}_{call.direction}"


def parse_ptdbg_call(text: str) -> CallName:
    """Translate a call as a user of ptdbg_ascend names it.

    >>> str(parse_ptdbg_call("Tensor___getitem___0_forward"))
    'Tensor.__getitem__.0.forward'

    Raises:
        NameFormatError: it is not the whole name of a call.
    """
    for dot in "_.":
        if text.endswith((f"{dot}forward", f"{dot}backward")):
            return parse_ptdbg_line(f"{text}{dot}input")[0]
    raise NameFormatError(
        f"not the whole name of a call: {_shown(text)}; wanted such as Tensor_permute_1_forward"
    )


def ptdbg_pattern(text: str) -> str:
    """Return a pattern for the calls that a user of ptdbg_ascend means by a name, or its beginning.

    >>> ptdbg_pattern("Tensor___getitem___0_forward"), ptdbg_pattern("Functional_relu")
    ('Tensor.__getitem__.0.forward', 'Functional?relu*')
    """
    try:
        return str(parse_ptdbg_call(text))
    except NameFormatError:
        # Where theirs has an underscore, a name of ours may have a dot.
        return f"{text.replace('_', '?')}*"


def parse_ptdbg_line(text: str) -> tuple[CallName, str, tuple[str, ...]]:
    """Translate the first column of a ptdbg_ascend pkl into call, section and path.

    The section may also be `stack_info`. What does not start with an API type is a module.

    >>> parse_ptdbg_line("Functional_batch_norm_0_forward_input.3.1")[1:]
    ('input', ('3', '1'))
    >>> str(parse_ptdbg_line("conv.Conv2d.0.backward.output")[0])
    'Module.conv.Conv2d.backward.0'
    """
    match = _first_match((_PTDBG,), text)
    if match is None:
        raise NameFormatError(
            f"not a name of ptdbg_ascend: {_shown(text)}; wanted such as "
            "Functional_conv2d_0_forward_input.0"
        )
    number, path = int(match["number"]), match["path"]
    direction: Direction = "forward" if match["direction"] == "forward" else "backward"
    first, _, rest = match["owner"].partition(match["dot"])
    call: CallName
    if first in API_TYPES and rest:
        call = ApiCall(first, rest, number, direction)
    else:
        module_path, _, class_name = match["owner"].rpartition(match["dot"])
        call = ModuleCall(module_path, class_name, direction, number)
    return call, match["section"], tuple(path.split(".")) if path else ()


# --- the parts that the parsers share ----------------------------------------------------------


def _first_match(patterns: tuple[re.Pattern[str], ...], text: str) -> re.Match[str] | None:
    if len(text) > _LONGEST_NAME:
        return None
    for pattern in patterns:
        match = pattern.fullmatch(text)
        if match is not None:
            return match
    return None


def _call_of(match: re.Match[str]) -> CallName:
    groups = match.groupdict()
    number = groups["number"]
    if "saved_name" in groups:
        return SavedValue(groups["saved_name"], int(number))
    if "class_name" not in groups:
        return ApiCall(groups["api_type"], groups["api_name"], int(number), _direction(groups))
    path, class_name = groups["module_path"] or "", groups["class_name"]
    if "direction" not in groups:
        return ParameterGradients(path, class_name, None if number is None else int(number))
    return ModuleCall(path, class_name, _direction(groups), int(number))


def _direction(groups: dict[str, str]) -> Direction:
    return "forward" if groups["direction"] == "forward" else "backward"


def module_text(path: str, class_name: str) -> str:
    """Return what the names of a module's calls begin with, `Module.fc.Linear`."""
    return f"Module.{path}.{class_name}" if path else f"Module.{class_name}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")
