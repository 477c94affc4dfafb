"""Tables of the pages that precbench report cannot print, for readme_tables.py: results beside those of PyTorch, studies of several
models side by side, and the outputs of the kernel benchmarks. Some are taken from reports, which precbench prints."""
import csv, functools, json, lzma, math, os, pathlib, re, shlex, statistics, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


def lines(path):
    """Returns the JSON objects of a file under results/, or of any file if the path is absolute. An .xz file is
    unpacked, also one that is there in place of `path`."""
    plain, packed = RESULTS / path, RESULTS / f"{path}.xz"
    if plain.suffix == ".xz" or not plain.exists():
        read = lzma.open(plain if plain.suffix == ".xz" else packed, "rt")
    else:
        read = open(plain)
    with read:
        return [json.loads(line) for line in read]


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


PYTORCH_MODELS = {"8b": "llama3.1-8b", "3b": "llama3.2-3b", "1b": "llama3.2-1b", "7b": "qwen2.5-7b", "1.5b": "qwen2.5-1.5b"}
# Identifies a case that PyTorch ran too; `layers` is None for a whole model.
BESIDE = "model", "layers", "batch", "seq", "accumulation", "tensor", "recipe"

WAYS = {"": "", "auto": " (filtered)", "async": " (asynchronous)"}  # by suffix of PyTorch's recipe


def pytorch_lines(path):
    """Returns the lines of pytorch_step.py by BESIDE: the fastest of converting all linears, torchao's own filter and
    asynchronous tensor parallelism."""
    best = {}
    for line in lines(path):
        if "error" in line:
            continue
        model, _, layers = line["model"].partition("/")
        key = (PYTORCH_MODELS.get(model, model), int(layers) if layers else None, line["batch"], line["seq"],
               line.get("accumulation", 1), line.get("tensor"), line["recipe"].partition("_")[0])
        if key not in best or line["tokens_per_s"] > best[key]["tokens_per_s"]:
            best[key] = line
    return best


def beside_pytorch(folder="h200/beside-pytorch"):
    """One row per case of precbench, with PyTorch's of the same work."""
    cases, theirs, rows = {}, pytorch_lines(f"{folder}/pytorch.ndjson"), []
    for record in lines(f"{folder}/records.jsonl"):
        if record["status"] == "ok" and (record["metrics"] or {}).get("tokens_per_s"):
            cases.setdefault(tuple(record["case"].get(field) for field in BESIDE), record)
    for key, ours in cases.items():
        model, layers, batch, seq, accumulation, tensor, recipe = key
        model += (f", {layers} layers" if layers else "") + (f", {tensor} tensor ranks" if tensor else "")
        bf16, pytorch = cases.get((*key[:-1], "bf16")), theirs.get(key)
        rows.append([model, f"{batch} x {seq}" + (f", {accumulation} times" if accumulation > 1 else ""), recipe,
                     f"{rate(ours):,.0f}", f"{rate(ours) / rate(bf16):.2f}x" if bf16 else "-",
                     *([f"{pytorch['tokens_per_s']:,.0f}{WAYS[pytorch['recipe'].partition('_')[2]]}",
                        f"{rate(ours) / pytorch['tokens_per_s']:.2f}x", f"{pytorch['peak_gib']:.2f}"] if pytorch else "---"),
                     f"{gib(ours):.2f}"])
    return table(["model", "batch x seq", "recipe", "precbench tokens/s", "over bf16", "PyTorch tokens/s", "precbench / PyTorch",
                  "PyTorch peak GiB", "precbench peak GiB"], rows)


def tensor_losses():
    """Losses of two tensor ranks beside one GPU's, over the steps that both ran."""
    losses, rows = {}, []
    for record in lines("h200/tensor-two.jsonl.xz"):
        case = record["case"]
        model = "2 small blocks" if case["model"].endswith(".json") else case["model"]
        losses.setdefault((model, case["recipe"]), {})[case["gpus"]] = record["training"]["loss"]
    for (model, recipe), by_gpus in losses.items():
        pairs = list(zip(by_gpus[1], by_gpus[2]))
        rows.append([model, recipe, str(len(pairs)), f"{pairs[-1][0]:.4f}", f"{pairs[-1][1]:.4f}",
                     f"{100 * max(abs(two / one - 1) for one, two in pairs):.3f}%"])
    return table(["model", "recipe", "steps", "last loss, one GPU", "two tensor ranks", "largest difference of a step"], rows)


