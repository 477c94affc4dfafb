#!/usr/bin/env python3
"""The tables and figures of measurements in the pages, made from the committed records, so that neither can drift from the
other. A page is any Markdown file that git knows. It has a place for a table between two lines, or for a figure within a
line; the same one may stand on several pages, and each must stand on one at least:

  <!-- table single -->                  <!-- figure repeats -->1.1%<!-- end -->
  <!-- end -->

  tools/ci/readme_tables.py            # writes them into the pages
  tools/ci/readme_tables.py --check    # exit status 1, and where which, where a page says something else
  tools/ci/readme_tables.py --beside-peer out/beside-peer     # prints that table of what tools/peer/bench_gpu_peer.sh left there
"""
import json, math, pathlib, re, subprocess, sys

import bench_tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
SINGLE_RECIPES = ["tensorwise", "rowwise", "rowwise_gw_hp", "blockwise"]
FRONT_SHAPES = [("llama3.1-8b", 1, 8192), ("llama3.1-8b", 1, 4096), ("llama3.2-3b", 1, 4096), ("llama3.2-1b", 8, 2048)]
FRONT_STUDY = ["blockwise", "mxfp8", "mxfp8_floor", "rowwise", "tensorwise"]
MSAMP_PARTS = ["tensorwise", "tensorwise_delayed", "e4m3_gradients", "fp16_master", "msamp_o1"]
PLATEAU_SHAPES = [*(("llama3.2-1b", 1, batch) for batch in (1, 2, 4, 8)), ("llama3.2-1b", 2, 1), ("llama3.2-1b", 2, 2),
                  ("llama3.1-8b", 1, 1)]  # model, GPUs, batch of each
MIXTURES = [("moe-4b-a1b", "balanced"), ("moe-4b-a1b", "learned"), ("moe-4b-a1b", "zipf:1"), ("qwen3-30b-a3b", "balanced")]
MIXTURE_RECIPES = ["tensorwise", "rowwise", "blockwise"]
PEER_MODELS = {"8b": "llama3.1-8b", "3b": "llama3.2-3b", "1b": "llama3.2-1b"}


def lines(path):
    """Of a file under results/, or anywhere if the path is absolute."""
    return [json.loads(line) for line in (RESULTS / path).read_text().splitlines()]

# What a case beside the peer is known by; some have no `layers`, as they have all.
BESIDE = "model", "layers", "batch", "seq", "accumulation", "recipe"


def measured(path, *keys):
    """Records with a speed, by these fields of their case; the first of each."""
    found = {}
    for record in lines(path):
        if record["status"] == "ok" and (record["metrics"] or {}).get("tokens_per_s"):
            found.setdefault(tuple(record["case"].get(key) for key in keys), record)
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
    """Lines of peer_torch.py by BESIDE; the faster of all linears converted and of those that
    torchao's filter leaves."""
    best = {}
    for line in lines(path):
        if "error" in line:
            continue
        model, _, layers = line["model"].partition("/")
        key = (PEER_MODELS.get(model, model), int(layers) if layers else None, line["batch"], line["seq"],
               line.get("accumulation", 1), line["recipe"].removesuffix("_auto"))
        if key not in best or line["tokens_per_s"] > best[key]["tokens_per_s"]:
            best[key] = line
    return best


def beside_peer(folder="h200/beside-peer"):
    cases, theirs = measured(f"{folder}/records.jsonl", *BESIDE), peers(f"{folder}/peer.ndjson")
    rows = []
    for key, ours in cases.items():
        *shape, recipe = key
        model, layers, batch, seq, accumulation = shape
        bf16 = cases.get((*shape, "bf16"))
        over = f"{rate(ours) / rate(bf16):.2f}x" if bf16 else "-"
        peer = theirs.get(key)
        times = f", {accumulation} times" if accumulation > 1 else ""
        model += f", {layers} layers" if layers else ""
        rows.append([model, f"{batch} x {seq}{times}", recipe, f"{rate(ours):,.0f}", over] +
                    ([f"{peer['tokens_per_s']:,.0f}" + (" (filtered)" if peer["recipe"].endswith("_auto") else ""),
                      f"{rate(ours) / peer['tokens_per_s']:.2f}x",
                      f"{peer['peak_gib']:.2f}"] if peer else ["-", "-", "-"]) + [f"{gib(ours):.2f}"])
    return table(["model", "batch x seq", "recipe", "precbench tokens/s", "over bf16", "PyTorch tokens/s", "ratio",
                  "PyTorch peak GiB", "precbench peak GiB"], rows)


