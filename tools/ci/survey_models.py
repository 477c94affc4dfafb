#!/usr/bin/env python3
"""Counts which model files `precbench` accepts, and why it refuses the others.

    python3 tools/ci/survey_models.py PRECBENCH FOLDER [--names]

Runs a dry run of every FOLDER/*.json and prints one line per reason of a refusal, most frequent first, with
the number of files it refuses. `--names` also lists the files.
"""
import argparse
import collections
import concurrent.futures
import pathlib
import re
import subprocess

REASON_WIDTH = 150


def try_model(program, path):
    """Returns None if the file is accepted, else the error."""
    command = [program, "sweep", "--dry-run", "--model", str(path), "--recipe", "bf16", "--seq", "512",
               "--batch", "1", "--device", "cpu"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return None
    lines = result.stderr.splitlines()
    return next((line for line in lines if line.startswith("error")), lines[-1] if lines else "no message")


def reason_of(error, path):
    """Returns an error without what differs between files of one kind."""
    text = error.replace(str(path), "").replace(path.name, "")
    text = re.sub(r"^[^:]*: *(: *)?", "", text)
    return re.split("; (?:known:|precbench list|set )", text)[0][:REASON_WIDTH]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("precbench")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--names", action="store_true", help="the files of each reason")
    options = parser.parse_args()
    paths = sorted(options.folder.glob("*.json"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda path: try_model(options.precbench, path), paths))
    reasons = collections.defaultdict(list)
    accepted = []
    for path, error in zip(paths, outcomes):
        if error is None:
            accepted.append(path.name)
        else:
            reasons[reason_of(error, path)].append(path.name)
    print(f"{len(accepted)} of {len(paths)} accepted")
    if options.names:
        print("      " + " ".join(accepted))
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):4}  {reason}")
        if options.names:
            print("      " + " ".join(names))


if __name__ == "__main__":
    main()
