"""Tables and figures of speed and memory, from records of cases and from the peers' lines, for readme_tables.py."""
import statistics

from committed import gib, lines, measured, over_bf16, percent_at_most, rate, spread, table

SINGLE_RECIPES = ["tensorwise", "rowwise", "rowwise_gw_hp", "blockwise"]
FRONT_RECIPES = ["tensorwise", "rowwise", "blockwise"]
FRONT_SHAPES = [("llama3.1-8b", 1, 8192), ("llama3.1-8b", 1, 4096), ("llama3.2-3b", 1, 4096), ("llama3.2-1b", 8, 2048)]
MIXTURES = [("moe-4b-a1b", "balanced"), ("moe-4b-a1b", "learned"), ("moe-4b-a1b", "zipf:1"),
            ("moe-4b-a1b", "one"), ("olmoe-1b-7b", "balanced"),
            ("qwen3-30b-a3b", "balanced")]
MIXTURE_RECIPES = ["tensorwise", "tensorwise_delayed", "rowwise", "blockwise"]
OLD_COMMIT = "ee8943a"
BUSY_WATTS = 500  # a clock that was read with less is of a GPU before its load
PEER_MODELS = {"8b": "llama3.1-8b", "3b": "llama3.2-3b", "1b": "llama3.2-1b", "7b": "qwen2.5-7b",
               "1.5b": "qwen2.5-1.5b"}
# What a case beside the peer is known by; some have no `layers`, as they have all.
BESIDE = "model", "layers", "batch", "seq", "accumulation", "recipe"


def single():
    cases = measured("h200/single.jsonl", "model", "batch", "seq", "recipe")
    rows = []
    for (model, batch, seq, recipe), bf16 in cases.items():
        if recipe != "bf16":
            continue
        others = [cases[model, batch, seq, other] for other in SINGLE_RECIPES]
        rows.append([model, f"{batch} x {seq}", *over_bf16(bf16, others)])
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


def block_ms(rates):
    """Of tokens/s by BESIDE: milliseconds that a block more takes, of the cases that were run at two depths."""
    depths = {}
    for (model, layers, batch, seq, accumulation, recipe), tokens_per_s in rates.items():
        if layers:
            ms = batch * seq * accumulation / tokens_per_s * 1e3
            depths.setdefault((model, batch, seq, accumulation, recipe), []).append((layers, ms))
    return {case: (high[1] - low[1]) / (high[0] - low[0]) for case, steps in depths.items()
            for low, high in [(min(steps), max(steps))] if low[0] < high[0]}


def blocks_beside_peer(folder):
    """One block of each model that was run at two depths: forward, backward and its part of the optimizer; empty without any."""
    ours = block_ms({key: rate(case) for key, case in measured(f"{folder}/records.jsonl", *BESIDE).items()})
    theirs = block_ms({key: line["tokens_per_s"] for key, line in peers(f"{folder}/peer.ndjson").items()})
    rows = []
    for (model, batch, seq, accumulation, recipe), ms in ours.items():
        bf16, peer = ours.get((model, batch, seq, accumulation, "bf16")), theirs.get((model, batch, seq, accumulation, recipe))
        rows.append([model, f"{batch} x {seq}", recipe, f"{ms:.2f}", f"{bf16 / ms:.2f}x" if bf16 else "-"] +
                    ([f"{peer:.2f}", f"{peer / ms:.2f}x"] if peer else ["-", "-"]))
    return rows and table(["model", "batch x seq", "recipe", "precbench ms a block", "over bf16", "PyTorch ms a block", "ratio"],
                          rows)