def front_experts():
    """Of each mixture beside PyTorch: BF16's speed, ours over the peer's in both recipes that it has, and FP8 over BF16."""
    cases = measured("h200/beside-peer-experts/records.jsonl", *BESIDE)
    theirs = peers("h200/beside-peer-experts/peer.ndjson")
    rows = []
    for key, bf16 in cases.items():
        if key[-1] != "bf16":
            continue
        model, layers, batch, seq, accumulation, _ = key
        of = {recipe: rate(cases[*key[:-1], recipe]) for recipe in ("bf16", "rowwise", "blockwise")}
        over = [f"{of[recipe] / theirs[*key[:-1], recipe]['tokens_per_s']:.2f}x" for recipe in ("bf16", "rowwise")]
        rows.append([model + (f", {layers} layers" if layers else ""), f"{batch} x {seq}", f"{of['bf16']:,.0f}",
                     over[0], f"{of['blockwise'] / of['bf16']:.2f}x", over[1]])
    return table(["model", "batch x seq", "bf16 tokens/s", "over PyTorch's", "blockwise over bf16", "rowwise over PyTorch's"],
                 rows)


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


def mixtures():
    """One H200: tokens/s of each mixture and routing, and FP8 over BF16."""
    cases = {(model, routing or "learned", recipe): record for (model, routing, recipe), record
             in measured("h200/moe-h200.jsonl", "model", "routing", "recipe").items()}
    rows = []
    for model, routing in MIXTURES:
        bf16, *others = [cases[model, routing, recipe] for recipe in ("bf16", *MIXTURE_RECIPES)]
        layers = bf16["case"].get("layers")
        rows.append([model + (f", {layers} layers" if layers else ""), routing, f"{rate(bf16):,.0f}",
                     *(f"{rate(other):,.0f} ({rate(other) / rate(bf16):.2f}x)" for other in others),
                     f"{gib(bf16):.1f} / {gib(others[0]):.1f}"])
    return table(["model", "routing", "bf16", *MIXTURE_RECIPES, "peak GiB, bf16 / tensorwise"], rows)


def experts_on_two():
    """Two H200, a rank's experts on its GPU: over one GPU's tokens/s of the same batch, dispatch by dispatch."""
    one = measured("h200/moe-h200.jsonl", "model", "routing", "recipe")
    rows = []
    for (recipe, dispatch), record in measured("h200/moe-two-gpus.jsonl", "recipe", "dispatch").items():
        single = one["moe-4b-a1b", "balanced", recipe]
        rows.append([f"`{recipe}`", dispatch or "bf16", f"{rate(record):,.0f}", f"{rate(record) / rate(single):.2f}x",
                     f"{record['breakdown']['communication_ms']:.1f}", f"{gib(single):.1f} / {gib(record):.1f}"])
    return table(["recipe", "dispatch", "tokens/s", "over one GPU", "communication, ms", "peak GiB per GPU, 1 / 2"], rows)


def delayed_speed():
    cases = measured("h200/delayed-speed.jsonl", "model", "batch", "seq", "recipe")
    rows = []
    for (model, batch, seq, recipe), delayed in cases.items():
        if recipe != "tensorwise_delayed":
            continue
        current = cases[model, batch, seq, "tensorwise"]
        rows.append([model, f"{batch} x {seq}", f"{rate(current):,.0f}", f"{rate(delayed):,.0f}", f"{rate(delayed) / rate(current):.3f}x"])
    return table(["model", "batch x seq", "tensorwise, tokens/s", "tensorwise_delayed, tokens/s", "ratio"], rows)


