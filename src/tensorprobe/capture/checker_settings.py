"""The settings of api_accuracy_checker: those of a config.json, and what a script changes.

    config.json ─► CheckerSettings ─ update_config(…) ─► CheckerSettings ─► who asked to be told

Nothing here needs torch: the commands of the pre-check ask for a setting, too. The tool's own file
was YAML, which a training machine need not be able to read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tensorprobe.errors import ConfigError
from tensorprobe.system.text_file import read_json, show_path

__all__ = ["CheckerConfig", "CheckerSettings"]

# Settings of the tool that have no meaning here, in one state of it or another.
_IGNORED = frozenset(
    ("jit_compile", "compile_option", "compare_algorithm", "dump_step", "precision", "white_list",
     "black_list", "is_online", "nfs_path", "host", "port", "rank_list")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckerSettings:
    """What to capture of a run, and where it goes.

    Attributes:
        dump_path: the folder of the three files.
        real_data: whether the tensors' data are kept.
        enable_dataloader: whether the iterations of a DataLoader start and end the capture.
        target_iter: the iteration to capture, from 0 on.
        error_data_path: where the pre-check keeps what fails.
    """

    dump_path: str = "./"
    real_data: bool = False
    enable_dataloader: bool = True
    target_iter: int = 1
    error_data_path: str = "./ut_error_data"

    def changed(self, given: dict[str, Any], *, where: str) -> CheckerSettings:
        """Return the settings with some of them changed.

        Args:
            given: the new values by name.
            where: what messages name them after, `update_config: `.

        Raises:
            ConfigError: there is no such setting, or it cannot have such a value.
        """
        known = {field.name: type(getattr(self, field.name)) for field in fields(self)}
        changes: dict[str, Any] = {}
        for name, value in given.items():
            if name in _IGNORED:
                continue
            if name not in known:
                names = ", ".join(known)
                raise ConfigError(f"{where}{name} is no setting; there are {names}")
            if known[name] is str and isinstance(value, os.PathLike):
                value = os.fspath(value)
            if type(value) is not known[name]:
                wanted = {str: "a path", bool: "True or False", int: "one number from 0 on"}
                raise ConfigError(f"{where}{name} is {value!r}, wanted {wanted[known[name]]}")
            changes[name] = value
        if changes.get("target_iter", 0) < 0:
            number = changes["target_iter"]
            raise ConfigError(f"{where}target_iter is {number}, wanted one number from 0 on")
        return replace(self, **changes)


class CheckerConfig:
    """`msCheckerConfig`: the settings of this process.

    >>> config = CheckerConfig()
    >>> config.update_config(target_iter=3)
    >>> config.target_iter, config.settings.dump_path
    (3, './')

    Args:
        file: a JSON file with other defaults.

    Attributes:
        settings: as they are now.

    Raises:
        ConfigError: the file cannot be read, or holds what is no setting.
    """

    settings: CheckerSettings

    def __init__(self, file: Path | None = None) -> None:
        self.settings = CheckerSettings()
        self._told: list[Callable[[], None]] = []
        if file is not None:
            read = read_json(file, error=ConfigError)
            if not isinstance(read, dict):
                raise ConfigError(
                    f'{show_path(file)}: wanted settings, such as {{"target_iter": 1}}'
                )
            self.settings = self.settings.changed(read, where=f"{show_path(file)}: ")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "settings":
            raise AttributeError(name)
        return getattr(self.settings, name)

    def update_config(self, **settings: Any) -> None:
        """Change settings, before the iteration to capture begins.

        Raises:
            ConfigError: there is no such setting, or it cannot have such a value.
        """
        self.settings = self.settings.changed(settings, where="update_config: ")
        for tell in self._told:
            tell()

    def tell(self, changed: Callable[[], None]) -> None:
        """Have something called after each change."""
        self._told.append(changed)
