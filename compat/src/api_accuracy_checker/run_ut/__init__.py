"""The scripts of the pre-check, each of which also runs by `python -m`."""
