"""Tables of results/predicted, from its published.jsonl and own.jsonl, for readme_tables.py. .ci/run recomputes both files."""
import functools
import json
import math
import random
import re
import statistics

from page_tables import RESULTS, forks_at, lines, served_gaps, table

RATIOS = "speedup", "scaling"
INTERVAL_80 = 1.2816  # kInterval80 of bench/predict/rates.h
NAMES = {"absolute_native": "native", "absolute_stack": "stack", "speedup": "speed-up", "scaling": "scaling"}


@functools.cache
def published_lines():
    return list(lines("predicted/published.jsonl"))


def predictions():
    return published_lines()[:-1]


def groups():
    return {group["group"]: group for group in published_lines()[-1]["groups"]}


@functools.cache
def points():
    return {point["id"]: point for point in json.loads((RESULTS / "published/points.json").read_text())["points"]}


def judged():
    """Returns (id, judgement) of every judged point, in the order of the file."""
    return [(line["id"], judgement) for line in predictions() for judgement in line.get("judged", [])]


def relative(judgement):
    return abs(judgement["predicted"] / judgement["published"] - 1)


def error(value, ratio):
    return f"{value:.3f}" if ratio else f"{100 * value:.1f}%"


def signed(value, ratio):
    return f"{value:+.3f}" if ratio else f"{100 * value:+.1f}%"


def value(number, ratio):
    return f"{number:.3f}x" if ratio else f"{number:,.0f}"


def predicted_groups():
    rows = []
    for name, group in groups().items():
        if not group["points"]:
            continue
        ratio = name.startswith(("speed-up", "scaling"))
        good = group["intervals"] == "good"
        rows.append([name, str(group["points"]), error(group["median_error"], ratio), error(group["floor"], ratio),
                     "yes" if group["met"] else "**no**", error(group["worst_error"], ratio), signed(group["mean_signed_error"], ratio),
                     f"{100 * group['covered'] / group['points']:.0f}%" + ("" if good else f", {group['intervals']}"),
                     f"{100 * group['half_width']:.0f}%"])
    rows.append(["all judged", str(len(judged())), *"-----", f"{100 * published_lines()[-1]['coverage']:.0f}%", "-"])
    return table(["group", "points", "median error", "floor", "met", "worst", "mean signed error", "inside 80% intervals", "half-width"], rows)


def inside(judgement):
    return judgement["interval_80"][0] <= judgement["published"] <= judgement["interval_80"][1]


def source_of(id):
    """Returns who published a point: the first part of its id."""
    return id.split("-")[0]


def signed_error(judgement):
    """Returns a ratio's difference or another value's relative error; positive: predicted faster than published."""
    predicted, published = judgement["predicted"], judgement["published"]
    return predicted - published if judgement["as"] in RATIOS else predicted / published - 1


def half_width(judgement):
    """Returns half the width of the 80% interval, relative to the predicted value."""
    low, high = judgement["interval_80"]
    return (high - low) / 2 / judgement["predicted"]


def is_dense(point):
    return not re.search(r"-a\d+b|gpt-oss|deepseek|llama4", point["model"])


def shown_dense():
    """Returns (id, judgement) of dense points whose tokens/s are predicted to fit the memory and are not judged, and have no rule
    of their own."""
    found = []
    for line in predictions():
        point = points()[line["id"]]
        if ("tokens_per_s_per_gpu" in line and "published_tokens_per_s_per_gpu" in line and line.get("fits", True) and is_dense(point)
                and not rule_of(point) and not any(one["as"].startswith("absolute") for one in line.get("judged", []))):
            found.append((line["id"], {"as": "shown", "published": line["published_tokens_per_s_per_gpu"],
                                       "predicted": line["tokens_per_s_per_gpu"], "interval_80": line["tokens_per_s_per_gpu_80"]}))
    return found


def predicted_machines():
    """Signed errors by what is judged and GPU, with dense points that are not judged last."""
    rows, found = [], {}
    for id, judgement in judged() + shown_dense():
        found.setdefault(((*NAMES, "shown").index(judgement["as"]), points()[id]["gpu"]), []).append((id, judgement))
    for (kind, gpu), own in sorted(found.items()):
        name, ratio = (*NAMES.values(), "not judged")[kind], (*NAMES, "shown")[kind] in RATIOS
        errors = [signed_error(one) for _, one in own]
        rows.append([name, gpu, str(len(own)), str(len({source_of(id) for id, _ in own})), signed(statistics.mean(errors), ratio),
                     error(statistics.median(map(abs, errors)), ratio), f"{sum(inside(one) for _, one in own)} of {len(own)}",
                     f"{100 * statistics.median(half_width(one) for _, one in own):.0f}%"])
    return table(["judged as", "GPU", "points", "sources", "mean signed error", "median error", "inside 80% intervals", "half-width"], rows)


