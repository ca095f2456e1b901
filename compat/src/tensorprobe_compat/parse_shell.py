"""`msprobe -f pytorch parse`: a prompt whose lines become commands of tensorprobe.

pt -n x.npy                 ─► tensorprobe show x.npy
cn -m mine.npy -g gold.npy  ─► tensorprobe show mine.npy --against gold.npy
pk -f dump.pkl -n NAME      ─► tensorprobe show dump.pkl NAME
vc -m mine/ -g gold/        ─► tensorprobe compare mine/ gold/
"""

from __future__ import annotations

import argparse
import cmd
import shlex
from collections.abc import Callable
from typing import NoReturn

from tensorprobe.cli import main as tensorprobe
from tensorprobe.names import ptdbg_pattern
from tensorprobe.system.ctrl_c import INTERRUPTED
from tensorprobe.system.standard_streams import complain

__all__ = ["ParseShell", "run_shell"]

_CONVERTED = "{}: files of kernels are converted by the msaccucmp.py that comes with CANN"


class _LineError(Exception):
    """A line that cannot be understood; what is wrong is in the message."""


class _Line(argparse.ArgumentParser):
    """The arguments of one line; what is wrong with them does not end the shell."""

    def error(self, message: str) -> NoReturn:
        raise _LineError(f"{self.prog}: {message}")


class ParseShell(cmd.Cmd):
    """The prompt; `quit`, or the end of the input, ends it.

    Attributes:
        code: the worst exit code of a line so far.
    """

    intro = (
        "pt: one tensor; cn: two; pk: a call in a pkl file; vc: two dumps; quit ends. pt -h: help"
    )
    prompt = "Parse >>> "
    code = 0

    def do_pt(self, line: str) -> None:
        """Show a tensor file: its shape, statistics and first values."""
        flags = _Line("pt")
        flags.add_argument("-n", "--name", required=True, help="a .npy or .pt file")
        self._run(flags, line, lambda found: ["show", "--", found.name])

    def do_cn(self, line: str) -> None:
        """Compare two tensor files."""
        flags = _Line("cn")
        flags.add_argument("-m", "--my_dump_path", required=True, help="the file under test")
        flags.add_argument("-g", "--golden_dump_path", required=True, help="the one to trust")
        for names in (("-p", "--print"), ("-al", "--atol"), ("-rl", "--rtol")):
            flags.add_argument(*names, help="has no effect")
        flags.add_argument("-s", "--save", action="store_true", help="has no effect")
        self._run(
            flags,
            line,
            lambda found: [
                "show",
                f"--against={found.golden_dump_path}",
                "--",
                found.my_dump_path,
            ],
        )

    def do_pk(self, line: str) -> None:
        """Show the calls of a pkl file, or of any dump, whose names begin with some text."""
        flags = _Line("pk")
        flags.add_argument("-f", "--file", required=True, help="a .pkl or dump.json file")
        flags.add_argument("-n", "--name", required=True, help="the beginning of a name")
        self._run(flags, line, lambda found: ["show", "--", found.file, ptdbg_pattern(found.name)])

    def do_vc(self, line: str) -> None:
        """Compare two dumps."""
        flags = _Line("vc")
        flags.add_argument("-m", "--my_dump_path", required=True, help="the dump under test")
        flags.add_argument("-g", "--golden_dump_path", required=True, help="the one to trust")
        flags.add_argument("-out", "--output_path", default="./output", help="for the tables")
        flags.add_argument("-cmp_path", "--msaccucmp_path", help="has no effect")
        self._run(
            flags,
            line,
            lambda found: [
                "compare",
                f"--output={found.output_path}",
                "--",
                found.my_dump_path,
                found.golden_dump_path,
            ],
        )

    def do_dc(self, line: str) -> None:
        """Not here: files of kernels."""
        self._refuse(_CONVERTED.format("dc"))

    def do_cad(self, line: str) -> None:
        """Not here: files of kernels."""
        self._refuse(_CONVERTED.format("cad"))

    def do_quit(self, line: str) -> bool:
        """End."""
        return True

    do_exit = do_EOF = do_quit  # noqa: N815 - cmd.Cmd calls it so

    def default(self, line: str) -> None:
        """Refuse any other line."""
        self._refuse(f"{line.split()[0]!r} is no command; known are pt, cn, pk, vc and quit")

    def emptyline(self) -> bool:
        """Do nothing, rather than the last line again."""
        return False

    def _run(
        self, flags: _Line, line: str, words: Callable[[argparse.Namespace], list[str]]
    ) -> None:
        try:
            found = flags.parse_args(shlex.split(line))
        except (_LineError, ValueError) as err:
            self._refuse(str(err))
        except SystemExit:
            # It was asked for help.
            return
        else:
            self.code = max(self.code, tensorprobe(words(found)))

    def _refuse(self, reason: str) -> None:
        self.code = 2
        complain(reason)


def run_shell() -> int:
    """Read lines until they end, and return the worst exit code of one."""
    shell = ParseShell()
    try:
        shell.cmdloop()
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    return shell.code