def fp4_cost():
    """Steps whose FP4 is emulated, beside one in BF16."""
    steps = {record["case"]["recipe"]: record for record in lines("h200/fp4-cost.jsonl")}
    ms = {recipe: record["timing"]["median_ms"] for recipe, record in steps.items()}
    spent = lambda record, name: f"{record['breakdown'][name]:.0f}"
    return table(["recipe", "step, ms", "over bf16", "GEMMs, ms", "quantize, ms", "norms and SwiGLU with what they quantize, ms"],
                 [[f"`{recipe}`", f"{ms[recipe]:.0f}", f"{ms[recipe] / ms['bf16']:.2f}x", *(spent(steps[recipe], name) for name in
                   ("gemm_ms", "quantize_ms", "norm_elementwise_ms"))] for recipe in sorted(ms, key=ms.get)])


def reshard():
    """Runs of one setting in their order; rows of before have no such field."""
    return table(["commit", "--reshard", "gradients", "step, ms", "peak GiB per GPU", "gathered in a step, GB"],
                 [[record["env"]["git"][:7], record["case"].get("reshard", "-"), record["case"]["grads"],
                   f"{record['timing']['median_ms']:.2f}", f"{gib(record):.2f}",
                   f"{next(c for c in record['communication']['collectives'] if c['name'] == 'all_gather')['wire_bytes'] / 1e9:.2f}"]
                  for record in lines("h200/fsdp-reshard.jsonl")])


def front_single():
    """Of shapes beside the peer, for the front page: ratios to BF16 alone."""
    cases = measured("h200/beside-peer/records.jsonl", "model", "batch", "seq", "recipe")
    recipes = [recipe for recipe in SINGLE_RECIPES if any(key[-1] == recipe for key in cases)]
    rows = []
    for shape in FRONT_SHAPES:
        bf16 = rate(cases[*shape, "bf16"])
        rows.append([shape[0], f"{shape[1]} x {shape[2]}", f"{bf16:,.0f}"] +
                    [f"{rate(cases[*shape, recipe]) / bf16:.2f}x" if (*shape, recipe) in cases else "-" for recipe in recipes])
    return table(["model", "batch x seq", "bf16 tokens/s", *recipes], rows)


def front_scaling():
    cases = measured("h200x4/scaling.jsonl", "model", "seq", "parallel", "recipe", "gather", "gpus")
    rows = []
    for recipe, gather in [("bf16", "bf16"), ("tensorwise", "bf16"), ("tensorwise", "fp8"), ("blockwise", "fp8")]:
        four = cases["llama3.1-8b", 4096, "fsdp", recipe, gather, 4]
        one = cases["llama3.1-8b", 4096, "fsdp", recipe, "bf16", 1]
        bf16 = cases["llama3.1-8b", 4096, "fsdp", "bf16", "bf16", 4]
        rows.append([recipe, gather, f"{rate(four):,.0f}", f"{rate(four) / rate(bf16):.2f}x",
                     f"{100 * rate(four) / 4 / rate(one):.0f}%", f"{gib(four):.1f}"])
    return table(["recipe", "weights gathered in", "tokens/s", "over bf16", "efficiency", "peak GiB per GPU"], rows)


def convergence_rows(report="cpu/convergence-tiny.md"):
    """The convergence table of a committed report, which .ci/run holds against `precbench report`: recipe to its cells."""
    rows, header = {}, None
    for line in (RESULTS / report).read_text().replace("\\", "").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[:2] == ["recipe", "verdict"]:
            header = cells
        elif header and not line.startswith("|"):
            break
        elif header and not cells[0].startswith(":"):
            rows[cells[0]] = dict(zip(header, cells))  # of two 95% intervals the last, that of the difference
    return rows


