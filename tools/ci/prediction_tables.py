"""Tables of results/predicted, from its published.jsonl and own.jsonl, for readme_tables.py. .ci/run recomputes both files."""
import json
import statistics

from page_tables import RESULTS, lines, rate, table

RATIOS = "speedup", "scaling"
NAMES = {"absolute_native": "native", "absolute_stack": "stack", "speedup": "speed-up", "scaling": "scaling"}


def predictions():
    return lines("predicted/published.jsonl")[:-1]


def groups():
    return {group["group"]: group for group in lines("predicted/published.jsonl")[-1]["groups"]}


def points():
    return {point["id"]: point for point in json.loads((RESULTS / "published/points.json").read_text())["points"]}


def judged():
    """Returns (id, judgement) of every judged point, in the order of the file."""
    return [(line["id"], judgement) for line in predictions() for judgement in line.get("judged", [])]


def relative(judgement):
    return abs(judgement["predicted"] / judgement["published"] - 1)


def error(value, ratio):
    return f"{value:.3f}" if ratio else f"{100 * value:.1f}%"


def value(number, ratio):
    return f"{number:.3f}x" if ratio else f"{number:,.0f}"


def predicted_groups():
    rows = []
    for name, group in groups().items():
        if not group["points"]:
            continue
        ratio = name in ("speed-up", "scaling")
        rows.append([name, str(group["points"]), error(group["median_error"], ratio), error(group["floor"], ratio),
                     "yes" if group["met"] else "**no**", error(group["worst_error"], ratio),
                     f"{100 * group['covered'] / group['points']:.0f}%", f"{100 * group['half_width']:.0f}%"])
    rows.append(["all judged", str(len(judged())), *"----", f"{100 * lines('predicted/published.jsonl')[-1]['coverage']:.0f}%", "-"])
    return table(["group", "points", "median error", "floor", "met", "worst", "inside 80% intervals", "half-width"], rows)


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
        errors = [one["predicted"] / one["published"] - 1 for one in found]
        inside = [one for one in found if one["interval_80"][0] <= one["published"] <= one["interval_80"][1]]
        widths = [(one["interval_80"][1] - one["interval_80"][0]) / 2 / one["predicted"] for one in found]
        rows.append([name, str(len(found)), f"{100 * statistics.mean(errors):+.1f}%", error(statistics.median(one["error"] for one in found), False),
                     f"{len(inside)} of {len(found)}", f"{100 * statistics.median(widths):.0f}%"])
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


def before_measurement():
    """The predictions of context-grad-sync-h200.json beside what four H200 then took."""
    documents = json.loads((RESULTS / "predicted/context-grad-sync-h200.json").read_text())
    predicted = {case["id"]: case for document in documents for case in document["cases"]}
    rows = []
    for record in lines("h200x4/predicted-first/records.jsonl"):
        case, ms = record["case"], record["timing"]["median_ms"]
        guess = predicted[PREDICTED_AS.get(record["id"], record["id"])]
        low, high = guess["step_ms_80"]
        settings = [f"{case['gpus']} GPUs" if case["gpus"] > 1 else "1 GPU", f"{case['batch']} x {case['seq']}"]
        settings += [f"{case['accumulation']} micro-steps, grad-sync {case['grad_sync']}, reshard {case.get('reshard', 'on')}"
                     ] if case["accumulation"] > 1 else []
        settings += [f"context {case['context']}"] if case.get("context", 1) > 1 else []
        settings += [f"ep {case['ep']}"] if case.get("ep", 1) > 1 else []
        settings += ["FP8 gather"] if case.get("gather") == "fp8" else []
        settings += [f"recompute {case['recompute']}"] if case["recompute"] != "none" else []
        settings += [f"{case['master']} state"]
        rows.append([case["model"], case["recipe"], ", ".join(settings), f"{guess['step_ms']:,.0f}", f"{low:,.0f} to {high:,.0f}",
                     f"{ms:,.0f}", f"{100 * (guess['step_ms'] / ms - 1):+.1f}%"])
    return table(["model", "recipe", "settings", "predicted ms", "80% interval", "measured ms", "error"], rows)


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


def predicted_pytorch():
    """The factor of PyTorch stacks, kPytorchFactors of bench/predict/published_prediction.h."""
    ours = {tuple(record["case"].get(name) for name in ("model", "recipe", "gpus", "seq", "parallel", "gather")): record
            for record in lines("h200x4/scaling.jsonl")}
    rows = []
    for line in lines("h200x4/pytorch.ndjson"):
        if line["model"] != "8b":
            continue
        recipe, gather = ("tensorwise", "fp8") if line["recipe"] == "tensorwise_ag" else (line["recipe"], "bf16")
        own = rate(ours["llama3.1-8b", recipe, line["gpus"], line["seq"], "fsdp", gather])
        rows.append([recipe, f"{own:,.0f}", f"{line['tokens_per_s']:,.0f}", f"{line['tokens_per_s'] / own:.2f}"])
    return table(["Llama 3.1 8B, 4 x H200, 4096 tokens", "precbench tokens/s", "PyTorch tokens/s", "PyTorch factor"], rows)


TABLES = {"before-measurement": before_measurement, "predicted-own": predicted_own, "predicted-pytorch": predicted_pytorch, "predicted-groups": predicted_groups, "predicted-blackwell": predicted_blackwell,
          "predicted-worst": predicted_worst, "predicted-all": predicted_all, "predicted-reasons": predicted_reasons,
          "predicted-rules": predicted_rules, "predicted-by-rule": predicted_by_rule}
