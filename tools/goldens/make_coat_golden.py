#!/usr/bin/env python3
"""Makes kernels/numerics/golden/coat.txt.xz, the reference for COAT's moments in
kernels/numerics/state_formats_test.cpp.

Needs numpy, g++ and a source tree of COAT, whose CUDA kernel of AdamW runs on the CPU (third_party_cuda.py).
Usage:
  tools/goldens/make_coat_golden.py TREE | xz -9e > kernels/numerics/golden/coat.txt.xz

Groups avoid cases in which the kernel and state_formats.h differ: no zeros, for which the kernel's minimum
depends on their order; no two equal ends, nor ends 2^128 apart, whose power it makes infinite or 0; nothing
near the 1e-30 that it adds to ends. powf is this machine's and may differ by a rounding elsewhere.

Sections: a name, a count, and hexadecimal words. "m.values" and "v.values": FP32 bits, [groups, 128]. For
each, ".codes" (bytes) and ".decoded" (FP32 bits), and per group ".scale", ".power", ".middle".
"""
import sys

import numpy as np

from third_party_cuda import Coat

GROUP, F32 = 128, np.float32


def values():
    """Returns groups like those of a gradient: wide and narrow ones of several sizes, and one whose
    power is close to 0."""
    rng = np.random.default_rng(20251123)
    groups = []
    for size in (1.0, 1e-2, 1e-4, 1e4):
        for spread in (0.01, 1.0, 3.0, 6.0):
            groups.append(rng.choice([-1, 1], GROUP) * np.exp2(rng.normal(0, spread, GROUP)) * size)
    groups += [rng.standard_normal(GROUP) * size for size in (1, 1e-4, 1e-8)]
    groups.append(np.exp2(np.linspace(-30, 30, GROUP)))
    return np.concatenate(groups).astype(F32)


def section(name, words):
    words = [int(w) for w in words]
    print(f"{name} {len(words)}")
    for i in range(0, len(words), 32):
        print(" ".join(f"{w:x}" for w in words[i : i + 32]))


if __name__ == "__main__":
    coat = Coat(sys.argv[1])
    x = values()
    for name, of, state in zip("mv", (x, x * x), coat.encoded(x)):
        codes, scale, power, middle = state
        section(f"{name}.values", of.view(np.uint32))
        section(f"{name}.codes", codes)
        section(f"{name}.decoded", coat.decoded(state).view(np.uint32))
        for part, floats in (("scale", scale), ("power", power), ("middle", middle)):
            section(f"{name}.{part}", floats.view(np.uint32))