def convergence():
    return table(["recipe", "final loss, nats", "loss - bf16, nats", "95% interval", "verdict"],
                 [[recipe, row["final loss (nats)"], row["loss - bf16 (nats)"],
                   row["95% interval (nats)"] if recipe != "bf16" else "-", row["verdict"]]
                  for recipe, row in convergence_rows().items()])


def study_rows(path):
    """The tables of a committed study's report, by recipe: the one with verdicts, joined by the one with ladders."""
    rows, header = {}, None
    for line in (RESULTS / path).read_text().replace("\\", "").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = None
        elif cells[:2] == ["model", "recipe"]:
            header = cells
        elif header and not cells[0].startswith(":"):
            rows.setdefault(cells[1], {}).update(zip(header, cells))
    return rows


def study(report, *names, wanted=lambda recipe: True):
    return table(["recipe", *names], [[f"`{recipe}`", *(row[name] for name in names)]
                                      for recipe, row in study_rows(report).items() if wanted(recipe)])


def ages_of(row):
    """Columns of a study's table of verdicts: how far the forks of each age end above BF16's."""
    return [name for name in row if name.startswith("at age ")]


def study_by_age(report, *names, words=str, wanted=lambda recipe: True):
    """study() with all ages before its columns, so that recipes compare at the same one; `words` is what to show of a cell."""
    rows = {recipe: row for recipe, row in study_rows(report).items() if wanted(recipe)}
    ages = ages_of(next(iter(rows.values())))
    return table(["recipe", *(words(age) for age in ages), *names],
                 [[f"`{recipe}`", *(words(row[age]) for age in ages), *(row[name] for name in names)]
                  for recipe, row in rows.items()])


def in_short(cell):
    """A column's title or cell without its interval."""
    return re.sub(r" \[.*?\]", "", cell)


def msamp_parts():
    """What MS-AMP O1 is made of, part by part, in the two models."""
    reports = {"15m": ["h200/study-15m.md"], "36m": ["h200/study-36m-delayed.md", "h200/study-36m-parts.md"]}
    found = {model: {recipe: row for report in names for recipe, row in study_rows(report).items()}
             for model, names in reports.items()}
    ages = ages_of(found["15m"][MSAMP_PARTS[0]])
    return table(["recipe", *(f"{model}, {in_short(age)}" for model in found for age in ages)],
                 [[f"`{recipe}`", *(in_short(rows[recipe][age]) for rows in found.values() for age in ages)]
                  for recipe in MSAMP_PARTS])


def head_in_recipe():
    """Studies whose recipes leave lm_head in BF16 and take it, at the age that both have."""
    without, taken = study_rows("h200/study-36m-one-gpu.md"), study_rows("h200/study-36m-head.md")
    age = ages_of(next(iter(taken.values())))[-1]
    return table(["recipe", "lm_head in BF16: " + age, "lm_head in the recipe: " + age, "verdict"],
                 [[f"`{recipe}`", without[recipe][age], row[age], row["verdict"]] for recipe, row in taken.items()])


def long_run():
    """Runs from scratch beside what forks of the same model and text said."""
    forks, rows = study_rows("h200/study-15m.md"), convergence_rows("h200/long-run-15m.md")
    return table(["recipe", "forks at age 200", "forks at age 400", "from scratch", "held-out loss [95%]",
                  "held-out, in its own format", "the same weights in bf16"],
                 [[f"`{recipe}`", *([in_short(forks[recipe][age]) for age in ages_of(forks[recipe])] if recipe in forks else "--"),
                   row["loss - bf16 (nats)"], row["held-out loss - bf16 [95%] (nats)"], row["held-out loss (nats)"].split()[0],
                   row["of its weights in bf16 (nats)"].split()[0]] for recipe, row in rows.items()])


def from_scratch(recipe):
    return convergence_rows("h200/long-run-15m.md")[recipe]["loss - bf16 (nats)"]


