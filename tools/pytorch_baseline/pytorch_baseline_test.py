#!/usr/bin/env python3
"""Tests that the PyTorch baseline's step is precbench's: its loss and every gradient, for the same initial
weights and text.

Usage: tools/pytorch_baseline/pytorch_baseline_test.py [PRECBENCH, default build/precbench]

Skipped without torch or safetensors, as the program itself needs none.
"""
import argparse, contextlib, dataclasses, importlib.util, json, os, pathlib, random, subprocess, sys, tempfile, time, unittest
from unittest import mock

try:
    import torch
    from safetensors.torch import load_file
    from torch.distributed.tensor import DTensor
except ImportError as error:
    print(f"tools/pytorch_baseline/pytorch_baseline_test.py: skipped: {error}")
    sys.exit(0)

from pytorch_families import Family, family_names
from pytorch_model import MODELS, Model, Shape, rope_angles
import pytorch_step
from pytorch_step import convert, join_ranks
from pytorch_tensor import loss_parallel, parallelize

PRECBENCH = pathlib.Path(__file__).resolve().parents[2] / "build/precbench"
B, T = 2, 128
# Qwen3's experts at tiny's size, in our own keys and PyTorch's: q and k norms, untied head, top-3 of eight.
QWEN = dict(name="tiny-qwen-moe", layers=2, width=128, ffn=192, heads=4, kv_heads=2, head_dim=32, vocab=256, tied=False,
            qk_norm=True, rope_theta=1e6, norm_eps=1e-6, experts=8, top_k=3, expert_ffn=64)
QWEN_SHAPE = Shape(2, 128, 64, 4, 2, 32, 256, False, 1e6, 1e-6, True, experts=8, top_k=3)
# OLMoE: a norm over all heads of q and of k, and weights that are not normalized.
OLMOE = dict(QWEN, name="tiny-olmoe", qk_norm_over="heads", normalise=False, norm_eps=1e-5)
OLMOE_SHAPE = dataclasses.replace(QWEN_SHAPE, eps=1e-5, over_heads=True, normalise=False)
# Qwen2.5's biases of q, k and v, initially 0.
BIASED = dict(name="tiny-biased", layers=2, width=128, ffn=384, heads=4, kv_heads=2, head_dim=32, vocab=256, tied=True, qkv_bias=True)
BIASED_SHAPE = Shape(2, 128, 384, 4, 2, 32, 256, True, qkv_bias=True)
UNTIED = dict(BIASED, name="tiny-untied", tied=False, qkv_bias=False)
UNTIED_SHAPE = dataclasses.replace(BIASED_SHAPE, tied=False, qkv_bias=False)
# Relative limits for BF16 on both sides, which round in different places. Observed are 0.00001 and 0.018, and
# 0.08 for gradients if some tokens go to other experts. Wrong steps deviate by 0.8 or more.
LOSS, GRADIENT, FLIPPED = 4e-5, 0.03, 0.15
LOSS_FP8, GRADIENT_FP8 = 4e-4, 0.2
NAMES = {"attn.wq": "self_attn.q_proj", "attn.wk": "self_attn.k_proj", "attn.wv": "self_attn.v_proj", "attn.wo": "self_attn.o_proj",
         "attn.nq": "self_attn.q_norm", "attn.nk": "self_attn.k_norm", "n1": "input_layernorm", "n2": "post_attention_layernorm",
         "ffn.w1": "mlp.gate_proj", "ffn.w3": "mlp.up_proj", "ffn.w2": "mlp.down_proj", "ffn.router": "mlp.gate"}


def as_pytorch(name, tensors, experts):
    """Returns a baseline parameter from tensors under precbench's names."""
    whole = {"emb.weight": "model.embed_tokens.weight", "norm.w": "model.norm.weight", "out.weight": "lm_head.weight"}
    if name in whole:
        return tensors[whole[name]]
    _, layer, part = name.split(".", 2)
    at = f"model.layers.{layer}."
    if part not in ("ffn.gate_up", "ffn.down"):
        module, kind = part.rsplit(".", 1)
        return tensors[f"{at}{NAMES[module]}.{'bias' if kind == 'bias' else 'weight'}"]
    parts = ["down"] if part == "ffn.down" else ["gate", "up"]
    expert = lambda e: torch.cat([tensors[f"{at}mlp.experts.{e}.{what}_proj.weight"] for what in parts])
    return torch.stack([expert(e) for e in range(experts)])


