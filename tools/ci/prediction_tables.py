"""Tables of results/predicted, from results/predicted/published.jsonl, for readme_tables.py. .ci/run recomputes that file."""
import json

from committed import RESULTS, lines, table

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
    return table(["group", "points", "median error", "floor", "met", "worst", "inside 80% intervals", "half-width"], rows)


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


def predicted_reasons():
    count = {}
    for line in predictions():
        if reason := line.get("not_predicted"):
            count[reason] = count.get(reason, 0) + 1
    return table(["points without a prediction", "reason"],
                 [[str(number), reason] for reason, number in sorted(count.items(), key=lambda one: (-one[1], one[0]))])


TABLES = {"predicted-groups": predicted_groups, "predicted-worst": predicted_worst, "predicted-all": predicted_all,
          "predicted-reasons": predicted_reasons}
