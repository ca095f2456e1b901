"""What a pre-check was told, kept beside its results: one that is resumed must be told the same.

    dump, data, seed ─► accuracy_checking_run_{time}.json, before the first row is written
    devices ─► there too, as each worker says which one it has opened

The rows themselves do not show these, and rows of two seeds in one file are of no use to anybody.
Results of before this file was kept have none; they are resumed as they are.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError, ReportError
from tensorprobe.store import RankDump
from tensorprobe.store.tensor_bytes import write_whole_file
from tensorprobe.system.text_file import read_json

__all__ = ["RunRecord", "Told", "fingerprint"]

_SAME = "resume with the same dump and options, or start anew without --resume"
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class Told:
    """What decides the rows of a run, but for its devices.

    Attributes:
        dump: where the dump is; for the reader of a message.
        parts: the label and the fingerprint of each part of it.
        data: real, random, or auto.
        seed: of everything random.
        jit_compile: the switch of an NPU's compiler; None if it is left alone.
    """

    dump: str
    parts: tuple[tuple[str, str], ...]
    data: str
    seed: int
    jit_compile: bool | None = None


def fingerprint(part: RankDump) -> str:
    """Return what tells the calls of a part from those of any other, wherever it lies.

    The file with the calls holds the range or checksum of every tensor, so that two runs of one
    script differ.

    Raises:
        DumpError: the file cannot be read any more.
    """
    checksum, size = 0, 0
    try:
        with part.path.open("rb") as file:
            while piece := file.read(_PIECE):
                checksum, size = zlib.crc32(piece, checksum), size + len(piece)
    except OSError as err:
        raise DumpError(f"{part.path} cannot be read: {err.strerror}") from err
    return f"{checksum:08x}-{size}"


class RunRecord:
    """The file that says what a run was told.

    Args:
        folder: where the results are; it is there.
        stamp: the time in their names.
        told: what this run is told.
        devices: the devices as the user named them.
        resumed: the result file that is resumed; None for a new run.

    Attributes:
        path: the file.
        jit_compile: the switch of an NPU's compiler, which a resumed run need not be told again.

    Raises:
        DumpError: the run that is resumed was told something else.
        ReportError: the file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        stamp: str,
        told: Told,
        devices: Sequence[str],
        resumed: Path | None = None,
    ) -> None:
        self.path = folder / f"accuracy_checking_run_{stamp}.json"
        self._result = resumed
        self._others = f"accuracy_checking_*_{stamp}.csv"
        self._known: dict[str, Any] | None = None
        self.jit_compile = told.jit_compile
        if resumed is None:
            self._known = {
                "dump": told.dump,
                "parts": [list(part) for part in told.parts],
                "data": told.data,
                "seed": told.seed,
                "jit_compile": told.jit_compile,
                "devices": list(devices),
                "opened": {},
            }
            self._write()
        elif self.path.exists():
            self._known = self._read()
            self._compare(told)
            self.jit_compile = self._known["jit_compile"]

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(self, *error: object) -> None:
        is_bare = self._result is None and not any(self.path.parent.glob(self._others))
        if error[0] is not None and is_bare:
            # It failed before the first call, and the files of rows are gone, too.
            self.path.unlink(missing_ok=True)

    def meet_device(self, asked: str, opened: str) -> None:
        """Note which device stands behind a name that the user gave.

        Args:
            asked: the name, such as `auto`.
            opened: the device, such as `cuda:0 NVIDIA H200`.

        Raises:
            DumpError: the run that is resumed had none of that kind.
        """
        known = self._known
        if known is None or opened in known["opened"].values():
            return
        # Killed before that worker was ready, it did not come to know it.
        if asked not in known["devices"] or asked in known["opened"]:
            begun = ", ".join(sorted(set(known["opened"].values())))
            raise self._refusal(f"on {begun or ', '.join(known['devices'])}", f"on {opened}")
        known["opened"][asked] = opened
        self._write()

    def _compare(self, told: Told) -> None:
        known = self._known
        assert known is not None
        if sorted(map(tuple, known["parts"])) != sorted(told.parts):
            raise DumpError(
                f"{self._result} was begun for another dump, that of {known['dump']} as it was "
                f"then; {_SAME}"
            )
        if known["data"] != told.data:
            raise self._refusal(_data_option(known["data"]), _data_option(told.data))
        if known["seed"] != told.seed:
            raise self._refusal(f"with --seed {known['seed']}", f"with --seed {told.seed}")
        # Who does not say it again goes on with the switch that the run had.
        if told.jit_compile not in (None, known["jit_compile"]):
            raise self._refusal(*map(_compile_option, (known["jit_compile"], told.jit_compile)))

    def _refusal(self, then: str, now: str) -> DumpError:
        return DumpError(f"{self._result} was begun {then}, and this run is {now}; {_SAME}")

    def _read(self) -> dict[str, Any]:
        known = read_json(self.path)
        kinds = {"dump": str, "parts": list, "data": str, "seed": int, "devices": list,
                 "opened": dict}  # fmt: skip
        if not isinstance(known, dict) or not all(
            isinstance(known.get(key), kind) for key, kind in kinds.items()
        ):
            raise DumpError(
                f"{self.path} is not what a pre-check wrote; delete it to resume without it"
            )
        known.setdefault("jit_compile", None)
        known["parts"] = [part for part in known["parts"] if isinstance(part, list)]
        return known

    def _write(self) -> None:
        text = json.dumps(self._known, indent=1) + "\n"
        try:
            write_whole_file(self.path, [text.encode()])
        except OSError as err:
            raise ReportError(f"{self.path} cannot be written: {err.strerror}") from err


def _data_option(data: str) -> str:
    return "without --data" if data == "auto" else f"with --data {data}"


def _compile_option(switch: bool | None) -> str:
    if switch is None:
        return "without --jit-compile and --no-jit-compile"
    return "with --jit-compile" if switch else "with --no-jit-compile"
