"""Tables of the outputs of the kernels' benchmarks, results/h200/*_bench.txt and grouped_peer.txt, for readme_tables.py."""
import re

from committed import RESULTS, spread, table

FORMS = ["bf16", "tensor", "delayed", "row", "1x128"]
DENSE = re.compile(r"^ +(\w+) -> (\w+) +([\d.]+) ms +\d+ GB/s +(\d+)%", re.M)
QUANTIZE = re.compile(r"^ +quantize (\w+) row\+col 8192x14336 +([\d.]+) ms +\d+ GB/s +(\d+)%", re.M)
OTHER = re.compile(r"^ +(\S.*?)  +([\d.]+) ms +\d+ GB/s +(\d+)%", re.M)
OPS = ["quantize, both forms", "add_rmsnorm", "rmsnorm_backward", "swiglu", "swiglu_backward"]
OTHERS = ["copy 8192x4096", "copy 8192x14336", "transpose_codes 8192x14336", "rope B1 T8192 H32/8 D128", "embedding",
          "embedding_backward", "cross_entropy", "sum_of_squares", "adamw bf16 weights, moments, gradients", "adamw f32 master"]
GROUPED_PEER = {"bf16": "bf16", "fast": "rowwise, fast", "promoted": "rowwise, promoted"}
EXPERTS = re.compile(r"^ +([a-z_:+0-9 >,-]+?) +[\d.]+ ms +\d+ GB/s, a copy +[\d.]+ ms, +(\d+)%", re.M)


def text(bench):
    return (RESULTS / f"h200/{bench}_bench.txt").read_text()


def kernel_ops():
    """Microseconds, and the share of a large copy's rate; an op's operands once, however often it reads them."""
    found = {("quantize, both forms", form): (ms, share) for form, ms, share in QUANTIZE.findall(text("kernel"))}
    found.update({(op, form): (ms, share) for op, form, ms, share in DENSE.findall(text("kernel"))})
    cell = lambda of: f"{1e3 * float(of[0]):.0f} us, {of[1]}%"
    return table(["op", *FORMS], [[op, *("" if (op, form) == (OPS[0], "bf16") else cell(found[op, form]) for form in FORMS)]
                                  for op in OPS])


def kernel_others():
    found = {op: (ms, share) for op, ms, share in OTHER.findall(text("kernel"))}
    return table(["op", "time", "share of a large copy's rate"],
                 [[op, f"{1e3 * float(found[op][0]):,.0f} us", f"{found[op][1]}%"] for op in OTHERS])


def own_gemms():
    """Ours beside cuBLASLt's best: sustained, and with copies between the products."""
    rows = []
    for section in re.split(r"\n\n", text("blockwise"))[1:]:
        title, _, *products = section.strip().splitlines()
        columns = list(zip(*([float(cell.rstrip("x")) for cell in product.split()[1:7]] for product in products)))
        rows.append([title, spread(columns[1]), spread(columns[2], 2, "x"), spread(columns[4]), spread(columns[5], 2, "x")])
    return table(["product", "sustained, TFLOP/s", "over cuBLASLt", "in copies, TFLOP/s", "over cuBLASLt"], rows)


def grouped_gemms(rows_at_least=1024):
    """TFLOP/s over all shapes whose experts have so many rows."""
    kinds = {}
    for line in text("grouped").splitlines()[2:]:
        match = re.match(r"^ *(\S*?) +\d+ +(\d+)( zipf:1)? +\d+x\d+ +(\w+ +\S+) +([\d. ]+)$", line)
        if int(match[2]) >= rows_at_least:
            rows = f"{int(match[2]):,}{match[3] or ''}"
            kinds.setdefault((" ".join(match[4].split()), rows), []).append([float(value) for value in match[5].split()])
    return table(["product", "rows of an expert", "bf16", "tensorwise", "rowwise", "blockwise"],
                   [[kind, rows, *(spread(column) for column in zip(*values))] for (kind, rows), values in kinds.items()])


def grouped_cublaslt():
    """Ours over cuBLASLt's grouped call, over all shapes: least to largest, and at how many of them ours is at least as fast."""
    kinds = {}
    for line in (RESULTS / "h200/grouped_cublaslt.txt").read_text().splitlines()[2:]:
        match = re.match(r"^ *(\S*?) +\d+ +(\d+)( zipf:1)? +\d+x\d+ +(\w+ +\S+) +([\d./ none]+)$", line)
        rows = f"{int(match[2]):,}{match[3] or ''}"
        ratios = [float(own) / float(theirs) if theirs != "none" else None
                  for own, theirs in (cell.split("/") for cell in match[5].split())]
        kinds.setdefault((" ".join(match[4].split()), rows), []).append(ratios)
    def cell(ratios):
        return f"{spread(ratios, 2, 'x')} ({sum(r >= 1 for r in ratios)} of {len(ratios)})" if None not in ratios else "-"
    return table(["product", "rows of an expert", "bf16", "tensorwise", "blockwise"],
                 [[*kind, *(cell(column) for i, column in enumerate(zip(*values)) if i != 2)] for kind, values in kinds.items()])


def grouped_peer():
    """PyTorch's grouped products beside ours of the same accumulation, over all shapes and numbers of rows."""
    kinds = {}
    for line in (RESULTS / "h200/grouped_peer.txt").read_text().splitlines():
        if match := re.search(r" (\d+) +\d+x\d+ +(\w+) +(\w+) +bf16 +(\d+) +(\d+) +([\d.]+)$", line):
            rows, gemm, kind, *numbers = match.groups()
            kinds.setdefault((GROUPED_PEER[kind], gemm, f"{int(rows):,}"), []).append([float(number) for number in numbers])
    return table(["product", "", "rows of an expert", "PyTorch, TFLOP/s", "ours", "ratio"],
                 [[*key, *map(spread, columns[:2]), spread(columns[2], 2, "x")]
                  for key, columns in ((key, list(zip(*values))) for key, values in sorted(kinds.items(), key=lambda kind: kind[0][:2]))])


def experts_ops():
    """Share of a copy of as many bytes, model by model."""
    found, models = {}, []
    for line in text("experts").splitlines()[1:]:
        if named := re.match(r"^(\S+): ", line):
            models.append(named[1])
        elif match := EXPERTS.match(line):
            found.setdefault(match[1].strip(), {})[models[-1]] = f"{match[2]}%"
    return table(["op", *models], [[op, *(of[model] for model in models)] for op, of in found.items()
                                     if not re.search(r"-> mx|, mx$| mx, |alone", op)])


TABLES = {"kernel-ops": kernel_ops, "kernel-others": kernel_others, "own-gemms": own_gemms, "grouped-gemms": grouped_gemms,
          "grouped-cublaslt": grouped_cublaslt, "grouped-peer": grouped_peer, "experts-ops": experts_ops}
