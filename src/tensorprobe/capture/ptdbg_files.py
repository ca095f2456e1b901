"""What one process writes below a folder of ptdbg_ascend, whichever of its debuggers does it.

a finished step ─► TagFolder ─► [step{N}/]rank{M}/{mode}_dump.pkl
                             ├► [step{N}/]rank{M}/{call}_{n}.pkl    one for each overflow
                             └► forward_info_{pid}.json             all overflows, in one place
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tensorprobe.names import ApiCall, ModuleCall, parse_call, ptdbg_name
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.store.checker_writer import CheckerKeys, write_checker_files
from tensorprobe.store.dump import RankDump
from tensorprobe.store.ptdbg_writer import PtdbgForm, write_ptdbg
from tensorprobe.store.run_folders import RunFolders
from tensorprobe.store.runs import tell_of_earlier_steps
from tensorprobe.system.standard_streams import announce

__all__ = ["TagFolder"]

# A file of an overflow, or the folder with its data.
_OVERFLOW = re.compile(r".+_(forward|backward)_[0-9]+(\.pkl)?")

_known: dict[Path, TagFolder] = {}
# Where overflows are described, by folder and process: a forked child has files of its own.
_described: dict[tuple[Path, int], CheckerKeys] = {}


class TagFolder:
    """A folder of ptdbg_ascend, `{dump_path}/{tag}_v{version}`; a process has one of each path.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folders = RunFolders()
        self._overflows = 0
        self._is_beside = False
        # Rank folders that hold overflows of this process alone.
        self._emptied: set[Path] = set()

    @classmethod
    def known(cls, path: Path) -> TagFolder | None:
        """Return the folder of a path, unless this process has not begun it yet."""
        return _known.get(path)

    @classmethod
    def at(cls, path: Path) -> TagFolder:
        """Return the folder of a path."""
        return _known.setdefault(path, cls(path))

    def tell_of_earlier_steps(self, step: int, rank: int, tell: Callable[[str], None]) -> None:
        """Say which steps of an earlier run are there.

        Args:
            step: the one that begins.
            rank: of this process; one rank's word is enough.
            tell: told of them.
        """
        if not rank:
            tell_of_earlier_steps(self._path, step, rank, tell, _holds_pkl)

    def write_dump(self, part: RankDump, folder: Path, form: PtdbgForm) -> Path:
        """Write the calls of a dump; returns where.

        Args:
            part: the dump.
            folder: of its rank; if another process writes into that, one beside it is taken.
            form: which files.

        Raises:
            OSError: something cannot be written.
            DumpError: the data of a tensor cannot be read.
        """
        with self._folders.claim(folder) as claim:
            self._tell_place(claim.folder, folder)
            write_ptdbg(part, claim.folder, form)
        return claim.folder

    def write_overflows(self, part: RankDump, folder: Path, described: Path) -> Path:
        """Write the calls that overflowed, each into files of its own, and what describes them.

        Args:
            part: the dump.
            folder: as for `write_dump`; overflows of an earlier run go.
            described: the folder of forward_info_{pid}.json, which holds all of this process.

        Raises:
            OSError: something cannot be written.
            DumpError: the data of a tensor cannot be read.
        """
        names: list[str] = []
        with self._folders.claim(folder) as claim:
            self._tell_place(claim.folder, folder)
            if claim.folder not in self._emptied:
                self._emptied.add(claim.folder)
                _remove_overflows(claim.folder)
            for name in part.names:
                call, parsed = part.try_call(name), parse_call(name)
                # A forward call whose results have no data is there for its backward call alone.
                if call is None or not _has_results(call):
                    continue
                if not isinstance(parsed, ApiCall | ModuleCall):
                    continue
                names.append(name)
                number = self._overflows + 1
                form = PtdbgForm(f"{ptdbg_name(parsed)}_{number}", floats_alone=False)
                pkl = write_ptdbg(part, claim.folder, form, names=[name])
                if pkl is None:
                    # Nothing of it has a place there, as of the model as a whole.
                    continue
                self._overflows = number
                announce(f"[overflow {number} times]: dump file is saved in '{pkl}'.")
        process = os.getpid()
        is_new = (described, process) not in _described
        keys = _described.setdefault((described, process), CheckerKeys())
        file = write_checker_files(part, described, process=process, names=names, keys=keys)
        if is_new:
            announce(f"All overflows of this process are described in {file}.")
        return claim.folder

    def _tell_place(self, taken: Path, wanted: Path) -> None:
        if taken != wanted and not self._is_beside:
            self._is_beside = True
            announce(
                f"{wanted} belongs to another process that writes as the same rank; the files of "
                f"this one are in {taken}. Give each its own `rank` to tell them apart."
            )


def _holds_pkl(folder: Path) -> bool:
    return any(folder.glob("*.pkl"))


def _remove_overflows(folder: Path) -> None:
    for name in sorted(os.listdir(folder), key=lambda name: not name.endswith(".pkl")):
        if _OVERFLOW.fullmatch(name) is None:
            continue
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _has_results(call: CallRecord) -> bool:
    return any(
        isinstance(leaf.value, TensorValue) and leaf.value.data_name is not None
        for leaf in call.leaves()
        if leaf.section == "output"
    )
