#!/usr/bin/env python3
"""Writes Kineto traces of PyTorch training steps, healthy ones and ones with a planted fault, for `precbench explain`.

One GPU:  make_traces.py --out traces --seconds 240
CPU:      make_traces.py --cpu --tiny --out traces

Each variant is a Llama-like model of pytorch_model.py with a few blocks, in BF16 or in a recipe of torchao. Its step is timed
without the profiler, then two steps are traced (shapes recorded) into NAME.json.gz. manifest.json says what was planted in
each trace, how to repair it, both step times, and the time of the repaired variant. Variants run in order of value until the
budget is spent; one that fails is a line in the manifest. traces-0.tar, traces-1.tar, ... hold all traces, at most 15 MB each.

--set developed: the variants on which the rules of `precbench explain` were developed; most have small, partly host-bound steps.
--set held-out:  variants of other models and sizes whose steps are bound by the GPU. The list was fixed before any of its traces
                 was seen, and no rule was tuned on it. Where nsys is installed, one variant is also profiled with Nsight Systems.
Needs torch; torchao for the FP8 variants.
"""
import argparse, contextlib, dataclasses, gc, glob, gzip, json, os, pathlib, shutil, subprocess, sys, tarfile, time, warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import pytorch_model
from pytorch_model import MODELS, Model, Shape, rope_angles
from pytorch_step import provenance

LARGEST_TRACE = 3 << 20  # bytes of a packed trace
LARGEST_TAR = 15 << 20
NSYS_VARIANT, NSYS_SECONDS = "3b-8k-bf16", 60


def llama(name, layers, **changes):
    return dataclasses.replace(MODELS[name], layers=layers, **{"vocab": 32768, "tied": False, **changes})


SHAPES = {
    "1b": llama("1b", 4),
    "8b": llama("8b", 2),
    "3b": llama("3b", 3),
    "7b": llama("7b", 2),
    "1b-50257": llama("1b", 4, vocab=50257),
    "1b-50304": llama("1b", 4, vocab=50304),
    "small": Shape(6, 768, 2048, 12, 12, 64, 32768, False),
    "1b-one": llama("1b", 1),
    "nemo": Shape(2, 5120, 14336, 32, 8, 128, 100352, False),
    "nemo-100277": Shape(2, 5120, 14336, 32, 8, 128, 100277, False),
    "3b-4": llama("3b", 4, vocab=49152),
    "8b-3": llama("8b", 3, vocab=49152),
    "qwen": llama("7b", 3, vocab=65536),
    "qwen3": Shape(3, 4096, 12288, 32, 8, 128, 65536, False, qk_norm=True),
    "13b": Shape(2, 5120, 13824, 40, 40, 128, 32000, False),
    "tiny": dataclasses.replace(MODELS["tiny"], layers=2),
}


@dataclasses.dataclass(frozen=True)
class Build:
    """What decides about the compiled model. Variants of one build share it."""
    shape: str
    recipe: str = "bf16"
    batch: int = 2
    seq: int = 2048
    compiled: str = "blocks"     # blocks; off; "linears": all but the FP8 linears
    attention: str = "flash"     # flash; math
    skipped: tuple = ()          # linears that stay in BF16
    head: str = "bf16"           # bf16; fp32
    breaks: bool = False         # graph breaks in attention and FFN
    loss_compiled: bool = True

    def name(self):
        return f"{self.shape}-{self.recipe}-{self.batch}x{self.seq}"


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    fault: str                   # "" in healthy traces
    build: Build
    repair: str = ""             # what repairs it
    repaired: str = ""           # name of the variant without the fault
    block: str = ""              # after each block's forward pass: sync, item, sleep, stall (sync and sleep), cpu (copy to the host)
    optimizer: str = "fused"     # fused; foreach; loop
    loader: str = ""             # before each step: sleep; copy
    clip: str = ""               # norm of the gradients: gpu; items (one read by the host for each tensor)
    micro: int = 1               # batches of which gradients are accumulated
    varying: bool = False        # another sequence length in each step