def cluster_interval(by_source, resamples=2000):
    """Returns the ends of the 90% interval of the share of true values in by_source, lists by source, when whole sources are drawn
    with replacement. A share of few sources is less certain than its number of points suggests, since errors of one source go
    together. Always the same draws."""
    sources, draw, shares = [(sum(found), len(found)) for found in by_source], random.Random(1), []
    for _ in range(resamples):
        drawn = draw.choices(sources, k=len(sources))
        shares.append(sum(count for count, _ in drawn) / sum(all for _, all in drawn))
    shares.sort()
    return shares[round(0.05 * (resamples - 1))], shares[round(0.95 * (resamples - 1))]


def predicted_clusters():
    """Coverage by group with sources as clusters."""
    def of(name, chosen):
        by_source = {}
        for id, one in judged():
            if chosen(one):
                by_source.setdefault(source_of(id), []).append(inside(one))
        values = [value for found in by_source.values() for value in found]
        low, high = cluster_interval(list(by_source.values()))
        return [name, str(len(values)), str(len(by_source)), f"{100 * statistics.mean(values):.0f}%",
                f"{100 * low:.0f}% to {100 * high:.0f}%" if len(by_source) > 1 else "one source"]

    rows = []
    for kind, kind_name in NAMES.items():
        architectures = [name for name in ("Hopper", "Blackwell", "Ada", "Ampere")
                         if any(one["as"] == kind and one["architecture"] == name for _, one in judged())]
        rows += [of(f"{kind_name}, {name}", lambda one: one["as"] == kind and one["architecture"] == name) for name in architectures]
    rows.append(of("all judged", lambda one: True))
    return table(["group", "points", "sources", "inside 80% intervals", "90% interval, sources as clusters"], rows)


def predicted_sources():
    rows, found = [], {}
    for id, one in judged():
        found.setdefault(source_of(id), []).append(one)
    for source, own in sorted(found.items(), key=lambda one: (-len(one[1]), one[0])):
        cells = []
        for ratios in (False, True):
            errors = [signed_error(one) for one in own if (one["as"] in RATIOS) == ratios]
            cells += [str(len(errors)), signed(statistics.mean(errors), ratios)] if errors else ["0", "-"]
        rows.append([f"`{source}`", *cells, f"{sum(map(inside, own))} of {len(own)}"])
    return table(["source", "throughputs", "mean signed error", "ratios", "mean signed error of ratios", "inside 80% intervals"], rows)


def predicted_blackwell():
    """Signed errors of the native points by GPU, and of those in NVFP4, which are among them."""
    rows, settings = [], points()
    own = [(settings[id], judgement) for id, judgement in judged()
           if judgement["as"] == "absolute_native" and judgement["architecture"] == "Blackwell"]
    groups = {point["gpu"].upper(): [] for point, _ in own} | {"NVFP4": [], "all": []}
    for point, judgement in own:
        for name in (point["gpu"].upper(), "all", *(("NVFP4",) if point["precision"] == "nvfp4" else ())):
            groups[name].append(judgement)
    for name, found in groups.items():
        rows.append([name, str(len(found)), signed(statistics.mean(map(signed_error, found)), False),
                     error(statistics.median(one["error"] for one in found), False),
                     f"{sum(map(inside, found))} of {len(found)}", f"{100 * statistics.median(map(half_width, found)):.0f}%"])
    return table(["GPU", "points", "mean signed error", "median error", "inside 80% intervals", "half-width"], rows)


def rows_of(found):
    rows = []
    for id, judgement in found:
        ratio = judgement["as"] in RATIOS
        low, high = (value(end, ratio) for end in judgement["interval_80"])
        rows.append([f"`{id}`", NAMES[judgement["as"]], value(judgement["published"], ratio), value(judgement["predicted"], ratio),
                     f"{low} to {high}", error(judgement["error"], ratio)])
    return rows