def fsdp2():
    """FSDP beside PyTorch FSDP2 on two and on four GPUs, one row per line of PyTorch's and setting of --reshard."""
    rows = []
    for folder in ("h200/fsdp-two", "h200x4/fsdp-four", "h100x4/fsdp-four"):
        for line in lines(f"{folder}/pytorch.ndjson"):
            recipe, _, gathers = line["recipe"].partition("_")
            wanted = PYTORCH_MODELS[line["model"]], line["seq"], "fsdp", recipe, "fp8" if gathers else "bf16", line["gpus"]
            for record in lines(f"{folder}/records.jsonl"):
                case = record["case"]
                if tuple(case.get(name) for name in ("model", "seq", "parallel", "recipe", "gather", "gpus")) == wanted:
                    rows.append([f"{line['gpus']} {line['gpu'].split()[1]}", f"{wanted[0]}, {wanted[1]}", recipe + (", FP8 gather" if gathers else ""),
                                 case.get("reshard", "on"), f"{rate(record):,.0f}", f"{line['tokens_per_s']:,.0f}",
                                 f"{rate(record) / line['tokens_per_s']:.2f}x", f"{gib(record):.1f}", f"{line['peak_gib']:.1f}",
                                 record["env"]["git"][:7]])
    return table(["GPUs", "model, seq", "recipe", "--reshard", "precbench tokens/s", "PyTorch tokens/s", "precbench / PyTorch",
                  "precbench peak GiB", "PyTorch peak GiB", "commit"], rows)


PROGRAM = os.path.abspath(os.environ.get("PRECBENCH", ROOT / "build/precbench"))


def printed(words):
    """Returns what precbench prints as Markdown, without the spaces that align its columns."""
    done = subprocess.run([PROGRAM, *words, "--format", "md"], cwd=RESULTS, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(words)}: {done.stderr.strip()}")
    return re.sub(r"-{3,}", "---", re.sub(r" {2,}", " ", done.stdout)).rstrip("\n")


@functools.cache
def report_of(*names):
    """Returns the report of records under results/ as Markdown without escapes."""
    return printed(["report", *(f"{name}.jsonl.xz" for name in names)]).replace("\\", "")


def study_rows(name):
    """Returns the cells of a study's table "Does it train?" by recipe and column, from its report."""
    rows, header = {}, None
    for line in report_of(name).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = None
        elif cells[:3] == ["model", "recipe", "verdict"]:
            header = cells
        elif header and not cells[0].startswith(":"):
            rows[cells[1]] = dict(zip(header, cells))
    return rows


def oldest(row):
    """Returns a recipe's loss minus BF16's at the oldest age, without its interval."""
    return re.sub(r" \[.*?\]", "", [cell for name, cell in row.items() if re.match(r"after [\d,]+ steps ", name)][-1])


STUDIES = {"15M, bytes": "h200/study-15m", "36M": "h200/study-36m", "125M": "h200/study-125m-eight", "1.2B": "h200/study-1b",
           "118M, 16 experts": "h200/study-moe-118m", "135M, trained": "h100/trained-smollm2"}
SIZES_RECIPES = ["tensorwise", "rowwise", "blockwise", "mxfp8", "mxfp8_floor", "nvfp4"]


