"""Write one rank's dump: records reach the disk as they come, final files appear when whole.

    tensors ─► dump_tensor_data/{name}.pt, each renamed into place
    a call begins ─► stack.json.part
    record  ─► construct.json.part, then dump.json.part
    close   ─► stack.json, construct.json, dump.json

A run that is killed leaves the `.part` files, which open as a dump. A record may name data that are
still on their way to the disk; should they be lost, the name is taken out of it again. Trouble with
the disk never reaches the training: it is told once, counted, and listed in the dump's `gaps`.

Past 500 lines, as a folder that is taken, shared, moved and given up has one state.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Literal

from tensorprobe.errors import NameFormatError
from tensorprobe.records import DumpInfo, Frame
from tensorprobe.store.claim import Claim, claim_folder, remove_if_empty
from tensorprobe.store.dump_header import header_of
from tensorprobe.store.file_names import file_name_of, rank_folder
from tensorprobe.store.forks import in_process, this_process
from tensorprobe.store.journal import Journal
from tensorprobe.store.layout import DATA_FOLDER, GAPS_KEY
from tensorprobe.store.leaf_encode import EncodableCall, encode_call, text_of_data_name
from tensorprobe.store.losses import Losses
from tensorprobe.store.module_tree import ModuleTree
from tensorprobe.store.run_folders import RunFolders
from tensorprobe.store.stack_file import StackFile
from tensorprobe.store.tensor_files import TakenNames, TensorFiles
from tensorprobe.system.interrupts import uninterrupted
from tensorprobe.tensor_data import TensorData

__all__ = ["DumpWriter", "file_name_of", "rank_folder"]

_LOG = logging.getLogger("tensorprobe")
# What a record may hold that JSON does not: reported, never raised into a training.
_NOT_WRITABLE = (NameFormatError, TypeError, ValueError, RecursionError)


def _first_line(err: Exception) -> str:
    return str(err).partition("\n")[0]


class DumpWriter:
    """Writes the dump of one rank and step; a context manager that publishes it at the end.

    Args:
        folder: the rank folder; an old dump in it is replaced.
        info: what the dump is; its rank and step are the folder's.
        file_format: `pt`, or `npy` for the data that npy can hold.
        on_trouble: told once, in words, when something cannot be written; logs by default.
        host: a writer whose folder this one shares: it adds debug.json to that dump, and is closed
            with it at the latest.
        opens_late: whether the folder is only taken when there is something to write.
        on_refusal: told why, in place of `on_trouble`, when the folder cannot be taken.
        run_folders: those of the run that this is a step of.

    Attributes:
        is_refused: whether the folder could not be taken, so that there is no dump.
        folder: where the dump really goes, once it is opened: `proc{pid}` beside it if another
            writer has `folder`.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        info: DumpInfo,
        *,
        file_format: Literal["pt", "npy"] = "pt",
        on_trouble: Callable[[str], None] = _LOG.warning,
        host: DumpWriter | None = None,
        opens_late: bool = False,
        on_refusal: Callable[[str], None] | None = None,
        run_folders: RunFolders | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._claim_folder = claim_folder if run_folders is None else run_folders.claim
        self._info = info
        self._file_format = file_format
        self._on_trouble = on_trouble
        self._on_refusal = on_refusal
        self.is_refused = False
        self._losses = Losses()
        self._is_told = False
        self._process = this_process()
        self._lock = threading.RLock()
        self._names: set[str] = set()
        self._stacks: StackFile | None = None
        self._claim: Claim | None = None
        self._journals: dict[str, Journal] = {}
        self._is_saved_values = info.level == "debug"
        self._main = "debug.json" if self._is_saved_values else "dump.json"
        self._tree = ModuleTree()
        self._host = host
        self._guests: list[DumpWriter] = []
        self._is_opened = False
        names: TakenNames = TakenNames() if host is None else host._files.names
        self._files: TensorFiles = self._make_files(names)
        if not opens_late:
            self._open()

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def lost(self) -> int:
        """How many records and tensors could not be written."""
        return self._losses.count

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written and nothing lost, here and in the writers that share this."""
        writers = (self, *self._guests)
        return not any(
            w._names or len(w._tree) or w._files.names or w._losses.count for w in writers
        )

    @property
    def has_records(self) -> bool:
        """Whether a call was written or anything lost; the tree of modules does not count."""
        return any(w._names or w._files.names or w._losses.count for w in (self, *self._guests))

    def for_saved_values(self) -> DumpWriter:
        """Return a writer that adds saved values, in debug.json, to the dump of this one."""
        task = "tensor" if self._info.task == "tensor" else "statistics"
        return DumpWriter(
            self.folder,
            replace(self._info, level="debug", task=task),
            file_format=self._file_format,
            on_trouble=self._on_trouble,
            host=self,
        )

    def write(
        self, call: EncodableCall, *, stack: Sequence[Frame] = (), parent: str | None = None
    ) -> bool:
        """Add one call; returns whether it is on the disk.

        Args:
            call: the record; its tensors' data were saved, or promised, before.
            stack: where the call was made, innermost first.
            parent: the name of the module call around it.
        """
        if not self._is_mine:
            return self._refuse()
        with self._lock, uninterrupted():
            self._take_room()
            self._place_waiting()
            return self._write(call, tuple(stack), parent)

    def begin(self, name: str, stack: Sequence[Frame]) -> None:
        """Note that a call begins: should the run end inside it, the dump says so.

        Args:
            name: of the call; its record is written when it ends.
            stack: where it is made, innermost first; the very object that its record comes with.
        """
        # Names alone are recorded there, which would stand for a call that has finished.
        if self._info.task != "structure" and self._is_mine and self._stacks is not None:
            # What cannot be written now is written, or missed, with the record.
            with self._lock, contextlib.suppress(OSError):
                self._stacks.begin(name, tuple(stack))

    def wait_for(self, name: str) -> None:
        """Note that a call has finished whose record waits for values from a device."""
        if self._is_mine and self._stacks is not None:
            # The record itself will come, or be missed.
            with self._lock, contextlib.suppress(OSError):
                self._stacks.wait_for(name)

    def write_all(self, calls: Iterable[tuple[EncodableCall, Sequence[Frame], str | None]]) -> None:
        """Add calls with their stacks and parents, as `write` does, in one piece per file."""
        with self._lock, uninterrupted():
            # A stack's text that is lost here is in memory, and in the final file.
            journals = list(self._journals.values()) if self._is_mine else []
            if journals:
                self._take_room()
            for journal in journals:
                journal.hold()
            self._place_waiting()
            try:
                for call, stack, parent in calls:
                    if self._is_mine:
                        self._write(call, tuple(stack), parent)
                    else:
                        self._refuse()
            finally:
                for journal in journals:
                    for name, err in journal.release():
                        self._lose(name or "a call stack", err)

    def place(self, name: str, parent: str | None) -> None:
        """Add a call that is not recorded to the tree of modules, which no filter reduces."""
        with self._lock:
            is_mine = self._is_mine if self._is_opened else in_process(self._process)
            is_placed = is_mine and not self._is_saved_values and self._info.level != "L1"
            if is_placed and self._tree.put(name, parent) and self._is_mine:
                with uninterrupted():
                    self._place_waiting()

    def save_tensor(
        self, name: str, data: TensorData, *, checksum: int | None = None
    ) -> str | None:
        """Write a tensor's data under its value's name; returns the data_name, or None if lost.

        Args:
            name: the value's name, `Functional.linear.0.forward.input.0`.
            data: the tensor.
            checksum: the CRC-32 of its bytes, where that is known.
        """
        if not self._is_mine:
            self._refuse()
            return None
        return self._files.save(name, data, checksum=checksum)

    def link_tensor(self, name: str, data_name: str) -> str | None:
        """Give a tensor that was saved before a second name; returns the data_name, or None.

        Args:
            name: the new value's name.
            data_name: what `save_tensor` returned for the same data.
        """
        if not self._is_mine:
            self._refuse()
            return None
        return self._files.link(name, data_name)

    @property
    def tensor_files(self) -> TensorFiles | None:
        """What makes this dump's data files, for whoever writes them later; None if none can be."""
        if self._is_mine:
            return self._files
        self._refuse()
        return None

    def note(self, problem: str) -> None:
        """List something that the dump lacks, in words; the caller tells the user."""
        if not in_process(self._process):
            return
        with self._lock:
            self._open()
            self._losses.note(problem)
            self._take_room()
            log = (self._host or self)._losses.log
            if log is not None:
                # Not even the list can be written: then it is in memory, and told.
                with contextlib.suppress(OSError):
                    log.add(problem)

    def close(self, *, move_to: Path | None = None) -> None:
        """Publish the dump. Doing it twice does nothing.

        Args:
            move_to: the folder where it belongs, if that came out only after it was begun.
        """
        if not in_process(self._process):
            return
        with self._lock, uninterrupted():
            self._open()
            self._take_room()
            claim, self._claim = self._claim, None
            if claim is None:
                return
            for guest in self._guests:
                guest.close()
            # One that fails does not keep the others from their names.
            for publish in (self._publish_companions, self._publish_main, self._close_log):
                try:
                    publish()
                except OSError as err:
                    self._lose("the end of the dump, whose .part files stay readable,", err)
            for journal in self._journals.values():
                journal.close()
            if self._host is None:
                self._leave(claim, move_to)

    def discard(self) -> None:
        """Give the folder up without a dump: nothing was recorded, or nobody wants it."""
        if not in_process(self._process):
            return
        with self._lock, uninterrupted():
            self._is_opened = True
            claim, self._claim = self._claim, None
            if claim is None:
                return
            for guest in self._guests:
                guest._claim = None
            for writer in (self, *self._guests):
                for journal in writer._journals.values():
                    journal.remove()
                    journal.close()
            with contextlib.suppress(OSError):
                self._close_log()
                claim.remove_dump()
            claim.release()
            remove_if_empty(self.folder)

    # --- inside ----------------------------------------------------------------------------

    @property
    def _is_mine(self) -> bool:
        # A forked child holds the same descriptors: its records are not part of this rank.
        if not in_process(self._process):
            return False
        if not self._is_opened:
            self._open()
        return self._claim is not None

    def _open(self) -> None:
        """Take the folder, if that was not tried before."""
        with self._lock, uninterrupted():
            if self._is_opened:
                return
            self._is_opened = True
            try:
                if self._host is None:
                    self._start()
                else:
                    self._join(self._host)
            except OSError as err:
                self.is_refused = True
                if self._on_refusal is not None:
                    self._on_refusal(str(err.strerror or err))
                self._is_told = self._on_refusal is not None
                self._lose("the dump", err)
            self._files = self._make_files(self._files.names)

    def _make_files(self, names: TakenNames) -> TensorFiles:
        return TensorFiles(self.folder / DATA_FOLDER, self._file_format, names, self._lose_data)

    def _start(self) -> None:
        claim = self._claim_folder(self.folder)
        if claim.folder != self.folder:
            self._on_trouble(
                f"{self.folder} is being written already; this dump goes to {claim.folder}"
            )
        self.folder = claim.folder
        try:
            self._open_files(claim)
        except OSError:
            claim.release()
            raise
        self._claim = claim

    def _join(self, host: DumpWriter) -> None:
        """Write into the folder that another writer has claimed and emptied."""
        with host._lock:
            host._open()
            if host._claim is None:
                # It could not be claimed, which the host has told.
                return
            self._lock = host._lock
            host._take_room()
            self.folder = host.folder
            self._journals[self._main] = Journal(os.path.join(self.folder, self._main))
            self._journals[self._main].append(header_of(self._info, self.folder))
            self._claim = host._claim
            host._guests.append(self)

    def _leave(self, claim: Claim, move_to: Path | None) -> None:
        try:
            if move_to is not None and move_to != self.folder:
                target = self._claim_folder(move_to)
                try:
                    target.take_dump_of(claim)
                    self.folder = target.folder
                finally:
                    target.release()
        except OSError as err:
            self._on_trouble(
                f"{self.folder} belongs to {move_to} and could not be moved: {err.strerror or err}"
            )
        claim.release()
        if claim.folder != self.folder:
            remove_if_empty(claim.folder)

    def _open_files(self, claim: Claim) -> None:
        folder = os.fspath(self.folder)
        companions = (
            () if self._is_saved_values else (("stack.json", b""), ("construct.json", b"{"))
        )
        self._journals[self._main] = Journal(os.path.join(folder, self._main))
        for name, beginning in companions:
            path = os.path.join(folder, name)
            # What a killed run left in their places must go now; nobody needs them without records.
            self._journals[name] = Journal(path, beginning=beginning, is_lazy=claim.is_new)
        self._journals[self._main].append(header_of(self._info, self.folder))
        if not self._is_saved_values:
            self._stacks = StackFile(self._journals["stack.json"])
            self._tree.journal = self._journals["construct.json"]
        # Only now, so that at any moment the folder holds a dump that opens.
        claim.remove_old_dump()

    def _take_room(self) -> None:
        """Open the list of what is lost, before the first record takes room from it."""
        if self._claim is not None and self._host is None:
            self._losses.take_room(self.folder)

    def _write(self, call: EncodableCall, stack: tuple[Frame, ...], parent: str | None) -> bool:
        name = call.name
        try:
            entry = self._encode(call)
        except _NOT_WRITABLE as err:
            return self._lose(f"{name} ({_first_line(err)})")
        if name in self._names:
            return self._lose(f"{name}, which came a second time,")
        try:
            self._write_companions(name, stack, parent)
            if entry is not None:
                self._journals[self._main].append_entry(name, entry, indent=2)
        except OSError as err:
            return self._lose(name, err)
        self._names.add(name)
        return True

    def _encode(self, call: EncodableCall) -> str | None:
        """Return the entry of a call as text; None where the task records names alone."""
        if self._is_saved_values != (call.saved is not None):
            kind = "no saved value" if call.saved is None else "a saved value"
            raise NameFormatError(f"{kind}, which {self._main} does not hold")
        if self._info.task == "structure":
            return None
        return encode_call(call)

    def _refuse(self) -> bool:
        """Count what comes when nothing can be written; a forked child's does not count."""
        if in_process(self._process):
            with self._lock:
                self._losses.count += 1
        return False

    def _write_companions(self, name: str, stack: tuple[Frame, ...], parent: str | None) -> None:
        if self._is_saved_values:
            return
        if stack and self._stacks is not None:
            self._stacks.add(name, stack)
        if self._info.level != "L1":
            self._tree.add(name, parent)

    def _place_waiting(self) -> None:
        """Write the places that came since the last time, in one piece."""
        self._lose_places(self._tree.write_waiting())

    def _lose_places(self, lost: list[tuple[str, OSError]]) -> None:
        for name, err in lost:
            self._lose(f"{name} in construct.json", err)

    def _publish_companions(self) -> None:
        if self._stacks is None:
            return
        self._stacks.publish()
        self._lose_places(self._tree.publish())

    def _publish_main(self) -> None:
        main = self._journals[self._main]
        end = "\n }" if main.has_entries else "}"
        if self._losses.count:
            end += f',\n "{GAPS_KEY}": {json.dumps(self._losses.listed())}'
        main.append((end + "\n}").encode())
        main.publish()

    def _close_log(self) -> None:
        if self._losses.log is not None and self._host is None:
            self._losses.log.close()

    def _lose_data(self, name: str, data_name: str, err: Exception | None) -> None:
        """Count a value's data that could not be written, and take their name out of its record.

        Without an error the name of the file is somebody else's, who had it first.
        """
        if err is None:
            self._lose(f"the data of {name}, which came a second time,")
            return
        call = name
        with self._lock, uninterrupted():
            while call and call not in self._names:
                call = call.rpartition(".")[0]
            # What has no record yet will have one without the name.
            if call and in_process(self._process):
                # Else the record names a file that is not there, which its reader notes.
                with contextlib.suppress(OSError):
                    self._journals[self._main].blank(text_of_data_name(data_name).encode())
        self._lose(f"the data of {name}", err)

    def _lose(self, what: str, err: Exception | None = None) -> bool:
        """Count something that could not be written, note it, and tell the first time."""
        cause = getattr(err, "strerror", None) or err
        reason = f"{what} could not be written: {cause}" if err else f"{what} is left out"
        self.note(reason)
        with self._lock:
            is_first, self._is_told = not self._is_told, True
        if is_first:
            self._on_trouble(
                f"{self.folder}: {reason}; the run goes on, further trouble is only counted and "
                "listed in the dump"
            )
        return False
