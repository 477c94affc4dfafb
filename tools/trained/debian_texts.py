#!/usr/bin/env python3
"""Extracts texts from Debian packages, for tools/data/tokenize_text.py and tokenize_chats.py.

  tools/trained/debian_texts.py documentation linux-source-6.1_*.deb --out FOLDER    # documentation of Linux, 26 MB
  tools/trained/debian_texts.py code linux-source-6.1_*.deb --out FOLDER             # C sources of Linux's core, 29 MB
  tools/trained/debian_texts.py prose anarchism_*.deb r-cran-janeaustenr_*.deb --out FOLDER
                                                      # essays ("An Anarchist FAQ", GPL-2) and Jane Austen's novels, 16 MB
  tools/trained/debian_texts.py definitions wordnet-base_*.deb --out FILE            # FILE.jsonl: definitions of 117,659 words

Definitions are questions and answers (WordNet's license), one per line. Of the others FOLDER gets one file per text,
and FOLDER.list their paths in an order that depends only on the names and mixes the subjects. Needs dpkg-deb.
"""
import argparse
import gzip
import hashlib
import json
import lzma
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import zlib

MAXIMUM_BYTES = 512 << 10  # of a file of Linux: longer ones are generated tables
# Folders of Linux's C sources: its core. Drivers and architectures are 15 times as large and full of tables.
CODE_FOLDERS = ("block/", "certs/", "crypto/", "init/", "io_uring/", "ipc/", "kernel/", "lib/", "mm/", "security/",
                "virt/")


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


def linux_files(packages, is_wanted):
    """Yields (name, text) of the kernel's files whose name, without linux-source-6.1/, is wanted."""
    for package in packages:
        for path, source in members(package):
            if not path.endswith(".tar.xz"):
                continue
            with tarfile.open(fileobj=lzma.open(source), mode="r|") as tar:
                for name, file in regular_files(tar):
                    name = name.partition("/")[2]
                    if is_wanted(name):
                        data = file.read()
                        if len(data) < MAXIMUM_BYTES:
                            yield name, data.decode("utf-8", "replace")


def documentation(packages):
    """Yields (name, text) of the kernel's documentation in English."""
    return linux_files(packages, lambda name: name.startswith("Documentation/") and name.endswith((".rst", ".txt"))
                       and "/translations/" not in name)


def code(packages):
    """Yields (name, text) of the C sources of the kernel's core."""
    return linux_files(packages, lambda name: name.startswith(CODE_FOLDERS) and name.endswith(".c"))


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


def definitions(packages):
    """Yields (question, answer) for the first word of each of WordNet's sets of synonyms."""
    kinds = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
    for package in packages:
        for path, file in members(package):
            kind = kinds.get(path.rpartition("/data.")[2])
            if not kind:
                continue
            for line in file.read().decode().splitlines():
                if line.startswith("  "):  # the license
                    continue
                fields, _, gloss = line.partition(" | ")
                word = fields.split(" ")[4].partition("(")[0].replace("_", " ")
                yield f'What does the {kind} "{word}" mean?', gloss.strip()


def write_definitions(rows, out):
    """Writes OUT.jsonl. Returns the number of definitions."""
    lines = [json.dumps({"prompt": question, "answer": answer}) + "\n" for question, answer in rows]
    lines.sort(key=lambda line: hashlib.sha256(line.encode()).digest())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(out.name + ".jsonl").write_text("".join(lines))
    return len(lines)


def write_texts(texts, out):
    """Writes a file per text and OUT.list. Returns their number."""
    names = []
    for name, text in texts:
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        names.append(name)
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    out.with_name(out.name + ".list").write_text("".join(f"{out / name}\n" for name in names))
    return len(names)


KINDS = {"documentation": (documentation, write_texts), "code": (code, write_texts), "prose": (prose, write_texts),
         "definitions": (definitions, write_definitions)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("packages", nargs="+", metavar="PACKAGE.deb")
    parser.add_argument("--out", required=True, metavar="PATH", type=pathlib.Path)
    arguments = parser.parse_args()
    read, write = KINDS[arguments.kind]
    try:
        count = write(read(arguments.packages), arguments.out)
    except OSError as error:
        fail(f"{error.filename or arguments.packages[0]}: {error.strerror or error}")
    except (tarfile.TarError, lzma.LZMAError, zlib.error, struct.error) as error:
        fail(f"{' '.join(arguments.packages)}: {error}")
    if not count:
        fail(f"{' '.join(arguments.packages)}: no {arguments.kind} in it")


main()
