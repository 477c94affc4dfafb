#!/usr/bin/env python3
r"""Makes kernels/numerics/golden/nvfp4.txt.xz, the reference for NVFP4 in kernels/numerics/nvfp4_rounding_test.cpp.

Needs torch, g++ and source trees of torchao, whose tests have TransformerEngine's arithmetic in PyTorch, and
of TransformerEngine, whose stochastic rounding runs on the CPU (third_party_cuda.py), only to regenerate the
file. Usage, with AO and TE the trees:
  PYTHONPATH=AO:AO/test/prototype/moe_training/nvfp4_training tools/goldens/make_nvfp4_goldens.py TE \
    | xz -9e > kernels/numerics/golden/nvfp4.txt.xz

Sections: a name, a count, and hexadecimal words. "input": BF16 bits, [64, 48]; "rht": BF16 bits of its
transpose with the Hadamard transform, [48, 64]. For each of "1x16", "16x16" and "rht.1x16", ".amax" (FP32
bits), ".scales" (e4m3 bytes, one per 16 elements of a row) and ".codes" (bytes of two elements).
"1x16.stochastic.bytes": a random byte per element, and ".codes": the resulting codes, with the scales of
"1x16".
"""
import sys

import torch
from nvfp4_reference import nvfp4_reference_quantize, pack_fp4, reference_rht

from third_party_cuda import TransformerEngineCuda

ROWS, COLS = 64, 48


def matrix():
    """Returns normal values of 8 bits, so that a Hadamard sum of 16 is exact in FP32 in any order; some
    blocks much smaller."""
    generator = torch.Generator().manual_seed(20251122)
    x = (torch.randn(ROWS, COLS, generator=generator) * 32).round().clamp(-255, 255) / 32
    x[16:32, 16:32] *= 2.0**-6  # a block scale in e4m3's subnormals
    x[40:44] *= 2.0**-9
    x[48:64, 32:48] *= 2.0**-20  # a block scale of 0
    x[5, 16:32] = 0
    return x.to(torch.bfloat16)


def section(name, values):
    words = [int(v) for v in values.flatten()]
    print(f"{name} {len(words)}")
    for i in range(0, len(words), 32):
        print(" ".join(f"{w:x}" for w in words[i : i + 32]))


def bits(x):
    return x.contiguous().view(torch.int16).numpy().view("uint16")


def quantized(name, x, block):
    amax = x.float().abs().max()
    made = nvfp4_reference_quantize(x, amax, block=block)
    section(f"{name}.amax", amax.reshape(1).view(torch.int32))
    section(f"{name}.scales", made.scales.contiguous().view(torch.uint8))
    section(f"{name}.codes", made.codes)
    return made


if __name__ == "__main__":
    print(f"made with torch {torch.__version__}", file=sys.stderr)
    x = matrix()
    section("input", bits(x))
    scaled = quantized("1x16", x, "1x16").scaled
    draws = torch.randint(256, x.shape, generator=torch.Generator().manual_seed(20251123), dtype=torch.uint8)
    section("1x16.stochastic.bytes", draws)
    rounded = TransformerEngineCuda(sys.argv[1]).stochastic_e2m1(scaled.numpy(), draws.numpy())
    section("1x16.stochastic.codes", pack_fp4(torch.from_numpy(rounded)))
    quantized("16x16", x, "16x16")
    turned = reference_rht(x)
    section("rht", bits(turned))
    quantized("rht.1x16", turned, "1x16")
