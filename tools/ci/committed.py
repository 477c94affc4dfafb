"""Reads the committed records and formats Markdown tables, for the scripts beside this one."""
import json, pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


def lines(path):
    """Returns the JSON objects of a file under results/, or of any file if the path is absolute."""
    return [json.loads(line) for line in (RESULTS / path).read_text().splitlines()]


def measured(path, *keys):
    """Returns the records with a speed by these fields of their case, the first record of each."""
    found = {}
    for record in lines(path):
        if record["status"] == "ok" and (record["metrics"] or {}).get("tokens_per_s"):
            found.setdefault(tuple(record["case"].get(key) for key in keys), record)
    return found


def rate(record):
    return record["metrics"]["tokens_per_s"]


def gib(record):
    return record["memory"]["measured"]["peak"] / 2**30


def spread(values, digits=0, unit=""):
    """Returns "smallest to largest", or one number if both print alike."""
    low, high = f"{min(values):,.{digits}f}{unit}", f"{max(values):,.{digits}f}{unit}"
    return low if low == high else f"{low} to {high}"


def table(header, rows):
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header)] +
                     ["| " + " | ".join(row) + " |" for row in rows])
