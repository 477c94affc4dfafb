"""Tables of the pages, from records of cases, PyTorch's lines and reports of studies, for readme_tables.py. .ci/run compares the
reports with their records."""
import re, statistics

from committed import RESULTS, gib, lines, measured, rate, table

PEER_MODELS = {"8b": "llama3.1-8b", "3b": "llama3.2-3b", "1b": "llama3.2-1b", "7b": "qwen2.5-7b", "1.5b": "qwen2.5-1.5b"}
# Identifies a case that PyTorch ran too; `layers` is None for a whole model.
BESIDE = "model", "layers", "batch", "seq", "accumulation", "recipe"


def shown(model, layers):
    return model + (f", {layers} layers" if layers else "")


def peers(path):
    """Returns the lines of peer_torch.py by BESIDE: the faster of converting all linears and of torchao's own filter."""
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
        model, layers, batch, seq, accumulation, recipe = key
        bf16, peer = cases.get((*key[:-1], "bf16")), theirs.get(key)
        rows.append([shown(model, layers), f"{batch} x {seq}" + (f", {accumulation} times" if accumulation > 1 else ""), recipe,
                     f"{rate(ours):,.0f}", f"{rate(ours) / rate(bf16):.2f}x" if bf16 else "-",
                     *([f"{peer['tokens_per_s']:,.0f}" + (" (filtered)" if peer["recipe"].endswith("_auto") else ""),
                        f"{rate(ours) / peer['tokens_per_s']:.2f}x", f"{peer['peak_gib']:.2f}"] if peer else "---"),
                     f"{gib(ours):.2f}"])
    return table(["model", "batch x seq", "recipe", "precbench tokens/s", "over bf16", "PyTorch tokens/s", "precbench / PyTorch",
                  "PyTorch peak GiB", "precbench peak GiB"], rows)


def front_experts():
    cases = measured("h200/beside-peer-experts/records.jsonl", *BESIDE)
    theirs, rows = peers("h200/beside-peer-experts/peer.ndjson"), []
    for (model, layers, batch, seq, accumulation, recipe), bf16 in cases.items():
        if recipe == "bf16":
            key = model, layers, batch, seq, accumulation
            over = lambda recipe: f"{rate(cases[*key, recipe]) / theirs[*key, recipe]['tokens_per_s']:.2f}x"
            rows.append([shown(model, layers), f"{batch} x {seq}", f"{rate(bf16):,.0f}", over("bf16"),
                         f"{rate(cases[*key, 'blockwise']) / rate(bf16):.2f}x", over("rowwise")])
    return table(["model", "batch x seq", "bf16 tokens/s", "bf16 vs PyTorch", "blockwise vs bf16", "rowwise vs PyTorch"], rows)


def block_ms(rates):
    """Returns the milliseconds that one more block takes, from tokens/s by BESIDE, of the cases that ran at two depths."""
    depths = {}
    for (model, layers, batch, seq, accumulation, recipe), tokens_per_s in rates.items():
        if layers:
            ms = batch * seq * accumulation / tokens_per_s * 1e3
            depths.setdefault((model, batch, seq, accumulation, recipe), []).append((layers, ms))
    return {case: (high[1] - low[1]) / (high[0] - low[0]) for case, steps in depths.items()
            for low, high in [(min(steps), max(steps))] if low[0] < high[0]}


def blocks_beside_peer(folder):
    """One block of each model that ran at two depths: forward, backward and its part of the optimizer. Empty if none did."""
    ours = block_ms({key: rate(case) for key, case in measured(f"{folder}/records.jsonl", *BESIDE).items()})
    theirs = block_ms({key: line["tokens_per_s"] for key, line in peers(f"{folder}/peer.ndjson").items()})
    rows = []
    for key, ms in ours.items():
        bf16, peer = ours.get((*key[:-1], "bf16")), theirs.get(key)
        rows.append([key[0], f"{key[1]} x {key[2]}", key[-1], f"{ms:.2f}", f"{bf16 / ms:.2f}x" if bf16 else "-",
                     *([f"{peer:.2f}", f"{peer / ms:.2f}x"] if peer else "--")])
    return rows and table(["model", "batch x seq", "recipe", "precbench ms a block", "over bf16", "PyTorch ms a block",
                           "PyTorch / precbench"], rows)


