"""Tables of results/h200/kernel_bench.md, from the outputs of the kernel benchmarks, for readme_tables.py."""
import re

from committed import RESULTS, spread, table

SCALES = ["bf16", "tensor", "delayed", "row", "1x128"]
DENSE = re.compile(r"^ +(\w+) -> (\w+) +([\d.]+) ms +\d+ GB/s +(\d+)%", re.M)
QUANTIZE = re.compile(r"^ +quantize (\w+) row\+col 8192x14336 +([\d.]+) ms +\d+ GB/s +(\d+)%", re.M)
OTHER = re.compile(r"^ +(\S.*?)  +([\d.]+) ms +\d+ GB/s +(\d+)%", re.M)
OTHERS = ["copy 8192x4096", "copy 8192x14336", "transpose_codes 8192x14336", "rope B1 T8192 H32/8 D128", "embedding",
          "embedding_backward", "cross_entropy", "sum_of_squares", "adamw bf16 weights, moments, gradients", "adamw f32 master"]
EXPERTS = re.compile(r"^ +([a-z_:+0-9 >,-]+?) +[\d.]+ ms +\d+ GB/s, a copy +[\d.]+ ms, +(\d+)%", re.M)
GROUPED = re.compile(r"^ *(\S*?) +\d+ +(\d+)( zipf:1)? +\d+x\d+ +(\w+ +\S+) +([\d./ none]+)$")


def text(name):
    return (RESULTS / f"h200/{name}.txt").read_text()


def kernel_ops():
    found = {("quantize, row and column", scale): (ms, share) for scale, ms, share in QUANTIZE.findall(text("kernel_bench"))}
    found.update({(op, scale): (ms, share) for op, scale, ms, share in DENSE.findall(text("kernel_bench"))})
    cell = lambda op, scale: f"{1e3 * float(found[op, scale][0]):.0f} us, {found[op, scale][1]}%" if (op, scale) in found else ""
    return table(["op", *SCALES], [[op, *(cell(op, scale) for scale in SCALES)] for op in
                                   ("quantize, row and column", "add_rmsnorm", "rmsnorm_backward", "swiglu", "swiglu_backward")])


def kernel_others():
    found = {op: (ms, share) for op, ms, share in OTHER.findall(text("kernel_bench"))}
    return table(["op", "time", "share of copy bandwidth"],
                 [[op, f"{1e3 * float(found[op][0]):,.0f} us", f"{found[op][1]}%"] for op in OTHERS])


def own_gemms():
    """Sustained, and with copies between the GEMMs."""
    rows = []
    for section in re.split(r"\n\n", text("blockwise_bench"))[1:]:
        title, _, *gemms = section.strip().splitlines()
        columns = list(zip(*([float(cell.rstrip("x")) for cell in gemm.split()[1:7]] for gemm in gemms)))
        rows.append([title, spread(columns[1]), spread(columns[2], 2, "x"), spread(columns[4]), spread(columns[5], 2, "x")])
    return table(["GEMM", "sustained, TFLOP/s", "over cuBLASLt", "between copies, TFLOP/s", "over cuBLASLt"], rows)


def grouped(name):
    """Returns the cells of a grouped benchmark by (GEMM, rows per expert), one list for each shape."""
    kinds = {}
    for line in text(name).splitlines()[2:]:
        match = GROUPED.match(line)
        kinds.setdefault((" ".join(match[4].split()), f"{int(match[2]):,}{match[3] or ''}"), []).append(match[5].split())
    return kinds


def grouped_gemms():
    return table(["GEMM", "rows per expert", "bf16", "tensorwise", "rowwise", "blockwise"],
                 [[*kind, *(spread([float(cell) for cell in column]) for column in zip(*shapes))]
                  for kind, shapes in grouped("grouped_bench").items() if int(kind[1].split()[0].replace(",", "")) >= 1024])


def grouped_cublaslt():
    def cell(column):
        if any(cell.endswith("none") for cell in column):
            return "-"
        ratios = [float(own) / float(theirs) for own, theirs in (cell.split("/") for cell in column)]
        return f"{spread(ratios, 2, 'x')} ({sum(ratio >= 1 for ratio in ratios)} of {len(ratios)})"
    return table(["GEMM", "rows per expert", "bf16", "tensorwise", "blockwise"],
                 [[*kind, *(cell(column) for i, column in enumerate(zip(*shapes)) if i != 2)]
                  for kind, shapes in grouped("grouped_cublaslt").items()])


def grouped_peer():
    names, kinds = {"bf16": "bf16", "fast": "rowwise, fast", "promoted": "rowwise, promoted"}, {}
    for line in text("grouped_peer").splitlines():
        if match := re.search(r" (\d+) +\d+x\d+ +(\w+) +(\w+) +bf16 +(\d+) +(\d+) +([\d.]+)$", line):
            rows, gemm, kind, *numbers = match.groups()
            kinds.setdefault((names[kind], gemm, f"{int(rows):,}"), []).append([float(number) for number in numbers])
    return table(["format", "GEMM", "rows per expert", "PyTorch, TFLOP/s", "precbench, TFLOP/s", "precbench / PyTorch"],
                 [[*key, *map(spread, columns[:2]), spread(columns[2], 2, "x")]
                  for key, columns in ((key, list(zip(*values))) for key, values in sorted(kinds.items(), key=lambda kind: kind[0][:2]))])


def experts_ops():
    found, models = {}, []
    for line in text("experts_bench").splitlines()[1:]:
        if named := re.match(r"^(\S+): ", line):
            models.append(named[1])
        elif match := EXPERTS.match(line):
            found.setdefault(match[1].strip(), {})[models[-1]] = f"{match[2]}%"
    return table(["op", *models], [[op, *(of[model] for model in models)] for op, of in found.items()
                                   if not re.search(r"-> mx|, mx$| mx, |alone", op)])


TABLES = {"kernel-ops": kernel_ops, "kernel-others": kernel_others, "own-gemms": own_gemms, "grouped-gemms": grouped_gemms,
          "grouped-cublaslt": grouped_cublaslt, "grouped-peer": grouped_peer, "experts-ops": experts_ops}