# Columns of a study's table of verdicts.
VERDICT = "per doubling [95%]", "gradient error", "bias", "verdict"


def front_study():
    """At the oldest age."""
    rows = study_rows("h200/study-36m.md")
    age = ages_of(next(iter(rows.values())))[-1]
    return table(["recipe", in_short(age), "gradient error", "verdict"],
                 [[f"`{recipe}`", in_short(row[age]), row["gradient error"], row["verdict"]]
                  for recipe, row in rows.items() if recipe in FRONT_STUDY])


def fp32_error(recipe):
    """Of its gradient against the one in FP32."""
    text = (RESULTS / "h200/fp32-gradient-36m.txt").read_text()
    return re.search(rf"g-{recipe}\.safetensors: error ([\d.]+%)", text)[1]


def bf16_weights_at(step):
    """Of the plateau's runs with BF16 weights and batch 1 on one GPU, the loss of this step: least and largest over recipes and
    seeds."""
    losses = [record["training"]["loss"][step - 1] for record in lines("h200/one-gpu-plateau.jsonl")
              if [record["case"][key] for key in ("model", "master", "batch", "gpus")] == ["llama3.2-1b", "bf16", 1, 1]]
    low, high = f"{min(losses):.1f}", f"{max(losses):.1f}"
    return low if low == high else f"{low} to {high}"


def plateau(*shapes):
    """Mean over the seeds of the mean of the last 30 losses, by model, GPUs and batch; a single shape is not named in each row."""
    final = {}
    for record in lines("h200/one-gpu-plateau.jsonl"):
        case, loss = record["case"], record["training"]["loss"]
        key = case["model"], case["gpus"], case["batch"], case["master"], case["recipe"]
        final.setdefault(key, []).append(sum(loss[-30:]) / 30)
    recipes = ["bf16", "tensorwise", "rowwise"]
    words = {"fp32": "FP32", "bf16": "BF16", "bf16_sr": "BF16, stochastic rounding"}

    def row(model, gpus, batch, master):
        losses = [final.get((model, gpus, batch, master, recipe), []) for recipe in recipes]
        cells = [f"{sum(values) / len(values):.3f}" if values else "" for values in losses]
        shape = [model, str(gpus), f"{batch} x 2048", str(len(losses[0]))] if len(shapes) > 1 else []
        return [*shape, words[master], *cells]
    return table([*(["model", "GPUs", "batch x seq", "seeds"] if len(shapes) > 1 else []), "weights are kept in", *recipes],
                 [row(*shape, master) for shape in shapes for master in words if (*shape, master, "bf16") in final])


def percent_at_most(value):
    return f"{math.ceil(1000 * value) / 10:.1f}%"


def host_clock():
    """By how much a step is longer by the host's clock, at most."""
    timings = [record["timing"] for record in lines("h200/beside-peer/records.jsonl")]
    return percent_at_most(max(t["wall_ms"] * len(t["samples_ms"]) / sum(t["samples_ms"]) - 1 for t in timings))


def repeats():
    """How far the two runs of a case of an interleaved sweep lie apart, at most."""
    return percent_at_most(max(record["timing"]["between_runs"] for record in lines("h200/interleaved/records.jsonl")))


def apart(once, again):
    """How far a case's speed in one file lies from that in another, at most."""
    keys = "model", "batch", "seq", "recipe"
    first, second = measured(f"h200/{once}.jsonl", *keys), measured(f"h200/{again}.jsonl", *keys)
    return percent_at_most(max(abs(rate(second[key]) / rate(first[key]) - 1) for key in second))


def speedups(recipe):
    """The least and the largest of a recipe over BF16 on one GPU."""
    cases = measured("h200/single.jsonl", "model", "batch", "seq", "recipe")
    ratios = [rate(record) / rate(cases[*key[:3], "bf16"]) for key, record in cases.items() if key[3] == recipe]
    return f"{min(ratios):.2f}x to {max(ratios):.2f}x"