def developed():
    """Returns all variants in order of value; those of one build are adjacent where they can be."""
    b1, b8 = Build("1b"), Build("8b", batch=1, seq=4096)
    of = dataclasses.replace
    t1, r1 = of(b1, recipe="tensorwise"), of(b1, recipe="rowwise")
    t8, r8 = of(b8, recipe="tensorwise"), of(b8, recipe="rowwise")
    no_sync, fused = "no synchronization in the forward pass", "AdamW(fused=True)"
    return [
        Variant("1b-bf16", "", b1),
        Variant("1b-bf16-sync", "launch_gaps", b1, no_sync, "1b-bf16", block="sync"),
        Variant("1b-bf16-item", "launch_gaps", b1, no_sync, "1b-bf16", block="item"),
        Variant("1b-bf16-sleep", "launch_gaps", b1, "no host work between blocks", "1b-bf16", block="sleep"),
        Variant("1b-bf16-loader", "launch_gaps", b1, "batches prepared ahead", "1b-bf16", loader="sleep"),
        Variant("1b-bf16-copy", "memcpy", b1, "no copy of weights from the host", "1b-bf16", loader="copy"),
        Variant("1b-bf16-optimizer-loop", "optimizer", b1, fused, "1b-bf16", optimizer="loop"),
        Variant("1b-tensorwise", "", t1),
        Variant("1b-tensorwise-sync", "launch_gaps", t1, no_sync, "1b-tensorwise", block="sync"),
        Variant("1b-tensorwise-optimizer-loop", "optimizer", t1, fused, "1b-tensorwise", optimizer="loop"),
        Variant("1b-bf16-eager", "not_compiled", of(b1, compiled="off", loss_compiled=False), "torch.compile", "1b-bf16"),
        Variant("1b-tensorwise-eager", "not_compiled", of(t1, compiled="off", loss_compiled=False), "torch.compile", "1b-tensorwise"),
        Variant("1b-tensorwise-casts", "casts", of(t1, compiled="linears"), "compile the FP8 linears, too", "1b-tensorwise"),
        Variant("8b-tensorwise", "", t8),
        Variant("8b-tensorwise-eager", "not_compiled", of(t8, compiled="off", loss_compiled=False), "torch.compile", "8b-tensorwise"),
        Variant("8b-tensorwise-w2", "unconverted", of(t8, skipped=("w2",)), "convert w2", "8b-tensorwise"),
        Variant("1b-tensorwise-qkv", "unconverted", of(t1, skipped=("wq", "wk", "wv")), "convert wq, wk, wv", "1b-tensorwise"),
        Variant("1b-bf16-math", "attention", of(b1, attention="math"), "flash attention", "1b-bf16"),
        Variant("8b-bf16", "", b8),
        Variant("8b-bf16-optimizer-loop", "optimizer", b8, fused, "8b-bf16", optimizer="loop"),
        Variant("1b-bf16-50304", "", of(b1, shape="1b-50304")),
        Variant("1b-bf16-50257", "alignment", of(b1, shape="1b-50257"), "vocabulary padded to 50304", "1b-bf16-50304"),
        Variant("1b-bf16-fp32-head", "fp32", of(b1, head="fp32"), "head in BF16", "1b-bf16"),
        Variant("1b-bf16-8x512", "", of(b1, batch=8, seq=512)),
        Variant("1b-bf16-1x512", "small_batch", of(b1, batch=1, seq=512), "batch 8", "1b-bf16-8x512"),
        Variant("1b-rowwise", "", r1),
        Variant("1b-tensorwise-2047", "alignment", of(t1, seq=2047), "sequences of 2048 tokens", "1b-tensorwise"),
        Variant("8b-rowwise", "", r8),
        Variant("8b-rowwise-w2", "unconverted", of(r8, skipped=("w2",)), "convert w2", "8b-rowwise"),
        Variant("small-bf16", "", of(b1, shape="small", batch=8, seq=1024)),
        Variant("small-tensorwise", "small_gemms", of(t1, shape="small", batch=2, seq=1024), "BF16", "small-bf16-2x1024"),
        Variant("small-bf16-2x1024", "", of(b1, shape="small", batch=2, seq=1024)),
        Variant("1b-bf16-breaks", "graph_breaks", of(b1, breaks=True), "no graph breaks", "1b-bf16"),
        Variant("1b-tensorwise-breaks", "graph_breaks", of(t1, breaks=True), "no graph breaks", "1b-tensorwise"),
        Variant("1b-bf16-eager-loss", "not_compiled", of(b1, loss_compiled=False), "compile the loss", "1b-bf16"),
        Variant("8b-tensorwise-math", "attention", of(t8, attention="math"), "flash attention", "8b-tensorwise"),
        Variant("1b-one-bf16", "", of(b1, shape="1b-one")),
        Variant("1b-one-bf16-recompiling", "recompilation", of(b1, shape="1b-one"), "one sequence length, or dynamic=True",
                "1b-one-bf16", varying=True),
        Variant("1b-bf16-1x8192", "", of(b1, batch=1, seq=8192)),
        Variant("3b-bf16", "", of(b1, shape="3b")),
        Variant("3b-tensorwise", "", of(t1, shape="3b")),
        Variant("7b-rowwise", "", of(r1, shape="7b")),
        Variant("7b-bf16", "", of(b1, shape="7b")),
        Variant("1b-tensorwise-1x8192", "", of(t1, batch=1, seq=8192)),
        Variant("8b-bf16-2x4096", "", of(b8, batch=2)),
        Variant("8b-rowwise-2x4096", "", of(r8, batch=2)),
        Variant("1b-rowwise-4x2048", "", of(r1, batch=4)),
    ]