def our_step(model, *flags):
    """Returns initial weights, gradients and loss of precbench on the CPU (in bf16 or according to `flags`),
    and the text that it read."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if isinstance(model, dict):
            (folder / "model.json").write_text(json.dumps(model))
            model = folder / "model.json"
        text = random.Random(3).randbytes(B * T + 1)
        (folder / "text").write_bytes(bytes(32 + byte % 95 for byte in text))
        command = [PRECBENCH, "run", "--model", model, "--device", "cpu", "--batch", B, "--seq", T, "--steps", 1,
                   "--clip", 0, "--data", folder / "text", "--save-init", folder / "init.safetensors", "--save-grads",
                   folder / "grads.safetensors", *flags]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        record = json.loads(done.stdout)
        assert record["status"] == "ok", record["error"]
        return (load_file(folder / "init.safetensors"), load_file(folder / "grads.safetensors"), record["training"]["loss"][0],
                torch.tensor(list((folder / "text").read_bytes())))


def pytorch_gradients(shape, weights, words, change, device, dtype=torch.bfloat16):
    """Returns loss and gradients; `change` is applied to the model first."""
    torch.set_default_dtype(dtype)
    model = Model(shape)
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(as_pytorch(name, weights, shape.experts))
    for experts in model.experts():
        experts.forced = True
    model.to(device)
    if change:
        change(model)
    inputs = words[:-1].view(B, T), words[1:].view(B, T), *rope_angles(shape, T)
    loss = model(*(value.to(device) for value in inputs))
    loss.backward()
    whole = lambda g: g.full_tensor() if isinstance(g, DTensor) else g
    grads = {name.replace("_orig_mod.", ""): whole(p.grad).float().cpu() for name, p in model.named_parameters()}
    return whole(loss).item(), grads


def gather_bytes(op, args, kwargs=None):
    """Gathers FP8 data as bytes, which gloo needs."""
    x = args[0]
    data = op(x._data.contiguous().view(torch.uint8), *args[1:], **kwargs or {}).view(x._data.dtype)
    return type(x)(data, x._scale, x._orig_dtype, x._linear_mm_config, x._gemm_input_role)


def tensor_rank(rank, folder, recipe, change, *step):
    """One of two ranks that divide the step. Rank 0 saves its loss and the whole gradients."""
    join_ranks(torch.device("cpu"), argparse.Namespace(rank=rank, tensor=2, store=f"{folder}/store"))
    if recipe == "tensorwise":
        from torchao.float8.float8_ops import FLOAT8_OPS_TABLE as ops
        ops.update({op: gather_bytes for op in ops if "all_gather_into_tensor" in str(op)})

    def divide(model):
        if change:
            change(model)
        convert(model, recipe)
        parallelize(model, "cpu", recipe)

    shape, weights, words, dtype = step
    with loss_parallel():
        result = pytorch_gradients(shape, weights, words, divide, "cpu", dtype)
    if rank == 0:
        torch.save(result, f"{folder}/result")


def divided_gradients(shape, weights, words, change=None, recipe="bf16", dtype=torch.bfloat16):
    """Returns loss and gradients of two tensor-parallel ranks on the CPU, with `change` before the model is divided."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(tensor_rank, (folder, recipe, change, shape, weights, words, dtype), nprocs=2)
        return torch.load(f"{folder}/result")


def apart(theirs, loss, exact):
    """Returns the relative differences of the losses and of the worst gradient."""
    worst = max(((g - exact(name)).norm() / exact(name).norm()).item() for name, g in theirs[1].items())
    return abs(theirs[0] / loss - 1), worst


BALANCED, LEARNED, TENSOR = ("--routing", "balanced", "--aux", 0), ("--aux", 0), ("--gpus", 2, "--tensor", 2)


def learned(model):
    for experts in model.experts():
        experts.forced = False


def next_expert(model):
    """Replaces each expert of the first block by the one before."""
    experts = model.experts()[0]
    experts.down.data = experts.down.data.roll(1, 0)