HEADER = ["point", "judged as", "published", "predicted", "80% interval", "error"]


def predicted_worst():
    return table(HEADER, rows_of(sorted(judged(), key=lambda one: -relative(one[1]))[:5]))


def predicted_all():
    return table(HEADER, rows_of(sorted(judged(), key=lambda one: (list(NAMES).index(one[1]["as"]), one[0]))))


def rule_of(point):
    """The rule that predicts a shown point, of those that the page writes down; none for other points."""
    pipeline, tensor, experts = (point.get(axis, 1) > 1 for axis in ("pp", "tp", "ep"))
    if pipeline and point.get("fsdp"):
        return "sharded pipeline"
    if experts and (pipeline or tensor or point["framework"] == "torchtitan"):
        return "experts"
    return None


RULES = "sharded pipeline", "experts"


def predicted_lines():
    """Returns the predicted points of each rule."""
    settings = points()
    return {rule: [line for line in predictions() if rule_of(settings[line["id"]]) == rule and "tokens_per_s_per_gpu" in line]
            for rule in RULES}


def predicted_by_rule():
    rows = []
    for rule, found in predicted_lines().items():
        for line in found:
            published, guess = line["published_tokens_per_s_per_gpu"], line["tokens_per_s_per_gpu"]
            low, high = line["tokens_per_s_per_gpu_80"]
            rows.append([rule, f"`{line['id']}`", f"{published:,.0f}", f"{guess:,.0f}", f"{low:,.0f} to {high:,.0f}",
                         f"{100 * (guess / published - 1):+.0f}%"])
    return table(["rule", "point", "published", "predicted", "80% interval", "error"], rows)


def predicted_rules():
    rows = []
    for rule, found in predicted_lines().items():
        errors = sorted(abs(line["tokens_per_s_per_gpu"] / line["published_tokens_per_s_per_gpu"] - 1) for line in found)
        inside = [line for line in found
                  if line["tokens_per_s_per_gpu_80"][0] <= line["published_tokens_per_s_per_gpu"] <= line["tokens_per_s_per_gpu_80"][1]]
        rows.append([rule, str(len(found)), error(statistics.median(errors), False), error(errors[-1], False),
                     f"{100 * len(inside) / len(found):.0f}%"])
    return table(["rule", "points", "median error", "worst", "inside 80% intervals"], rows)


def predicted_reasons():
    count = {}
    for line in predictions():
        if reason := line.get("not_predicted"):
            count[reason] = count.get(reason, 0) + 1
    return table(["points without a prediction", "reason"],
                 [[str(number), reason] for reason, number in sorted(count.items(), key=lambda one: (-one[1], one[0]))])


# Cases of h200x4/predicted-first by record id, with the prediction that was committed before they ran. An id contains the number of steps,
# so it differs where a prediction was made without one.
PREDICTED_AS = {
    "ed121875fea38e5f": "7c59b117328f1a05", "b4d59e150e0a8a8c": "417069fe81ea020c", "4a1e02c94da2a802": "0a63fb3da7578d8b",
    "463765a5abec0a7e": "de1c853326c24427", "0012b9d4fc49dc79": "1646e856630816a8", "aaac41b53512d842": "eda1d83a4297e457",
    "595da285e7b54c7e": "b9bdb7e5ee0076fb", "236ae785f8770dd0": "9d783a12b22b102f", "71e7825dbc476d33": "1a7fb911b2ced2da"}


def settings_of(case):
    """Returns what distinguishes a case beside its model and recipe, in words. `case`: of a record."""
    settings = [f"{case['gpus']} GPUs" if case["gpus"] > 1 else "1 GPU", f"{case['batch']} x {case['seq']}"]
    settings += [f"{case['layers']} layers"] if case.get("layers") else []
    settings += [f"{case['accumulation']} micro-steps, grad-sync {case['grad_sync']}, reshard {case.get('reshard', 'on')}"
                 ] if case["accumulation"] > 1 else []
    settings += [f"context {case['context']}"] if case.get("context", 1) > 1 else []
    settings += ["ring"] if case.get("context_exchange") == "ring" else []
    settings += [f"tensor {case['tensor']}"] if case.get("tensor", 1) > 1 else []
    settings += ["BF16 gather"] if case.get("tensor_gather") == "bf16" else []
    settings += [f"ep {case['ep']}"] if case.get("ep", 1) > 1 else []
    settings += ["FP8 gather"] if case.get("gather") == "fp8" else []
    settings += [f"recompute {case['recompute']}"] if case["recompute"] != "none" else []
    return ", ".join(settings + [f"{case['master']} state"])


