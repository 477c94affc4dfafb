"""Forks and ladders beside those that were first made by hand, for readme_tables.py: the same steps averaged, from the records. Of
the first there are none; what was written down of them stands here as it was."""
import statistics

from committed import lines, spread, table

T_95 = {3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, 95% to either side, by the number of values
# Nats above BF16, steps 100 to 150 of forks of one trunk.
FIRST_36M = {"blockwise": 0.00114, "mxfp8": 0.00120, "rowwise": 0.00124, "tensorwise": 0.00132, "mxfp8_floor": 0.00206}
# The same over the steps of longer forks, of one trunk and two seeds.
LONG_STEPS = [(0, 10), (30, 60), (100, 150), (200, 300), (400, 500), (600, 700), (900, 1000)]
FIRST_LONG = {"tensorwise": [0.0007, 0.0009, 0.0013, 0.0019, 0.0023, 0.0026, 0.0029],
              "blockwise": [0.0006, 0.0008, 0.0012, 0.0016, 0.0018, 0.0023, 0.0025],
              "mxfp8_floor": [0.0013, 0.0014, 0.0020, 0.0028, 0.0036, 0.0040, 0.0041]}
FIRST_TINY = {"rowwise": 0.0012, "mxfp8_floor": 0.0019, "rowwise_e5m2": 0.0034}
# Gradient errors under outliers of 2^16.
FIRST_LADDERS = {"ffn": {"tensorwise": 3.26, "rowwise": 0.340, "blockwise": 0.096, "mxfp8": 0.072},
                 "norm": {"tensorwise": 0.286, "rowwise": 0.198, "blockwise": 0.096, "mxfp8": 0.093}}
STUDIES_36M = ["study-36m", "study-36m-one-gpu", "study-36m-all"]


def forks(path):
    """Losses of a study's forks: (age, recipe, perturbed) to trunk to losses, of one seed."""
    found = {}
    for record in lines(path):
        place, case = record["study"], record["case"]
        if place["part"] in ("fork", "control"):
            key = place["age"], case["recipe"], case["perturb"] != "none"
            found.setdefault(key, {})[place["trunk"]] = record["training"]["loss"]
    return found


def mean(losses, first, last):
    return statistics.mean(losses[first:last])


def above(recipe, bf16, first, last):
    """How far a recipe's forks are above BF16's over these steps, of each trunk."""
    return [mean(recipe[trunk], first, last) - mean(bf16[trunk], first, last) for trunk in sorted(recipe)]


def with_interval(values, digits):
    half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):+.{digits}f} +-{half:.{digits}f}"


def first_36m():
    """By age, over the steps that were averaged then."""
    found = forks("h200/study-36m.jsonl")
    ages = sorted({age for age, *_ in found})
    base = {age: found[age, "bf16", False] for age in ages}
    bf16 = ["`bf16`, its loss", "2.939", *(f"{statistics.mean(mean(loss, 100, 150) for loss in base[age].values()):.3f}" for age in ages)]
    rows = [[f"`{recipe}`", f"+{then:.5f}", *(with_interval(above(found[age, recipe, False], base[age], 100, 150), 5) for age in ages)]
            for recipe, then in FIRST_36M.items()]
    return table(["steps 100 to 150", "then", *(f"age {age}" for age in ages)], [bf16, *rows])


def first_long():
    """Nats above BF16 while forks of 1,000 steps go on: the mean of the trunks, below what was measured first."""
    found = forks("h200/study-36m-long.jsonl")
    (age,) = {age for age, *_ in found}
    base = found[age, "bf16", False]
    def now(words, of):
        return [words, *(f"{statistics.mean(above(of, base, *steps)):+.4f}" for steps in LONG_STEPS)]
    rows = []
    for recipe, then in FIRST_LONG.items():
        rows += [[f"`{recipe}`, then", *(f"+{value:.4f}" for value in then)], now(f"`{recipe}`", found[age, recipe, False])]
    return table(["steps", *(f"{first} to {last:,}" for first, last in LONG_STEPS)],
                 [*rows, now("`mxfp8`", found[age, "mxfp8", False]), now("`bf16`, a weight changed", found[age, "bf16", True])])


def last_bit_36m():
    """How far forks with one weight changed are from BF16's, over the same steps: the largest of all trunks and ages."""
    found = forks("h200/study-36m.jsonl")
    apart = [value for age, recipe, perturbed in found if perturbed
             for value in above(found[age, recipe, True], found[age, "bf16", False], 100, 150)]
    return f"{max(map(abs, apart)):.5f}"


