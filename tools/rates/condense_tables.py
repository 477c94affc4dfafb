#!/usr/bin/env python3
"""Condenses public tables of measured kernel times into how much faster a GPU is than an H200, by format and shape.

The tables are those of the Python package aiconfigurator-core (Apache-2.0), which NVIDIA measured with three inference stacks. The
cost model has rates of training steps on an H200; it divides their times by the ratios that this script writes.

    pip download --no-deps aiconfigurator-core==0.12.0 && unzip aiconfigurator_core-*.whl -d tables
    tools/rates/condense_tables.py tables --out results/rates/ratios      (reads Parquet: needs pyarrow)

A ratio compares the fastest stack on either GPU at the same shape. Stacks whose timed call includes a cast, or that have no tuned
kernel there, are slower and do not count. The spread among the other stacks is written beside it.
"""
import argparse
import collections
import csv
import itertools
import json
import math
import pathlib
import re
import sys

REFERENCE = "h200_sxm", "h200"
# Folder of the package, and preset of results/machines.
MACHINES = {"b200_sxm": "b200", "b300_sxm": "b300", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72"}
# Format on the GPU, and the format of the H200's times that it is compared with. An H200 multiplies neither MX formats nor FP4.
# Tensor cores apply the scales of blocks on Blackwell and do not on Hopper, so that plain FP8 is what compares.
FORMATS = {"bf16": ("bfloat16", "bfloat16"), "fp8": ("fp8", "fp8"), "fp8_block": ("fp8_block", "fp8_block"),
           "mxfp8": ("fp8_block", "fp8"), "nvfp4": ("nvfp4", "fp8")}
# Exponents of 2 of the shapes at which a ratio is stated.
GEMM_AXES = {"m": [8, 9, 10, 11, 12, 13, 14, 15], "n": [8, 10, 12, 14, 16], "k": [8, 10, 12, 14, 16]}
ATTENTION_AXES = {"tokens": [8, 9, 10, 11, 12, 13, 14]}
HEAD_WIDTHS = 64, 128
LEAST_SIDE, ALIGNMENT = 128, 16  # of GEMMs that count: shapes of training
LEAST_HEADS = 32                 # sequences times heads: fewer do not fill a GPU
LEAST_QUANTIZED = 2**25          # elements of a cast that memory bandwidth bounds
COLLECTIVE_BYTES = [2**i for i in range(20, 31, 2)]
COLLECTIVES = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_reduce": "all_reduce", "alltoall": "all_to_all"}
TUNED = 1.25  # a stack slower than the fastest by more has no tuned kernel for a shape
DIGITS = 4


def fail(text):
    sys.exit(f"condense_tables.py: {text}")


def read_rows(path):
    """Returns the rows of a Parquet or CSV file as dictionaries."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    try:
        import pyarrow.parquet
    except ImportError:
        fail(f"{path}: reading Parquet needs the Python package pyarrow")
    return pyarrow.parquet.read_table(path).to_pylist()


def version_key(version):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", version)]


class Tables:
    """The tables of one package: data/GPU/KIND/STACK/VERSION/NAME.parquet."""

    def __init__(self, root):
        found = sorted(pathlib.Path(root).rglob("systems/data"))
        if len(found) != 1:
            fail(f"{root}: {len(found)} folders \"systems/data\" instead of one; is this the unpacked package?")
        self.data = found[0]
        self.version = self.package_version(pathlib.Path(root))

    @staticmethod
    def package_version(root):
        for path in root.rglob("*.dist-info/METADATA"):
            fields = dict(re.findall(r"^(Name|Version|License-Expression): (.*)$", path.read_text(encoding="utf-8"), re.M))
            return {"package": fields["Name"], "version": fields["Version"], "license": fields["License-Expression"]}
        fail(f"{root}: no *.dist-info/METADATA, which states version and license")

    def files(self, gpu, kind, name):
        """Returns the path of a table by stack and version."""
        paths = [path for path in (self.data / gpu / kind).glob(f"*/*/{name}.*") if path.suffix in (".parquet", ".csv")]
        return {(path.parts[-3], path.parts[-2]): path for path in paths}

    def common(self, gpu, kind, name):
        """Returns (stack, version, path on the H200, path on the GPU), of each stack the newest version that both have."""
        ours, theirs = self.files(REFERENCE[0], kind, name), self.files(gpu, kind, name)
        newest = {}
        for stack, version in sorted(ours.keys() & theirs.keys(), key=lambda at: version_key(at[1])):
            newest[stack] = version
        return [(stack, version, ours[stack, version], theirs[stack, version]) for stack, version in sorted(newest.items())]


def latencies(path, key_of):
    """Returns the least positive latency in ms of every key; rows without a key are left out."""
    least = {}
    for row in read_rows(path):
        key, latency = key_of(row), float(row["latency"])
        if key is not None and latency > 0 and latency < least.get(key, math.inf):
            least[key] = latency
    return least


def gemm_key(row):
    m, n, k = (int(row[axis]) for axis in "mnk")
    if min(m, n, k) < LEAST_SIDE or m % ALIGNMENT:
        return None
    return row["gemm_dtype"], (m, n, k)


def attention_key(row):
    whole = int(row["window_size"]) == 0 and int(row["step"]) == 0
    if not whole or row["attn_dtype"] != "bfloat16" or row["kv_cache_dtype"] != "bfloat16":
        return None
    batch, heads, width = int(row["batch_size"]), int(row["num_heads"]), int(row["head_dim"])
    if batch * heads < LEAST_HEADS or width not in HEAD_WIDTHS:
        return None
    return width, (int(row["isl"]), batch, heads, int(row["num_key_value_heads"]))


def quantize_key(row):
    m, k = int(row["m"]), int(row["k"])
    return (row["quant_dtype"], (m, k)) if m * k >= LEAST_QUANTIZED else None


class Comparison:
    """Times by stack of one format on the H200 and of one on the GPU, at the shapes that both have."""

    def __init__(self, reference, own):
        """`reference`, `own`: {stack: {shape: ms}}."""
        self.log_ratios, self.deviations = {}, collections.defaultdict(dict)
        shapes = set.intersection(*({shape for times in side.values() for shape in times} for side in (reference, own)))
        for shape in shapes:
            stacks = [stack for stack in reference if shape in reference[stack] and shape in own.get(stack, {})]
            if not stacks:
                continue
            before, after = (min(side[stack][shape] for stack in stacks) for side in (reference, own))
            self.log_ratios[shape] = math.log(before / after)
            for stack in stacks:
                if reference[stack][shape] <= TUNED * before and own[stack][shape] <= TUNED * after:
                    ratio = math.log(reference[stack][shape] / own[stack][shape])
                    self.deviations[stack][shape] = ratio - self.log_ratios[shape]

    def spread(self, axes):
        """Returns the root mean square, over stacks and places, of a stack's mean deviation."""
        means = [mean for shapes in self.deviations.values() for mean in averages(shapes, axes).values()]
        return math.sqrt(sum(mean * mean for mean in means) / len(means)) if means else 0.0

    def grid(self, axes):
        """Returns the ratios at the places of the axes, the last axis fastest. Places without shapes take the nearest one's."""
        known = averages(self.log_ratios, axes)
        ratios = []
        for place in itertools.product(*axes.values()):
            near = min(known, key=lambda other: (sum((a - b)**2 for a, b in zip(place, other)), other))
            ratios.append(rounded(math.exp(known[near])))
        return ratios


def averages(values, axes):
    """Returns the weighted mean of values at each place: a shape counts at the places around it, the nearer the more."""
    sums, weights = collections.defaultdict(float), collections.defaultdict(float)
    for shape, value in values.items():
        around = [((), 1.0)]
        for size, axis in zip(shape, axes.values()):
            around = [(place + (exponent,), weight * share) for place, weight in around
                      for exponent, share in neighbours(math.log2(size), axis)]
        for place, weight in around:
            sums[place] += weight * value
            weights[place] += weight
    least = 0.5  # of a shape: places at the rim of a single one say nothing
    return {place: sums[place] / weights[place] for place in sums if weights[place] >= least}


def neighbours(exponent, axis):
    """Returns the places of an axis around an exponent, with shares that add up to 1."""
    exponent = min(max(exponent, axis[0]), axis[-1])
    for low, high in zip(axis, axis[1:]):
        if exponent <= high:
            share = (exponent - low) / (high - low)
            return [(place, part) for place, part in ((low, 1 - share), (high, share)) if part > 0]
    return [(axis[-1], 1.0)]


def rounded(value):
    return float(f"{value:.{DIGITS}g}")


def by_stack(files, key_of):
    """Returns {format: {stack: {shape: ms}}} on the H200 and on the GPU."""
    sides = collections.defaultdict(dict), collections.defaultdict(dict)
    for stack, _, *paths in files:
        for side, path in zip(sides, paths):
            for (kind, shape), latency in latencies(path, key_of).items():
                side[kind].setdefault(stack, {})[shape] = latency
    return sides


def compared(files, comparison, axes):
    """Returns the stacks, the number of shapes, and the spread and ratios at the places of the axes; None without shapes."""
    if not comparison.log_ratios:
        return None
    return {"stacks": [f"{stack} {version}" for stack, version, _, _ in files], "shapes": len(comparison.log_ratios),
            "spread": rounded(comparison.spread(axes)), **axes, "ratios": comparison.grid(axes)}


def gemm_ratios(tables, gpu):
    files = tables.common(gpu, "gemm", "gemm_perf")
    reference, own = map(with_plain_fp8, by_stack(files, gemm_key))
    result = []
    for name, (format_, over) in FORMATS.items():
        if found := compared(files, Comparison(reference.get(over, {}), own.get(format_, {})), GEMM_AXES):
            result.append({"format": name, "over": next(plain for plain, pair in FORMATS.items() if pair == (over, over)), **found})
    return result


def with_plain_fp8(times):
    """Returns the times with FP8 GEMMs at least as fast as those whose blocks have scales of their own, stack by stack.

    Those do all that a GEMM with one scale does, and more. Where they are faster, the stack's kernel for one scale is not tuned.
    """
    plain = {stack: dict(shapes) for stack, shapes in times.get("fp8", {}).items()}
    for stack, shapes in times.get("fp8_block", {}).items():
        for shape, latency in shapes.items():
            known = plain.get(stack, {}).get(shape)
            if known is not None and latency < known:
                plain[stack][shape] = latency
    return {**times, "fp8": plain} if plain else times


def attention_ratios(tables, gpu):
    files = tables.common(gpu, "attention", "context_attention_perf")
    reference, own = by_stack(files, attention_key)
    result = []
    for width in HEAD_WIDTHS:
        if found := compared(files, Comparison(reference[width], own[width]), ATTENTION_AXES):
            result.append({"head_dim": width, **found})
    return result


def cast_ratio(tables, gpu):
    """Returns the ratio of casts from BF16 to FP8 with one known scale, which are bound by memory bandwidth; None without tables."""
    files = tables.common(gpu, "quantize", "scale_matrix_perf")
    reference, own = by_stack(files, quantize_key)
    found = compared(files, Comparison(reference["fp8"], own["fp8"]), {})  # no axes: one place, which has all shapes
    return found and {**{key: found[key] for key in ("stacks", "shapes", "spread")}, "ratio": found["ratios"][0]}


def bus_rates(tables, gpu):
    """Returns bus bandwidths in 10^9 bytes/s of 16-bit collectives by number of GPUs, of the newest NCCL."""
    files = tables.files(gpu, "comm", "nccl_perf")
    newest = max((at for at in files if at[0] == "nccl"), key=lambda at: version_key(at[1]), default=None)
    if newest is None:
        return None
    rates = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in read_rows(files[newest]):
        size, ranks, latency = 2 * int(row["message_size"]), int(row["num_gpus"]), float(row["latency"])
        if row["nccl_dtype"] != "half" or size not in COLLECTIVE_BYTES or row["op_name"] not in COLLECTIVES or latency <= 0:
            continue
        traffic = (2 if row["op_name"] == "all_reduce" else 1) * (ranks - 1) / ranks * size
        rates[COLLECTIVES[row["op_name"]]][str(ranks)].append([size, rounded(traffic / latency / 1e6)])
    return {"nccl": newest[1], **{name: {ranks: sorted(rows) for ranks, rows in sorted(by_ranks.items(), key=lambda at: int(at[0]))}
                                  for name, by_ranks in sorted(rates.items())}}


def condensed(tables, gpu):
    """Returns the content of a file of ratios."""
    return {"machine": MACHINES[gpu], "over": REFERENCE[1],
            "source": {**tables.version, "copyright": "NVIDIA CORPORATION & AFFILIATES", "tables": [REFERENCE[0], gpu]},
            "gemm": gemm_ratios(tables, gpu), "attention": attention_ratios(tables, gpu), "cast": cast_ratio(tables, gpu),
            "bus_gb_per_s": bus_rates(tables, gpu)}


def text_of(content):
    """Returns JSON with one line per object of the outer lists and of short values."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list):
            rows = ",\n".join(json.dumps(row) for row in value)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", help="folder of the unpacked package")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of the files")
    arguments = parser.parse_args()
    tables = Tables(arguments.tables)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for gpu in sorted(MACHINES):
        if not (tables.data / gpu).is_dir():
            print(f"{gpu}: no tables", file=sys.stderr)
            continue
        path = arguments.out / f"{MACHINES[gpu]}.json"
        path.write_text(text_of(condensed(tables, gpu)), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