BEFORE_COLUMNS = ["model", "recipe", "settings", "predicted ms", "80% interval", "measured ms", "error"]


def before_row(case, guess, ms):
    """Returns a row of a prediction; `ms`: what was measured later, None if it was not yet."""
    low, high = guess["step_ms_80"]
    return [case["model"], case["recipe"], settings_of(case), f"{guess['step_ms']:,.0f}", f"{low:,.0f} to {high:,.0f}",
            f"{ms:,.0f}" if ms else "not yet", f"{100 * (guess['step_ms'] / ms - 1):+.1f}%" if ms else "-"]


def before_measurement():
    """The predictions of context-grad-sync-h200.json beside what four H200 then took."""
    documents = json.loads((RESULTS / "predicted/context-grad-sync-h200.json").read_text())
    predicted = {case["id"]: case for document in documents for case in document["cases"]}
    return table(BEFORE_COLUMNS, [before_row(record["case"], predicted[PREDICTED_AS.get(record["id"], record["id"])],
                                             record["timing"]["median_ms"]) for record in lines("h200x4/predicted-first/records.jsonl.xz")])


def predicted_file(name, records, **common):
    """Returns (case, guess, measured ms or None) of each case of results/predicted/NAME; `records`: those measured so far, by id.
    `common`: fields that all cases of the file have and that are none of its columns."""
    for guess in json.loads((RESULTS / "predicted" / name).read_text())["cases"]:
        record = records.get(guess["id"])
        case = {"gpus": 1, "batch": 1, "accumulation": 1, "recompute": "none", "master": "bf16", **common, **guess["case"]}
        case["layers"] = None if case.get("layers") == "all" else case.get("layers")
        yield case, guess, record["timing"]["median_ms"] if record else None


def measured_since(path):
    """Returns the records of a file by id; none if the file is not there yet."""
    return {record["id"]: record for record in lines(path)} if (RESULTS / path).exists() else {}


LONG_RECORDS = "h200/predicted-long.jsonl.xz"
TWO_GPU_RECORDS = "h200/predicted-two-gpus.jsonl.xz"
LONG_FLOORS = 0.03, 0.06  # of the median and the worst error of steps of 16,384 tokens and more


def before_measurement_long():
    """The predictions of long-h200.json beside what one H200 then took."""
    return table(BEFORE_COLUMNS, [before_row(*one) for one in predicted_file("long-h200.json", measured_since(LONG_RECORDS))])


def more_models(axis):
    """The predictions of models-h200.json with ranks of an axis, as predicted_file() returns them."""
    return [one for one in predicted_file("models-h200.json", measured_since(TWO_GPU_RECORDS), gpus=2) if one[0].get(axis, 1) > 1]


def context_predictions():
    """The predictions of context-h200.json, ring-h200.json and models-h200.json, of two and four H200, as predicted_file() returns them."""
    return [*predicted_file("context-h200.json", measured_since(TWO_GPU_RECORDS)),
            *predicted_file("ring-h200.json", measured_since(TWO_GPU_RECORDS), context_exchange="ring"), *more_models("context")]


def tensor_predictions():
    """The predictions of tensor-h200.json and models-h200.json likewise."""
    common = {"model": "llama3.1-8b", "seq": 8192, "master": "fp32"}
    return [*predicted_file("tensor-h200.json", measured_since(TWO_GPU_RECORDS), **common), *more_models("tensor")]


def measured_long():
    """The predictions of long-h200.json that were measured."""
    return measured_of(predicted_file("long-h200.json", measured_since(LONG_RECORDS)))


def measured_of(predictions):
    return [(case, guess, ms) for case, guess, ms in predictions if ms]


def before_measurement_context():
    return table(BEFORE_COLUMNS, [before_row(*one) for one in context_predictions()])


def before_measurement_tensor():
    return table(BEFORE_COLUMNS, [before_row(*one) for one in tensor_predictions()])


def before_measurement_ranks():
    """Errors of the measured predictions of context and tensor ranks, and of all since long-h200.json."""
    tensor, context = measured_of(tensor_predictions()), measured_of(context_predictions())
    return group_table([("2 tensor ranks", tensor), ("2 context ranks", context), ("both", tensor + context),
                        ("both and the long sequences", tensor + context + measured_long())])