def held_out():
    """Returns the held-out variants in order of value; those of one build are adjacent where they can be."""
    of = dataclasses.replace
    nemo, b3, q3 = Build("nemo", batch=1, seq=4096), Build("3b-4", seq=4096), Build("qwen3", seq=4096)
    t8, rq, b13 = Build("8b-3", "tensorwise", seq=4096), Build("qwen", "rowwise", batch=1, seq=8192), Build("13b", batch=4, seq=2048)
    eager = dict(compiled="off", loss_compiled=False)
    no_sync, fused, ahead = "no synchronization in the forward pass", "AdamW(fused=True)", "batches prepared ahead"
    kept, flash, whole = "activations stay on the GPU", "flash attention", "no graph breaks"
    return [
        Variant("nemo-bf16", "", nemo),
        Variant("nemo-bf16-clip", "", nemo, clip="gpu"),
        Variant("nemo-bf16-clip-items", "launch_gaps", nemo, "clip_grad_norm_ on the GPU", "nemo-bf16-clip", clip="items"),
        Variant("nemo-bf16-loader", "launch_gaps", nemo, ahead, "nemo-bf16", loader="sleep"),
        Variant("nemo-bf16-foreach", "optimizer", nemo, fused, "nemo-bf16", optimizer="foreach"),
        Variant("nemo-bf16-2-batches", "", nemo, micro=2),
        Variant("3b-8k-bf16", "", b3),
        Variant("3b-8k-bf16-sync", "launch_gaps", b3, no_sync, "3b-8k-bf16", block="sync"),
        Variant("3b-8k-bf16-cpu", "memcpy", b3, kept, "3b-8k-bf16", block="cpu"),
        Variant("3b-8k-bf16-loop", "optimizer", b3, fused, "3b-8k-bf16", optimizer="loop"),
        Variant("8b-8k-tensorwise", "", t8),
        Variant("8b-8k-tensorwise-stall", "launch_gaps", t8, "no host work between blocks", "8b-8k-tensorwise", block="stall"),
        Variant("8b-8k-tensorwise-copy", "memcpy", t8, "no copy of weights from the host", "8b-8k-tensorwise", loader="copy"),
        Variant("8b-8k-tensorwise-loop", "optimizer", t8, fused, "8b-8k-tensorwise", optimizer="loop"),
        Variant("8b-8k-tensorwise-2-batches", "", t8, micro=2),
        Variant("8b-8k-tensorwise-w13", "unconverted", of(t8, skipped=("w1", "w3")), "convert w1 and w3", "8b-8k-tensorwise"),
        Variant("8b-8k-tensorwise-casts", "casts", of(t8, compiled="linears"), "compile the FP8 linears, too", "8b-8k-tensorwise"),
        Variant("8b-8k-tensorwise-eager", "not_compiled", of(t8, **eager), "torch.compile", "8b-8k-tensorwise"),
        Variant("8b-8k-tensorwise-math", "attention", of(t8, attention="math"), flash, "8b-8k-tensorwise"),
        Variant("nemo-bf16-eager", "not_compiled", of(nemo, **eager), "torch.compile", "nemo-bf16"),
        Variant("nemo-bf16-eager-loss", "not_compiled", of(nemo, loss_compiled=False), "compile the loss", "nemo-bf16"),
        Variant("nemo-bf16-100277", "alignment", of(nemo, shape="nemo-100277"), "vocabulary padded to 100352", "nemo-bf16"),
        Variant("nemo-bf16-math", "attention", of(nemo, attention="math"), flash, "nemo-bf16"),
        Variant("3b-8k-bf16-fp32-head", "fp32", of(b3, head="fp32"), "head in BF16", "3b-8k-bf16"),
        Variant("3b-8k-bf16-breaks", "graph_breaks", of(b3, breaks=True), whole, "3b-8k-bf16"),
        Variant("3b-8k-bf16-1x1024", "small_batch", of(b3, batch=1, seq=1024), "8192 tokens", "3b-8k-bf16"),
        Variant("qwen-8k-rowwise", "", rq),
        Variant("qwen-8k-rowwise-loader", "launch_gaps", rq, ahead, "qwen-8k-rowwise", loader="sleep"),
        Variant("qwen-8k-rowwise-loop", "optimizer", rq, fused, "qwen-8k-rowwise", optimizer="loop"),
        Variant("qwen-8k-rowwise-eager", "not_compiled", of(rq, **eager), "torch.compile", "qwen-8k-rowwise"),
        Variant("8b-8k-tensorwise-4095", "alignment", of(t8, seq=4095), "sequences of 4096 tokens", "8b-8k-tensorwise"),
        Variant("13b-8k-bf16", "", b13),
        Variant("qwen3-8k-bf16", "", q3),
        Variant("3b-8k-bf16-recompiling", "recompilation", b3, "one sequence length, or dynamic=True", "3b-8k-bf16", varying=True),
        Variant("qwen-8k-rowwise-w1", "unconverted", of(rq, skipped=("w1",)), "convert w1", "qwen-8k-rowwise"),
        Variant("8b-8k-tensorwise-breaks", "graph_breaks", of(t8, breaks=True), whole, "8b-8k-tensorwise"),
    ]


