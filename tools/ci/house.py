#!/usr/bin/env python3
"""Prints the size of the repository against its limits: lines of code by folder, tracked megabytes by kind, words and longest
pages, and source files that mention a model family or a field of a case. Exit status 1: a limit that is enforced is exceeded.

Lines are those of C++ and CUDA without comments and blanks. Tests are *_test.*, *_testing.*, *_samples.* and the fuzz targets.
Only tracked files count, as they are in the working tree or in COMMIT.

Usage: tools/ci/house.py [COMMIT]
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEGABYTES = 45  # enforced
PAGE_WORDS = 2500  # enforced, tables included
VERSION_LINES = 40  # enforced, of a released version in the changelog
SOURCE = re.compile(r"\.(cpp|h|cu|cuh|h\.in)$")
TEST = re.compile(r"_(test|testing|samples)\.[a-z]+$|^tools/fuzz/")
# Literals may hold what looks like a comment: of the alternatives the first that matches is taken.
TOKEN = re.compile(r'R"([^()\\ ]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//(?:\\\n|[^\n])*|/\*.*?\*/', re.S)
# Names of model families as they appear in configurations and identifiers.
FAMILIES = """apertus arcee bloom cohere cwm deepseek dots1 ernie exaone falcon gemma glm gpt_?2 gpt_?bigcode gpt_?j gpt_?neo gpt_?oss
granite helium hunyuan internlm jamba llama minimax mi(?:ni)?stral mixtral nemotron olmo phi[-_]?[134] qwen seed_?oss smollm solar
stablelm starcoder""".split()
FAMILY = re.compile(r"(?<![a-z])(" + "|".join(FAMILIES).replace("_?", "[-_]?") + r")", re.I)
FIELD = re.compile(r'\b(?:text|number)\(\s*"([a-z0-9_]+)"')


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def tracked(commit):
    """Returns path -> bytes of every tracked file."""
    if not commit:
        paths = git("ls-files", "-z").decode().split("\0")[:-1]
        return {path: (ROOT / path).read_bytes() for path in paths if (ROOT / path).is_file()}
    entries = [line.split("\t") for line in git("ls-tree", "-rz", commit).decode().split("\0")[:-1]]
    files = {}
    with subprocess.Popen(["git", "cat-file", "--batch"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        for info, path in entries:
            reader.stdin.write(info.split()[2].encode() + b"\n")
            reader.stdin.flush()
            size = int(reader.stdout.readline().split()[2])
            files[path] = reader.stdout.read(size + 1)[:-1]
        reader.stdin.close()
    return files


def lines_of(text):
    """Returns the lines of C++ that are neither blank nor only comment."""
    text = TOKEN.sub(lambda token: re.sub(r"[^\n]", "", token[0]) if token[0].startswith(("//", "/*")) else token[0], text)
    return sum(1 for line in text.split("\n") if line.strip())


def kind_of(path):
    """Returns the kind of a file for the table of megabytes."""
    if "/golden/" in path:
        return "goldens"
    if path.startswith("results/"):
        return "records, packed" if path.endswith(".xz") else "records" if path.endswith(".jsonl") else "other results"
    if SOURCE.search(path):
        return "C++ and CUDA"
    return "the rest"


def long_pages(words):
    """Returns a line for every page with too many words. `words`: path -> number."""
    return [f"{path} has {count:,} words, and at most {PAGE_WORDS:,} may be: split it by the reader's question"
            for path, count in sorted(words.items()) if count > PAGE_WORDS]


def long_versions(path, text):
    """Returns a line for every released version of a changelog that is too long."""
    parts = re.split(r"^(?=## )", text, flags=re.M)[1:]
    return [f"{path}: {part.splitlines()[0][3:]} has {len(part.strip().splitlines())} lines, and at most {VERSION_LINES} may be"
            for part in parts if part.startswith("## 0.") and len(part.strip().splitlines()) > VERSION_LINES]


def table(head, rows):
    """Prints rows of a name and numbers."""
    width = max(len(str(row[0])) for row in [head, *rows])
    for row in [head, *rows]:
        print(f"{row[0]:<{width}}" + "".join(f"{value:>12,}" if isinstance(value, int) else f"{value:>12}" for value in row[1:]))
    print()


def main():
    if len(sys.argv) > 2 or any(word.startswith("-") for word in sys.argv[1:]):
        sys.exit(__doc__)
    files = tracked(sys.argv[1] if len(sys.argv) == 2 else "")
    sources = {path: content.decode() for path, content in files.items() if SOURCE.search(path)}

    lines = collections.defaultdict(lambda: [0, 0])
    for path, text in sources.items():
        count, is_test = lines_of(text), bool(TEST.search(path))
        for name in {"all", *(f"{parent}/" for parent in pathlib.PurePath(path).parents if 0 < len(parent.parts) < 3)}:
            lines[name][is_test] += count
    table(["lines of C++ and CUDA", "code", "tests"], [[name, *both] for name, both in sorted(lines.items())])

    sizes = collections.Counter()
    for path, content in files.items():
        sizes[kind_of(path)] += len(content)
    megabytes = sum(sizes.values()) / 1e6
    table(["tracked files", "MB"], [[kind, f"{size / 1e6:.1f}"] for kind, size in sizes.most_common()] +
          [["all", f"{megabytes:.1f}"], ["limit", f"{MEGABYTES:.1f}"]])

    words = {path: len(content.split()) for path, content in files.items() if path.endswith(".md")}
    table(["words of pages", "words"], [[path, count] for path, count in sorted(words.items(), key=lambda item: -item[1])[:8]] +
          [["all", sum(words.values())], [f"pages above {PAGE_WORDS:,}", sum(count > PAGE_WORDS for count in words.values())]])

    code = {path: text for path, text in sources.items() if not TEST.search(path)}
    fields = FIELD.findall(sources.get("bench/case/case.cpp", ""))
    # Names of one word are words of comments, too.
    mentions = {field: sum(1 for text in code.values() if re.search(rf"\b{field}\b", text)) for field in fields if "_" in field}
    widest = sorted(mentions.items(), key=lambda item: -item[1])
    median = sorted(mentions.values())[len(mentions) // 2] if mentions else 0
    table(["source files that mention", "files"],
          [["a model family", sum(1 for text in code.values() if FAMILY.search(text))],
           ["  of them in models/config", sum(1 for path, text in code.items()
                                              if path.startswith("models/config/") and FAMILY.search(text))],
           [f"a field of a case (median of {len(mentions)})", median]] +
          [[f"  {field}", count] for field, count in widest[:5]])

    faults = long_pages(words)
    for path, content in files.items():
        if re.match(r"\.github/(CHANGELOG|changelog/.*)\.md$", path):
            faults += long_versions(path, content.decode())
    if megabytes > MEGABYTES:
        faults.append(f"{megabytes:.1f} MB are tracked, and at most {MEGABYTES} may be: pack records "
                      "(tools/ci/pack_records.py), and make goldens of small shapes")
    if faults:
        sys.exit("\n".join(f"{sys.argv[0]}: {fault}" for fault in faults))


if __name__ == "__main__":
    main()
