#!/usr/bin/env python3
"""Keeps of PyTorch traces what `precbench explain` reads, and packs them with xz, for results/h200/traces.

tools/explain/trim_traces.py FOLDER OUT [NAME...]     FOLDER: of tools/pytorch_baseline/make_traces.py; NAME: its variants, default all
"""
import bisect, gzip, json, lzma, pathlib, sys

CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation"}
ARGUMENTS = ["External id", "correlation", "device", "stream", "Input Dims", "Input type"]
LONG_US = 100  # operations without launches that show that the host was not idle
LONGEST_NAME = 300  # explain keeps no more


def trimmed(trace):
    """Returns the trace as text, with an event on each line and times from the first."""
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") in CATEGORIES]
    first = min(e["ts"] for e in events)
    calls = sorted(e["ts"] for e in events if e["cat"].startswith("cuda_"))
    launches = lambda e: bisect.bisect_left(calls, e["ts"]) < bisect.bisect_right(calls, e["ts"] + e["dur"])
    events = [e for e in events if e["cat"] != "cpu_op" or e["dur"] > LONG_US or launches(e)]
    lines = []
    for e in sorted(events, key=lambda e: e["ts"]):
        arguments = {key: e["args"][key] for key in ARGUMENTS if key in e.get("args", {})}
        kept = dict(ph="X", cat=e["cat"], name=e["name"][:LONGEST_NAME], tid=e["tid"], ts=round(e["ts"] - first, 3), dur=round(e["dur"], 3),
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
        if "trace" not in variant or (names and variant["name"] not in names):
            variant.pop("trace", None)
            continue
        packed = source / variant["trace"]
        variant["trace"] = packed.name.removesuffix(".gz") + ".xz"
        with gzip.open(packed) as file:
            text = trimmed(json.load(file))
        (out / variant["trace"]).write_bytes(lzma.compress(text.encode()))
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
