#!/usr/bin/env python3
"""Checks results/published/losses.json: every entry has its fields, numbers that can be, a nearest recipe that exists,
and the tier that the rules in the file's `about` give it.

Usage: tools/ci/check_losses.py [FILE]     prints each fault, or how many entries there are of each kind and tier;
exit status 1 if there is a fault.
"""
import collections
import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "results/published/losses.json"
FEWEST = 40  # gaps and failures

TEXTS = ("id", "group", "source", "where", "date", "model", "recipe", "against", "published", "averaged", "noise",
         "read_in")
VALUES = {
    "architecture": {"dense", "mixture", "hybrid"},
    "kind": {"gap", "failure", "no_difference"},
    "tier": {"judged", "share", "continued", "shown"},
    "stage": {"from scratch", "continued pre-training", "fine-tuning", "reinforcement learning", "not stated"},
    "confidence": {"high", "medium", "low"},
}
POSITIVE = ("params_total", "params_active", "tokens", "bound_nats", "bound_percent", "noise_nats")
POSITIVE_OPTIONAL = ("tokens_before",)
SIGNED = ("gap_nats", "gap_percent")
REQUIRED = {*TEXTS, *VALUES, *POSITIVE, *SIGNED, "nearest", "differs"}
OPTIONAL = {"params_note", "cause", "confound", "caveat", *POSITIVE_OPTIONAL}
NAME = re.compile(r'(?:\w\(|return \{)"([a-z]\w*)",|\{\{"(bf16)", \{\}')
CAUSES = {"numerics", "software", "not known"}


def recipe_names():
    """Returns the names of the built-in recipes: first arguments and first members in recipe.cpp, and the files of ablations."""
    numerics = ROOT / "kernels/numerics"
    return ({first or second for first, second in NAME.findall((numerics / "recipe.cpp").read_text())} |
            {path.stem for path in (numerics / "ablations").glob("*.json")})


def tier(entry):
    """Returns the tier of an entry according to the rules in `about`."""
    scratch = entry["stage"] == "from scratch"
    if entry["kind"] == "failure":
        return "judged" if entry["nearest"] and entry.get("cause") == "numerics" and scratch else "shown"
    known = all(entry[key] for key in ("params_total", "params_active", "tokens", "nearest"))
    if not known or entry["architecture"] == "hybrid" or entry.get("confound"):
        return "shown"
    if entry["kind"] == "no_difference":
        return "judged" if scratch and (entry["bound_nats"] or entry["bound_percent"]) else "shown"
    if scratch:
        return "judged" if entry["gap_nats"] is not None else "share"
    return "continued" if entry["stage"] == "continued pre-training" and entry["gap_nats"] is not None else "shown"


def is_number(value):
    """Returns whether the value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def entry_faults(entry, recipes):
    """Yields what is wrong with one entry."""
    if missing := sorted(REQUIRED - entry.keys()):
        yield f"lacks {', '.join(missing)}"
        return
    if unknown := sorted(entry.keys() - REQUIRED - OPTIONAL):
        yield f"unknown key {', '.join(unknown)}"
    for key in TEXTS:
        if not isinstance(entry[key], str) or not entry[key].strip():
            yield f"{key} is no text"
    for key, values in VALUES.items():
        if entry[key] not in values:
            yield f"{key} is {entry[key]!r}, not one of {', '.join(sorted(values))}"
    for key in POSITIVE + SIGNED:
        if entry[key] is not None and not (is_number(entry[key]) and (key in SIGNED or entry[key] > 0)):
            yield f"{key} is {entry[key]!r}, not a {'finite' if key in SIGNED else 'positive'} number or null"
            return
    for key in POSITIVE_OPTIONAL:
        if key in entry and not (is_number(entry[key]) and entry[key] > 0):
            yield f"{key} is {entry[key]!r}, not a positive number"
    if not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", str(entry["date"])):
        yield f"date is {entry['date']!r}, not YYYY-MM"
    if entry["nearest"] is not None and entry["nearest"] not in recipes:
        yield f"nearest names {entry['nearest']!r}, which is no built-in recipe"
    if entry["params_total"] and entry["params_active"] and entry["params_active"] > entry["params_total"]:
        yield "more parameters are active than there are"
    gaps = sum(entry[key] is not None for key in SIGNED)
    bounds = sum(entry[key] is not None for key in ("bound_nats", "bound_percent"))
    if gaps != (entry["kind"] == "gap"):
        yield f"a {entry['kind']} has {gaps} of gap_nats and gap_percent"
    if bounds > (entry["kind"] == "no_difference"):
        yield f"a {entry['kind']} has {bounds} of bound_nats and bound_percent"
    if (entry.get("cause") in CAUSES) != (entry["kind"] == "failure"):
        yield f"cause is {entry.get('cause')!r} in a {entry['kind']}"
    if entry["tier"] in VALUES["tier"] and entry["tier"] != tier(entry):
        yield f"tier is {entry['tier']}; the rules say {tier(entry)}"


def faults(data, recipes):
    """Returns what is wrong with the file's content."""
    found = []
    entries = data["losses"]
    for name, count in collections.Counter(entry.get("id") for entry in entries).items():
        if count > 1:
            found.append(f"{name}: {count} entries have this id")
    for entry in entries:
        found += [f"{entry.get('id')}: {fault}" for fault in entry_faults(entry, recipes)]
    if (count := sum(entry.get("kind") in ("gap", "failure") for entry in entries)) < FEWEST:
        found.append(f"{count} gaps and failures, fewer than {FEWEST}")
    return found


def main():
    data = json.loads(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else FILE).read_text())
    if found := faults(data, recipe_names()):
        print("\n".join(found))
        return 1
    counts = collections.Counter((entry["kind"], entry["tier"]) for entry in data["losses"])
    print(f"{len(data['losses'])} published losses: " +
          ", ".join(f"{count} {kind} {level}" for (kind, level), count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
