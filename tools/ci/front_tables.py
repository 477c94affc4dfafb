"""Tables and figures that only README.md, bench/measure/README.md and bench/study/README.md show. Those that no page shows any more
can go, and with the last figure what readme_tables.py does with FIGURES."""
import re, statistics

from committed import RESULTS, gib, lines, measured, percent_at_most, rate, spread, table
from page_tables import BESIDE, costs, peers, report_rows, short, shown, study_rows

FRONT_SHAPES = [("llama3.1-8b", 1, 8192), ("llama3.1-8b", 1, 4096), ("llama3.2-3b", 1, 4096), ("llama3.2-1b", 8, 2048)]


def front_single():
    cases, recipes = measured("h200/single.jsonl", "model", "batch", "seq", "recipe"), ["tensorwise", "rowwise", "blockwise"]
    base = {shape: rate(cases[*shape, "bf16"]) for shape in FRONT_SHAPES}
    return table(["model", "batch x seq", "bf16 tokens/s", *recipes],
                 [[shape[0], f"{shape[1]} x {shape[2]}", f"{base[shape]:,.0f}",
                   *(f"{rate(cases[*shape, recipe]) / base[shape]:.2f}x" for recipe in recipes)] for shape in FRONT_SHAPES])


def front_experts():
    cases = measured("h200/beside-peer-experts/records.jsonl", *BESIDE)
    theirs, rows = peers("h200/beside-peer-experts/peer.ndjson"), []
    for (model, layers, batch, seq, accumulation, recipe), bf16 in cases.items():
        if recipe == "bf16":
            key = model, layers, batch, seq, accumulation
            over = lambda recipe: f"{rate(cases[*key, recipe]) / theirs[*key, recipe]['tokens_per_s']:.2f}x"
            rows.append([shown(model, layers), f"{batch} x {seq}", f"{rate(bf16):,.0f}", over("bf16"),
                         f"{rate(cases[*key, 'blockwise']) / rate(bf16):.2f}x", over("rowwise")])
    return table(["model", "batch x seq", "bf16 tokens/s", "over PyTorch's", "blockwise over bf16", "rowwise over PyTorch's"], rows)


def front_scaling():
    cases = measured("h200x4/scaling.jsonl", "model", "seq", "parallel", "recipe", "gather", "gpus")
    of = lambda recipe, gather, gpus: cases["llama3.1-8b", 4096, "fsdp", recipe, gather, gpus]
    rows = []
    for recipe, gather in [("bf16", "bf16"), ("tensorwise", "bf16"), ("tensorwise", "fp8"), ("blockwise", "fp8")]:
        four, one = of(recipe, gather, 4), of(recipe, "bf16", 1)
        rows.append([recipe, gather, f"{rate(four):,.0f}", f"{rate(four) / rate(of('bf16', 'bf16', 4)):.2f}x",
                     f"{100 * rate(four) / 4 / rate(one):.0f}%", f"{gib(four):.1f}"])
    return table(["recipe", "weights gathered in", "tokens/s", "over bf16", "efficiency", "peak GiB per GPU"], rows)


def front_study():
    found = study_rows("h200/study-36m")
    return table(["recipe", "at age 800, nats", "gradient error", "verdict"],
                 [[f"`{recipe}`", short(costs(found[recipe])[-1]), found[recipe]["gradient error"], found[recipe]["verdict"]]
                  for recipe in ("blockwise", "mxfp8", "mxfp8_floor", "rowwise", "tensorwise")])


def front_plateau():
    final, recipes = {}, ["bf16", "tensorwise", "rowwise"]
    for record in lines("h200/one-gpu-plateau.jsonl"):
        case = record["case"]
        if (case["model"], case["gpus"], case["batch"]) == ("llama3.2-1b", 1, 1):
            final.setdefault((case["master"], case["recipe"]), []).append(statistics.mean(record["training"]["loss"][-30:]))
    return table(["weights are kept in", *recipes],
                 [[words, *(f"{statistics.mean(final[master, recipe]):.3f}" for recipe in recipes)] for master, words in
                  (("fp32", "FP32"), ("bf16", "BF16"), ("bf16_sr", "BF16, stochastic rounding"))])


def over_peer(recipe, folder="h200/beside-peer"):
    cases, theirs = measured(f"{folder}/records.jsonl", *BESIDE), peers(f"{folder}/peer.ndjson")
    return spread([rate(record) / theirs[key]["tokens_per_s"] for key, record in cases.items() if key[-1] == recipe], 2, "x")


def host_clock():
    """By how much a step is longer by the host's clock, at most."""
    timings = [record["timing"] for record in lines("h200/beside-peer/records.jsonl")]
    return percent_at_most(max(t["wall_ms"] * len(t["samples_ms"]) / sum(t["samples_ms"]) - 1 for t in timings))


def fork_ends(path, recipe):
    """How far a recipe's forks end above BF16's, by age: the last half of the losses, one value for each trunk and seed."""
    ends, by_age = {}, {}
    for record in lines(path):
        place, case = record["study"], record["case"]
        if place["part"] == "fork" and case["perturb"] == "none" and case["recipe"] in (recipe, "bf16"):
            loss = record["training"]["loss"]
            ends.setdefault((place["age"], place["trunk"], place["seed"]), {})[case["recipe"]] = statistics.mean(loss[len(loss) // 2:])
    for (age, *_), end in ends.items():
        if recipe in end:
            by_age.setdefault(age, []).append(end[recipe] - end["bf16"])
    return by_age


def control(recipe):
    return spread([statistics.mean(values) for values in fork_ends("h200/study-36m.jsonl", recipe).values()], 4)


def broken_control():
    """How far forks of rowwise_e4m1 end above BF16's at the oldest age, in margins, in studies on an H200 that found this control."""
    shares = []
    for path in sorted((RESULTS / "h200").glob("study-*.jsonl")):
        report = path.with_suffix(".md").read_text()
        if "rowwise_e4m1 beyond half the margin found" in report:
            by_age = fork_ends(path, "rowwise_e4m1")
            shares.append(statistics.mean(by_age[max(by_age)]) / float(re.search(r"margin ([\d.]+) nats", report)[1]))
    return spread(shares, 1)


def plain_errors(verdict):
    """Gradient errors without outliers of the recipes with this verdict, in the studies of all recipes at 36M, in percent."""
    rows = [row for name in ("all", "more") for row in study_rows(f"h200/study-36m-{name}").values()]
    return [float(row["gradient error"].rstrip("%")) for row in rows
            if row["verdict"].startswith(verdict + " at ") and row["gradient error"] != "-"]


TABLES = {"front-single": front_single, "front-experts": front_experts, "front-scaling": front_scaling, "front-study": front_study,
          "front-plateau": front_plateau}
FIGURES = {**{f"over-peer-{recipe}": lambda recipe=recipe: over_peer(recipe) for recipe in ("bf16", "tensorwise", "rowwise")},
           **{f"scratch-{recipe}": lambda recipe=recipe: report_rows("h200/long-run-15m.md", "recipe", "verdict")[recipe]["loss - bf16 (nats)"]
              for recipe in ("tensorwise", "mxfp8_floor", "nvfp4")},
           "host-clock": host_clock, "control-e5m2": lambda: control("rowwise_e5m2"), "control-rowwise": lambda: control("rowwise"),
           "control-e4m1": broken_control, "error-equivalent": lambda: f"{max(plain_errors('equivalent')):.1f}%",
           "error-worse": lambda: f"{min(plain_errors('worse')):.1f}%"}
