"""`tensorprobe show`: open a dump and print what was asked for."""

from __future__ import annotations

from rich.console import Console

from tensorprobe.errors import ConfigError, DumpError
from tensorprobe.report.console import QuietConsole
from tensorprobe.report.dump_json import details_json, gaps_json, part_json, tree_json_lines
from tensorprobe.report.dump_text import (
    print_details,
    print_gaps,
    print_part_title,
    print_tree,
)
from tensorprobe.report.lines import print_line, warn_line
from tensorprobe.show.select import details_of, tree_of
from tensorprobe.show.tensor import is_tensor_file, show_tensor
from tensorprobe.store import Dump, RankDump, open_dump
from tensorprobe.system.clean_text import one_line

__all__ = ["show_dump"]


def show_dump(
    path: str,
    pattern: str | None = None,
    *,
    step: int | None = None,
    rank: int | None = None,
    as_json: bool = False,
    against: str | None = None,
) -> int:
    """Print a dump's calls, or all about the one whose whole name is the pattern.

    Of a tensor file, .npy or .pt, what it holds, and how far that is from another.

    Returns:
        The exit code: 2 if something of what was asked for is missing or damaged.

    Raises:
        DumpError: the dump cannot be opened, or holds nothing of what was asked for.
        ConfigError: what was asked for is for a dump, and this is a tensor file; or the reverse.
    """
    if is_tensor_file(path):
        asked = {"a pattern": pattern, "--step": step, "--rank": rank}
        given = [name for name, value in asked.items() if value is not None]
        if given:
            raise ConfigError(
                f"{path} is one tensor, in which there is nothing to choose by "
                f"{' and '.join(given)}; leave that out, or give the dump's folder"
            )
        return show_tensor(path, against, as_json=as_json)
    if against is not None:
        raise ConfigError(f"--against is for two tensor files, .npy or .pt, and {path} is none")
    dump = open_dump(path)
    parts = _chosen_parts(dump, step, rank)
    console = QuietConsole()
    count = sum(_show_part(console, part, pattern, as_json=as_json) for part in parts)
    # Who asked for some calls does not wait until all the others are checked.
    found = (part.gaps if pattern is None else part.known_gaps for part in parts)
    unopened = dump.unopened if step is None and rank is None else ()
    gaps = (*unopened, *(gap for part_gaps in found for gap in part_gaps))
    if as_json:
        for line in gaps_json(gaps):
            print_line(line)
    else:
        if dump.notice is not None and step is None:
            warn_line(f"notice: {one_line(dump.notice)}")
        print_gaps(QuietConsole(stderr=True), gaps)
    if not count and pattern is not None:
        raise DumpError(f"no call in {path} fits {pattern!r}; without a pattern all are shown")
    return 2 if gaps else 0


def _chosen_parts(dump: Dump, step: int | None, rank: int | None) -> list[RankDump]:
    parts = [
        part
        for part in dump.parts
        if (step is None or part.info.step == step) and (rank is None or part.info.rank == rank)
    ]
    # With nothing chosen, `part` says what is there.
    return parts or [dump.part(step=step, rank=rank)]


def _show_part(console: Console, part: RankDump, pattern: str | None, *, as_json: bool) -> int:
    if as_json:
        print_line(part_json(part.label, part.path, part.info))
    else:
        print_part_title(console, part.label, part.info, len(part))
    if pattern is not None and pattern in part:
        details = details_of(part, pattern)
        if as_json:
            print_line(details_json(part.label, details))
        else:
            print_details(console, details)
        return 1
    branches = tree_of(part, pattern)
    if not as_json:
        return print_tree(console, branches)
    count = 0
    for line in tree_json_lines(part.label, branches):
        print_line(line)
        count += 1
    return count
