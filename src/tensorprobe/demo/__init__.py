"""What `make demo` runs: `python -m tensorprobe.demo FOLDER`."""