def before_measurement_groups():
    """Errors of the predictions of long-h200.json by length."""
    found = measured_long()
    groups = [(f"{seq:,} tokens", [one for one in found if one[0]["seq"] == seq]) for seq in (16384, 32768, 65536)]
    groups += [("16,384 to 65,536 tokens", [one for one in found if one[0]["seq"] >= 16384]),
               ("2,048 and 4,096 tokens", [one for one in found if one[0]["seq"] < 16384]), ("all", found)]
    return group_table(groups)


def group_table(groups):
    """Returns the errors of groups of measured predictions. `groups`: (name, steps)."""
    rows = []
    for name, steps in groups:
        if not steps:
            rows.append([name, "0", *"-----"])
            continue
        errors = [guess["step_ms"] / ms - 1 for _, guess, ms in steps]
        sizes = [abs(one) for one in errors]
        met = statistics.median(sizes) <= LONG_FLOORS[0] and max(sizes) <= LONG_FLOORS[1]
        hits = sum(guess["step_ms_80"][0] <= ms <= guess["step_ms_80"][1] for _, guess, ms in steps)
        rows.append([name, str(len(steps)), error(statistics.median(sizes), False), error(max(sizes), False),
                     signed(statistics.mean(errors), False), f"{hits} of {len(steps)}", "yes" if met else "**no**"])
    return table(["steps", "number", "median error", "worst", "mean signed error", "inside 80% intervals", "median 3% and worst 6% met"], rows)


def layouts_measured():
    """Every layout that a question to plan allows, measured on one H200 (tools/rates/measure_layouts.py): its first proposal beside the fastest."""
    rows = []
    for name in ("layouts-llama3.2-1b", "layouts-qwen3-1.7b", "layouts-llama3.1-8b"):
        found = sorted((one["timing"]["median_ms"], one["predicted"]["step_ms"], one["case"]) for one in lines(f"h200/{name}.jsonl.xz")
                       if one["status"] == "ok")
        first, case = min(found, key=lambda one: one[1]), found[0][2]
        fit = [abs(predicted / ms - 1) for ms, predicted, _ in found]
        rows.append([f"{case['model']}, {case['layers']} layers", f"8 x {case['seq']:,}", str(len(found)), f"{found[-1][0] / found[0][0]:.2f}x", f"{first[0]:.1f}",
                     f"{found[0][0]:.1f}", f"{100 * (first[0] / found[0][0] - 1):.1f}%", error(statistics.median(fit), False), error(max(fit), False)])
    return table(["model", "global batch", "layouts", "slowest over fastest", "first proposal (ms)", "fastest (ms)", "lost", "median error of the predictions", "worst"], rows)


def advised_speeds():
    """Speeds that advise expected of a recipe and of BF16 (advised.json, advised-second.json), beside what one H200 then took (sweeps of
    the same names)."""
    rounds = "advised", "advised-second"
    measured = {(one["case"]["model"], one["case"]["recipe"]): one
                for name in rounds for one in measured_since(f"h200/{name}.jsonl.xz").values()}
    rows = []
    for question in [one for name in rounds for one in json.loads((RESULTS / f"predicted/{name}.json").read_text())["speeds"]]:
        found = {recipe: measured.get((question["model"], recipe)) for recipe in question["recipes"]}
        for recipe, guess in question["recipes"].items():
            if recipe == "bf16":
                continue
            expected = guess["speedup"]
            row = [question["model"], question["tokens"], question["recommended"], recipe, f"{guess['tokens_per_s']:,.0f}",
                   f"{expected['mean']:.2f}x [{expected['low']:.2f}, {expected['high']:.2f}]"]
            if not all(found.values()):
                rows.append([*row, "not yet", "-", "-"])
                continue
            speeds = {name: one["metrics"]["tokens_per_s"] for name, one in found.items()}
            ratio = speeds[recipe] / speeds["bf16"]
            rows.append([*row, f"{speeds[recipe]:,.0f}", f"{ratio:.2f}x", "yes" if expected["low"] <= ratio <= expected["high"] else "**no**"])
    return table(["model", "tokens", "recommended", "recipe", "expected tokens/s", "expected speed-up [80%]", "measured tokens/s",
                  "measured speed-up", "inside"], rows)