def gate_for_up(model):
    experts = model.experts()[0]
    experts.gate_up.data = experts.gate_up.data.roll(experts.gate_up.shape[1] // 2, 1)


def compiled(model):
    backend = "inductor" if torch.cuda.is_available() else "aot_eager"
    for i, layer in enumerate(model.layers):
        model.layers[i] = torch.compile(layer, fullgraph=True, dynamic=False, backend=backend)


def rowwise(model):
    convert(model, "rowwise")
    compiled(model)


def other_biases(model):
    model.layers[1].attn.wk.bias.data.fill_(0.5)


def other_heads(model):
    """Swaps the ranks' halves of the first output projection."""
    wo = model.layers[0].attn.wo.weight
    wo.data = wo.data.roll(wo.shape[1] // 2, 1)


def no_norm_of_keys(model):
    model.layers[1].attn.nk = torch.nn.Identity()


class Step(unittest.TestCase):
    def with_ours(self, model, shape, flags=(), change=None, device="cpu", theirs=pytorch_gradients):
        weights, grads, loss, words = our_step(model, *flags)
        return apart(theirs(shape, weights, words, change, device), loss, lambda name: as_pytorch(name, grads, shape.experts))

    def expect_ours(self, *case, **more):
        loss, gradient = self.with_ours(*case, **more)
        self.assertLess(loss, LOSS)
        self.assertLess(gradient, GRADIENT)

    def test_a_dense_model(self):
        self.expect_ours("tiny", MODELS["tiny"])
        self.expect_ours(BIASED, BIASED_SHAPE)

    def test_experts_in_turns(self):
        self.expect_ours("tiny-moe", MODELS["tiny-moe"], BALANCED)
        self.expect_ours(QWEN, QWEN_SHAPE, BALANCED)
        self.expect_ours(OLMOE, OLMOE_SHAPE, BALANCED)

    def test_a_block_with_experts_is_one_graph(self):
        self.expect_ours(QWEN, QWEN_SHAPE, BALANCED, change=compiled)

    def test_experts_that_the_router_chooses(self):
        """The baseline rounds logits to BF16, so a few tokens with close choices go to other experts."""
        loss, gradient = self.with_ours(QWEN, QWEN_SHAPE, LEARNED, change=learned)
        self.assertLess(loss, LOSS)
        self.assertLess(gradient, FLIPPED)

    def test_a_wrong_step_is_found(self):
        for change in learned, next_expert, gate_for_up, no_norm_of_keys:
            loss, gradient = self.with_ours(QWEN, QWEN_SHAPE, BALANCED, change=change)
            self.assertGreater(loss, LOSS, change.__name__)
            self.assertGreater(gradient, FLIPPED, change.__name__)
        _, gradient = self.with_ours(BIASED, BIASED_SHAPE, change=other_biases)
        self.assertGreater(gradient, FLIPPED)
        normalised = dataclasses.replace(OLMOE_SHAPE, normalise=True)
        for shape, change in (normalised, None), (OLMOE_SHAPE, no_norm_of_keys):
            _, gradient = self.with_ours(OLMOE, shape, BALANCED, change=change)
            self.assertGreater(gradient, FLIPPED, change)

    def test_tensor_ranks(self):
        divided = lambda shape, weights, words, change, _: divided_gradients(shape, weights, words, change)
        self.expect_ours("tiny", MODELS["tiny"], TENSOR, theirs=divided)
        self.expect_ours(UNTIED, UNTIED_SHAPE, TENSOR, theirs=divided)
        _, gradient = self.with_ours(UNTIED, UNTIED_SHAPE, TENSOR, change=other_heads, theirs=divided)
        self.assertGreater(gradient, FLIPPED)

    @unittest.skipUnless(importlib.util.find_spec("torchao"), "needs torchao")
    def test_tensor_ranks_in_tensorwise(self):
        divided = lambda shape, weights, words, change, _: divided_gradients(shape, weights, words, change, "tensorwise")
        loss, gradient = self.with_ours(UNTIED, UNTIED_SHAPE, (*TENSOR, "--recipe", "tensorwise", "--reduce-amax", "group"),
                                        theirs=divided)
        self.assertLess(loss, LOSS_FP8)
        self.assertLess(gradient, GRADIENT_FP8)

    def test_tensor_ranks_equal_one_rank(self):
        """In FP32, and in emulated tensorwise, which has the scales of one rank: other sums move a few values to the next one
        of FP8. Without biases, whose gradients torchao's tensor ranks sum from FP8."""
        cases = [(BIASED, BIASED_SHAPE, other_biases, "fp32", 1e-5)]
        if importlib.util.find_spec("torchao"):
            cases.append((UNTIED, UNTIED_SHAPE, other_heads, "tensorwise", 0.02))
        for model, shape, change, recipe, limit in cases:
            weights, _, _, words = our_step(model)
            change_one = lambda model: (change(model), convert(model, recipe))
            loss, whole = pytorch_gradients(shape, weights, words, change_one, "cpu", torch.float32)
            divided = divided_gradients(shape, weights, words, change, recipe, torch.float32)
            self.assertEqual(sorted(divided[1]), sorted(whole))
            for difference in apart(divided, loss, whole.get):
                self.assertLess(difference, limit, recipe)

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_on_a_gpu(self):
        self.expect_ours(QWEN, QWEN_SHAPE, BALANCED, change=compiled, device="cuda")

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_rowwise_on_a_gpu(self):
        """torchao's expert scales are powers of two, so the FP8 errors differ from ours but
        are equally large."""
        loss, gradient = self.with_ours(QWEN, QWEN_SHAPE, (*BALANCED, "--recipe", "rowwise"), change=rowwise, device="cuda")
        self.assertLess(loss, LOSS_FP8)
        self.assertLess(gradient, GRADIENT_FP8)


class Families(unittest.TestCase):
    """Transformers' models are compared with precbench's in the goldens; here only that these are the presets."""

    def test_parameters_are_those_of_the_presets(self):
        try:
            import transformers  # noqa: F401
        except ImportError as error:
            self.skipTest(str(error))
        answer = subprocess.run([PRECBENCH, "list", "models", "--json"], capture_output=True, text=True, check=True)
        presets = {model["name"]: model["parameters"] for model in json.loads(answer.stdout)["models"]}
        for name in family_names():
            with torch.device("meta"):
                model = Family(name)
                few = Family(name + "/2")
            self.assertEqual(sum(p.numel() for p in model.parameters()), presets[name], name)
            self.assertEqual(len(few.layers), 2, name)


class Apart(unittest.TestCase):
    """A case in its own process."""

    def line_of(self, body):
        # Uses a file, whose descriptor the child's output replaces.
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "output"
            with path.open("w") as output, contextlib.redirect_stdout(output), \
                 mock.patch.object(pytorch_step, "attempt", lambda *_: body()):
                pytorch_step.attempt_apart("1b:bf16:1:8", None, argparse.Namespace(tensor=1))
            return path.read_text()

    def test_its_line_waits_for_its_end(self):
        def slow():
            print("line", flush=True)
            time.sleep(0.5)
        begun = time.monotonic()
        self.assertEqual(self.line_of(slow), "line\n")
        self.assertGreater(time.monotonic() - begun, 0.5)

    def test_ranks_print_one_line(self):
        """Also where both ranks fail."""
        step = [sys.executable, pytorch_step.__file__, "--device", "cpu", "--steps", "1", "--warmup", "1"]
        cases = ["tiny:fp32:2:128", "tiny-moe:fp32:2:128"]
        run = lambda *words: [json.loads(line) for line in subprocess.run(
            [*step, *words], env={**os.environ, "TORCHDYNAMO_DISABLE": "1"}, capture_output=True, text=True).stdout.splitlines()]
        (one,), (two, bad) = run(cases[0]), run("--tensor", "2", *cases)
        self.assertEqual((two["gpus"], two["tensor"], two["loss"]), (2, 2, one["loss"]))
        self.assertRegex(bad["error"], "--tensor divides the dense models")

    def test_what_ends_badly_has_one_line(self):
        def bad():
            print("line", flush=True)
            os._exit(3)
        self.assertEqual(json.loads(self.line_of(bad)), {"case": "1b:bf16:1:8", "error": "ended with exit status 3"})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PRECBENCH = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
