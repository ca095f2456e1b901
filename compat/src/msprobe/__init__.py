"""The import name of msprobe, with tensorprobe behind it."""
