#!/usr/bin/env python3
"""Packs records and traces as they are committed: FILE.jsonl becomes FILE.jsonl.xz, and FILE.jsonl.xz is packed again; .json likewise.

Step times and learning rates are measured and computed as float32, but written with the digits of a double. They get the shortest
decimals that read back as the same float32, which packs better; all other bytes stay. --check changes nothing and fails if
a file is not packed like this.

Usage: tools/ci/pack_records.py [--check] FILE...
"""
import lzma
import pathlib
import re
import struct
import sys

LISTS = re.compile(r'"(samples_ms|lr)":\[([^\]]*)\]')
# Text has no alignment (pb=0), and the previous letter says much about the next one (lc=4).
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0, "nice_len": 273}]


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def shortest(text):
    """Returns the shortest decimal of the same float32; the text itself if its number is none."""
    value = float(text)
    if abs(value) > 3e38 or float32(value) != value:
        return text
    shorter = next(short for digits in range(1, 18) if float32(float(short := f"{value:.{digits}g}")) == value)
    return shorter if "e" not in shorter and len(shorter) < len(text) else text


def with_short_lists(text):
    return LISTS.sub(lambda found: f'"{found[1]}":[{",".join(map(shortest, found[2].split(",")))}]' if found[2] else found[0], text)


def main():
    check, files = sys.argv[1:2] == ["--check"], [pathlib.Path(name) for name in sys.argv[1:] if name != "--check"]
    if not files or any(not re.search(r"\.jsonl?(\.xz)?$", file.name) for file in files):
        sys.exit(__doc__)
    for file in files:
        packed = file.suffix == ".xz"
        text = (lzma.open(file).read() if packed else file.read_bytes()).decode()
        short = with_short_lists(text)
        if check:
            if not packed or short != text:
                sys.exit(f"{sys.argv[0]}: {file}: step times are longer than float32 needs; pack it: {sys.argv[0]} {file}")
            continue
        (file if packed else file.with_name(file.name + ".xz")).write_bytes(lzma.compress(short.encode(), filters=FILTERS))
        if not packed:
            file.unlink()


if __name__ == "__main__":
    main()