def sizes():
    """One row per study: cost of each recipe at the oldest age."""
    rows = []
    for model, name in STUDIES.items():
        found, text = study_rows(name), report_of(name)
        margin, floor = re.search(r"margin ([\d. to]+) nats, noise floor (\d\.\d+)", text).groups()
        shown = {recipe: row["verdict"].rsplit(" at ", 1)[0] for recipe, row in found.items() if recipe in SIZES_RECIPES}
        verdicts = {verdict.split("; ")[-1] for verdict in shown.values()}  # behind "known to fail at 8B (source); "
        failing = [f"`{recipe}`" for recipe, verdict in shown.items() if verdict.startswith("known to fail")]
        tokens = {row["verdict"].rsplit(" at ", 1)[1].removesuffix(" tokens per parameter").split(" to ")[-1] for row in found.values()}
        rows.append([f"[{model}]({name}.jsonl.xz)", *tokens, margin, floor,
                     *(oldest(found[recipe]) if recipe in found else "-" for recipe in SIZES_RECIPES),
                     " or ".join(sorted(verdicts)) + (f"; {', '.join(sorted(failing))} known to fail" if failing else "")])
    return table(["model", "tokens per parameter", "margin", "noise floor", *(f"`{recipe}`" for recipe in SIZES_RECIPES), "verdict"],
                 rows)


def age_law():
    """One row per recipe: the power law of the loss gap's share over age, its test, and its extrapolation to the trained model."""
    text, rows = report_of("h100/age-15m", "h100/trained-smollm2"), []
    share = r"(\S+% \[\S+ \S+\])"
    for recipe, exponent, forecast, measured in re.findall(
            rf"^- (\S+): the law from 1 to 100 .*exponent of (\S+ \[\S+ \S+\]).*forecasts {share} there, and {share} was", text, re.M):
        beside = re.search(rf"^- {recipe}: the law of .* gives {share} .* there at {share}\.$", text, re.M)
        rows.append([f"`{recipe}`", exponent, forecast, measured, *(beside.groups() if beside else "--")])
    return table(["recipe", "exponent [95%]", "forecast at 100", "measured at 100", "extrapolated to 14,900", "SmolLM2, measured"], rows)


T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447}  # two-sided, by degrees of freedom


def interval(values, digits=5):
    """Returns the mean with Student's 95% interval, as text."""
    mean, half = statistics.mean(values), T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.{digits}f} [{mean - half:.{digits}f}, {mean + half:.{digits}f}]"


def excludes_zero(values):
    return abs(statistics.mean(values)) > T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def ratio(over, under):
    """Returns the ratio of two means with its 95% interval, as text: first order in the logarithm, degrees of freedom
    of the smaller sample. "-" where the 95% interval of the first mean includes zero."""
    if not excludes_zero(over):
        return "-"
    error = math.hypot(*(statistics.stdev(values) / math.sqrt(len(values)) / statistics.mean(values)
                         for values in (over, under)))
    factor = math.exp(T_95[min(len(over), len(under)) - 1] * error)
    mean = statistics.mean(over) / statistics.mean(under)
    return f"{mean:.1f} [{mean / factor:.1f}, {mean * factor:.1f}]"


FORKS = "h100/age-15m.jsonl.xz"
# Steps of runs from scratch that are compared with forks, their records, and the tokens per parameter of these steps.
SCRATCH = [(1453, "h200/long-run-15m.jsonl.xz", 3), (1453, "h200/causes-scratch-15m.jsonl.xz", 3), (4842, "h200/long-run-15m.jsonl.xz", 10)]
SCRATCH_RECIPES = ["tensorwise", "mxfp8_floor", "nvfp4_all"]  # nvfp4 ends in BF16, after other numbers of steps


def paired_differences(records, pair, mean_loss):
    """Returns, by recipe, mean_loss(record) minus that of the BF16 record with the same pair(record)."""
    plain = [record for record in records if record["case"]["perturb"] == "none"]
    bf16 = {pair(record): mean_loss(record) for record in plain if record["case"]["recipe"] == "bf16"}
    differences = {}
    for record in plain:
        differences.setdefault(record["case"]["recipe"], []).append(mean_loss(record) - bf16[pair(record)])
    return differences


def forks_at(records, age):
    """Returns the forks of a study that begin after `age` steps."""
    return [one for one in records if (one.get("study", {}).get("part"), one.get("study", {}).get("age")) == ("fork", age)]


