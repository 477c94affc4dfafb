#!/usr/bin/env python3
"""Makes kernels/device/golden/scaled.txt.xz, the reference for codes with one scale per tensor in
kernels/device/scaled_values_test.cpp: FP16 weights, and gradients that ranks reduce in e4m3.

Needs numpy and ml_dtypes. Usage: tools/goldens/make_scaled_goldens.py | xz -9e > kernels/device/golden/scaled.txt.xz

The casts are numpy's float16 and ml_dtypes' float8_e4m3fn, made saturating. The scale reimplements MS-AMP's
(common/tensor/meta.py, compute_scaling_factor): a power of two by exponent, inverted if the exponent is
negative, kept if amax is 0 or not finite. All arithmetic is FP32, one operation at a time.

Sections: a name, a count, and hexadecimal words. "TYPE.CASE.src", ".codes", ".scale", ".decoded" (FP32 bits):
a tensor's round trip; ".added.codes", ".added.scale": its codes plus src, cast again. "reduce.R.src" (BF16
bits, rank by rank), ".scale", ".codes" (rank by rank), ".sum" (FP32 bits), ".sum_scale", ".sum_codes": a
gradient reduced over R ranks.
"""
import ml_dtypes
import numpy as np

F32 = np.float32
MAXIMA = {"f16": F32(65504), "e4m3": F32(448)}
TYPES = {"f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn}
COUNT = 203


def scaling_factor(amax, scale, maximum):
    if not amax > 0 or not np.isfinite(amax):
        return F32(scale)
    exponent = np.floor(np.log2(np.float64(F32(maximum / amax))))
    factor = F32(2.0 ** abs(exponent))
    return F32(F32(1) / factor) if exponent < 0 else factor


def cast(values, kind):
    clipped = np.clip(values, -MAXIMA[kind], MAXIMA[kind]).astype(F32)
    return clipped.astype(TYPES[kind])


def encode(values, kind, scale):
    factor = scaling_factor(np.abs(values).max(), scale, MAXIMA[kind])
    return cast((values * factor).astype(F32), kind), factor


def decode(codes, factor):
    return (codes.astype(F32) * F32(F32(1) / factor)).astype(F32)


def words(array):
    array = np.ascontiguousarray(array)
    return [int(w) for w in array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.dtype.itemsize]).ravel()]


def section(name, array):
    values = words(np.atleast_1d(array))
    print(f"{name} {len(values)}")
    for i in range(0, len(values), 16):
        print(" ".join(f"{w:x}" for w in values[i : i + 16]))


def sources():
    """Returns values like those of gradients and weights: of wide range, with zeros; far from 1; all
    zero; ties only."""
    rng = np.random.default_rng(20251201)
    wide = (rng.standard_normal(COUNT) * np.exp2(rng.uniform(-20, 0, COUNT))).astype(F32)
    wide[::17] = 0
    ties = (np.arange(COUNT) - 100).astype(F32) * F32(0.5)
    return {"wide": wide, "small": (wide * F32(2.0**-100)).astype(F32), "large": (wide * F32(2.0**100)).astype(F32),
            "zero": np.zeros(COUNT, F32), "ties": ties, "weights": (0.02 * rng.standard_normal(COUNT)).astype(F32)}


if __name__ == "__main__":
    for kind in TYPES:
        for name, src in sources().items():
            codes, scale = encode(src, kind, F32(4))
            back = decode(codes, scale)
            section(f"{kind}.{name}.src", src)
            section(f"{kind}.{name}.codes", codes)
            section(f"{kind}.{name}.scale", scale)
            section(f"{kind}.{name}.decoded", back)
            codes, scale = encode((src + back).astype(F32), kind, scale)
            section(f"{kind}.{name}.added.codes", codes)
            section(f"{kind}.{name}.added.scale", scale)
    rng = np.random.default_rng(20251202)
    for ranks in (2, 3, 8):
        size = np.exp2(rng.uniform(-12, 0, COUNT))
        src = [(rng.standard_normal(COUNT) * size * 1e-3).astype(ml_dtypes.bfloat16) for _ in range(ranks)]
        amax = max(np.abs(g.astype(F32)).max() for g in src)
        scale = scaling_factor(amax, F32(1), MAXIMA["e4m3"])
        codes = [cast((g.astype(F32) * scale).astype(F32), "e4m3") for g in src]
        total = decode(codes[0], scale)
        for c in codes[1:]:
            total = (total + decode(c, scale)).astype(F32)
        sum_codes, sum_scale = encode(total, "e4m3", scale)
        section(f"reduce.{ranks}.src", np.concatenate(src))
        section(f"reduce.{ranks}.scale", scale)
        section(f"reduce.{ranks}.codes", np.concatenate(codes))
        section(f"reduce.{ranks}.sum", total)
        section(f"reduce.{ranks}.sum_scale", sum_scale)
        section(f"reduce.{ranks}.sum_codes", sum_codes)
