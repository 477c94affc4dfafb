#!/usr/bin/env python3
"""Extracts English texts from Debian packages, for tools/data/tokenize_text.py.

  tools/trained/debian_texts.py documentation linux-source-6.1_*.deb --out FOLDER    # documentation of Linux, 26 MB
  tools/trained/debian_texts.py prose anarchism_*.deb r-cran-janeaustenr_*.deb --out FOLDER
                                                      # essays ("An Anarchist FAQ", GPL-2) and Jane Austen's novels, 16 MB

FOLDER gets one file per text, and FOLDER.list their paths in an order that depends only on the names and mixes the
subjects. Needs dpkg-deb.
"""
import argparse
import gzip
import hashlib
import lzma
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import zlib

MAXIMUM_BYTES = 512 << 10  # of a documentation file: longer ones are generated tables


def fail(message):
    print(f"{sys.argv[0]}: {message}", file=sys.stderr)
    sys.exit(2)


def members(package):
    """Yields (path, open file) of every file in a Debian package."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            yield from regular_files(tar)


def regular_files(tar):
    for member in tar:
        if member.isfile():
            yield member.name, tar.extractfile(member)


def documentation(packages):
    """Yields (name, text) of the kernel's documentation in English."""
    for package in packages:
        for path, source in members(package):
            if not path.endswith(".tar.xz"):
                continue
            with tarfile.open(fileobj=lzma.open(source), mode="r|") as tar:
                for name, file in regular_files(tar):
                    name = name.partition("/")[2]  # without linux-source-6.1/
                    if name.startswith("Documentation/") and name.endswith((".rst", ".txt")) and "/translations/" not in name:
                        data = file.read()
                        if len(data) < MAXIMUM_BYTES:
                            yield name, data.decode("utf-8", "replace")


def prose(packages):
    """Yields (name, text) of essays and novels; lists of links are left out."""
    for package in packages:
        for path, file in members(package):
            essay = re.search(r"/anarchism/markdown/((sec|append|intro|vol|10years)[^/]*?)(\.gz)?$", path)
            if essay:
                data = file.read()
                yield essay[1], (gzip.decompress(data) if essay[3] else data).decode("utf-8", "replace")
            elif path.endswith("/janeaustenr/data/Rdata.rdb"):
                yield from novels(file.read())


def novels(database):
    """Yields (name, text) of each character vector in an R database: zlib streams of serialized R, each
    preceded by 4 bytes."""
    while database:
        stream = zlib.decompressobj()
        data, database = stream.decompress(database[4:]), stream.unused_data
        lines = strings_of(data)
        if lines:
            yield hashlib.sha256(data).hexdigest()[:8] + ".txt", "\n".join(lines) + "\n"


def strings_of(data):
    """Returns the strings of a serialized character vector (R's XDR format, version 3), or none
    for anything else."""
    if data[:2] != b"X\n":
        return []
    version, _, _, encoding = struct.unpack(">4i", data[2:18])
    kind, count = struct.unpack_from(">2i", data, 18 + encoding)
    if version != 3 or kind & 0xFF != 16:
        return []
    lines, at = [], 26 + encoding
    for _ in range(count):
        _, size = struct.unpack_from(">2i", data, at)
        lines.append(data[at + 8:at + 8 + max(size, 0)].decode("utf-8", "replace"))  # a missing string has size -1
        at += 8 + max(size, 0)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["documentation", "prose"])
    parser.add_argument("packages", nargs="+", metavar="PACKAGE.deb")
    parser.add_argument("--out", required=True, metavar="FOLDER", type=pathlib.Path)
    arguments = parser.parse_args()
    names = []
    try:
        for name, text in {"documentation": documentation, "prose": prose}[arguments.kind](arguments.packages):
            path = arguments.out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
            names.append(name)
    except OSError as error:
        fail(f"{error.filename or arguments.packages[0]}: {error.strerror or error}")
    except (tarfile.TarError, lzma.LZMAError, zlib.error, struct.error) as error:
        fail(f"{' '.join(arguments.packages)}: {error}")
    if not names:
        fail(f"{' '.join(arguments.packages)}: no {arguments.kind} in it")
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    arguments.out.with_name(arguments.out.name + ".list").write_text("".join(f"{arguments.out / name}\n" for name in names))


main()
