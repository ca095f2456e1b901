"""The tables that msprobe 8.2.1 itself made, and what we expect instead where the seeds differ.

A deviation rewrites one row of a golden table; docs/deviations.md lists and explains them all.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import peer_root

Cells = dict[str, str]

NO_DIMENSIONS = (
    "This is type of 0-d tensor, can not calculate 'Cosine', 'EucDist', "
    "'One Thousandth Err Ratio' and 'Five Thousandths Err Ratio'."
)
DTYPES_DIFFER = "Dtype of NPU and bench Tensor do not match."
NOT_FINITE = "maximum or minimum is nan, -inf, or inf"
RATIO_RED = (
    "The input/parameter's one thousandth err ratio exceeds 0.9, while the output's is below 0.6"
)
RELATIVE_ERRORS = {
    "Max diff": "MaxRelativeErr",
    "Min diff": "MinRelativeErr",
    "Mean diff": "MeanRelativeErr",
    "L2norm diff": "NormRelativeErr",
}


@dataclass(frozen=True)
class Golden:
    """One table of the peer, and how it was made."""

    path: Path
    options: str
    config: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(peer_root() / "compare-8.2.1"))

    @property
    def colours(self) -> dict[int, str]:
        """Colour by row number from 0."""
        file = self.path.with_name(self.path.stem + ".colours.csv")
        if not file.exists():
            return {}
        with file.open(newline="") as text:
            return {int(row["row"]) - 2: row["colour"] for row in csv.DictReader(text)}

    @property
    def is_highlighted(self) -> bool:
        return self.options.endswith("_hl")

    def rows(self) -> tuple[list[str], list[Cells]]:
        with self.path.open(newline="") as text:
            reader = csv.DictReader(text)
            rows = list(reader)
            return list(reader.fieldnames or ()), rows


def all_goldens() -> list[Golden]:
    found = []
    for config in sorted((peer_root() / "compare-8.2.1").glob("*/*/compare.json")):
        for path in sorted(config.parent.glob("*compare_result*.csv")):
            if ".colours." not in path.name:
                found.append(Golden(path, config.parent.name, config))
    return found


def absolute_config(golden: Golden, folder: Path) -> Path:
    """Write the golden's compare.json again with paths that do not depend on where we are."""
    config = json.loads(golden.config.read_text())
    for key, value in config.items():
        if key.endswith("_path"):
            config[key] = str(peer_root() / value)
    path = folder / "compare.json"
    path.write_text(json.dumps(config))
    return path


# --- deviations --------------------------------------------------------------------------------

Deviation = Callable[[Golden, Cells], bool]


def pass_is_capitalised(golden: Golden, row: Cells) -> bool:
    if row.get("Result") != "pass":
        return False
    row["Result"] = "Pass"
    return True


def no_tab_after_infinity(golden: Golden, row: Cells) -> bool:
    found = False
    for title, cell in row.items():
        if cell.endswith("\t"):
            row[title] = cell.rstrip("\t")
            found = True
    return found


def message_of_0d_once(golden: Golden, row: Cells) -> bool:
    message = row.get("Err_message", "")
    if NO_DIMENSIONS not in message:
        return False
    texts, newline, reasons = message.partition("\n")
    others = re.findall(r"Cannot compare by \w+, [^.]*\.", texts)
    row["Err_message"] = NO_DIMENSIONS + "".join(dict.fromkeys(others)) + newline + reasons
    return True


def dtype_message_for_every_dtype(golden: Golden, row: Cells) -> bool:
    """The seeds spell Tensor with a capital; and bfloat16 against float32 is a difference too."""
    message = row.get("Err_message", "")
    theirs = "Dtype of NPU and bench tensor do not match."
    if theirs in message:
        row["Err_message"] = message.replace(theirs, DTYPES_DIFFER)
        return True
    is_measured = row.get("Cosine", "unsupported") not in ("unsupported", "N/A")
    if not is_measured or row["NPU Dtype"] == row["Bench Dtype"]:
        return False
    row["Err_message"] = "\n".join([DTYPES_DIFFER, message] if message else [DTYPES_DIFFER])
    return True


def position_is_capitalised(golden: Golden, row: Cells) -> bool:
    theirs, ours = "The position of inf or nan", "The Position of inf or nan"
    if theirs not in row.get("Err_message", ""):
        return False
    row["Err_message"] = row["Err_message"].replace(theirs, ours)
    return True


