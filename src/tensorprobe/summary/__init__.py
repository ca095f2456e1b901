"""Statistics and checksum of one tensor on its own device, without waiting for it."""