T_80 = {2: 1.886, 4: 1.533}  # two-sided, by degrees of freedom


def advised_measurements(model):
    """Returns what was measured after advised.json was written: BF16's held-out losses and the loss gaps, as served_gaps does."""
    if model == "15m":
        return served_gaps(lines("h200/causes-scratch-15m.jsonl.xz"), lambda one: one["case"]["seed"])
    study, age = {"smollm2-135m": ("smollm2", 60), "gemma-3-270m": ("gemma3", 40)}[model]
    return served_gaps(forks_at(lines(f"h200/causes-{study}-prose.jsonl.xz"), age), lambda one: one["study"]["trunk"])


def verdict_on(low, high, mean, half):
    """Returns whether a measured mean lies in an expected interval; unless the measurement is too wide to tell."""
    if mean - half <= low and high <= mean + half:
        return "not resolved"
    return "yes" if low <= mean <= high else "**no**"


def advised_losses():
    """Loss gaps that advise expected (advised.json), beside those measured since: from scratch, and on a text that no study had read. Gaps by
    the law are compared as shares of BF16's loss, because its tokens are not those of the text."""
    rows = []
    for question in json.loads((RESULTS / "predicted/advised.json").read_text())["losses"]:
        bf16, gaps = advised_measurements(question["model"])
        for recipe, guess in question["recipes"].items():
            measured = gaps.get((recipe, {"bf16": "in BF16", "recipe": "in the recipe"}[question["serve"]]))
            if not measured:
                continue
            own, expected = guess["evidence"] == "this model", guess["nats"]
            scale = (1, 1) if own else (100 / question["loss_nats"], 100 / statistics.mean(bf16))
            low, mean, high = (expected[key] * scale[0] for key in ("low", "mean", "high"))
            half = T_80[len(measured) - 1] * statistics.stdev(measured) / math.sqrt(len(measured)) * scale[1]
            center = statistics.mean(measured) * scale[1]
            show = (lambda *ends: "{:.4f} [{:.4f}, {:.4f}]".format(*ends)) if own else (lambda *ends: "{:.2f}% [{:.2f}%, {:.2f}%]".format(*ends))
            rows.append([question["model"], question["tokens"], {"bf16": "BF16", "recipe": "the recipe"}[question["serve"]], recipe,
                         guess["evidence"], show(mean, low, high), show(center, center - half, center + half),
                         verdict_on(low, high, center, half)])
    return table(["model", "tokens", "served in", "recipe", "evidence", "expected [80%]", "measured [80%]", "inside"], rows)


OWN_LIMITS = 0.03, 0.07  # of the median error, and of that which 95% of the steps are within


def predicted_own():
    rows = []
    for group in lines("predicted/own.jsonl")[-1]["groups"]:
        met = group["median"] <= OWN_LIMITS[0] and group["within_95"] <= OWN_LIMITS[1]
        gpus = str(group["gpus"]) if group["gpus"] else "all"
        rows.append([group["gpu"].removeprefix("NVIDIA "), gpus + (", uneven experts" if group["uneven"] else ""), str(group["steps"]), error(group["median"], False),
                     error(group["within_95"], False), "-" if group["uneven"] else "yes" if met else "**no**", error(group["worst"], False),
                     f"{100 * group['inside'] / group['steps']:.0f}%"])
    return table(["GPU", "GPUs", "steps", "median error", "95% within", "limits met", "worst", "inside 80% intervals"], rows)


@functools.cache
def stacks():
    return json.loads((RESULTS / "predicted/stacks.json").read_text())


def factor_cells(found):
    return [f"{found[0]:.2f}", f"{found[1]:.2f} to {found[2]:.2f}"] if found else ["-", "-"]


def stack_examples():
    """Factors of large steps on several GPUs, by stack, recipe and machine with evidence."""
    return table(["stack", "models", "recipe", "GPU", "comparisons", "speed over ours", "80% interval", "speed-up over ours", "80% interval"],
                 [[row["stack"], "experts" if row["experts"] else "dense", row["recipe"], row["gpu"], str(row["comparisons"]),
                   *factor_cells(row["factor"]), *factor_cells(row.get("speedup_factor"))] for row in stacks()["examples"]])