SETS = {"developed": developed, "held-out": held_out}


def shrink(variant):
    """Returns the variant at the size of `tiny`, for a trial without a GPU."""
    given = SHAPES[variant.build.shape]
    shape = f"tiny-{variant.build.shape}"
    SHAPES[shape] = dataclasses.replace(SHAPES["tiny"], qk_norm=given.qk_norm, qkv_bias=given.qkv_bias, vocab=257 if given.vocab % 8 else 256)
    build = dataclasses.replace(variant.build, shape=shape, batch=2, seq=31 if variant.build.seq % 2 else 32)
    return dataclasses.replace(variant, build=build)


def math_attention(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def broken(function):
    def call(*args):
        torch._dynamo.graph_break()
        return function(*args)
    return call


class WithHook(nn.Module):
    """A block followed by what `after` does on the host."""

    def __init__(self, block):
        super().__init__()
        self.block, self.after = block, None

    def forward(self, *args):
        y = self.block(*args)
        if self.after:
            self.after(y)
        return y


@contextlib.contextmanager
def patched(build):
    """Replaces attention and FFN of the model while a build with other ones is compiled and run."""
    attention, ffn = pytorch_model.attention, pytorch_model.Swiglu.forward
    if build.attention == "math":
        pytorch_model.attention = math_attention
    if build.breaks:
        pytorch_model.attention = broken(pytorch_model.attention)
        pytorch_model.Swiglu.forward = broken(ffn)
    try:
        yield
    finally:
        pytorch_model.attention, pytorch_model.Swiglu.forward = attention, ffn


def convert(model, build, cpu):
    if build.recipe == "bf16":
        return
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    config = Float8LinearConfig.from_recipe_name(build.recipe)
    config = dataclasses.replace(config, pad_inner_dim=build.seq % 16 != 0, emulate=cpu)
    stays = ("out", *build.skipped)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda m, name: name.split(".")[-1] not in stays)
    if build.compiled == "linears":
        for module in model.modules():
            if type(module).__name__ == "Float8Linear":
                module.forward = torch._dynamo.disable(module.forward)


