#!/usr/bin/env python3
"""Keeps of PyTorch traces what `precbench explain` reads, and packs them with xz, for results/h200/traces.

tools/explain/trim_traces.py FOLDER OUT [NAME...]     FOLDER: of tools/pytorch_baseline/make_traces.py; NAME: its variants, default all
"""
import bisect, gzip, json, lzma, pathlib, sys

CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation"}
ARGUMENTS = ["External id", "correlation", "device", "stream", "Input Dims", "Input type"]
LONG_US = 100  # operations without launches that show that the host was not idle
SHORT_US = 20  # calls that launch nothing and do not wait
KEPT_LAUNCHES = 20
LONGEST_NAME = 300  # explain keeps no more


def without_first_step(events):
    """Returns the events without those of the first of several steps, which is not explained, but for its mark and its last launches."""
    marks = sorted((e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"), key=lambda e: e["ts"])
    if len(marks) < 2:
        return events
    second = marks[1]["ts"]
    number = lambda e: e["args"].get("correlation")
    launched = {number(e) for e in events if number(e) and e["cat"].startswith("cuda_") and e["ts"] < second}
    gpu = lambda e: e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    ends = sorted((e["ts"] + e["dur"], number(e)) for e in events if gpu(e) and number(e) in launched)
    last = {n for _, n in ends[-KEPT_LAUNCHES:]}
    end = lambda e: e["ts"] + e["dur"] >= second
    return [e for e in events if e is marks[0] or number(e) in last or (number(e) not in launched if gpu(e) else end(e))]


def trimmed(trace):
    """Returns the trace as text, with an event on each line and times from the first in tenths of microseconds."""
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") in CATEGORIES]
    events = without_first_step(events)
    first = min(e["ts"] for e in events)
    calls = sorted(e["ts"] for e in events if e["cat"].startswith("cuda_"))
    launches = lambda e: bisect.bisect_left(calls, e["ts"]) < bisect.bisect_right(calls, e["ts"] + e["dur"])
    compiling = [e for e in events if "(dynamo_timed)" in e["name"]]
    hidden = lambda e: any(c["ts"] < e["ts"] and e["ts"] + e["dur"] < c["ts"] + c["dur"] for c in compiling)
    kept = lambda e: "benchmark" in e["name"] or "(dynamo_timed)" in e["name"] if hidden(e) else e["dur"] > LONG_US or launches(e)
    events = [e for e in events if e["cat"] != "cpu_op" or kept(e)]
    gpu = {e["args"].get("correlation") for e in events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")}
    idle = lambda e: e["args"].get("correlation") not in gpu and e["dur"] < SHORT_US and "Synchronize" not in e["name"]
    events = [e for e in events if not (e["cat"].startswith("cuda_") and idle(e))]
    lines = []
    for e in sorted(events, key=lambda e: e["ts"]):
        arguments = {key: e["args"][key] for key in ARGUMENTS if key in e.get("args", {})}
        kept = dict(ph="X", cat=e["cat"], name=e["name"][:LONGEST_NAME], tid=e["tid"], ts=round(e["ts"] - first, 1), dur=round(e["dur"], 1),
                    args=arguments)
        lines.append(json.dumps(kept, separators=(",", ":")))
    devices = [dict(id=0, name=trace["deviceProperties"][0]["name"])]
    return '{"deviceProperties":' + json.dumps(devices) + ',"traceEvents":[\n' + ",\n".join(lines) + "\n]}\n"


def main():
    source, out = map(pathlib.Path, sys.argv[1:3])
    names = sys.argv[3:]
    out.mkdir(parents=True, exist_ok=True)
    manifest = json.loads((source / "manifest.json").read_text())
    manifest.pop("gpu_uuid", None)
    for variant in manifest["variants"]:
        if "trace" not in variant or "fault" not in variant or (names and variant["name"] not in names):
            variant.pop("trace", None)
            continue
        packed = source / variant["trace"]
        variant["trace"] = packed.name.removesuffix(".gz") + ".xz"
        with gzip.open(packed) as file:
            text = trimmed(json.load(file))
        (out / variant["trace"]).write_bytes(lzma.compress(text.encode(), filters=[dict(id=lzma.FILTER_LZMA2, preset=9 | lzma.PRESET_EXTREME, lc=4, pb=0)]))
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
