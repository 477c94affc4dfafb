#!/usr/bin/env python3
"""Checks that examples in the pages print what the pages show: a code block of commands (sh) with a plain code block right behind it.
Run are only commands that train and write nothing: dry runs, plans, laws, imports, explanations and reports. "# excerpt of FILE" behind a command stands for the report of
that file. Lines and columns may be left out of what is shown; all other words must be there, in this order.

Usage: tools/ci/check_outputs.py     prints the lines that differ; needs build/precbench, or PRECBENCH=the program
"""
import os
import re
import shlex
import subprocess
import sys

from page_tables import PROGRAM, ROOT
from readme_tables import pages

EXAMPLE = re.compile(r"^```sh\n([^`]*?)^```\n\s*^```\n(.*?)^```$", re.S | re.M)
WIDTHS = 80, 100, 120, 155  # of the terminals that the pages show


def command(block):
    """Returns the words of a block's last command without the program's name; None if it would train."""
    line = block.replace("\\\n", " ").strip().splitlines()[-1]
    if excerpt := re.search(r"# excerpt of (\S+)", line):
        return ["report", excerpt[1]]
    words = shlex.split(line, comments=True)[1:]
    reads = words[0] in ("plan", "law", "report", "explain") or (words[0] == "import" and "--out" not in words)
    return words if reads or "--dry-run" in words else None


def printed(words, width):
    """Returns what the program prints on a terminal so wide that shows UTF-8."""
    environment = {**os.environ, "COLUMNS": str(width), "LC_ALL": "C.UTF-8"}
    return subprocess.run([PROGRAM, *words], cwd=ROOT, capture_output=True, text=True, env=environment).stdout


def missing(shown, output):
    """Returns number and text of the first shown line whose words no output line has, behind that of the line before; None if all are there."""
    lines = iter(output.splitlines())
    for number, line in enumerate(shown.splitlines()):
        words = line.split()
        if line == "..." or not line.strip("- "):
            continue
        for candidate in lines:
            rest = iter(candidate.split())
            if all(word in rest for word in words):
                break
        else:
            return number, line
    return None


def faults(page, text):
    """Returns a line for each example of the page that prints something else."""
    found = []
    for example in EXAMPLE.finditer(text):
        if words := command(example[1]):
            differences = [missing(example[2], printed(words, width)) for width in WIDTHS]
            if all(differences):
                found.append(f"{page.relative_to(ROOT)}: {shlex.join(words)} does not print: {max(differences)[1].strip()}")
    return found


def main():
    found = [fault for page in pages() for fault in faults(page, page.read_text())]
    print("\n".join(found) or "examples in the pages print what the pages show")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
