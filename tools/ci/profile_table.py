#!/usr/bin/env python3
"""Prints a line for each kernel in ncu's raw CSV files (profile_gpu.sh): utilization of the GPU's units, and
stall reasons of its warps.

    tools/ci/profile_table.py FILE.csv...
"""
import csv
import pathlib
import re
import sys

STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
BUSY = {"tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "issue": "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
        "DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "warps": "sm__warps_active.avg.pct_of_peak_sustained_active"}


def launches(path):
    """Returns the last launch of each kernel and grid, in order of first appearance."""
    with open(path, newline="") as file:
        rows = [line for line in csv.reader(file) if len(line) > 10]  # skips the program's own output
    names, latest = rows[0], {}
    for row in rows[2:]:  # skips the units
        launch = dict(zip(names, row))
        latest[launch["Kernel Name"], launch["Grid Size"]] = launch
    return list(latest.values())


def number(launch, name):
    try:
        return float(launch[name].replace(",", ""))
    except (KeyError, ValueError):
        return None


def shortened(name):
    """Returns a kernel's name without namespaces, arguments and nested template arguments."""
    name = re.sub(r"(?<=\w)<unnamed>::", "<", name.removeprefix("void "))  # ncu omits a bracket here
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|\b\w+::", "", name)
    name = re.sub(r"\((?:int|bool|unsigned int|long)\)", "", name)
    depth, kept = 0, ""
    for letter in name:
        depth -= letter == ">"
        if depth < 3 and not (depth == 0 and letter == "("):
            kept += letter
        elif depth == 0:
            break
        depth += letter == "<"
    return kept


def line(launch):
    stalls = sorted(((number(launch, name) or 0, STALL.fullmatch(name)[1]) for name in launch if STALL.fullmatch(name)), reverse=True)
    waits = [(cycles, name) for cycles, name in stalls if name not in ("selected", "not_selected")]
    busy = [number(launch, name) for name in BUSY.values()]
    return [shortened(launch["Kernel Name"]), launch["Grid Size"].replace(" ", ""), f"{number(launch, 'gpu__time_duration.sum') / 1e3:.0f}",
            *("-" if share is None else f"{share:.0f}%" for share in busy),
            ", ".join(f"{name} {cycles:.1f}" for cycles, name in waits[:3] if cycles >= 0.1)]


def main():
    for path in sys.argv[1:]:
        rows = [["kernel", "grid", "us", *BUSY, "waits, cycles an instruction"],
                *map(line, launches(path))]
        widths = [max(map(len, column)) for column in zip(*rows)]
        print(pathlib.Path(path).stem)
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        print()


if __name__ == "__main__":
    main()
