#!/usr/bin/env python3
"""PyTorch baseline of kernel_bench grouped: torch._grouped_mm and torch._scaled_grouped_mm at the same shapes,
alternating with it.

    grouped_gemm.py ./kernel_bench [--seconds 0.1] [--turns 2] [--rows 512,1024,4096]
                                    [--models Qwen3,Mixtral] [--kinds bf16,rowwise]

Prints one line per GEMM: TFLOP/s of PyTorch and ours, and the ratio. bf16: D in BF16 on both sides; ours also
with weight gradients in FP32, which PyTorch lacks. rowwise: e4m3 with a scale per row of both operands, fast
and promoted accumulation, D in BF16. blockwise: ours only. Sustained rates: GEMMs run back to back for the
given number of seconds, of which the last three quarters count. Both sides alternate, and a figure is the
mean of its turns.

Needs torch and a GPU of compute capability 9.0.
"""
import argparse, statistics, subprocess
import torch

SHAPES = [("Qwen3-30B", 128, 1536, 2048), ("Qwen3-30B", 128, 2048, 768), ("moe-4b-a1b", 32, 2048, 2048),
          ("moe-4b-a1b", 32, 2048, 1024), ("DeepSeek-V2-Lite", 64, 2816, 2048), ("DeepSeek-V2-Lite", 64, 2048, 1408),
          ("Mixtral", 8, 28672, 4096), ("Mixtral", 8, 4096, 14336), ("DeepSeek-V3", 32, 4096, 7168),
          ("DeepSeek-V3", 32, 7168, 2048), ("Scout", 16, 16384, 5120), ("Scout", 16, 5120, 8192)]


def sustained(product, flops, seconds):
    """Returns the sustained TFLOP/s."""
    def time_of(runs, skipped):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for i in range(runs):
            if i == skipped:
                begin.record()
            product()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / (runs - skipped)

    product()
    runs = max(4, int(seconds * 1e3 / time_of(4, 0)))
    return flops / time_of(runs, runs // 4) / 1e9


def bf16(rows, columns):
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)


def e4m3(rows, columns):
    return bf16(rows, columns).mul_(16).to(torch.float8_e4m3fn)


def scales(count):
    return torch.full((count,), 0.01, device="cuda")


def theirs(kind, gemm, E, rows, N, K):
    """Returns a call of PyTorch's kernel."""
    R = E * rows
    ends = torch.arange(rows, R + 1, rows, device="cuda", dtype=torch.int32)
    if kind == "bf16":
        w = bf16(E * N, K).view(E, N, K)
        if gemm == "fprop":
            x = bf16(R, K)
            return lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=ends, out_dtype=torch.bfloat16)
        dy = bf16(R, N)
        if gemm == "dgrad":
            return lambda: torch._grouped_mm(dy, w, offs=ends, out_dtype=torch.bfloat16)
        x = bf16(R, K)
        return lambda: torch._grouped_mm(dy.t(), x, offs=ends, out_dtype=torch.bfloat16)
    options = {"offs": ends, "out_dtype": torch.bfloat16, "use_fast_accum": kind == "fast"}
    if gemm == "wgrad":
        dy, x, a, b = e4m3(N, R), e4m3(K, R), scales(E * N), scales(E * K)
        return lambda: torch._scaled_grouped_mm(dy, x.t(), a, b, **options)
    n, k = (N, K) if gemm == "fprop" else (K, N)
    x, w, a, b = e4m3(R, k), e4m3(E * n, k).view(E, n, k), scales(R), scales(E * n).view(E, n)
    return lambda: torch._scaled_grouped_mm(x, w.transpose(-2, -1), a, b, **options)


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen([program, "grouped", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tflops(self, recipe, gemm, shape, d, accumulation, seconds):
        words = [recipe, gemm, *shape, d, accumulation, seconds]
        print(*words, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        return None if answer in ("", "none") else float(answer)


def products(kinds):
    """Yields PyTorch kind, GEMM, our recipe, dtype of D, accumulation."""
    for gemm in ("fprop", "dgrad", "wgrad"):
        if "bf16" in kinds:
            yield "bf16", gemm, "bf16", "bf16", "recipe"
            if gemm == "wgrad":
                yield None, gemm, "bf16", "f32+", "recipe"
        if "rowwise" in kinds:
            if gemm == "fprop":
                yield "fast", gemm, "rowwise", "bf16", "fast"
            yield "promoted", gemm, "rowwise", "bf16", "promoted"
        if "blockwise" in kinds:
            yield None, gemm, "blockwise", "f32+" if gemm == "wgrad" else "bf16", "recipe"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rows", default="512,1024,4096")
    parser.add_argument("--models", default="")
    parser.add_argument("--kinds", default="bf16,rowwise,blockwise")
    args = parser.parse_args()
    ours = Ours(args.program)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}; TFLOP/s, sustained {args.seconds} s a figure")
    print(f"{'':>12} {'E':>4} {'rows':>5} {'N x K':>12} {'GEMM':>6} {'kind':>9} {'D':>5} {'torch':>6} {'ours':>6} ratio")
    for model, E, N, K in SHAPES:
        if args.models and not any(m in model for m in args.models.split(",")):
            continue
        for rows in map(int, args.rows.split(",")):
            for kind, gemm, recipe, d, accumulation in products(args.kinds.split(",")):
                call = theirs(kind, gemm, E, rows, N, K) if kind else None
                turns = []
                for _ in range(args.turns):
                    other = sustained(call, 2 * E * rows * N * K, args.seconds) if call else None
                    turns.append((other, ours.tflops(recipe, gemm, (E, rows, N, K), d, accumulation, args.seconds)))
                other, mine = (statistics.mean(side) if all(side) else None for side in zip(*turns))
                call = None
                torch.cuda.empty_cache()
                ratio = f"{mine / other:5.2f}" if mine and other else "    -"
                name = accumulation if recipe == "rowwise" else recipe
                print(f"{model:>12} {E:>4} {rows:>5} {f'{N}x{K}':>12} {gemm:>6} {name:>9} {d:>5}"
                      f" {f'{other:.0f}' if other else '-':>6} {f'{mine:.0f}' if mine else 'none':>6} {ratio}", flush=True)


if __name__ == "__main__":
    main()
