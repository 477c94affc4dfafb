#!/usr/bin/env python3
"""The README's tables of measurements, made from the committed records, so that neither can drift from the other.

  tools/ci/readme_tables.py            # writes the tables into README.md, each between its two marks
  tools/ci/readme_tables.py --check    # exit status 1, and which, where README.md says something else
  tools/ci/readme_tables.py --beside-peer out/beside-peer     # prints that table of what tools/peer/bench_gpu_peer.sh left there
"""
import json, pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
SINGLE_RECIPES = ["tensorwise", "rowwise", "rowwise_gw_hp", "blockwise"]
PEER_MODELS = {"8b": "llama3.1-8b", "3b": "llama3.2-3b", "1b": "llama3.2-1b"}


def lines(path):
    """Of a file under results/, or anywhere if the path is absolute."""
    return [json.loads(line) for line in (RESULTS / path).read_text().splitlines()]


def measured(path, *keys):
    """Records with a speed, by these fields of their case; the first of each."""
    found = {}
    for record in lines(path):
        if record["status"] == "ok" and (record["metrics"] or {}).get("tokens_per_s"):
            found.setdefault(tuple(record["case"][key] for key in keys), record)
    return found


def rate(record):
    return record["metrics"]["tokens_per_s"]


def gib(record):
    return record["memory"]["measured"]["peak"] / 2**30


def table(header, rows):
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header)] +
                     ["| " + " | ".join(row) + " |" for row in rows])


def single():
    cases = measured("h200/single.jsonl", "model", "batch", "seq", "recipe")
    rows = []
    for (model, batch, seq, recipe), bf16 in cases.items():
        if recipe != "bf16":
            continue
        row = [model, f"{batch} x {seq}", f"{rate(bf16):,.0f}"]
        others = [cases[model, batch, seq, other] for other in SINGLE_RECIPES]
        row += [f"{rate(other):,.0f} ({rate(other) / rate(bf16):.2f}x)" for other in others]
        rows.append(row + [f"{gib(bf16):.1f} / {gib(others[0]):.1f}"])
    return table(["model", "batch x seq", "bf16", *SINGLE_RECIPES, "peak GiB, bf16 / tensorwise"], rows)


def peers(path):
    """Lines of peer_torch.py by model, batch, sequence and recipe; the faster of all linears converted and of those that
    torchao's filter leaves."""
    best = {}
    for line in lines(path):
        if "error" in line:
            continue
        key = PEER_MODELS[line["model"]], line["batch"], line["seq"], line["recipe"].removesuffix("_auto")
        if key not in best or line["tokens_per_s"] > best[key]["tokens_per_s"]:
            best[key] = line
    return best


def beside_peer(folder="h200/beside-peer"):
    cases = measured(f"{folder}/records.jsonl", "model", "batch", "seq", "recipe")
    theirs = peers(f"{folder}/peer.ndjson")
    rows = []
    for key, ours in cases.items():
        model, batch, seq, recipe = key
        bf16 = cases.get((model, batch, seq, "bf16"))
        over = f"{rate(ours) / rate(bf16):.2f}x" if bf16 else "-"
        peer = theirs.get(key)
        rows.append([model, f"{batch} x {seq}", recipe, f"{rate(ours):,.0f}", over] +
                    ([f"{peer['tokens_per_s']:,.0f}" + (" (filtered)" if peer["recipe"].endswith("_auto") else ""),
                      f"{rate(ours) / peer['tokens_per_s']:.2f}x",
                      f"{peer['peak_gib']:.2f}"] if peer else ["-", "-", "-"]) + [f"{gib(ours):.2f}"])
    return table(["model", "batch x seq", "recipe", "precbench tokens/s", "over bf16", "PyTorch tokens/s", "ratio",
                  "PyTorch peak GiB", "precbench peak GiB"], rows)


def scaling():
    cases = measured("h200x4/scaling.jsonl", "model", "seq", "parallel", "recipe", "gather", "gpus")
    one_gpu = {(model, seq, recipe): record for (model, seq, _, recipe, _, gpus), record in cases.items() if gpus == 1}
    rows, seen = [], set()
    for (model, seq, parallel, recipe, gather, gpus) in cases:
        line = (model, seq, parallel, recipe, gather)
        if gpus == 1 or line in seen:
            continue
        seen.add(line)
        one, many = one_gpu[model, seq, recipe], [cases[*line, count] for count in (2, 4)]
        rows.append([f"{model}, {seq}", parallel, recipe, gather, f"{rate(one):,.0f}"] +
                    [f"{rate(r):,.0f} ({100 * rate(r) / n / rate(one):.0f}%)" for n, r in zip((2, 4), many)] +
                    [" / ".join(f"{gib(r):.1f}" for r in [one, *many])])
    return table(["model, seq", "parallel", "recipe", "gather", "1 GPU", "2 GPUs", "4 GPUs",
                  "peak GiB per GPU, 1 / 2 / 4"], rows)


def scaling_peer():
    cases = measured("h200x4/scaling.jsonl", "model", "seq", "parallel", "recipe", "gather", "gpus")
    rows = []
    for line in lines("h200x4/peer.ndjson"):
        recipe, _, gathers = line["recipe"].partition("_")
        model = PEER_MODELS[line["model"]]
        ours = cases[model, line["seq"], "fsdp", recipe, "fp8" if gathers else "bf16", line["gpus"]]
        rows.append([f"{model}, {line['seq']}", recipe + (", FP8 gather" if gathers else ""),
                     f"{line['tokens_per_s']:,.0f}", f"{rate(ours):,.0f}", f"{rate(ours) / line['tokens_per_s']:.2f}x",
                     f"{line['peak_gib']:.1f}", f"{gib(ours):.1f}"])
    return table(["model, seq", "recipe", "PyTorch tokens/s", "precbench tokens/s", "ratio", "PyTorch peak GiB",
                  "precbench peak GiB"], rows)


def main():
    if sys.argv[1:2] == ["--beside-peer"]:
        return print(beside_peer(pathlib.Path(sys.argv[2]).resolve()))
    readme = ROOT / "README.md"
    text = old = readme.read_text()
    wrong = []
    for name, make in {"single": single, "beside-peer": beside_peer, "scaling": scaling,
                       "scaling-peer": scaling_peer}.items():
        marks = re.compile(rf"(<!-- table {name} -->\n).*?(\n<!-- end -->)", re.S)
        if not marks.search(text):
            sys.exit(f"README.md has no place for the table {name}: <!-- table {name} -->, <!-- end -->")
        new = marks.sub(lambda m: m[1] + make() + m[2], text)
        if new != text:
            wrong.append(name)
        text = new
    if "--check" not in sys.argv[1:]:
        readme.write_text(text)
    elif text != old:
        sys.exit(f"README.md: not what the records say: {', '.join(wrong)}; tools/ci/readme_tables.py writes the tables")


if __name__ == "__main__":
    main()
