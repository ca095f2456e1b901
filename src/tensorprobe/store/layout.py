"""The names that the writer and the readers of our own dumps share."""

from __future__ import annotations

DATA_FOLDER = "dump_tensor_data"
"""Where a rank folder keeps its tensors, one file each."""

PART_SUFFIX = ".part"
"""What a file is called after its name while the run goes on."""

ERROR_LOG = "dump_error_info.log"
"""Where a rank folder lists what could not be recorded, from the moment that happens."""

FORMAT_VERSION = 1
"""Counts up when an older reader would misread a dump."""

OWN_KEY = "tensorprobe"
"""The top-level key of dump.json that says who wrote it; the older tools pass over it."""

GAPS_KEY = "gaps"
"""The top-level key of dump.json, after the data, that lists what could not be recorded."""

UNKNOWN_KEY = "unknown"
"""The key of a leaf whose value is only described, not held."""

FORM_KEY = "form"
"""The key of a tensor's leaf that says what the tensor is where it is none of the usual."""

DEFAULTS_KEY = "defaults"
"""The key of a collective's entry that holds what its caller left to torch: group, operation."""

TUPLES_KEY = "tuples"
"""The key of an entry that lists which of its lists were tuples: JSON cannot tell, and an index
`(0, 1)` is not an index `[0, 1]`."""