def over_peer(recipe, folder="h200/beside-peer"):
    cases, theirs = measured(f"{folder}/records.jsonl", *BESIDE), peers(f"{folder}/peer.ndjson")
    ratios = [rate(record) / theirs[key]["tokens_per_s"] for key, record in cases.items() if key[-1] == recipe]
    return f"{min(ratios):.2f}x to {max(ratios):.2f}x"


def loss_differences():
    values = [float(row["loss - bf16 (nats)"]) for recipe, row in convergence_rows().items() if recipe != "bf16"]
    return f"{min(values):+.3f} to {max(values):+.3f} nats"


def seeds_apart():
    """Of BF16's final losses, each the mean of the last tenth of a run."""
    curves = [r["training"]["loss"] for r in lines("cpu/convergence-tiny.jsonl") if r["case"]["recipe"] == "bf16"]
    final = [sum(curve[-(len(curve) // 10):]) / (len(curve) // 10) for curve in curves]
    return f"{max(final) - min(final):.2f} nats"


def criterion(column):
    """Runs that meet the criterion at the end (0) or throughout (1), of all: "0 of 3 at the end, 0 throughout"."""
    cells = [row["runs with EMA error below 0.25%"] for recipe, row in convergence_rows().items() if recipe != "bf16"]
    counts = [re.fullmatch(r"(\d+) of (\d+) at the end, (\d+) throughout", cell).groups() for cell in cells]
    return str(sum(int(count[column]) for count in counts))


TABLES = {"single": single, "beside-peer": beside_peer,
          "beside-peer-experts": lambda: beside_peer("h200/beside-peer-experts"), "scaling": scaling, "scaling-peer": scaling_peer,
          "front-single": front_single, "front-scaling": front_scaling, "convergence": convergence,
          "study": lambda: study_by_age("h200/study-36m.md", *VERDICT),
          "ladders-moe": lambda: study("cpu/study-tiny-moe.md", "gradient error", "route flips", "outliers in FFN",
                                       "outliers in norms", "outliers in V", "bits fewer"),
          "ladders": lambda: study("h200/study-36m.md", "outliers in FFN", "outliers in norms", "learning rate",
                                   "bits fewer"),
          "study-all": lambda: study_by_age("h200/study-36m-all.md", *VERDICT,
                                     wanted=lambda recipe: recipe.startswith(("mxfp8", "nvfp4"))),
          "reshard": reshard, "study-delayed": lambda: study_by_age("h200/study-36m-delayed.md", *VERDICT),
          "study-moe": lambda: study_by_age("h200/study-moe-118m.md", "per doubling [95%]", "gradient error", "route flips", "verdict"),
          "delayed-speed": delayed_speed, "fp4-cost": fp4_cost,
          "study-more": lambda: study_by_age("h200/study-36m-more.md", *VERDICT, words=in_short), "long-run": long_run,
          "study-msamp": msamp_parts,
          "study-125m": lambda: study_by_age("h200/study-125m.md", *VERDICT, "outliers in FFN"),
          "kernel-ops": bench_tables.kernel_ops, "kernel-others": bench_tables.kernel_others, "own-gemms": bench_tables.own_gemms,
          "grouped-gemms": bench_tables.grouped_gemms, "experts-ops": bench_tables.experts_ops,
          "study-1b": lambda: study_by_age("h200/study-1b.md", *VERDICT), "mixtures": mixtures, "experts-on-two": experts_on_two,
          "plateau": lambda: plateau(*PLATEAU_SHAPES), "study-head": head_in_recipe, "front-study": front_study,
          "front-experts": front_experts,
          "front-plateau": lambda: plateau(PLATEAU_SHAPES[0])}
FIGURES = {"host-clock": host_clock, "repeats": repeats, "repeats-apart": lambda: apart("repeats/once", "repeats/again"),
           "tables-apart": lambda: apart("single", "beside-peer/records"), "speedups-tensorwise": lambda: speedups("tensorwise"), "speedups-blockwise": lambda: speedups("blockwise"),
           "over-peer-bf16": lambda: over_peer("bf16"), "over-peer-tensorwise": lambda: over_peer("tensorwise"),
           "over-peer-rowwise": lambda: over_peer("rowwise"),
           "over-peer-experts-bf16": lambda: over_peer("bf16", "h200/beside-peer-experts"),
           "over-peer-experts-rowwise": lambda: over_peer("rowwise", "h200/beside-peer-experts"), "loss-differences": loss_differences,
           "scratch-tensorwise": lambda: from_scratch("tensorwise"), "scratch-mxfp8_floor": lambda: from_scratch("mxfp8_floor"),
           "scratch-nvfp4": lambda: from_scratch("nvfp4"),
           "plateau-50": lambda: bf16_weights_at(50),
           "fp32-bf16": lambda: fp32_error("bf16"), "fp32-tensorwise": lambda: fp32_error("tensorwise"),
           "fp32-mxfp8_floor": lambda: fp32_error("mxfp8_floor"),
           "seeds-apart": seeds_apart, "criterion-end": lambda: criterion(0), "criterion-runs": lambda: criterion(1),
           "criterion-throughout": lambda: criterion(2)}
TABLE = re.compile(r"^<!-- table (\S+) -->\n(.*?)^<!-- end -->$", re.S | re.M)
MARK = re.compile(r"<!-- (?:table|figure) ")
FIGURE = re.compile(r"<!-- figure (\S+) -->(.*?)<!-- end -->", re.S)


def pages():
    """Every Markdown file that git knows, or would."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    return [ROOT / name for name in sorted(set(listed.splitlines())) if (ROOT / name).exists()]


def filled(page, text, found, wrong):
    """The page with its places filled; adds the names of all to `found`, and where one was wrong to `wrong`."""
    def place(kind, makers, before, after):
        def fill(match):
            name = match[1]
            if name not in makers:
                sys.exit(f"{page.relative_to(ROOT)}: no {kind} is called {name}; one of {', '.join(makers)}")
            found.add(name)
            new = before.format(name) + makers[name]() + after
            if new != match[0]:
                wrong.append(f"{page.relative_to(ROOT)}: {kind} {name}")
            return new
        return fill
    fenced = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)  # what shows how to write one is none
    for i in range(0, len(fenced), 2):
        if re.search(r"^\W*<!-- figure ", fenced[i], re.M):
            sys.exit(f"{page.relative_to(ROOT)}: a figure begins a line, and Markdown takes such a line for HTML")
        if len(MARK.findall(fenced[i])) != len(TABLE.findall(fenced[i])) + len(FIGURE.findall(fenced[i])):
            sys.exit(f"{page.relative_to(ROOT)}: a table or a figure has no <!-- end -->, of a table on a line of its own")
        fenced[i] = TABLE.sub(place("table", TABLES, "<!-- table {} -->\n", "\n<!-- end -->"), fenced[i])
        fenced[i] = FIGURE.sub(place("figure", FIGURES, "<!-- figure {} -->", "<!-- end -->"), fenced[i])
    return "".join(fenced)


def main():
    if sys.argv[1:2] == ["--beside-peer"]:
        return print(beside_peer(pathlib.Path(sys.argv[2]).resolve()))
    found, wrong = set(), []
    for page in pages():
        old = page.read_text()
        new = filled(page, old, found, wrong)
        if new != old and "--check" not in sys.argv[1:]:
            page.write_text(new)
    if lost := [name for name in [*TABLES, *FIGURES] if name not in found]:
        sys.exit(f"on no page: {', '.join(lost)}")
    if wrong and "--check" in sys.argv[1:]:
        sys.exit("\n".join(wrong) + "\nnot what the records say; tools/ci/readme_tables.py writes them")


if __name__ == "__main__":
    main()
