"""Tables and figures of losses, from studies' committed reports and from records of runs, for readme_tables.py. The reports are
held against their records by .ci/run."""
import re, statistics

from committed import RESULTS, lines, spread, table

FRONT_STUDY = ["blockwise", "mxfp8", "mxfp8_floor", "rowwise", "tensorwise"]
PLATEAU_SHAPES = [*(("llama3.2-1b", 1, batch) for batch in (1, 2, 4, 8)), ("llama3.2-1b", 2, 1), ("llama3.2-1b", 2, 2),
                  ("llama3.1-8b", 1, 1)]  # model, GPUs, batch of each


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


def head_in_recipe():
    """Studies whose recipes leave lm_head in BF16 and take it, at the age that both have."""
    without, taken = study_rows("h200/study-36m-one-gpu.md"), study_rows("h200/study-36m-head.md")
    age = ages_of(next(iter(taken.values())))[-1]
    return table(["recipe", "lm_head in BF16: " + age, "lm_head in the recipe: " + age, "verdict"],
                 [[f"`{recipe}`", without[recipe][age], row[age], row["verdict"]] for recipe, row in taken.items()])


def long_run():
    """Runs from scratch beside what forks of the same model and text said."""
    forks, rows = study_rows("h200/study-15m.md"), convergence_rows("h200/long-run-15m.md")
    return table(["recipe", "forks at age 200", "forks at age 400", "verdict of the forks", "from scratch", "verdict from scratch",
                  "held-out loss [95%]", "held-out, in its own format", "the same weights in bf16"],
                 [[f"`{recipe}`", *([*(in_short(forks[recipe][age]) for age in ages_of(forks[recipe])), forks[recipe]["verdict"]]
                                    if recipe in forks else "---"),
                   row["loss - bf16 (nats)"], row["verdict"], row["held-out loss - bf16 [95%] (nats)"], row["held-out loss (nats)"].split()[0],
                   row["of its weights in bf16 (nats)"].split()[0]] for recipe, row in rows.items()])


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
    """Of the plateau's runs with BF16 weights and batch 1 on one GPU, the mean of the ten losses up to this step: least and largest
    over recipes and seeds."""
    losses = [sum(record["training"]["loss"][step - 10:step]) / 10 for record in lines("h200/one-gpu-plateau.jsonl")
              if [record["case"][key] for key in ("model", "master", "batch", "gpus")] == ["llama3.2-1b", "bf16", 1, 1]]
    return spread(losses, 1)


