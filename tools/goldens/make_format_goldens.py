#!/usr/bin/env python3
"""Makes kernels/numerics/golden/formats.txt.xz, the reference for kernels/numerics/formats.h in
kernels/numerics/formats_test.cpp.

Needs ml_dtypes, numpy and torch (any recent version), only to regenerate the file.
Usage: tools/goldens/make_format_goldens.py | xz -9e > kernels/numerics/golden/formats.txt.xz

Element casts come from ml_dtypes and from PyTorch, which must agree on all 65,536 BF16 inputs and on
random FP32 ones. Both are monotonic, so the cast of *every* FP32 magnitude follows from the smallest
magnitude that gives each code ("first" sections, found by bisection). The same holds for the ue8m0 byte of
a block's amax. Neither library has the four rounding rules, so those are implemented here from their
definitions, in exact arithmetic.
"""
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import torch

INF_BITS = 0x7F800000
ELEMENTS = {  # name: (ml_dtypes type, torch type or None, max, mantissa bits, largest finite code)
    "e4m3": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn, 448.0, 3, 0x7E),
    "e5m2": (ml_dtypes.float8_e5m2, torch.float8_e5m2, 57344.0, 2, 0x7B),
    "e2m1": (ml_dtypes.float4_e2m1fn, None, 6.0, 1, 0x7),  # PyTorch stores e2m1 but does not cast to it
}


def bits_of(x):
    return np.asarray(x, np.float32).view(np.uint32)


def float_of(bits):
    return np.asarray(bits, np.uint32).view(np.float32)


def section(name, words):
    """Prints a section: its name, its length, and hexadecimal words, with NaN as 7fc00000."""
    print(f"{name} {len(words)}")
    words = [int(w) for w in words]
    for i in range(0, len(words), 12):
        print(" ".join(f"{w:x}" for w in words[i : i + 12]))


def fp32_words(values):
    values = np.asarray(values, np.float32)
    return np.where(np.isnan(values), 0x7FC00000, bits_of(values))


def first_inputs(function, last):
    """Returns for each code 0..last the smallest FP32 magnitude (as bits) that `function` maps
    to it or above."""
    firsts = [0]
    for code in range(1, last + 1):
        low, high = firsts[-1], INF_BITS - 1  # function(low) < code <= function(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if function(middle) >= code else (middle, high)
        assert function(high) == code, (code, high)
        firsts.append(high)
    return firsts


def cast_ml(x, dtype, maximum):
    return np.clip(x, -maximum, maximum).astype(dtype).view(np.uint8)


def cast_torch(x, dtype, maximum):
    return torch.from_numpy(x).clamp(-maximum, maximum).to(dtype).view(torch.uint8).numpy()