def fp32_head_loss(model):
    def loss(x, targets):
        logits = F.linear(x.float(), model.out.weight.float())
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return loss


class Step:
    """A model that is ready to train, and the steps of its variants."""

    def __init__(self, build, device):
        self.build, self.device = build, device
        self.cuda = device.type == "cuda"
        shape = SHAPES[build.shape]
        torch.manual_seed(0)
        with device:
            torch.set_default_dtype(torch.bfloat16)
            model = Model(shape)
            torch.set_default_dtype(torch.float32)
            for p in model.parameters():
                if p.ndim > 1:
                    nn.init.normal_(p, std=0.02)
            self.ids = torch.randint(0, shape.vocab, (build.batch, build.seq + 1), device=device)
            self.angles = rope_angles(shape, build.seq)
        convert(model, build, not self.cuda)
        if build.head == "fp32":
            model.loss = fp32_head_loss(model)
        backend = {} if self.cuda else {"backend": "aot_eager"}
        whole = build.compiled == "blocks" and not build.breaks
        for i, layer in enumerate(model.layers):
            if build.compiled != "off":
                layer = torch.compile(layer, fullgraph=whole, dynamic=False, **backend)
            model.layers[i] = WithHook(layer)
        if build.loss_compiled:
            model.loss = torch.compile(model.loss, dynamic=False, **backend)
        self.model = model
        self.optimizer = None
        self.count = 0

    def use(self, variant):
        """Prepares a variant's optimizer and what it does on the host."""
        after = {"": None, "sync": lambda y: self.sync(), "item": lambda y: y.detach()[0, 0, 0].item(),
                 "sleep": lambda y: time.sleep(1e-3), "stall": lambda y: (self.sync(), time.sleep(2e-3)),
                 "cpu": lambda y: y.detach().cpu()}[variant.block]
        for layer in self.model.layers:
            layer.after = after
        how = {"fused": dict(fused=True), "foreach": dict(foreach=True), "loop": dict(foreach=False)}[variant.optimizer]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, **how)
        self.variant = variant
        self.host = torch.zeros(48 << 20 if self.cuda else 1 << 16, dtype=torch.float32) if variant.loader == "copy" else None

    def sync(self):
        if self.cuda:
            torch.cuda.synchronize()

    def run(self):
        ids, angles = self.ids, self.angles
        if self.variant.varying:
            self.count += 1
            T = self.build.seq - self.build.seq // 32 * self.count
            ids, angles = ids[:, :T + 1], tuple(a[:T].contiguous() for a in angles)
        if self.variant.loader == "sleep":
            self.sync()  # as where the loss is logged in every step
            time.sleep(5e-3)
        if self.host is not None:
            self.host.to(self.device)
        for _ in range(self.variant.micro):
            loss = self.model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), *angles)
            loss.backward()
        if self.variant.clip:
            self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def clip(self):
        """Clips the norm of the gradients to 1, as most programs do."""
        if self.variant.clip == "gpu":
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            return
        gradients = [p.grad for p in self.model.parameters()]
        norm = sum(g.norm().item() ** 2 for g in gradients) ** 0.5
        torch._foreach_mul_(gradients, min(1.0, 1 / (norm + 1e-6)))

    def timed(self, count):
        self.sync()
        start = time.perf_counter()
        for _ in range(count):
            self.run()
        self.sync()
        return (time.perf_counter() - start) * 1e3 / count

    def measure(self):
        """Returns the step's time in ms in three runs in which the host may run ahead, or in one."""
        self.timed(2 if self.cuda else 1)
        if self.variant.varying or not self.cuda:
            return [self.timed(1)]
        once = self.timed(2)
        count = max(3, min(30, int(250 / once)))
        return [self.timed(count) for _ in range(3)]

    def trace(self, path):
        """Traces two steps after one under the profiler; returns their time in ms."""
        from torch.profiler import ProfilerActivity, profile, schedule
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.cuda else [])
        active = 1 if self.variant.varying else 2
        begun = []
        with profile(activities=activities, record_shapes=True, schedule=schedule(wait=0, warmup=1, active=active),
                     on_trace_ready=lambda p: p.export_chrome_trace(str(path))) as profiler:
            for i in range(1 + active):
                if i == 1:
                    self.sync()
                    begun.append(time.perf_counter())
                self.run()
                if i == active:
                    self.sync()
                    begun.append(time.perf_counter())
                profiler.step()
        return (begun[1] - begun[0]) * 1e3 / active


