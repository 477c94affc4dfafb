"""Tables of results/predicted/memory.md, for readme_tables.py: dry runs of precbench beside published memory (results/published/
memory.json), and what each stack keeps of a block for the backward pass."""
import functools, json, subprocess, sys

from page_tables import PROGRAM, RESULTS, ROOT, table

UNITS = {"GiB": 2**30, "GB": 1e9}
# Bytes per element of data with its scales.
BYTES = {"bf16": 2, "tensorwise": 1, "mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16, "groups of 16": 1 + 1 / 16}


@functools.cache
def cases():
    return json.loads((RESULTS / "published/memory.json").read_text())["cases"]


@functools.cache
def dry_run(*flags, gpu="b200"):
    """Returns the cases of a dry run with their predicted bytes."""
    done = subprocess.run([PROGRAM, "sweep", "--dry-run", "--json", "--gpu", gpu, *flags], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"sweep --dry-run {' '.join(flags)}: {done.stderr.strip()}")
    return json.loads(done.stdout)["cases"]


def peak(flags, recipe, kept, recompute="none"):
    own = [flag for flag in flags if recipe != "bf16" or flag not in ("--keep-bf16",) and not flag.startswith("last:")]
    return dry_run(*own, "--recompute", recompute, "--recipe", recipe, "--kept", kept)[0]["memory_bytes"]


def change(value, base):
    return f"{100 * (value / base - 1):+.0f}%"


def predicted(case):
    """Returns predicted bytes of BF16 and of the recipe as the stack keeps activations, and of both as precbench keeps them."""
    of = functools.partial(peak, tuple(case["flags"]))
    return (of("bf16", case["kept_bf16"], case["recompute"]), of(case["recipe"], case["kept"], case["recompute"]),
            of("bf16", "precbench"), of(case["recipe"], "precbench"))


def met(case):
    bf16, low, _, _ = predicted(case)
    published, here = case["published"] / case["bf16"], low / bf16
    off = abs(published / here - 1) if case["margin"] > 5 else abs(published - here)
    return 100 * off <= case["margin"]


def beside_published():
    rows = []
    for case in cases():
        unit = UNITS[case["unit"]]
        bf16, low, least_bf16, least = predicted(case)
        rows.append([case["label"], f"{case['bf16']:.1f} {case['unit']}", f"{case['published']:.1f}", change(case["published"], case["bf16"]),
                     f"{bf16 / unit:.1f}", f"{low / unit:.1f}", change(low, bf16), "yes" if met(case) else "**no**",
                     f"{least_bf16 / unit:.1f}", f"{least / unit:.1f}", change(least, least_bf16)])
    return table(["case", "published BF16", "low precision", "change", "as the stack keeps it: BF16", "low precision", "change",
                  "target met", "as precbench keeps it: BF16", "low precision", "change"], rows)


def front_page():
    """Returns the changes alone, of one case for each stack and recipe, without the spaces that count as words."""
    rows = []
    for case in cases():
        if "short" in case:
            bf16, low, _, _ = predicted(case)
            rows.append([case["short"], change(case["published"], case["bf16"]), change(low, bf16)])
    return table(["over BF16", "published", "predicted"], rows).replace(" | ", "|").replace("| ", "|").replace(" |", "|")


class Block:
    """Bytes per token that a Llama block keeps, by what they are."""

    def __init__(self, width, q, kv, ffn, heads):
        self.width, self.q, self.kv, self.ffn, self.heads = width, q, kv, ffn, heads

    def kept(self, recipe, norm, activation, attention, norm_input="bf16", activation_input="bf16"):
        """`norm`, `activation`, `attention`: value, quantized or none, as in a recipe's "kept"."""
        size = {"value": 2, "quantized": BYTES[recipe], "none": 0}
        return {"residual stream at the norms": 2 * self.width * BYTES[norm_input],
                "outputs of norms": 2 * self.width * size[norm],
                "q, k, v": 2 * (self.q + 2 * self.kv),
                "output of attention": 2 * self.q + (size["quantized"] * self.q if attention == "quantized" and recipe != "bf16" else 0),
                "gate and up": 2 * self.ffn * BYTES[activation_input],
                "output of SwiGLU": self.ffn * size[activation],
                "FP32 statistics": 4 * self.heads + 8}

    def selective(self, saves_gemms):
        """As torchtitan's selective activation checkpointing: the block's input, the output of attention, and of every second GEMM
        whose output backward needs, if it is an operation that the policy knows."""
        return {"input": 2 * self.width, "q and v": 2 * (self.q + self.kv) if saves_gemms else 0, "output of attention": 2 * self.q,
                "gate": 2 * self.ffn if saves_gemms else 0, "FP32 statistics": 4 * self.heads + 4}


BLOCKS = {"llama3.1-8b": Block(4096, 4096, 1024, 14336, 32), "qwen3-8b": Block(4096, 4096, 1024, 12288, 32),
          "llama2-7b": Block(4096, 4096, 4096, 11008, 32)}
VOCABULARIES = {"llama3.1-8b": 128256, "qwen3-8b": 151936}
KEPT = {"precbench": ("quantized", "none", "value"), "torchao": ("value", "value", "value"),
        "transformer_engine": ("quantized",) * 3, "torchao_nvfp4": ("quantized",) * 3,
        "coat": ("quantized",) * 3 + ("groups of 16",) * 2}
LISTED = [("bf16", "precbench"), ("bf16", "torchao"), ("tensorwise", "precbench"), ("tensorwise", "transformer_engine"),
          ("tensorwise", "coat"), ("mxfp8", "torchao"), ("nvfp4", "torchao_nvfp4")]


def listed(model, recipe, stack):
    return BLOCKS[model].kept(recipe, *KEPT[stack])


def block_bytes(model, recipe, kept, recompute="none", tokens=8192):
    """Returns the bytes per token that dry runs of four and of two blocks differ by, for each block."""
    flags = ["--model", model, "--seq", str(tokens), "--batch", "1", "--keep-bf16", "none", "--switch-recipe", "none",
             "--recipe", recipe, "--kept", kept, "--recompute", recompute]
    four, two = (dry_run(*flags, "--layers", layers)[0]["segments_bytes"]["activations"] for layers in ("4", "2"))
    return (four - two) / 2 / tokens


def number(value):
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def beside_dry_runs(columns, recompute, model="llama3.1-8b"):
    """Returns the rows of lists of bytes, {(recipe, stack): {name: bytes}}, whose sums must be those of dry runs."""
    lists = list(columns.values())
    rows = [[name, *(number(column[name]) for column in lists)] for name in lists[0]]
    sums = [sum(column.values()) for column in lists]
    dry = [block_bytes(model, recipe, stack, recompute) for recipe, stack in columns]
    for (recipe, stack), value, counted in zip(columns, sums, dry):
        if abs(counted - value) > 0.5:  # scales of whole tensors are the rest
            sys.exit(f"{recipe}, {stack}: the list has {value:.1f} bytes per token and block, the dry run {counted:.1f}")
    base = sums[list(columns).index(("bf16", "torchao"))]
    rows += [["sum", *map(number, sums)], ["dry run", *map(number, dry)],
             ["over bf16, torchao", *(change(value, base) for value in sums)]]
    return table(["bytes per token and block", *(f"{recipe}, {stack}" for recipe, stack in columns)], rows)


def per_block():
    return beside_dry_runs({column: listed("llama3.1-8b", *column) for column in LISTED}, "none")


def selective():
    block = BLOCKS["llama3.1-8b"]
    return beside_dry_runs({("bf16", "torchao"): block.selective(True), ("mxfp8", "torchao"): block.selective(True),
                            ("nvfp4", "torchao_nvfp4"): block.selective(False)}, "selective")


def saved():
    """Published savings of selective activation checkpointing beside predicted ones, and what published totals have beyond predictions."""
    rows = []
    for case in cases():
        if case["recompute"] != "selective" or case["recipe"] != "nvfp4":
            continue
        unit, (bf16, low, _, _) = UNITS[case["unit"]], predicted(case)
        flags = dict(zip(case["flags"][::2], case["flags"][1::2]))
        logits = 4 * int(flags["--seq"]) * int(flags["--batch"]) * VOCABULARIES[flags["--model"]] / unit
        bf16, low = bf16 / unit, low / unit
        rows.append([case["label"], f"{case['bf16'] - case['published']:.1f} {case['unit']}", f"{bf16 - low:.1f}",
                     f"{case['bf16'] - bf16:.1f}", f"{case['published'] - low:.1f}", f"{logits:.1f}", change(low + logits, bf16 + logits),
                     change(case["published"], case["bf16"])])
    return table(["case", "saved, published", "predicted", "published beyond predicted: BF16", "NVFP4", "FP32 logits", "change with these",
                  "published"], rows)


def coat():
    """Table 2 of COAT, in units of batch x sequence x width x 2 bytes, beside what we keep of a Llama 2 7B block."""
    published = {"BF16": (4, 8, 2, 3, 5.66), "TransformerEngine": (2, 8, 2, 3, 3.33), "COAT": (1, 4, 2, 3, 3.33)}
    ours = {"BF16": ("bf16", "torchao"), "TransformerEngine": ("tensorwise", "transformer_engine"), "COAT": ("tensorwise", "coat")}
    unit, rows = 2 * 4096, []
    for name, parts in published.items():
        kept = listed("llama2-7b", *ours[name])
        here = [kept["residual stream at the norms"], kept["gate and up"], 0, kept["q, k, v"] + kept["output of attention"],
                kept["outputs of norms"] + kept["output of SwiGLU"]]
        if name != "BF16":  # the quantized copy of attention's output is an input of a linear layer
            here[3] -= 4096 * BYTES["tensorwise"]
            here[4] += 4096 * BYTES["tensorwise"]
        total = sum(here) / unit
        rows.append([name, *(f"{p:g} / {h / unit:.2f}" for p, h in zip(parts, here)), f"{sum(parts):.2f} / {total:.2f}"])
    return table(["U, published / here", "norms", "activation function", "RoPE", "attention", "linear layers", "sum"], rows)


FITS = {"gpus": ["h100", "h200", "b200"],
        "rows": [("bf16", "torchao"), ("bf16", "precbench"), ("tensorwise", "precbench"), ("tensorwise", "transformer_engine"),
                 ("mxfp8", "precbench"), ("bench/sweeps/coat_fp8.json", "recipe")]}
STEP = 4096


def longest(gpu, model, recipe, kept):
    """Returns the longest sequence, in multiples of STEP, that one GPU of eight fits."""
    lengths = [STEP * n for n in range(1, 65)]
    found = dry_run("--model", model, "--batch", "1", "--gpus", "8", "--parallel", "fsdp", "--recipe", recipe, "--kept", kept,
                    "--seq", ",".join(map(str, lengths)), gpu=gpu)
    return max((length for length, case in zip(lengths, found) if case["fits"] == "yes"), default=0)


def fits():
    rows = []
    for recipe, kept in FITS["rows"]:
        name = recipe.rsplit("/", 1)[-1].removesuffix(".json")
        rows.append([name, "its own" if kept == "recipe" else kept,
                     *(f"{longest(gpu, 'llama3.1-8b', recipe, kept):,}" for gpu in FITS["gpus"]),
                     *(largest(gpu, recipe, kept) for gpu in FITS["gpus"])])
    return table(["recipe", "kept", *(f"longest sequence of Llama 3.1 8B, {gpu.upper()}" for gpu in FITS["gpus"]),
                  *(f"largest model, {gpu.upper()}" for gpu in FITS["gpus"])], rows)


def largest(gpu, recipe, kept):
    """Returns the largest Llama or Qwen model that fits on eight GPUs with one sequence of 8,192 tokens each."""
    models = ["llama3.1-8b", "llama2-13b", "qwen3-14b", "qwen3-32b", "llama3.1-70b"]
    found = dry_run("--model", ",".join(models), "--batch", "1", "--seq", "8192", "--gpus", "8", "--parallel", "fsdp",
                    "--recipe", recipe, "--kept", kept, gpu=gpu)
    return [name for name, case in zip(models, found) if case["fits"] == "yes"][-1:][0] if any(c["fits"] == "yes" for c in found) else "none"


TABLES = {"memory-front": front_page, "memory-published": beside_published, "memory-blocks": per_block, "memory-selective": selective, "memory-saved": saved,
          "memory-coat": coat, "memory-fits": fits}
