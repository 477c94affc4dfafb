#!/usr/bin/env python3
"""Makes kernels/device/golden/mx.txt.xz, the reference for the quantizers in kernels/device/mx_golden_test.cpp.

Needs torch and torchao, only to regenerate the file.
Usage: tools/goldens/make_mx_goldens.py | xz -9e > kernels/device/golden/mx.txt.xz

torchao's to_mx quantizes blocks of 32 with each of its scale roundings, to E4M3 and to E5M2; and squares of
32x32, each as one block of 1024. Sections: a name, a count, and hexadecimal words. "input": BF16 bits, [32,
64]; "FORMAT.ROUNDING.scales" and ".codes": bytes, two scales per row. "squares": BF16 bits, [64, 96];
"squares.FORMAT.scales" (bytes, [2, 3]) and ".codes".
"""
import sys

import torch
import torchao
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

ROWS, COLS, BLOCK = 32, 64, 32
TALL, WIDE = 64, 96


def blocks():
    """Returns blocks of every size that a scale can normalize, with amaxes around the edges at which
    roundings differ."""
    generator = torch.Generator().manual_seed(20251122)
    x = torch.randn(ROWS, COLS // BLOCK, BLOCK, generator=generator)
    powers = torch.linspace(-100, 100, ROWS * COLS // BLOCK).round().reshape(ROWS, COLS // BLOCK, 1)
    edges = torch.tensor([1.0, 1.75, 1.765625, 1.875, 1.9375, 1.953125, 1.9921875, 1.0078125])
    x = x / x.abs().amax(-1, keepdim=True) * 0.99
    x[:, :, 7] = edges.repeat(ROWS * COLS // BLOCK // len(edges)).reshape(ROWS, COLS // BLOCK)
    x = x * torch.exp2(powers)
    x[5, 0] = 0
    return x.reshape(ROWS, COLS).to(torch.bfloat16)


def squares():
    """Returns squares of sizes around the edge at which a scale rounds up, one with subnormal
    codes, one empty."""
    generator = torch.Generator().manual_seed(20251123)
    x = torch.randn(TALL // BLOCK, WIDE // BLOCK, BLOCK, BLOCK, generator=generator)
    x = x / x.abs().amax((-1, -2), keepdim=True)
    x[..., 3] *= 2.0**-14
    x[:, :, 17, 5] = torch.tensor([[1.75, -1.765625, 1.9921875], [-1.875, 1.0, 1.0078125]])
    x = x * torch.exp2(torch.tensor([[0.0, 20.0, -30.0], [3.0, -80.0, 1.0]]))[..., None, None]
    x[1, 2] = 0
    return x.to(torch.bfloat16)


def whole(x):
    """Assembles [64, 96] from its squares."""
    return x.permute(0, 2, 1, 3).reshape(TALL, WIDE)


def bits(x):
    return x.contiguous().view(torch.int16).numpy().view("uint16")


def section(name, values):
    words = [int(v) for v in values.flatten()]
    print(f"{name} {len(words)}")
    for i in range(0, len(words), 32):
        print(" ".join(f"{w:x}" for w in words[i : i + 32]))


if __name__ == "__main__":
    print(f"made with torch {torch.__version__}, torchao {torchao.__version__}", file=sys.stderr)
    x = blocks()
    section("input", bits(x))
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        for mode in ScaleCalculationMode:
            scales, codes = to_mx(x, dtype, BLOCK, mode)
            section(f"{name}.{mode.value}.scales", scales.view(torch.uint8))
            section(f"{name}.{mode.value}.codes", codes.view(torch.uint8))
    x = squares()
    section("squares", bits(whole(x)))
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        scales, codes = to_mx(x.reshape(-1, BLOCK * BLOCK), dtype, BLOCK * BLOCK, ScaleCalculationMode.RCEIL)
        section(f"squares.{name}.scales", scales.view(torch.uint8))
        section(f"squares.{name}.codes", whole(codes.view(torch.uint8).reshape(x.shape)))