def nan_is_red(golden: Golden, row: Cells) -> bool:
    if not golden.is_highlighted or "Nan" not in (row.get("NPU max"), row.get("NPU min")):
        return False
    row["Err_message"] = "\n".join(filter(None, [row["Err_message"], NOT_FINITE]))
    row["colour"] = "red"
    return True


def warning_by_relative_error(golden: Golden, row: Cells) -> bool:
    """The seeds divide by the reference alone; the peer by the larger of both."""
    if "Max diff" not in row or row["Result"] == "N/A":
        return False
    is_far = False
    for title, relative in RELATIVE_ERRORS.items():
        if row[relative].endswith("%"):
            is_far = is_far or float(row[relative].removesuffix("%")) > 50
        elif row[title] not in ("N/A", "Nan"):
            is_far = is_far or float(row[title]) != 0
    if is_far == (row["Result"] == "Warning"):
        return False
    text = "Need double check api accuracy. "
    row["Result"] = "Warning" if is_far else ""
    row["Err_message"] = (
        text + row["Err_message"] if is_far else row["Err_message"].replace(text, "", 1)
    )
    return True


def float16_is_widened(golden: Golden, row: Cells) -> bool:
    """The peer divides float16 in float16, where its epsilon is 0: 0 / 0."""
    if row["NPU Dtype"] != "torch.float16" or row.get("MaxRelativeErr") != "Nan":
        return False
    if row.get("MaxAbsErr") != "0":
        return False
    row["MaxRelativeErr"], row["One Thousandth Err Ratio"] = "0", "1"
    row["Five Thousandths Err Ratio"] = "1"
    message = row["Err_message"].replace(
        "Cannot compare by MaxRelativeError, the data contains nan/inf/-inf in dump data.", ""
    )
    row["Err_message"] = message.replace("\n" + RATIO_RED, "")
    return True


def float16_errors_are_rounded(golden: Golden, row: Cells) -> bool:
    """Of float16 pairs the peer's relative error has the eleven bits of float16."""
    if not row["NPU Dtype"] == row["Bench Dtype"] == "torch.float16":
        return False
    try:
        is_number = float(row.get("MaxRelativeErr", "x")) not in (0.0,)
    except ValueError:
        return False
    if is_number:
        row["loose"] = "MaxRelativeErr"
    return is_number


def relative_error_colours_real_data(golden: Golden, row: Cells) -> bool:
    """The seeds' third yellow rule is meant for real data too; the peer skips it there."""
    if not golden.name.startswith("mlp_big/L1_tensor_hl/"):
        return False
    if row["NPU Name"] not in (
        "Functional.mse_loss.0.forward.output.0",
        "Functional.mse_loss.0.backward.output.0",
    ):
        return False
    row["Err_message"] = "\n".join(filter(None, [row["Err_message"], RELATIVE_YELLOW]))
    row["colour"] = "yellow"
    return True


RELATIVE_YELLOW = (
    "The output's maximum relative error exceeds 0.1, while the input/parameter's is below 0.01"
)

DEVIATIONS: tuple[Deviation, ...] = (
    pass_is_capitalised,
    no_tab_after_infinity,
    message_of_0d_once,
    dtype_message_for_every_dtype,
    position_is_capitalised,
    float16_is_widened,
    float16_errors_are_rounded,
    warning_by_relative_error,
    nan_is_red,
    relative_error_colours_real_data,
)


def expected_rows(golden: Golden, used: Counter[str]) -> Iterator[Cells]:
    """Yield what each row should be; `used` counts the deviations that were needed."""
    _, rows = golden.rows()
    colours = golden.colours
    for number, row in enumerate(rows):
        row["colour"] = colours.get(number, "")
        for deviation in DEVIATIONS:
            if deviation(golden, row):
                used[deviation.__name__] += 1
        yield row


# --- comparing cells ---------------------------------------------------------------------------


def agrees(ours: str, theirs: str, tolerance: float = 1e-6) -> bool:
    """Whether two cells are equal: texts exactly, numbers to a relative tolerance."""
    if ours == theirs:
        return True
    if ours.endswith("%") != theirs.endswith("%"):
        return False
    try:
        a, b = float(ours.removesuffix("%")), float(theirs.removesuffix("%"))
    except ValueError:
        return False
    return abs(a - b) <= tolerance * max(abs(a), abs(b))