def nsys_program():
    """Returns the path of Nsight Systems' command-line program, or None."""
    found = sorted(glob.glob("/opt/nvidia/nsight-systems*/**/bin/nsys", recursive=True) + glob.glob("/usr/local/cuda*/bin/nsys"))
    return shutil.which("nsys") or (found[-1] if found else None)


def run_with_ranges(variant):
    """Runs three steps with NVTX ranges, for Nsight Systems; its capture begins after warm-up."""
    with patched(variant.build):
        step = Step(variant.build, torch.device("cuda"))
        step.use(variant)
        step.timed(3)
        torch.cuda.profiler.start()
        with torch.autograd.profiler.emit_nvtx(record_shapes=True):
            for i in range(3):
                with torch.cuda.nvtx.range(f"ProfilerStep#{i}"):
                    step.run()
            step.sync()
        torch.cuda.profiler.stop()


def profile_with_nsys(nsys, out, line):
    """Profiles a variant in a process of its own and exports the profile to SQLite; fills its line of the manifest."""
    base = out / line["name"]
    try:
        for command in ([nsys, "profile", "--trace", "cuda,nvtx", "--sample", "none", "--cpuctxsw", "none", "--capture-range", "cudaProfilerApi",
                         "--force-overwrite", "true", "--output", base, sys.executable, __file__, "--with-ranges", NSYS_VARIANT],
                        [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", f"{base}.sqlite", f"{base}.nsys-rep"]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=NSYS_SECONDS)
            if done.returncode and not pathlib.Path(f"{base}.nsys-rep").is_file():
                raise RuntimeError(f"nsys {command[1]}: {(done.stderr or done.stdout)[-300:]}")
        line["trace"] = f"{base.name}.sqlite.gz"
        (out / line["trace"]).write_bytes(gzip.compress(pathlib.Path(f"{base}.sqlite").read_bytes()))
    except Exception as error:  # as for variants
        line.pop("trace", None)
        line["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    print(f"{line['name']}: {line.get('error', 'profiled')}", flush=True)


def pack(out, lines):
    """Writes the traces into archives that are small enough to move."""
    archive, size, count = None, 0, 0
    for line in lines:
        path = out / line.get("trace", "-")
        if not path.is_file():
            continue
        if archive is None or size + path.stat().st_size > LARGEST_TAR:
            if archive:
                archive.close()
            archive, size, count = tarfile.open(out / f"traces-{count}.tar", "w"), 0, count + 1
        archive.add(path, arcname=path.name)
        size += path.stat().st_size + 1024
    if archive:
        archive.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="traces", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=240, help="no variant is started after so many seconds")
    parser.add_argument("--set", default="developed", choices=SETS)
    parser.add_argument("--only", help="names of variants, separated by commas")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="models of the size of `tiny`")
    parser.add_argument("--with-ranges", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.with_ranges:
        return run_with_ranges(next(v for v in held_out() if v.name == args.with_ranges))
    begun = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cpu" if args.cpu else "cuda")
    if args.cpu:
        torch.set_num_threads(1)
    lines, step, build = [], None, None
    nsys = nsys_program() if args.set == "held-out" and not args.cpu and not args.only else None
    seconds = args.seconds - (NSYS_SECONDS / 2 if nsys else 0)
    chosen = [v for v in SETS[args.set]() if not args.only or v.name in args.only.split(",")]
    manifest = dict(**provenance(device), set=args.set, variants=lines)

    def save():
        measured = {line["name"]: line["step_ms"] for line in lines if "step_ms" in line}
        for line in lines:
            if line.get("repaired") in measured:
                line["repaired_step_ms"] = measured[line["repaired"]]
        (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")

    for variant in chosen:
        if args.tiny:
            variant = shrink(variant)
        started = time.perf_counter()
        if started - begun > seconds:
            print(f"{variant.name}: left out, {seconds:.0f} s are spent", flush=True)
            continue
        shape = SHAPES[variant.build.shape]
        line = dict(name=variant.name, fault=variant.fault, repair=variant.repair, repaired=variant.repaired,
                    batch=variant.build.batch, seq=variant.build.seq, recipe=variant.build.recipe,
                    model=dataclasses.asdict(shape), skipped=list(variant.build.skipped))
        try:
            if variant.build != build:
                step = None
                gc.collect()
                torch._dynamo.reset()
                build = None
                with patched(variant.build):
                    step, build = Step(variant.build, device), variant.build
            step.use(variant)
            with patched(variant.build):
                runs = step.measure()
                line["step_ms"] = round(sorted(runs)[len(runs) // 2], 3)
                path = args.out / f"{variant.name}.json.gz"
                line["profiled_step_ms"] = round(step.trace(path), 3)
                if not variant.varying:
                    runs.append(step.timed(3))  # after the trace: clocks may have dropped meanwhile
                line["runs_ms"] = [round(ms, 3) for ms in runs]
            size = path.stat().st_size
            if size > LARGEST_TRACE:
                line["left_out"] = f"{size} bytes"
                path.unlink()
            else:
                line["trace"] = path.name
            print(f"{variant.name}: {line['step_ms']} ms, traced {line['profiled_step_ms']} ms, {size >> 10} KiB, "
                  f"{time.perf_counter() - started:.1f} s", flush=True)
        except Exception as error:  # a failed variant is a line, not the end
            line["error"] = f"{type(error).__name__}: {str(error)[:300]}"
            print(f"{variant.name}: {line['error'].splitlines()[0]}", flush=True)
            step = build = None
        lines.append(line)
        save()
    if args.set == "held-out" and not args.only:
        step = None
        gc.collect()
        lines.append(dict(name=f"{NSYS_VARIANT}-nsys", profile=NSYS_VARIANT))
        if nsys:
            profile_with_nsys(nsys, args.out, lines[-1])
        else:
            lines[-1]["left_out"] = "nsys is not installed"
        save()
    pack(args.out, lines)
    done = sum("trace" in line for line in lines)
    print(f"{done} traces of {len(chosen)} variants in {time.perf_counter() - begun:.0f} s")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
