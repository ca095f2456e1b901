"""A dump on the terminal: its parts, the tree of calls, everything about one call."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

from tensorprobe.records import CallRecord, DumpInfo, Frame, Gap, Leaf, TensorValue
from tensorprobe.report.console import print_styled
from tensorprobe.report.rows import Branch, Details, Histogram, TensorDetails
from tensorprobe.report.value_text import number_text, shape_text, value_text

__all__ = ["print_details", "print_gaps", "print_part_title", "print_tree"]

_BAR_WIDTH = 40
_LISTED_GAPS = 20
# A damaged tree may be thousands of levels deep.
_DEEPEST_SHOWN = 40
_COUNT_TITLES = {
    "count": "elements",
    "zeros": "zeros",
    "nans": "NaN",
    "positive_infinities": "+Inf",
    "negative_infinities": "-Inf",
}
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_part_title(console: Console, label: str, info: DumpInfo, calls: int) -> None:
    """Print one line that says what a part of a dump is."""
    facts = [
        f"{info.tool} {info.tool_version or ''}".strip(),
        f"task {info.task}",
        *([f"level {info.level}"] if info.level else []),
        *([f"torch {info.torch_version}"] if info.torch_version else []),
        *([", ".join(info.devices)] if info.devices else []),
        f"{calls} call{'' if calls == 1 else 's'}",
        *([] if info.complete else ["incomplete"]),
    ]
    print_styled(console, Text.assemble((label, "bold"), "  ", (" · ".join(facts), "dim")))


def print_tree(console: Console, branches: Iterable[Branch]) -> int:
    """Print the calls, each below its module with its values; returns how many had values."""
    count = 0
    for branch in branches:
        margin = "  " * min(branch.depth, _DEEPEST_SHOWN)
        style = "bold cyan" if branch.name.startswith("Module.") else "bold"
        print_styled(console, Text.assemble(margin, (branch.name, style), *_marks(branch.call)))
        if branch.call is not None:
            count += 1
            for line in _value_lines(branch.call, margin + "    "):
                print_styled(console, line)
    return count


def print_details(console: Console, details: Details) -> None:
    """Print everything about one call."""
    call = details.call
    print_styled(console, Text.assemble((call.name, "bold"), *_marks(call)))
    if details.parent:
        print_styled(console, Text.assemble(("  inside  ", "dim"), details.parent))
    if details.children:
        shown = ", ".join(details.children[:6]) + (", …" if len(details.children) > 6 else "")
        print_styled(console, Text.assemble(("  around  ", "dim"), shown))
    _print_heading(console, "values")
    for line in _value_lines(call, "  ", digits=9, with_data=True):
        print_styled(console, line)
    for tensor in details.tensors:
        _print_heading(console, f"data of {_place(tensor.leaf)}")
        for line in _data_lines(tensor):
            print_styled(console, line)
    if details.stack:
        _print_heading(console, "call stack, innermost first")
        for line in _stack_lines(details.stack):
            print_styled(console, line)


def print_gaps(console: Console, gaps: tuple[Gap, ...]) -> None:
    """Print what is missing or damaged, a line each, behind what stdout has so far."""
    sys.stdout.flush()
    for gap in gaps[:_LISTED_GAPS]:
        print_styled(console, Text.assemble(("missing: ", "bold red"), str(gap)))
    if len(gaps) > _LISTED_GAPS:
        print_styled(console, Text(f"… and {len(gaps) - _LISTED_GAPS} more; --json lists them all"))


def _print_heading(console: Console, title: str) -> None:
    print_styled(console, Text())
    print_styled(console, Text(title, "bold underline"))


def _marks(call: CallRecord | None) -> list[tuple[str, str]]:
    return [("  recomputed", "yellow")] if call is not None and call.is_recompute else []


def _value_lines(
    call: CallRecord, margin: str, *, digits: int = 6, with_data: bool = False
) -> Iterator[Text]:
    rows = [(_place(leaf), leaf) for leaf in call.leaves(with_empty=True)]
    width = max((len(place) for place, _ in rows), default=0)
    for place, leaf in rows:
        value = leaf.value
        line = Text.assemble(margin, (place.ljust(width), "green"), "  ")
        if isinstance(value, TensorValue):
            dtype = value.dtype.removeprefix("torch.")
            line.append(f"{dtype} {shape_text(value.shape)}")
            line.append(f"  {_statistics_text(value, digits)}", "dim")
            if value.checksum is not None:
                line.append(f"  crc {value.checksum}", "dim")
            if leaf.peer_op is not None:
                op = leaf.peer_op
                line.append(f"  {op.op}, peer {op.peer}, tag {op.tag}, group {op.group_id}")
            for title, number in (("max", value.finite_max), ("min", value.finite_min)):
                if number is not None:
                    line.append(f"  finite {title} {number_text(number, digits)}", "dim")
            if with_data and value.requires_grad is not None:
                line.append(f"  requires_grad {value.requires_grad}", "dim")
            if with_data and value.data_name is not None:
                line.append(f"  {value.data_name}", "dim")
        else:
            line.append(value_text(value))
        yield line
    for key, default in (call.defaults or {}).items():
        place = f"{key} (by default)"
        line = Text.assemble(margin, (place.ljust(width), "dim"), "  ")
        line.append(value_text(default))
        yield line


def _place(leaf: Leaf) -> str:
    return ".".join((leaf.section, *leaf.path) if leaf.section else leaf.path) or "value"


def _statistics_text(value: TensorValue, digits: int) -> str:
    named = (("max", value.max), ("min", value.min), ("mean", value.mean), ("norm", value.norm))
    return "  ".join(f"{name} {number_text(number, digits)}" for name, number in named)


def _data_lines(tensor: TensorDetails) -> Iterator[Text]:
    if tensor.problem is not None:
        yield Text(f"  {tensor.problem}", "red")
        return
    shown = (
        f"{title} {tensor.statistics[key]}"
        for key, title in _COUNT_TITLES.items()
        if tensor.statistics.get(key) or key in ("count", "zeros")
    )
    yield Text("  " + "  ".join(shown), "dim")
    values = ", ".join(
        number_text(value) if not isinstance(value, complex) else f"{value:.6g}"
        for value in tensor.first_values
    )
    if values:
        yield Text(f"  first values: {values}")
    if tensor.histogram is not None:
        yield from _histogram_lines(tensor.histogram)


def _histogram_lines(histogram: Histogram) -> Iterator[Text]:
    counts = histogram.counts
    most = max(counts)
    # Divided first: the whole range may be too wide for a float.
    step = histogram.high / len(counts) - histogram.low / len(counts)
    edges = [number_text(histogram.low + step * index, 4) for index in range(len(counts))]
    width = max(map(len, edges))
    for edge, count in zip(edges, counts, strict=True):
        eighths = -(-count * _BAR_WIDTH * 8 // most) if most else 0
        bar = _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        yield Text.assemble(f"  {edge.rjust(width)} ", (bar.ljust(_BAR_WIDTH), "cyan"), f" {count}")
    yield Text(f"  {number_text(histogram.high, 4).rjust(width)} (largest)", "dim")


def _stack_lines(stack: tuple[Frame, ...]) -> Iterator[Text]:
    for frame in stack:
        # The user's own lines stand out from those of the libraries in between.
        style = "dim" if "site-packages" in frame.path else "bold"
        place = f"{frame.path}:{frame.line}" if frame.line else frame.path
        yield Text.assemble((f"  {place}", style), f"  {frame.function}")
        if frame.source:
            yield Text(f"      {frame.source}", style)