def moments():
    """Forks without moments: by recipe and trunk's seed."""
    found = {}
    for record in lines("cpu/first-moments.jsonl"):
        found.setdefault(record["case"]["recipe"], {})[record["case"]["seed"] // 1000] = record["training"]["loss"]
    return found


def first_tiny():
    """What changes on the way from the README's study of tiny to the settings of the first forks, one line each."""
    short, long, text = (forks(f"cpu/{name}.jsonl") for name in ("study-tiny", "study-first", "study-first-text"))
    of_age = lambda found, age: {key[1]: loss for key, loss in found.items() if key[0] == age and not key[2]}
    arms = [("the README's study, age 100", of_age(short, 100), 32, 64), ("the README's study, age 200", of_age(short, 200), 32, 64),
            ("age 400, 8 sequences", of_age(long, 400), 32, 64), ("steps 75 to 150", of_age(long, 400), 75, 150),
            ("steps 100 to 150", of_age(long, 400), 100, 150), ("and without moments", moments(), 100, 150),
            ("with moments, the text of the long runs", of_age(text, 400), 100, 150)]
    def line(words, found, first, last):
        base = statistics.mean(mean(loss, first, last) for loss in found["bf16"].values())
        return [words, f"{base:.2f}", *(with_interval(above(found[recipe], found["bf16"], first, last), 4) if recipe in found else "-"
                                        for recipe in FIRST_TINY)]
    return table(["", "BF16, nats", *(f"`{recipe}`" for recipe in FIRST_TINY)],
                 [["then", "2.5", *(f"+{value:.4f}" for value in FIRST_TINY.values())], *(line(*arm) for arm in arms)])


def stressed():
    """Gradient errors of the 36 M studies that climb from trunks of ages 400 and 800: (age, stress, recipe) to errors."""
    found = {}
    for record in (record for name in STUDIES_36M for record in lines(f"h200/{name}.jsonl")):
        for probe in record["fidelity"] or []:
            key = record["study"]["age"], probe["stress"], record["case"]["recipe"]
            found.setdefault(key, []).append(probe["whole"]["error"]["mean"])
    return found


def first_ladders():
    found = stressed()
    def cell(age, kind, recipe):
        return spread(found[age, f"{kind}:16:4", recipe], 2)
    return table(["outliers of 2^16", "recipe", "then", "age 400, two studies", "age 800"],
                 [[words, f"`{recipe}`", f"{then:.2f}", cell(400, kind, recipe), cell(800, kind, recipe)]
                  for kind, words in (("ffn", "FFN"), ("norm", "norms")) for recipe, then in FIRST_LADDERS[kind].items()])


def ladder_tiny():
    """Gradient error of tiny under outliers, by the trunk's age and the probe's batch."""
    found = {}
    for record in lines("cpu/first-ladders.jsonl"):
        case = record["case"]
        for probe in record["fidelity"]:
            key = case["recipe"], probe["stress"], int(case["fork_from"].rsplit("-", 1)[1]), case["batch"]
            found.setdefault(key, []).append(probe["whole"]["error"]["mean"])
    places = sorted({key[2:] for key in found})
    recipes = list(dict.fromkeys(key[0] for key in found))
    return table(["outliers of 2^16", "recipe", *(f"age {age}, {batch} x 128" for age, batch in places)],
                 [[words, f"`{recipe}`", *(spread(found[recipe, stress, *place], 2) for place in places)]
                  for stress, words in (("ffn:16:4", "FFN"), ("norm:16:4", "norms")) for recipe in recipes])


def plateau_seeds(master):
    """BF16's last 30 losses of the plateau's runs on one GPU with batch 1, by seed."""
    ends = [mean(record["training"]["loss"], -30, None) for record in lines("h200/one-gpu-plateau.jsonl")
            if [record["case"][key] for key in ("model", "master", "batch", "gpus", "recipe")] == ["llama3.2-1b", master, 1, 1, "bf16"]]
    return spread(ends, 2)


def seeds_scatter():
    """Standard deviation over the seeds of final losses minus BF16's of the same seed: least and largest over the recipes."""
    ends = {}
    for record in lines("cpu/convergence-tiny.jsonl"):
        loss, case = record["training"]["loss"], record["case"]
        ends.setdefault(case["recipe"], {})[case["seed"]] = mean(loss, -(len(loss) // 10), None)
    return spread([statistics.stdev(end[seed] - ends["bf16"][seed] for seed in end) for recipe, end in ends.items() if recipe != "bf16"], 2)


TABLES = {"first-36m": first_36m, "first-long": first_long, "first-tiny": first_tiny, "first-ladders": first_ladders, "first-ladders-tiny": ladder_tiny}
FIGURES = {"first-last-bit": last_bit_36m, "first-seeds": seeds_scatter,
           **{f"first-plateau-{master}": lambda master=master: plateau_seeds(master) for master in ("fp32", "bf16")}}