def fork_difference(recipe, path="h200/study-36m.jsonl"):
    """How far a recipe's forks, controls too, end above BF16's: the last half of the losses, mean over the trunks; least and largest
    over the ages."""
    ends = {}
    for record in lines(path):
        place, loss = record["study"], record["training"] and record["training"]["loss"]
        if place["part"] == "fork" and record["case"]["perturb"] == "none" and record["case"]["recipe"] in (recipe, "bf16"):
            key = place["age"], place["trunk"], place["seed"]
            ends.setdefault(key, {})[record["case"]["recipe"]] = sum(loss[len(loss) // 2:]) / len(loss[len(loss) // 2:])
    by_age = {}
    for (age, *_), end in ends.items():
        by_age.setdefault(age, []).append(end[recipe] - end["bf16"])
    return spread([sum(values) / len(values) for values in by_age.values()], 4)


OPTIMIZERS = ["adamw", "lion", "adafactor", "muon"]


def optimizers():
    """What recipes cost with each optimizer, at the oldest age; BF16's loss and the noise floor beside it."""
    studies = {name: study_rows(f"cpu/study-optimizer-{name}.md") for name in OPTIMIZERS}
    recipes = list(studies["adamw"])
    def line(name):
        text = (RESULTS / f"cpu/study-optimizer-{name}.md").read_text()
        loss, floor = re.search(r"BF16 at ([\d.]+) nats; margin [\d.]+ nats, noise floor (\d+\.\d+)", text).groups()
        cells = [f"{in_short(row[ages_of(row)[-1]])}, {row['verdict']}" for row in studies[name].values()]
        return [f"`{name}`", loss, floor, *cells]
    return table(["optimizer", "BF16, nats", "noise floor", *(f"`{recipe}`" for recipe in recipes)], [line(name) for name in OPTIMIZERS])


T_95_OF_FIVE = 2.776  # Student's t, 95% to either side, of five values


def batches():
    """How far forks of the oldest age end above BF16's, by sequences of a step: mean over five trunks and half of its 95% interval."""
    ends = {}
    for record in lines("cpu/study-batch.jsonl"):
        place, case = record["study"], record["case"]
        if place["part"] in ("fork", "batch") and place["age"] == 200:
            loss = record["training"]["loss"]
            ends[case["recipe"], case["batch"], place["trunk"]] = sum(loss[len(loss) // 2:]) / len(loss[len(loss) // 2:])
    sizes, trunks = (sorted({key[place] for key in ends}) for place in (1, 2))
    assert len(trunks) == 5
    def cell(recipe, size):
        apart = [ends[recipe, size, trunk] - ends["bf16", size, trunk] for trunk in trunks]
        return f"{statistics.mean(apart):+.4f} +-{T_95_OF_FIVE * statistics.stdev(apart) / len(apart) ** 0.5:.4f}"
    recipes = [recipe for recipe in dict.fromkeys(key[0] for key in ends) if (recipe, 1, trunks[0]) in ends and recipe != "bf16"]
    return table(["recipe", *(f"{size} x 128 tokens" for size in sizes)],
                 [[f"`{recipe}`", *(cell(recipe, size) for size in sizes)] for recipe in sorted(recipes)])


def own_kernels():
    """How far forks by our kernels, by the libraries from a weight changed in its last place, and of a recipe that does harm are from
    those by the libraries: over the second half, the differences' mean of each seed, least and largest, and their mean size."""
    curves = {}
    for record in lines("h200/own-kernels.jsonl"):
        case = record["case"]
        curves.setdefault((case["recipe"], case["gemm"], case["perturb"]), {})[case["seed"]] = record["training"]["loss"]
    def line(recipe, words, gemm, perturb, base):
        forks, others = curves[recipe, gemm, perturb], curves[base, "cublaslt", "none"]
        assert len(forks) == len(others) == 3
        apart = [[x - y for x, y in zip(forks[seed], others[seed])][len(forks[seed]) // 2:] for seed in forks]
        means, sizes = ([statistics.mean(map(size, steps)) for steps in apart] for size in (float, abs))
        return [f"`{recipe}`", words, f"{min(means):+.5f} to {max(means):+.5f}", f"{min(sizes):.5f} to {max(sizes):.5f}"]
    return table(["recipe", "by", "apart, nats", "each step"],
                 [line(recipe, *form, recipe) for recipe in ("bf16", "blockwise")
                  for form in (("our kernels", "own", "none"), ("the libraries, a weight changed", "cublaslt", "ulp"))]
                 + [line("rowwise_e4m1", "the libraries, beside `bf16`", "cublaslt", "none", "bf16")])


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


TABLES = {"convergence": convergence, "long-run": long_run, "study-msamp": lambda: study_by_age("h200/study-36m-msamp.md", *VERDICT),
          "study-head": head_in_recipe,
          "front-study": front_study, "plateau": lambda: plateau(*PLATEAU_SHAPES),
          "ladders": lambda: study("h200/study-36m.md", "outliers in FFN", "outliers in norms", "learning rate", "bits fewer"),
          "ladders-more": lambda: study("h200/study-36m-ladders.md", "outliers in FFN", "outliers in norms", "outliers in V",
                                        "learning rate", "bits fewer", "exponent bits fewer"),
          "ladders-moe": lambda: study("cpu/study-tiny-moe.md", "gradient error", "route flips", "outliers in FFN",
                                       "outliers in norms", "outliers in V", "bits fewer"),
          "study": lambda: study_by_age("h200/study-36m.md", *VERDICT),
          "study-all": lambda: study_by_age("h200/study-36m-all.md", *VERDICT,
                                            wanted=lambda recipe: recipe.startswith(("mxfp8", "nvfp4"))),
          "study-delayed": lambda: study_by_age("h200/study-36m-delayed.md", *VERDICT),
          "study-more": lambda: study_by_age("h200/study-36m-more.md", *VERDICT, words=in_short),
          "study-125m": lambda: study_by_age("h200/study-125m.md", *VERDICT, "outliers in FFN"),
          "study-125m-eight": lambda: study_by_age("h200/study-125m-eight.md", *VERDICT),
          "study-optimizers": optimizers, "study-batch": batches, "own-kernels": own_kernels,
          "study-1b": lambda: study_by_age("h200/study-1b.md", *VERDICT),
          "study-moe-cpu": lambda: study_by_age("cpu/study-tiny-moe.md", *VERDICT),
          "study-moe": lambda: study_by_age("h200/study-moe-118m.md", "per doubling [95%]", "gradient error", "route flips",
                                            "verdict")}
FIGURES = {**{f"fp32-{recipe}": lambda recipe=recipe: fp32_error(recipe) for recipe in ("bf16", "tensorwise", "mxfp8_floor")},
           "plateau-50": lambda: bf16_weights_at(50), "control-e5m2": lambda: fork_difference("rowwise_e5m2"),
           "control-rowwise": lambda: fork_difference("rowwise"),
           "loss-differences": loss_differences, "seeds-apart": seeds_apart,
           "criterion-end": lambda: criterion(0), "criterion-runs": lambda: criterion(1),
           "criterion-throughout": lambda: criterion(2)}