def stack_held_out():
    """Errors and coverage of factors without the source, or without the model, that they are judged by."""
    groups = {}
    for row in stacks()["evidence"]:
        what = f"{row['stack']}, {'experts' if row['experts'] else 'dense'}, {row['compares']}"
        for name in (what, "all"):
            groups.setdefault(name, []).append(row)
    everything, rows = groups.pop("all"), []
    for name, found in [*sorted(groups.items()), ("all", everything)]:
        row = [name, str(len(found)), str(len({one["source"] for one in found}))]
        for left_out in ("without_source", "without_model"):
            errors, widths, inside = [], [], 0
            for one in found:
                factor, low, high = one[left_out]
                compared = one["theirs"] / one["ours"]
                log_error = math.hypot(math.log(high / low) / 2, INTERVAL_80 * one["log_error"])
                errors.append(abs(factor / compared - 1))
                widths.append(math.sinh(log_error))
                inside += abs(math.log(factor / compared)) <= log_error
            row += [error(statistics.median(errors), False), f"{inside} of {len(found)}", f"{100 * statistics.median(widths):.0f}%"]
        rows.append(row)
    return table(["stack", "comparisons", "sources", "without its source: median error", "inside 80% interval", "half-width",
                  "without its model: median error", "inside 80% interval", "half-width"], rows)


@functools.cache
def layout_lines():
    return list(lines("predicted/layouts.jsonl"))


def layout_words(layout):
    """Returns "TP 4, PP 8 x 4, EP 32", without axes of one rank."""
    stages = f"PP {layout['pipeline']}" + (f" x {layout['virtual_stages']}" if layout["virtual_stages"] > 1 else "")
    words = [stages if axis == "pipeline" else f"{name} {layout[axis]}"
             for axis, name in (("tensor", "TP"), ("context", "CP"), ("pipeline", "PP"), ("ep", "EP")) if layout[axis] > 1]
    return ", ".join(words) or "data"


VERDICTS = "among the first three", "another is faster", "neither", "not predicted"


def verdict_of(line):
    return f"place {line['place']}" if line.get("place") else line["verdict"]


def layouts_compared():
    rows = []
    for line in layout_lines():
        if line["verdict"] == "not predicted":
            continue
        first = line["proposals"][0] if line["proposals"] else None
        rows.append([f"`{line['id']}`", line["recipe"], layout_words(line["published"]), f"{line['published']['step_s']:.3g}",
                     f"{line['published']['gib']:.0f}", layout_words(first) if first else "-", f"{first['step_s']:.3g}" if first else "-",
                     f"{first['gib']:.0f}" if first else "-", f"{line['ratio']:.2f}x" if first else "-", verdict_of(line)])
    return table(["run", "recipe", "published", "s/step", "GiB", "first proposal", "s/step", "GiB", "times as fast", "verdict"], rows)


def layout_verdicts():
    return table(["verdict", "runs"], [[verdict, str(sum(line["verdict"] == verdict for line in layout_lines()))] for verdict in VERDICTS])


def layout_reasons(verdict):
    return table(["run", "why"], [[f"`{line['id']}`", line["reason"]] for line in layout_lines()
                                  if line["verdict"] == verdict and line.get("reason")])


TABLES = {"layout-verdicts": layout_verdicts, "layouts-compared": layouts_compared,
          "layouts-neither": lambda: layout_reasons("neither"), "layouts-faster": lambda: layout_reasons("another is faster"),
          "layouts-not-predicted": lambda: layout_reasons("not predicted"),
          "before-measurement": before_measurement, "before-measurement-long": before_measurement_long,
          "before-measurement-context": before_measurement_context, "before-measurement-tensor": before_measurement_tensor,
          "before-measurement-groups": before_measurement_groups, "before-measurement-ranks": before_measurement_ranks,
          "layouts-measured": layouts_measured, "advised-speeds": advised_speeds, "advised-losses": advised_losses,
          "predicted-own": predicted_own, "stack-examples": stack_examples, "stack-held-out": stack_held_out,
          "predicted-groups": predicted_groups, "predicted-blackwell": predicted_blackwell,
          "predicted-worst": predicted_worst, "predicted-all": predicted_all, "predicted-reasons": predicted_reasons,
          "predicted-rules": predicted_rules, "predicted-by-rule": predicted_by_rule, "predicted-machines": predicted_machines,
          "predicted-clusters": predicted_clusters, "predicted-sources": predicted_sources}
