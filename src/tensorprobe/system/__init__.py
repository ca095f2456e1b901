"""What this process and its machine offer: cores, threads, signals, streams, files, extensions."""
