#!/usr/bin/env python3
"""Measures the deviation of a training step's gradient from FP32: that of BF16 itself, and that of a recipe.

usage: fp32_gradient.py CHECKPOINT TOKENS SEQ GRADIENTS.safetensors...

CHECKPOINT is a folder written by `--checkpoint-every` (FP32 master), TOKENS a file of 8-bit text or .u16 with
N x SEQ + 1 tokens, and GRADIENTS the gradients of one step from there over all N sequences:

  precbench run --fork-from CHECKPOINT --steps 1 --batch N --seq SEQ --data TOKENS --save-grads GRADIENTS ...

The reference is the same model in PyTorch, entirely in FP32, from the unrounded weights. Prints for each file
the relative error, cosine and bias of the whole gradient, like the fidelity probe for a recipe against BF16.
Needs torch and numpy.
"""
import json, math, pathlib, struct, sys

import numpy
import torch
import torch.nn.functional as F


def tensors_of(path):
    """Returns the tensors of a safetensors file of F32 and BF16, as FP32."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    result = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = bytearray(data[8 + size + begin:8 + size + end])
        dtype = {"F32": torch.float32, "BF16": torch.bfloat16}[entry["dtype"]]
        result[name] = torch.frombuffer(raw, dtype=dtype).reshape(entry["shape"]).float()
    return result


def rope(x, theta):
    """Applies RoPE to q or k [B, heads, T, head_dim], rotating halves like Hugging Face."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(x.shape[-2], device=x.device, dtype=torch.float64), frequencies)
    cos, sin = angles.cos().float(), angles.sin().float()
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


# Keys of a model's definition that loss_of reads, or that say nothing about the arithmetic.
READ = {"name", "layers", "width", "ffn", "heads", "kv_heads", "head_dim", "vocab", "tied", "rope_theta", "norm_eps",
        "max_positions"}


def refuse_other_models(model):
    """Ends the script for what loss_of does not compute; other keys are written only if they differ from Llama's."""
    more = sorted(key for key, value in model.items() if key not in READ and value not in (False, None, 0, "", []))
    if more:
        sys.exit(f"the model has what this script does not compute: {', '.join(more)}")


def loss_of(w, model, ids, targets):
    eps, hd = model["norm_eps"], model["head_dim"]
    norm = lambda x, name: F.rms_norm(x, (x.shape[-1],), w[name], eps)
    B, T = ids.shape
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(model["layers"]):
        at = lambda name: w[f"model.layers.{layer}.{name}.weight"]
        y = norm(x, f"model.layers.{layer}.input_layernorm.weight")
        heads = lambda name: F.linear(y, at(f"self_attn.{name}_proj")).view(B, T, -1, hd).transpose(1, 2)
        q, k = rope(heads("q"), model["rope_theta"]), rope(heads("k"), model["rope_theta"])
        o = F.scaled_dot_product_attention(q, k, heads("v"), is_causal=True, enable_gqa=True)
        x = x + F.linear(o.transpose(1, 2).reshape(B, T, -1), at("self_attn.o_proj"))
        y = norm(x, f"model.layers.{layer}.post_attention_layernorm.weight")
        x = x + F.linear(F.silu(F.linear(y, at("mlp.gate_proj"))) * F.linear(y, at("mlp.up_proj")), at("mlp.down_proj"))
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return F.cross_entropy(F.linear(norm(x, "model.norm.weight"), head).flatten(0, 1), targets.flatten())


def reference(checkpoint, tokens, T, device):
    """Returns loss and gradient in FP32, a few sequences at a time."""
    model = json.loads((pathlib.Path(checkpoint) / "state.json").read_text())["definition"]["model"]
    refuse_other_models(model)
    weights = {name: value.to(device).requires_grad_() for name, value in
               tensors_of(pathlib.Path(checkpoint) / "weights.safetensors").items()}
    kind = numpy.uint16 if tokens.endswith(".u16") else numpy.uint8
    words = torch.from_numpy(numpy.fromfile(tokens, dtype=kind).astype(numpy.int64)).to(device)
    if (len(words) - 1) % T:
        sys.exit(f"{tokens}: {len(words)} tokens are not N x {T} + 1")
    ids, targets = words[:-1].view(-1, T), words[1:].view(-1, T)
    total = 0.0
    for i in range(0, len(ids), 8):
        loss = loss_of(weights, model, ids[i:i + 8], targets[i:i + 8]) * (len(ids[i:i + 8]) / len(ids))
        loss.backward()
        total += loss.item()
    return total, {name: value.grad.cpu() for name, value in weights.items()}


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    checkpoint, tokens, T = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    loss, exact = reference(checkpoint, tokens, T, "cuda" if torch.cuda.is_available() else "cpu")
    print(f"loss in FP32 {loss:.6f}")
    for path in sys.argv[4:]:
        rr = gg = rg = difference = 0.0
        gradient = tensors_of(path)
        if gradient.keys() != exact.keys():
            sys.exit(f"{path}: it is of another model")
        for name, g in exact.items():
            r, g = gradient[name].double(), g.double()
            rr, gg, rg = rr + (r * r).sum().item(), gg + (g * g).sum().item(), rg + (r * g).sum().item()
            difference += ((r - g) ** 2).sum().item()
        print(f"{path}: error {100 * math.sqrt(difference / gg):.3f}%, cosine {rg / math.sqrt(rr * gg):.6f}, "
              f"bias {100 * (rg - gg) / gg:+.3f}%")


main()
