"""How long writing a result table takes: xlsx, csv and json, beside xlsxwriter where it is there.

Each writer runs in a process of its own, which makes the rows beforehand; the table gives seconds
on the clock and of the processor, the file's size, and the memory on top of the rows.

    python benchmarks/tables.py [--rows 60000]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

WAYS = {
    "write_xlsx": "write_xlsx(PATH, [Table('result', HEADER, rows)])",
    "write_xlsx, a tenth filled": (
        "fills = dict.fromkeys(range(0, ROWS, 10), 'red')\n"
        "write_xlsx(PATH, [Table('result', HEADER, rows, fills)])"
    ),
    "write_csv": "write_csv(PATH, Table('result', HEADER, rows))",
    "write_json": "write_json(PATH, Table('result', HEADER, rows))",
    "xlsxwriter, constant memory": (
        "import xlsxwriter\n"
        "book = xlsxwriter.Workbook(PATH, {'constant_memory': True})\n"
        "sheet = book.add_worksheet()\n"
        "for number, row in enumerate(rows):\n"
        "    sheet.write_row(number, 0, row)\n"
        "book.close()"
    ),
}

PROGRAM = """
import json, random, sys, time
from pathlib import Path
from tensorprobe.report.csv_table import write_csv
from tensorprobe.report.json_table import write_json
from tensorprobe.report.table import Table
from tensorprobe.report.xlsx import write_xlsx
PATH, ROWS = sys.argv[1], int(sys.argv[2])
HEADER = tuple(f"column {number}" for number in range(27))
numbers = random.Random(0)
some = [[numbers.gauss(0, 1) for _ in range(12)] for _ in range(1000)]
SHAPES = ("[8, 1024, 1024]", "[1024]", "[4096, 1024]")
def make_row(number):
    name = f"Functional.linear.{number // 4}.forward.input.{number % 4}"
    shape = SHAPES[number % 3]
    values = some[number % 1000]
    return (
        name, name, "torch.float32", "torch.float32", shape, shape, "True", "True", *values[:4],
        "0.12%", "0.42977477887970306%", "N/A", "0.0%", *values[4:], True, "", "",
    )
rows = [make_row(number) for number in range(ROWS)]
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
before, start, cpu = peak(), time.perf_counter(), time.process_time()
{way}
times = [time.perf_counter() - start, time.process_time() - cpu]
print(json.dumps([*times, Path(PATH).stat().st_size, peak() - before]))
"""


def measure(way: str, path: Path, rows: int) -> list[float]:
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{way}", way), str(path), str(rows)],
        capture_output=True,
        text=True,
        check=True,
    )
    measured: list[float] = json.loads(answer.stdout)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000)
    arguments = parser.parse_args()
    print(f"{arguments.rows} rows of 27 cells")
    print(f"{'':28}  {'seconds':>8}  {'of CPU':>8}  {'MB':>7}  {'MB of memory':>12}")
    for name, way in WAYS.items():
        if name.startswith("xlsxwriter") and importlib.util.find_spec("xlsxwriter") is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            seconds, cpu, size, memory = measure(way, Path(folder, "table"), arguments.rows)
        print(f"{name:28}  {seconds:8.2f}  {cpu:8.2f}  {size / 1e6:7.1f}  {memory / 1e6:12.1f}")


if __name__ == "__main__":
    main()
