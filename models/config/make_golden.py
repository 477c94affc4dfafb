#!/usr/bin/env python3
"""Writes golden/configs.jsonl.xz: config.json files, and files of our own keys, with the model, parameters and warnings that
precbench reads from each, or its refusal. families_test.cpp compares them.

Usage: models/config/make_golden.py [--add FILE...] [--precbench build/precbench]
Reads all files again and prints those whose result is another one; --add appends files. Commit only changes that are meant.
"""
import argparse
import json
import lzma
import pathlib
import subprocess

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden" / "configs.jsonl.xz"
BEGIN = "precbench: standard input: "


def read(precbench, config):
    """Returns the case of a file."""
    run = subprocess.run([precbench, "list", "models", "--model", "-", "--json"], input=json.dumps(config), text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if run.returncode:
        if not run.stderr.startswith(BEGIN):
            raise SystemExit(run.stderr)
        return {"config": config, "refused": run.stderr[len(BEGIN):].rstrip("\n")}
    found = json.loads(run.stdout)["models"][0]
    model = found["config"]
    model["name"] = config.get("name", "")
    case = {"config": config, "model": model, "parameters": found["parameters"]}
    return {**case, "warnings": found["warnings"]} if found["warnings"] else case


def same(before, after):
    """Returns true for equal cases, also if precbench shortened a long refusal."""
    if before == after:
        return True
    head, dots, tail = after.get("refused", "").partition(" ... ")
    long = before.get("refused", "")
    return bool(dots) and before["config"] == after["config"] and long.startswith(head) and long.endswith(tail)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", nargs="*", default=[], type=pathlib.Path)
    parser.add_argument("--precbench", default="build/precbench")
    arguments = parser.parse_args()
    cases = [json.loads(line) for line in lzma.open(GOLDEN, "rt")]
    results = []
    for before in cases:
        after = read(arguments.precbench, before["config"])
        results.append(before if same(before, after) else after)
        if results[-1] is after:
            print(f"changed: {json.dumps(after)}")
    for path in arguments.add:
        results.append(read(arguments.precbench, json.loads(path.read_text())))
        print(f"added: {json.dumps(results[-1])}")
    text = "".join(json.dumps(case, sort_keys=True) + "\n" for case in results)
    GOLDEN.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