def fsdp2():
    """FSDP beside PyTorch FSDP2 on two and on four GPUs, one row per line of PyTorch's and setting of --reshard."""
    rows = []
    for folder in ("h200/fsdp-two", "h200x4/fsdp-four"):
        for line in lines(f"{folder}/peer.ndjson"):
            recipe, _, gathers = line["recipe"].partition("_")
            wanted = PEER_MODELS[line["model"]], line["seq"], "fsdp", recipe, "fp8" if gathers else "bf16", line["gpus"]
            for record in lines(f"{folder}/records.jsonl"):
                case = record["case"]
                if tuple(case.get(name) for name in ("model", "seq", "parallel", "recipe", "gather", "gpus")) == wanted:
                    rows.append([str(line["gpus"]), f"{wanted[0]}, {wanted[1]}", recipe + (", FP8 gather" if gathers else ""),
                                 case.get("reshard", "on"), f"{rate(record):,.0f}", f"{line['tokens_per_s']:,.0f}",
                                 f"{rate(record) / line['tokens_per_s']:.2f}x", f"{gib(record):.1f}", f"{line['peak_gib']:.1f}",
                                 record["env"]["git"][:7]])
    return table(["GPUs", "model, seq", "recipe", "--reshard", "precbench tokens/s", "PyTorch tokens/s", "precbench / PyTorch",
                  "precbench peak GiB", "PyTorch peak GiB", "commit"], rows)


def experts_on_two():
    """Expert parallelism on two GPUs with balanced routing, beside one GPU with the same batch for each."""
    one = measured("h200/moe-h200.jsonl", "model", "routing", "recipe", "flow")
    cases = measured("h200/moe-two-gpus.jsonl", "recipe", "dispatch", "exchange", "parallel", "flow", "routing")
    rows = []
    for (recipe, dispatch, exchange, parallel, flow, routing), record in cases.items():
        single = one.get(("moe-4b-a1b", "balanced", recipe, flow))
        if routing == "balanced" and parallel != "fsdp" and single:
            rows.append([f"`{recipe}`" + (", flow" if flow == "on" else ""), dispatch or "bf16", exchange or "gather",
                         f"{rate(record):,.0f}", f"{rate(record) / rate(single):.2f}x",
                         f"{record['breakdown']['communication_ms']:.1f}", f"{gib(single):.1f} / {gib(record):.1f}"])
    return table(["recipe", "dispatch", "exchange", "tokens/s", "over one GPU", "communication, ms", "peak GiB per GPU, 1 / 2"], rows)


def report_rows(path, *first):
    """Returns, by recipe, the joined cells of those tables of a report whose header begins with the cells `first`."""
    rows, header = {}, None
    for line in (RESULTS / path).read_text().replace("\\", "").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = None
        elif cells[:len(first)] == list(first):
            header = cells
        elif header and not cells[0].startswith(":"):
            rows.setdefault(cells[first.index("recipe")], {}).update(zip(header, cells))
    return rows


def study_rows(name):
    return report_rows(f"{name}.md", "model", "recipe")


def costs(row):
    """Returns the cells of a study's row that hold the recipe's loss minus BF16's, youngest age first."""
    return [cell for name, cell in row.items() if name.startswith("at age ")]


def short(cell):
    """Returns a cell without its interval."""
    return re.sub(r" \[.*?\]", "", cell)


STUDIES = {"15M, bytes": "h200/study-15m", "36M": "h200/study-36m", "125M": "h200/study-125m-eight", "1.2B": "h200/study-1b",
           "118M, 16 experts": "h200/study-moe-118m", "135M, trained": "h100/trained-smollm2"}
SIZES_RECIPES = ["tensorwise", "rowwise", "blockwise", "mxfp8", "mxfp8_floor", "nvfp4"]


