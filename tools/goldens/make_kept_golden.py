#!/usr/bin/env python3
"""Makes models/transformer/golden/kept.json.xz: the step of step_llama.safetensors.xz with the inputs of norms and of SwiGLU kept in
groups of 16 E4M3 elements with a UE5M3 scale (stack "coat" of --kept), by PyTorch autograd. Needs torch (CPU), only to regenerate it.

    python3 tools/goldens/make_kept_golden.py

Forward and backward compute from the dequantized inputs; the gradient passes the quantization unchanged. Everything else is
rounded to BF16 where precbench's `bf16` recipe rounds. `loss` is the mean cross-entropy in nats, `grad` the gradients as BF16 bits,
and `moved` the relative distance of each gradient from that without quantization.
"""
import json
import lzma
import math
import pathlib

import torch

from step_model import Bf16, loss_of, rounding_op, unrounded

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "models/transformer/golden"
TYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "I32": torch.int32, "U16": torch.uint16}
GROUP, E4M3_MAX, UE5M3_MAX = 16, 448.0, 114688.0


def read_safetensors(data):
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__")
    body = bytearray(data[8 + size :])
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = torch.frombuffer(body[begin:end], dtype=TYPES[entry["dtype"]]).reshape(entry["shape"])
    return metadata, tensors


def ue5m3(x):
    """Rounds x >= 0 to the nearest value of five exponent bits (bias 15) and three mantissa bits, to even."""
    exponent = torch.floor(torch.log2(x.clamp(min=2.0**-17))).clamp(min=-14)
    step = torch.exp2(exponent - 3)
    return (torch.round(x / step) * step).clamp(max=UE5M3_MAX)  # torch.round rounds ties to even


def quantized(x):
    """Returns the dequantized groups of 16 of each row; FP32 arithmetic, one operation at a time."""
    groups = x.to(torch.float32).reshape(-1, GROUP)
    scale = ue5m3(groups.abs().amax(-1, keepdim=True) * (torch.tensor(1.0) / E4M3_MAX))
    multiplier = torch.where(scale == 0, torch.finfo(torch.float32).max, 1 / scale)
    codes = (groups * multiplier).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (codes.to(torch.float32) * scale).reshape(x.shape).to(x.dtype)


class Kept(Bf16):
    kept = rounding_op(quantized, unrounded)  # the gradient passes as if nothing was quantized


def step(config, weights, tokens, mode):
    w = {name: tensor.to(torch.float64).requires_grad_() for name, tensor in weights.items()}
    loss = loss_of(config, w, tokens, mode)
    loss.backward()
    return loss.item(), {name: tensor.grad for name, tensor in w.items()}


def main():
    metadata, tensors = read_safetensors(lzma.decompress((GOLDEN / "step_llama.safetensors.xz").read_bytes()))
    config = json.loads(metadata["config"])
    tokens = tensors["tokens"]
    weights = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16}
    _, exact = step(config, weights, tokens, Bf16)
    loss, grads = step(config, weights, tokens, Kept)
    bits = lambda x: [word & 0xFFFF for word in x.to(torch.bfloat16).view(torch.int16).flatten().tolist()]
    moved = {name: ((grads[name] - exact[name]).norm() / exact[name].norm()).item() for name in grads}
    print(f"loss {loss:.6f}; gradients moved by {min(moved.values()):.3f} to {max(moved.values()):.3f}")
    text = json.dumps({"loss": loss, "moved": moved, "grad": {name: "".join(f"{b:04x}" for b in bits(g)) for name, g in grads.items()}})
    (GOLDEN / "kept.json.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
