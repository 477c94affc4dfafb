#!/usr/bin/env python3
"""Checks that every CUDA kernel follows the rule of kernels/cuda/hopper/early_start.cuh: first wait for the
preceding work.

Usage: tools/ci/check_early_start.py     prints each violation; exit status 1 if there is one, or no kernel.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAIT = "wait_for_work_before();"


def kernels(text):
    """Yields the first line and the beginning of the body of each kernel defined in a source."""
    text = re.sub(r"//[^\n]*", "", text)
    for found in re.finditer(r"\b__global__\b", text):
        depth = 0
        for place in range(found.end(), len(text)):
            depth += {"(": 1, ")": -1}.get(text[place], 0)
            if depth == 0 and text[place] in "{;":
                break
        if text[place] == "{":
            yield text.count("\n", 0, found.start()) + 1, text[place + 1:].lstrip()


def main():
    seen, wrong = 0, []
    for path in sorted((ROOT / "kernels").rglob("*.cu*")):
        for line, body in kernels(path.read_text()):
            seen += 1
            if not body.startswith(WAIT):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: the kernel does not begin with {WAIT}")
    print("\n".join(wrong) if wrong else f"{seen} kernels wait for the work before them")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