def element_sections():
    rng = np.random.default_rng(20250101)
    bf16_inputs = float_of(np.arange(65536, dtype=np.uint32) << 16)
    random_inputs = float_of(rng.integers(0, 2**32, 2**20, dtype=np.uint32))
    codes = np.arange(256, dtype=np.uint8)
    for name, (ml_type, torch_type, maximum, _, last) in ELEMENTS.items():
        count = 16 if name == "e2m1" else 256
        section(f"{name}.decode", fp32_words(codes[:count].view(ml_type).astype(np.float32)))
        firsts = first_inputs(lambda b: int(cast_ml(float_of([b]), ml_type, maximum)[0]), last)
        section(f"{name}.first", firsts)
        for x in (bf16_inputs, random_inputs):
            x = x[~np.isnan(x)]
            codes_ml = cast_ml(x, ml_type, maximum)
            implied = np.searchsorted(firsts, bits_of(np.abs(x)), side="right") - 1
            sign = (bits_of(x) >> 31) * (8 if name == "e2m1" else 128)
            assert np.array_equal(codes_ml, implied | sign), name
            if torch_type is not None:
                assert np.array_equal(codes_ml, cast_torch(x, torch_type, maximum)), name
    powers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu).float().numpy()
    section("ue8m0.decode", fp32_words(powers))
    assert np.array_equal(codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[:255],
                          2.0 ** (np.arange(255) - 127.0))

    ties = (rng.integers(0, 0x7F80, 200, dtype=np.uint32) << 16) | 0x8000
    random_bits = rng.integers(0, INF_BITS, 200, dtype=np.uint32)
    x = np.concatenate([ties - 1, ties, ties + 1, random_bits]).astype(np.uint32)
    x[::2] |= 0x80000000
    to_bf16 = torch.from_numpy(float_of(x)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(to_bf16, float_of(x).astype(ml_dtypes.bfloat16).view(np.uint16))
    section("bf16.encode", np.stack([x, to_bf16], 1).ravel())


def floor_log2(x):
    """Returns floor(log2 x) of a positive Fraction."""
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= x else exponent - 1


def ceil_log2(x):
    exponent = floor_log2(x)
    return exponent if Fraction(2) ** exponent == x else exponent + 1


def ue8m0_byte(rounding, maximum, mantissa_bits, amax_bits):
    """Applies the rule of kernels/numerics/formats.h to a finite amax, from the definition."""
    amax = float_of([amax_bits])[0]
    emax = floor_log2(Fraction(maximum))
    if rounding == "rceil":
        d = amax * (np.float32(1) / np.float32(maximum))
        exponent = ceil_log2(Fraction(float(d))) if d > 0 else -127
    elif amax == 0:
        exponent = -127
    elif rounding == "floor":
        exponent = floor_log2(Fraction(float(amax))) - emax
    elif rounding == "ceil":
        exponent = ceil_log2(Fraction(float(amax))) - emax
    else:  # even: first rounds the significand, half away from zero, to the element's mantissa width
        exact = Fraction(float(amax))
        ulp = Fraction(2) ** (floor_log2(exact) - mantissa_bits)
        exponent = floor_log2((exact / ulp + Fraction(1, 2)).__floor__() * ulp) - emax
    return max(exponent, -127) + 127


def scale_sections():
    rng = np.random.default_rng(20250102)
    for name, (_, _, maximum, mantissa_bits, _) in ELEMENTS.items():
        for rounding in ("rceil", "floor", "ceil", "even"):
            byte = lambda b: ue8m0_byte(rounding, maximum, mantissa_bits, b)
            section(f"{name}.{rounding}", first_inputs(byte, byte(INF_BITS - 1)))
    special = [0, 1, 0x007FFFFF, 0x00800000, 0x03E00000, 0x2B8CBCCC, 0x2B8CBCCD, 0x3F800000, 0x43E00000,
               0x7F7FFFFF, INF_BITS, 0x7FC00000]
    amax = float_of(np.concatenate([special, rng.integers(0, INF_BITS, 200, dtype=np.uint32)]).astype(np.uint32))
    for name in ("e4m3", "e5m2"):
        maximum = ELEMENTS[name][2]
        scale = (maximum / torch.from_numpy(amax).double().clamp(min=1e-12)).float().numpy()
        section(f"{name}.scale", np.stack([fp32_words(amax), fp32_words(scale)], 1).ravel())
        scale[np.isnan(scale)] = 0  # exp2(floor(log2)) with frexp, which is exact; NaN has its own test
        power = np.where(scale > 0, np.ldexp(np.float32(0.5), np.frexp(scale)[1]), 0).astype(np.float32)
        section(f"{name}.scale_pow2", np.stack([bits_of(scale), bits_of(power)], 1).ravel())


def random_section():
    """Counter-based SplitMix64 (Steele, Lea, Flood 2014) with a mixed seed: seed, index, bits."""
    mask = 2**64 - 1

    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    gamma = 0x9E3779B97F4A7C15
    assert mix(gamma) == 0xE220A8397B1DCDAF  # the first published output of SplitMix64 with seed 0
    words = []
    for seed in (0, 1, 42, 2**64 - 1):
        for index in (0, 1, 12345, 2**40):
            words += [seed, index, mix((mix((seed + gamma) & mask) + (index + 1) * gamma) & mask) >> 32]
    section("random.bits", words)


if __name__ == "__main__":
    versions = f"ml_dtypes {ml_dtypes.__version__}, numpy {np.__version__}, torch {torch.__version__}"
    print(f"made with {versions}", file=sys.stderr)
    element_sections()
    scale_sections()
    random_section()