def sizes():
    """One row per study: cost of each recipe at the oldest age."""
    rows = []
    for model, name in STUDIES.items():
        found, text = study_rows(name), (RESULTS / f"{name}.md").read_text()
        margin, floor = re.search(r"margin ([\d.]+) nats, noise floor (\d\.\d+)", text).groups()
        verdicts = {row["verdict"].split(" at ")[0] for recipe, row in found.items() if recipe in SIZES_RECIPES}
        tokens = {row["verdict"].split(" at ")[1].removesuffix(" tokens per parameter").split(" to ")[-1] for row in found.values()}
        rows.append([f"[{model}]({name}.md)", *tokens, margin, floor,
                     *(short(costs(found[recipe])[-1]) if recipe in found else "-" for recipe in SIZES_RECIPES),
                     " or ".join(sorted(verdicts))])
    return table(["model", "tokens per parameter", "margin", "noise floor", *(f"`{recipe}`" for recipe in SIZES_RECIPES), "verdict"],
                 rows)


STUDIES_36M = "36m", "36m-delayed", "36m-all", "36m-more", "36m-msamp"


def recipes():
    """All recipes that were studied at 36M, at the age that all those studies have; the first study that has a recipe counts."""
    rows = {}
    for name in STUDIES_36M:
        for recipe, row in study_rows(f"h200/study-{name}").items():
            rows.setdefault(recipe, [f"`{recipe}`", row["at age 400 [95%], nats"], row["gradient error"], row["bias"], row["verdict"],
                                     f"[{name}](h200/study-{name}.md)"])
    return table(["recipe", "at age 400 [95%], nats", "gradient error", "bias", "verdict over all its ages", "report"], rows.values())


def long_run():
    """Runs from scratch, beside forks of the same model and text."""
    forks, runs = study_rows("h200/study-15m"), report_rows("h200/long-run-15m.md", "recipe", "verdict")
    return table(["recipe", "forks, age 200", "forks, age 400", "from scratch", "verdict from scratch", "held-out [95%]"],
                 [[f"`{recipe}`", *map(short, costs(forks[recipe])), row["loss - bf16 (nats)"], row["verdict"],
                   row["held-out loss - bf16 [95%] (nats)"]] for recipe, row in runs.items() if recipe in forks])


def own_kernels():
    """Loss of forks minus that of cuBLASLt and cuDNN over the second half of the steps: mean by seed, and mean size of a step's."""
    curves = {}
    for record in lines("h200/own-kernels.jsonl"):
        case = record["case"]
        curves.setdefault((case["recipe"], case["gemm"], case["perturb"]), {})[case["seed"]] = record["training"]["loss"]
    def line(recipe, words, gemm, perturb, base):
        forks, others = curves[recipe, gemm, perturb], curves[base, "cublaslt", "none"]
        apart = [[x - y for x, y in zip(forks[seed], others[seed])][len(forks[seed]) // 2:] for seed in forks]
        means, steps = ([statistics.mean(map(of, seed)) for seed in apart] for of in (float, abs))
        return [f"`{recipe}`", words, f"{min(means):+.5f} to {max(means):+.5f}", f"{min(steps):.5f} to {max(steps):.5f}"]
    return table(["recipe", "kernels", "mean difference, nats", "mean absolute difference of a step, nats"],
                 [line(recipe, *fork, recipe) for recipe in ("bf16", "blockwise")
                  for fork in (("precbench", "own", "none"), ("libraries, one weight perturbed", "cublaslt", "ulp"))]
                 + [line("rowwise_e4m1", "libraries, compared with `bf16`", "cublaslt", "none", "bf16")])


TABLES = {"front-experts": front_experts, "beside-peer": beside_peer, "fsdp2": fsdp2,
          "beside-peer-h100": lambda: beside_peer("h100/beside-peer"),
          "beside-peer-experts": lambda: beside_peer("h200/beside-peer-experts"), "experts-on-two": experts_on_two,
          "sizes": sizes, "recipes": recipes, "long-run": long_run, "own-kernels": own_kernels}