def fork_and_scratch():
    """One row per age, records and recipe: cost of forks at that age, and of runs from scratch after as many steps."""
    forks, rows = lines(FORKS), []
    for steps, scratch, tokens in SCRATCH:
        runs = lines(scratch)
        forked = paired_differences(forks_at(forks, steps), lambda one: one["study"]["trunk"],
                                    lambda one: statistics.mean(one["training"]["loss"][75:]))
        trained = paired_differences(runs, lambda one: one["case"]["seed"],
                                     lambda one: statistics.mean(one["training"]["loss"][steps - steps // 10:steps]))
        for recipe in SCRATCH_RECIPES:
            rows.append([f"{tokens}", f"`{recipe}`", interval(forked[recipe]), f"{len(trained[recipe])} of {runs[0]['case']['steps']:,} steps",
                         interval(trained[recipe]), ratio(trained[recipe], forked[recipe])])
    return table(["tokens per parameter", "recipe", "fork [95%]", "runs from scratch", "from scratch [95%]", "ratio [95%]"], rows)


# Rows of held_out_gaps: label, records, steps in BF16 before the forks.
BF16_STEPS = ([("60", "h200/deployment-smollm2.jsonl.xz", 60)] +
              [(f"{age:,}", "h200/causes-smollm2-rewarm.jsonl.xz", age) for age in (250, 500, 1000)])
DECAY = [("constant", "h200/deployment-smollm2.jsonl.xz", 60), ("to zero", "h200/causes-smollm2-decay.jsonl.xz", 60)]


def reading(one, recipe):
    """Returns the held-out loss of a run's final weights, read in a recipe; None if they were not read in it."""
    return next((found["loss"] for found in one["training"]["evaluations"][-1]["readings"] if found["recipe"] == recipe), None)


def served_gaps(records, pair):
    """Returns, for runs or forks paired with BF16's by pair(record): BF16's held-out losses read in BF16, and by recipe and deployment
    ("in BF16", "in the recipe", "raw") the loss gaps of the pairs."""
    plain = [one for one in records if one["case"]["perturb"] == "none"]
    bf16, gaps = {pair(one): one for one in plain if one["case"]["recipe"] == "bf16"}, {}
    for one in plain:
        recipe, partner = one["case"]["recipe"], bf16[pair(one)]
        for served, ours, theirs in (("in BF16", "bf16", "bf16"), ("in the recipe", recipe, recipe), ("raw", recipe, "bf16")):
            losses = reading(one, ours), reading(partner, theirs)
            if recipe != "bf16" and None not in losses:
                gaps.setdefault((recipe, served), []).append(losses[0] - losses[1])
    return [reading(one, "bf16") for one in bf16.values()], gaps


def held_out_gaps(first, rows, recipes):
    """One row per state that is forked: BF16's held-out loss, and for each recipe the loss gap served in BF16 and the raw gap."""
    table_rows = []
    for label, name, age in rows:
        bf16, gaps = served_gaps(forks_at(lines(name), age), lambda one: one["study"]["trunk"])
        table_rows.append([label, f"{statistics.mean(bf16):.3f}",
                           *(interval(gaps[recipe, served], 4) for recipe in recipes for served in ("in BF16", "raw"))])
    return table([first, "held-out loss of BF16"] + [f"`{recipe}`, {gap} [95%]" for recipe in recipes for gap in ("in BF16", "raw")], table_rows)


BASES = [("as trained", "as-is"), ("rounded to Q8_0", "q8_0"), ("rounded to Q4_1", "q4_1")]


def base_precision():
    """One row per base: BF16's held-out loss when it is read, after the steps in BF16 and after the forks, and the loss gaps."""
    rows = []
    for label, name in BASES:
        records = lines(f"h200/causes-smollm2-base-{name}.jsonl.xz")
        last = lambda one: one["training"]["evaluations"][-1]["loss"]
        base = [last(one) for one in records if not one.get("study")]
        trunks = [last(one) for one in records if one.get("study", {}).get("part") == "trunk"]
        bf16, gaps = served_gaps(forks_at(records, 60), lambda one: one["study"]["trunk"])
        rows.append([label, *(f"{statistics.mean(losses):.4f}" for losses in (base, trunks, bf16)),
                     *(interval(gaps[key], 4) for key in (("rowwise", "in BF16"), ("rowwise", "in the recipe"), ("rowwise", "raw"),
                                                          ("rowwise_e5m2", "in BF16")))])
    return table(["base", "loss of BF16: base", "after 60 steps", "after the forks", "`rowwise`, in BF16 [95%]", "`rowwise`, in the recipe [95%]",
                  "`rowwise`, raw [95%]", "`rowwise_e5m2`, in BF16 [95%]"], rows)


def two_texts(model, age, second="prose"):
    """One row per recipe that studies of the model on both texts have: loss gap by deployment and text."""
    found = {text: served_gaps(forks_at(lines(f"h200/{name}-{model}{end}.jsonl.xz"), age), lambda one: one["study"]["trunk"])[1]
             for text, name, end in (("documentation", "deployment", ""), (second, "causes", f"-{second}"))}
    gaps = list(found.values())
    rows = []
    for recipe in sorted({recipe for recipe, _ in gaps[0]} & {recipe for recipe, _ in gaps[1]} - {"rowwise_e4m1"}):
        rows.append([f"`{recipe}`", *(interval(own[recipe, served], 4) if (recipe, served) in own else "-"
                                      for served in ("in BF16", "in the recipe", "raw") for own in gaps)])
    return table(["recipe"] + [f"{served}, {text}" for served in ("in BF16", "in the recipe", "raw") for text in found], rows)


STUDIED_TEXTS = [("SmolLM2", "1.34515e+08", "smollm2", "prose"), ("Gemma 3 270M", "2.68098e+08", "gemma3", "prose"),
                 ("Qwen2.5-Coder 0.5B", "6.30167e+08", "qwen-0.5b", "code")]


def text_shares():
    """One row per model and text: BF16's training loss in the last half of the forks, and each recipe's raw gap there."""
    evidence = {(one["records"], one["recipe"]): one for one in csv.DictReader(open(RESULTS / "law/evidence.csv"))}
    recipes, rows = ["blockwise", "tensorwise", "mxfp8", "nvfp4_all"], []
    for model, _, name, second in STUDIED_TEXTS:
        for text, records in (("documentation", f"h200/deployment-{name}"), (second, f"h200/causes-{name}-{second}")):
            gaps = [(float(one["gap"]), float(one["bf16_loss"])) for one in (evidence[records, recipe] for recipe in recipes)]
            rows.append([model, text, f"{gaps[0][1]:.3f}", *(f"{gap:.4f} ({100 * gap / loss:.2f}%)" for gap, loss in gaps)])
    return table(["model", "text", "BF16's loss", *(f"`{recipe}`" for recipe in recipes)], rows)


def text_spread():
    """One row per model and deployment: how much studies differ on one text, and on two, by precbench law."""
    evidence = list(csv.DictReader(open(RESULTS / "law/evidence.csv")))
    rows = []
    for model, parameters, name, second in STUDIED_TEXTS:
        other = f"h200/causes-{name}-{second}"
        one_text = {one["records"] for one in evidence if one["parameters"] == parameters} - {other}
        both_texts = {f"h200/deployment-{name}", other}
        spreads = [printed(["law", "--table", "studies", "--studies", ",".join(sorted(studies))]).splitlines()[2:]
                   for studies in (one_text, both_texts)]
        for both in zip(*spreads):
            (served, _, _, *on_one), (_, _, _, *on_two) = ([cell.strip() for cell in line.strip("|").split("|")] for line in both)
            rows.append([model, served, *on_one, *on_two])
    return table(["model", "served in", "documentation: differences", "spread, % of the raw gap",
                  "documentation and the other text: differences", "spread, % of the raw gap"], rows)


def served_from_scratch():
    """One row per recipe: held-out loss gap of forks and of runs from scratch, by deployment."""
    scratch = served_gaps(lines("h200/causes-scratch-15m.jsonl.xz"), lambda one: one["case"]["seed"])[1]
    forked = paired_differences([one for one in forks_at(lines(FORKS), 1453) if one["case"]["recipe"] in ("bf16", *SCRATCH_RECIPES)],
                                lambda one: one["study"]["trunk"],
                                lambda one: one["training"]["evaluations"][-1]["bf16_loss" if one["case"]["recipe"] != "bf16" else "loss"])
    return table(["recipe", "forks, in BF16 [95%]"] + [f"from scratch, {served} [95%]" for served in ("in BF16", "in the recipe", "raw")],
                 [[f"`{recipe}`", interval(forked[recipe]), *(interval(scratch[recipe, served]) for served in ("in BF16", "in the recipe", "raw"))]
                  for recipe in SCRATCH_RECIPES])


SCALES = ["bf16", "tensor", "delayed", "row", "1x128"]
DENSE = re.compile(r"^ +(\w+) -> (\w+) +([\d.]+) ms +\d+ GB/s +(\d+)%", re.M)
QUANTIZE = re.compile(r"^ +quantize (\w+) row\+col 8192x14336 +([\d.]+) ms +\d+ GB/s +(\d+)%", re.M)
GROUPED = re.compile(r"^ *\S*? +\d+ +(\d+)( zipf:1)? +\d+x\d+ +(\w+) +(\S+) +([\d./ none]+)$", re.M)


def output(name):
    return (RESULTS / f"h200/{name}.txt").read_text()


def kernel_ops():
    """Time and share of the copy bandwidth of the ops that write FP8, by scale."""
    found = {("quantize, row and column", scale): cell for scale, *cell in QUANTIZE.findall(output("kernel_bench"))}
    found.update({(op, scale): cell for op, scale, *cell in DENSE.findall(output("kernel_bench"))})
    cell = lambda ms, share: f"{1e3 * float(ms):.0f} us, {share}%"
    return table(["op", *SCALES], [[op, *(cell(*found[op, scale]) if (op, scale) in found else "" for scale in SCALES)] for op in
                                   ("quantize, row and column", "add_rmsnorm", "rmsnorm_backward", "swiglu", "swiglu_backward")])


def grouped_cublaslt():
    """Ratio of precbench's grouped GEMMs to cuBLASLt's over the shapes of each GEMM and number of rows."""
    kinds = {}
    for rows, zipf, gemm, out, cells in GROUPED.findall(output("grouped_cublaslt")):
        bf16, tensorwise, _, blockwise = cells.split()  # cuBLASLt has no scales per row
        kinds.setdefault((f"{gemm} {out}", f"{int(rows):,}{zipf}"), []).append((bf16, tensorwise, blockwise))
    def cell(column):
        if any(cell.endswith("none") for cell in column):
            return "-"
        ratios = [float(own) / float(theirs) for own, theirs in (cell.split("/") for cell in column)]
        return f"{spread(ratios, 2, 'x')} ({sum(ratio >= 1 for ratio in ratios)} of {len(ratios)})"
    return table(["GEMM", "rows per expert", "bf16", "tensorwise", "blockwise"],
                 [[*kind, *map(cell, zip(*shapes))] for kind, shapes in kinds.items()])


TABLES = {"causes-bf16-steps": lambda: held_out_gaps("steps in BF16", BF16_STEPS, ["rowwise", "rowwise_e5m2"]),
          "causes-decay": lambda: held_out_gaps("learning rate of the forks", DECAY, ["rowwise", "mxfp8", "rowwise_e5m2"]),
          "beside-pytorch": beside_pytorch, "beside-pytorch-h100": lambda: beside_pytorch("h100/beside-pytorch"),
          "beside-pytorch-families": lambda: beside_pytorch("h100/beside-pytorch-families"),
          "beside-pytorch-experts": lambda: beside_pytorch("h200/beside-pytorch-experts"),
          "beside-pytorch-tensor": lambda: beside_pytorch("h200/beside-pytorch-tensor"), "tensor-losses": tensor_losses, "fsdp2": fsdp2, "sizes": sizes,
          "causes-base": base_precision, "causes-texts": lambda: two_texts("smollm2", 60),
          "causes-texts-gemma3": lambda: two_texts("gemma3", 40), "causes-texts-qwen": lambda: two_texts("qwen-0.5b", 40, "code"),
          "causes-scratch": served_from_scratch, "text-shares": text_shares, "text-spread": text_spread,
          "fork-and-scratch": fork_and_scratch, "age-law": age_law,
          "kernel-ops": kernel_ops, "grouped-cublaslt": grouped_cublaslt}