def front_experts():
    """Of each mixture beside PyTorch: BF16's speed, ours over the peer's in both recipes that it has, and FP8 over BF16."""
    cases = measured("h200/beside-peer-experts/records.jsonl", *BESIDE)
    theirs = peers("h200/beside-peer-experts/peer.ndjson")
    rows = []
    for key, bf16 in cases.items():
        if key[-1] != "bf16":
            continue
        model, layers, batch, seq, accumulation, _ = key
        of = {recipe: rate(cases[*key[:-1], recipe]) for recipe in ("bf16", "rowwise", "blockwise") if (*key[:-1], recipe) in cases}
        over = lambda recipe, base: f"{of[recipe] / base:.2f}x" if recipe in of else "-"
        peer = lambda recipe: theirs[*key[:-1], recipe]["tokens_per_s"] if recipe in of else None
        rows.append([model + (f", {layers} layers" if layers else ""), f"{batch} x {seq}", f"{of['bf16']:,.0f}",
                     over("bf16", peer("bf16")), over("blockwise", of["bf16"]), over("rowwise", peer("rowwise"))])
    return table(["model", "batch x seq", "bf16 tokens/s", "bf16 vs PyTorch", "blockwise vs bf16", "rowwise vs PyTorch"],
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


def beside_fsdp2(ours, theirs):
    """Ranks with shards beside PyTorch FSDP2's, line by line of the peer's."""
    cases = {}
    for record in lines(ours):
        case = record["case"]
        key = tuple(case.get(name) for name in ("model", "seq", "parallel", "recipe", "gather", "gpus"))
        cases.setdefault(key, []).append(record)
    rows = []
    for line in lines(theirs):
        recipe, _, gathers = line["recipe"].partition("_")
        model = PEER_MODELS[line["model"]]
        for record in cases[model, line["seq"], "fsdp", recipe, "fp8" if gathers else "bf16", line["gpus"]]:
            kept = ", weights kept" if record["case"].get("reshard") == "off" else ""
            rows.append([f"{model}, {line['seq']}", recipe + (", FP8 gather" if gathers else "") + kept,
                         f"{line['tokens_per_s']:,.0f}", f"{rate(record):,.0f}", f"{rate(record) / line['tokens_per_s']:.2f}x",
                         f"{line['peak_gib']:.1f}", f"{gib(record):.1f}"])
    return table(["model, seq", "recipe", "PyTorch tokens/s", "precbench tokens/s", "ratio", "PyTorch peak GiB",
                  "precbench peak GiB"], rows)


def mixtures():
    """One H200: tokens/s of each mixture and routing, and FP8 over BF16."""
    cases = {(model, routing or "learned", recipe): record for (model, routing, recipe), record
             in measured("h200/moe-h200.jsonl", "model", "routing", "recipe").items()}
    rows = []
    for model, routing in MIXTURES:
        bf16, *others = [cases.get((model, routing, recipe)) for recipe in ("bf16", *MIXTURE_RECIPES)]
        layers = bf16["case"].get("layers")
        rows.append([model + (f", {layers} layers" if layers else ""), routing, *over_bf16(bf16, others)])
    return table(["model", "routing", "bf16", *MIXTURE_RECIPES, "peak GiB, bf16 / tensorwise"], rows)


def ranks_with_experts():
    """The cases of two H200 by what they differ in. A recipe's tokens have the same first loss however they are sent, if none
    is dropped: where not, a copy went wrong on its way."""
    cases = measured("h200/moe-two-gpus.jsonl", "recipe", "dispatch", "exchange", "parallel", "flow", "routing", "capacity", "slots")
    first = {}
    for (recipe, *_, routing, capacity, slots), record in cases.items():
        if capacity or slots:
            continue
        loss = record["training"]["loss"][0]
        if abs(first.setdefault((recipe, routing), loss) / loss - 1) > 1e-5:
            raise SystemExit(f"moe-two-gpus.jsonl: {recipe}, {routing}: first losses {first[recipe, routing]} and {loss}")
    return cases


def experts_on_two():
    """Two H200, a rank's experts on its GPU: over one GPU's tokens/s of the same batch, where that was run."""
    one = measured("h200/moe-h200.jsonl", "model", "routing", "recipe", "flow")
    rows = []
    for (recipe, dispatch, exchange, parallel, flow, routing, *_), record in ranks_with_experts().items():
        if routing != "balanced":
            continue
        single = one.get(("moe-4b-a1b", "balanced", recipe, flow))
        rows.append([f"`{recipe}`" + (", flow" if flow == "on" else ""), dispatch or "bf16",
                     (exchange or "gather") + (", fsdp" if parallel == "fsdp" else ""), f"{rate(record):,.0f}",
                     f"{rate(record) / rate(single):.2f}x" if single else "-", f"{record['breakdown']['communication_ms']:.1f}",
                     f"{gib(single):.1f} / {gib(record):.1f}" if single else f"- / {gib(record):.1f}"])
    return table(["recipe", "dispatch", "exchange", "tokens/s", "over one GPU", "communication, ms", "peak GiB per GPU, 1 / 2"], rows)


def experts_routed_on_two():
    """Likewise where routers choose: what is dropped of rank 0's slots, and bytes on the wire beside those predicted."""
    rows = []
    for (recipe, _, exchange, _, _, routing, capacity, slots), record in ranks_with_experts().items():
        if routing == "balanced":
            continue
        moe, sent = record["moe"]["rows"], record["communication"]
        room = f"capacity {capacity}" if capacity else f"{slots:,} slots" if slots else "all"
        rows.append([f"`{recipe}`", exchange or "gather", room, f"{rate(record):,.0f}",
                     f"{100 * moe['dropped'] / record['case']['batch'] / record['case']['seq'] / record['moe']['top_k'] / record['definition']['model']['layers']:.0f}%",
                     f"{record['breakdown']['communication_ms']:.1f}",
                     f"{sent['wire_bytes'] / sent['predicted_wire_bytes'] - 1:+.2%}", f"{gib(record):.1f}"])
    return table(["recipe", "exchange", "room", "tokens/s", "slots dropped", "communication, ms", "bytes over predicted",
                  "peak GiB per GPU"], rows)


def early_start():
    """--graph early over --graph on."""
    cases = measured("h200/early-start.jsonl", "model", "batch", "seq", "recipe", "graph")
    ms = {key: record["timing"]["median_ms"] for key, record in cases.items()}
    return table(["model", "batch x seq", "recipe", "in turn, ms", "early, ms", "early over in turn"],
                 [[model, f"{batch} x {seq}", recipe, f"{in_turn:.2f}", f"{early:.2f}", f"{early / in_turn:.3f}x"]
                  for (model, batch, seq, recipe, graph), in_turn in ms.items() if graph == "on"
                  for early in [ms[model, batch, seq, recipe, "early"]]])


def accumulated():
    """Steps of many micro-steps on one GPU."""
    cases = measured("h200/accumulated.jsonl", "model", "batch", "seq", "accumulation", "recipe")
    rows = []
    for (model, batch, seq, passes, recipe), record in cases.items():
        bf16 = cases[model, batch, seq, passes, "bf16"]
        rows.append([model, f"{passes} x {batch} x {seq}", recipe, f"{batch * seq * passes:,}", f"{rate(record):,.0f}",
                     f"{rate(record) / rate(bf16):.2f}x", f"{gib(record):.1f}"])
    return table(["model", "passes x batch x seq", "recipe", "tokens a step", "tokens/s", "over bf16", "peak GiB"], rows)


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
    """Of some shapes, for the front page: ratios to BF16 alone."""
    cases = measured("h200/single.jsonl", "model", "batch", "seq", "recipe")
    rows = []
    for shape in FRONT_SHAPES:
        bf16 = rate(cases[*shape, "bf16"])
        rows.append([shape[0], f"{shape[1]} x {shape[2]}", f"{bf16:,.0f}"] +
                    [f"{rate(cases[*shape, recipe]) / bf16:.2f}x" for recipe in FRONT_RECIPES])
    return table(["model", "batch x seq", "bf16 tokens/s", *FRONT_RECIPES], rows)


def since_old_commit():
    """Steps of two commits, run in turns: then and now. Delayed scaling, which was not there, beside tensorwise."""
    runs = {}
    for record in lines("h200/since-ee8943a.jsonl"):
        case, old = record["case"], record["env"]["git"].startswith(OLD_COMMIT)
        runs.setdefault((case["model"], f"{case['batch']} x {case['seq']}", case["recipe"]), {True: [], False: []})[old].append(record)
    mean = lambda values: statistics.mean(list(values))
    ms = lambda records: mean(r["timing"]["median_ms"] for r in records)
    busy = lambda records: [r for r in records if r["telemetry"]["power_w"] > BUSY_WATTS]
    clock = lambda records: mean(r["telemetry"]["sm_clock_mhz"] for r in busy(records))
    cycles = lambda records: ms(busy(records)) * clock(records)
    rows = []
    for (model, shape, recipe), of in runs.items():
        then, now = of[True] or runs[model, shape, "tensorwise"][True], of[False]
        both = lambda what, digits: " > ".join(f"{what(records):.{digits}f}" for records in (then, now))
        spent = lambda *names: both(lambda records: mean(sum(r["breakdown"][f"{n}_ms"] for n in names) for r in records), 1)
        rows.append([model, shape, recipe, both(ms, 2), f"{ms(then) / ms(now):.3f}x",
                     f"{cycles(then) / cycles(now):.3f}x", both(clock, 0), spent("gemm"), spent("attention"),
                     spent("quantize", "norm_elementwise"), spent("optimizer"), both(lambda records: max(map(gib, records)), 2)])
    return table(["model", "batch x seq", "recipe", "step, ms", "faster", "in clock cycles", "clock, MHz", "GEMMs, ms", "attention, ms",
                  "quantize, norms, SwiGLU, ms", "AdamW, ms", "peak GiB"], rows)


def beside_shared_expert():
    """Two H200, experts split between them: steps of two commits, run in turns, without the shared expert beside the exchange and with."""
    runs = {}
    for record in lines("h200/since-1b89d44.jsonl"):
        case = record["case"]
        of = runs.setdefault((case["recipe"], case.get("exchange", "gather")), {True: [], False: []})
        of[record["env"]["git"].startswith("1b89d44")].append(record["timing"]["median_ms"])
    return table(["recipe", "exchange", "after it, ms", "beside it, ms", "faster"],
                 [[f"`{recipe}`", exchange, *(", ".join(f"{ms:.1f}" for ms in of[old]) for old in (True, False)),
                   f"{statistics.mean(of[True]) / statistics.mean(of[False]):.3f}x"] for (recipe, exchange), of in runs.items()])


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
    return spread(ratios, 2, "x")


def over_peer(recipe, folder="h200/beside-peer"):
    cases, theirs = measured(f"{folder}/records.jsonl", *BESIDE), peers(f"{folder}/peer.ndjson")
    ratios = [rate(record) / theirs[key]["tokens_per_s"] for key, record in cases.items() if key[-1] == recipe]
    return spread(ratios, 2, "x")


TABLES = {"single": single, "beside-peer": beside_peer, "beside-peer-experts": lambda: beside_peer("h200/beside-peer-experts"),
          "beside-peer-blocks": lambda: blocks_beside_peer("h200/beside-peer-blocks"),
          "beside-peer-accumulated": lambda: beside_peer("h200/beside-peer-accumulated"),
          "front-single": front_single, "front-experts": front_experts, "scaling": scaling,
          "scaling-peer": lambda: beside_fsdp2("h200x4/scaling.jsonl", "h200x4/peer.ndjson"),
          "fsdp-two": lambda: beside_fsdp2("h200/fsdp-two/records.jsonl", "h200/fsdp-two/peer.ndjson"), "reshard": reshard, "mixtures": mixtures, "experts-on-two": experts_on_two,
          "experts-routed-on-two": experts_routed_on_two, "early-start": early_start,
          "delayed-speed": delayed_speed, "accumulated": accumulated, "since-old-commit": since_old_commit,
          "beside-shared-expert": beside_shared_expert, "fp4-cost": fp4_cost}
FIGURES = {"host-clock": host_clock, "repeats": repeats, "repeats-apart": lambda: apart("repeats/once", "repeats/again"),
           "tables-apart": lambda: apart("single", "beside-peer/records"),
           **{f"speedups-{recipe}": lambda recipe=recipe: speedups(recipe) for recipe in ("tensorwise", "blockwise")},
           **{f"over-peer-experts-{recipe}": lambda recipe=recipe: over_peer(recipe, "h200/beside-peer-experts")
              for recipe in ("bf16", "rowwise")}}
