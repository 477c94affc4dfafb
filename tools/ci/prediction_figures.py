#!/usr/bin/env python3
"""Draws the two figures of results/predicted from results/predicted/published.jsonl: predictions over published values, and
ratios (speed-up over BF16, scaling) over the number of GPUs with their intervals.

  tools/ci/prediction_figures.py            # writes them
  tools/ci/prediction_figures.py --check    # exit status 1 if one differs from the predictions
"""
import math, sys

import prediction_tables
from committed import RESULTS

FOLDER = RESULTS / "predicted"
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 460, 70, 60, 30, 20
GROUPS = (("absolute_native", "Hopper", "native, Hopper", "#1f77b4"), ("absolute_native", "Blackwell", "native, Blackwell", "#2ca02c"),
          ("absolute_native", "Ada", "native, Ada", "#9467bd"), ("absolute_stack", None, "stack", "#ff7f0e"))
RATIOS = (("speedup", None, "speed-up over BF16", "#1f77b4"), ("scaling", None, "scaling", "#ff7f0e"))


class Axis:
    """A logarithmic or linear axis from data to pixels."""

    def __init__(self, values, begin, end, log):
        low, high = min(values), max(values)
        margin = (high / low) ** 0.05 if log else (high - low) * 0.08 or 0.1
        self.low, self.high = (low / margin, high * margin) if log else (low - margin, high + margin)
        self.begin, self.end, self.log = begin, end, log

    def at(self, value):
        change = math.log if self.log else float
        share = (change(value) - change(self.low)) / (change(self.high) - change(self.low))
        return self.begin + share * (self.end - self.begin)

    def ticks(self):
        if not self.log:
            step = 10 ** math.floor(math.log10(self.high - self.low))
            step = step / 2 if (self.high - self.low) / step < 4 else step
            return [round(i * step, 6) for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        return [m * 10 ** p for p in powers for m in (1, 2, 5) if self.low <= m * 10 ** p <= self.high]


def label(number):
    return f"{number:,.0f}" if number >= 10 else f"{number:g}"


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{words}</text>'


def frame(x_axis, y_axis, x_title, y_title, legend):
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for tick in x_axis.ticks():
        x = x_axis.at(tick)
        parts += [f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>',
                  text(x, HEIGHT - BOTTOM + 18, label(tick))]
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        parts += [f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>',
                  text(LEFT - 6, y + 4, label(tick), "end")]
    parts += [text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, x_title),
              text(16, (TOP + HEIGHT - BOTTOM) / 2, y_title, "middle", f' transform="rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2:.1f})"')]
    for i, (name, color) in enumerate(legend):
        parts += [f'<circle cx="{LEFT + 14}" cy="{TOP + 14 + 17 * i}" r="4" fill="{color}"/>',
                  text(LEFT + 24, TOP + 18 + 17 * i, name, "start")]
    return parts


def of_group(group):
    kind, architecture = group[:2]
    return [(id, one) for id, one in prediction_tables.judged()
            if one["as"] == kind and architecture in (None, one["architecture"])]


def absolute():
    found = [one for group in GROUPS for one in of_group(group)]
    values = [end for _, one in found for end in (one["published"], one["predicted"])]
    x_axis, y_axis = Axis(values, LEFT, WIDTH - RIGHT, True), Axis(values, HEIGHT - BOTTOM, TOP, True)
    parts = frame(x_axis, y_axis, "published tokens/s per GPU", "predicted tokens/s per GPU", [(g[2], g[3]) for g in GROUPS])
    low, high = x_axis.low, x_axis.high
    parts.append(f'<line x1="{x_axis.at(low):.1f}" y1="{y_axis.at(low):.1f}" x2="{x_axis.at(high):.1f}" y2="{y_axis.at(high):.1f}" stroke="#555"/>')
    for group in GROUPS:
        for _, one in of_group(group):
            parts.append(f'<circle cx="{x_axis.at(one["published"]):.1f}" cy="{y_axis.at(one["predicted"]):.1f}" r="4" '
                         f'fill="{group[3]}" fill-opacity="0.7"/>')
    return parts


def ratios():
    points = prediction_tables.points()
    found = [(points[id]["gpus"], one) for group in RATIOS for id, one in of_group(group)]
    x_axis = Axis([gpus for gpus, _ in found], LEFT, WIDTH - RIGHT, True)
    y_axis = Axis([end for _, one in found for end in (one["published"], *one["interval_80"])], HEIGHT - BOTTOM, TOP, False)
    parts = frame(x_axis, y_axis, "GPUs", "ratio: predicted with 80% interval, and published (hollow)", [(g[2], g[3]) for g in RATIOS])
    used = {}
    for group in RATIOS:
        for id, one in of_group(group):
            gpus = points[id]["gpus"]
            used[gpus] = used.get(gpus, 0) + 1  # points of one number of GPUs lie side by side
            x = x_axis.at(gpus) + 5 * (used[gpus] // 2) * (-1) ** used[gpus]
            low, high = (y_axis.at(end) for end in one["interval_80"])
            parts += [f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="{group[3]}"/>',
                      f'<circle cx="{x:.1f}" cy="{y_axis.at(one["predicted"]):.1f}" r="3" fill="{group[3]}"/>',
                      f'<circle cx="{x:.1f}" cy="{y_axis.at(one["published"]):.1f}" r="3.5" fill="none" stroke="black"/>']
    return parts


def main():
    wrong = []
    for name, draw in (("absolute", absolute), ("ratios", ratios)):
        path, new = FOLDER / f"{name}.svg", "\n".join(draw() + ["</svg>", ""])
        if "--check" not in sys.argv[1:]:
            path.write_text(new)
        elif not path.exists() or path.read_text() != new:
            wrong.append(f"{path.relative_to(RESULTS.parent)} differs from the predictions; tools/ci/prediction_figures.py writes it")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
