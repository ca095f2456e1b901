"""The import name of msprobe, with tensorprobe behind it."""

from __future__ import annotations

from tensorprobe_compat.names import tell_of_clash

tell_of_clash("msprobe", "mindstudio-probe")
