#!/usr/bin/env python3
"""Judges `precbench explain` on traces with planted faults: is the planted one named first, and its gain predicted?

tools/explain/judge_traces.py [FOLDER]     FOLDER: of trim_traces.py or make_traces.py, default results/h200/traces; prints Markdown
tools/explain/judge_traces.py --check      fails if the tables in tools/explain/judged.md differ; --write renews them

PRECBENCH: the program, default build/precbench. A measured gain is the time of the repaired variant beside the faulty one, without the
profiler, as a share of the faulty step. A fault whose repair makes the step slower is none: it should not be named.
"""
import json, os, pathlib, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("PRECBENCH", str(ROOT / "build/precbench"))
PAGE = ROOT / "tools/explain/judged.md"
END = "<!-- end -->\n"
FOLDERS = {"": ROOT / "results/h200/traces", " held-out": ROOT / "results/h200/traces/held-out"}  # by what the mark of its tables ends with
LEAST_GAIN = 0.02  # a planted fault that costs less is not one
CLOSE = 0.03       # of the step
HOST_BOUND = 1.2   # measured step over the time in which the GPU was busy


def explained(path):
    done = subprocess.run([PROGRAM, "explain", "--json", str(path)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{path}: {done.stderr}")
    return json.loads(done.stdout)["traces"][0]


def measured_gain(variant, variants):
    """Returns the share of the step that the repair saves; of a small batch, per token. None if the repaired step was not measured."""
    repaired = variants.get(variant["repaired"], {})
    if "step_ms" not in repaired:
        return None
    tokens = lambda v: v["batch"] * v["seq"]
    return 1 - repaired["step_ms"] / tokens(repaired) * tokens(variant) / variant["step_ms"]


def percent(share):
    return "-" if share is None else f"{100 * share:.1f}%"


def tables(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    variants = {v["name"]: v for v in manifest["variants"]}
    planted, healthy, waiting, first, close = [], [], [], 0, 0
    for variant in manifest["variants"]:
        if "trace" not in variant or "fault" not in variant:
            continue
        trace = explained(folder / variant["trace"])
        step, findings = trace["step_without_profiler_ms"], trace["findings"]
        gain_of = lambda f: (step - f["predicted_step_ms"]) / step
        if not variant["fault"]:
            busy = sum(c["ms"] for c in trace["classes"] if c["class"] != "idle")
            rows = waiting if variant["step_ms"] > HOST_BOUND * busy else healthy
            rows.append((variant["name"], f'{variant["step_ms"]:.2f}', f"{busy:.2f}", f"{step:.2f}",
                         ", ".join(f'{f["id"]} {percent(gain_of(f))}' for f in findings) or "none"))
            continue
        gain = measured_gain(variant, variants)
        own = next((f for f in findings if f["id"] == variant["fault"]), None)
        promised = gain_of(own) if own else None
        if gain is not None and gain < LEAST_GAIN:
            first += own is None
            close += own is None
        else:
            close += None not in (promised, gain) and abs(promised - gain) <= CLOSE
            first += bool(findings) and findings[0]["id"] == variant["fault"]
        planted.append((variant["name"], variant["fault"], findings[0]["id"] if findings else "none", percent(gain),
                        percent(promised), f'{variant["step_ms"]:.2f}', f"{step:.2f}"))
    quiet = sum(row[-1] == "none" for row in healthy)
    named = sum(row[-1].startswith(("launch_bound", "small_gemms")) for row in waiting)
    head = "step (ms), measured | GPU busy | step from the trace | advice |", "|---|--:|--:|--:|---|"
    lines = [f"| trace | planted | named first | gain, measured | predicted | step (ms), measured | from the trace |",
             "|---|---|---|--:|--:|--:|--:|"]
    lines += ["| " + " | ".join(row) + " |" for row in planted]
    lines += ["", f"{first} of {len(planted)} as they should be, {close} gains within 3% of the step.", "",
              f"| healthy trace | {head[0]}", head[1]]
    lines += ["| " + " | ".join(row) + " |" for row in healthy]
    lines += ["", f"{quiet} of {len(healthy)} without advice."]
    if waiting:
        lines += ["", f"| trace without a planted fault that waits for the host | {head[0]}", head[1]]
        lines += ["| " + " | ".join(row) + " |" for row in waiting]
        lines += ["", f"{named} of {len(waiting)} told so."]
    return "\n".join(lines) + "\n"


def main():
    words = sys.argv[1:]
    folders = [w for w in words if not w.startswith("--")]
    if folders or not words:
        return print(tables(pathlib.Path(folders[0]) if folders else FOLDERS[""]), end="")
    page = judged = PAGE.read_text()
    for name, folder in FOLDERS.items():
        begin = f"<!-- judge_traces.py{name} -->\n"
        if begin in page:
            before, _, rest = judged.partition(begin)
            judged = before + begin + tables(folder) + END + rest.partition(END)[2]
    if "--write" in words:
        PAGE.write_text(judged)
    elif judged != page:
        sys.exit(f"{PAGE}: its tables are not what {pathlib.Path(__file__).name} prints; run it with --write")


if __name__ == "__main__":
    main()
