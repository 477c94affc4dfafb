#!/usr/bin/env python3
"""Makes kernels/device/golden/fp4.txt.xz, the reference for MXFP4, Quartet and Quartet II in
kernels/device/fp4_golden_test.cpp.

The authors' code only runs on GPUs (Triton), so this reimplements their formulas in NumPy: mxfp4-llm's and
microxcaling's for mxfp4_bwd, Quartet's mxfp4_triton.py, Quartet II's nvfp4_triton.py (a correction per 16
elements as in its paper, and per transform of 128 as in that file). Elements are rounded by a search for the
nearest value, ties to even, as in hardware; the authors' codes round ties down or up (check_third_party.py
runs them). Needs only numpy. Usage:
  tools/goldens/make_fp4_goldens.py | xz -9e > kernels/device/golden/fp4.txt.xz

Sections: a name, a count, and hexadecimal words. "input": BF16 bits, [32, 256]; "h32.plain" (without signs),
"h32", "h64", "h128": its transforms. For every format NAME: "NAME.scales" (bytes, one per block of a row),
"NAME.codes" (bytes of two elements), "NAME.amax" (FP32 bits, for e4m3 scales), "quest.clipped" (0 or 1 per
element). "word" contains WORD; the streams are STREAM and SIGNS below.
"""
import numpy as np

ROWS, COLS = 32, 256
WORD, STREAM, FIRST_ROW, SIGNS = 77, 10, 64, 6
F32, F64 = np.float32, np.float64
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
MASK = (1 << 64) - 1


def random_bits(seed, index):
    """Counter-based SplitMix64 with a mixed start."""
    z = (seed + 0x9E3779B97F4A7C15) & MASK
    for turn in range(2):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        if turn == 0:
            z = (z + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    return z >> 32


def bf16(x):
    """Rounds finite values to nearest even."""
    bits = np.asarray(x, F32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(F32)


def e4m3_values():
    codes = np.arange(127)
    e, m = codes >> 3, codes & 7
    return np.where(e == 0, m * 2.0**-9, (1 + m / 8) * 2.0 ** (e - 7.0))


E4M3 = e4m3_values()


def nearest(x, grid):
    """Returns the index of the value of `grid` nearest to x >= 0; ties to the even index, values beyond the
    end to the end."""
    x = np.asarray(x, F64)
    high = np.clip(np.searchsorted(grid, x), 1, len(grid) - 1)
    low = high - 1
    below, above = x - grid[low], grid[high] - x
    up = (above < below) | ((above == below) & (high % 2 == 0))
    return np.where(up, high, low)


def codes_of(scaled):
    return nearest(np.abs(scaled), E2M1) | (np.signbit(scaled).astype(int) << 3)


def values_of(codes):
    return E2M1[codes & 7] * np.where(codes & 8, -1.0, 1.0)


def transformed(x, length, signs):
    """Returns (x o signs) H / sqrt(length) in runs along rows. Additions are exact, the rest is rounded
    like FP32 and BF16."""
    h = np.array([[1.0]])
    while len(h) < length:
        h = np.block([[h, h], [h, -h]])
    sums = (x.astype(F64) * np.tile(signs, COLS // length)).reshape(ROWS, -1, length) @ h
    assert (sums == sums.astype(F32)).all()
    return bf16(sums.astype(F32) * F32(1 / np.sqrt(length))).reshape(ROWS, COLS)


def random_signs(length, stream):
    seed = WORD << 32 | stream
    words = [random_bits(seed, i) for i in range(4)]
    return np.array([-1.0 if words[i // 32] >> (i % 32) & 1 else 1.0 for i in range(length)])


def place(r, c):
    return (FIRST_ROW + r) * COLS + c


def random_bytes():
    seed = WORD << 32 | STREAM
    return np.array(
        [[random_bits(seed, place(r, c) // 4) >> (8 * (place(r, c) % 4)) & 0xFF for c in range(COLS)] for r in range(ROWS)]
    )


def stochastic_codes(scaled):
    """Rounds up if the discarded fraction plus r/256 reaches 1. From 1 on r aligns with FP32's bits below a
    1-bit mantissa."""
    size = np.minimum(np.abs(scaled.astype(F64)), 6)
    r = random_bytes()
    low = np.clip(np.searchsorted(E2M1, size, side="right") - 1, 0, 6)
    part = (size - E2M1[low]) / (E2M1[low + 1] - E2M1[low])
    # In FP32, bits below the 22nd of the significand cannot carry on their own.
    part = np.where(size >= 1, np.floor(part * 256) / 256, part)
    up = (part + r / 256 >= 1) | (size == 6)
    return np.where(up, low + 1, low) | (np.signbit(scaled).astype(int) << 3)


def blocks(x, n):
    return x.reshape(ROWS, -1, n)


def spread(s, n):
    return np.repeat(s, n, axis=1)


def section(name, values):
    words = [int(v) for v in np.asarray(values).flatten()]
    print(f"{name} {len(words)}")
    for i in range(0, len(words), 32):
        print(" ".join(f"{w:x}" for w in words[i : i + 32]))


def emit(name, scales, codes, amax=None):
    flat = codes.flatten()
    section(f"{name}.scales", scales)
    section(f"{name}.codes", flat[0::2] | flat[1::2] << 4)
    if amax is not None:
        section(f"{name}.amax", [np.array(amax, F32).view(np.uint32)])


def floor_exponent(x):
    return np.floor(np.log2(x))


def mxfp4(x, element_scale):
    """Returns OCP's scale, floor(log2 amax) - 2, and the elements; an empty block has the minimum scale."""
    amax = np.abs(blocks(x, 32)).max(axis=2).astype(F64)
    exponent = np.where(amax == 0, -127, floor_exponent(np.where(amax == 0, 1, amax)) - 2)
    return (exponent + 127).astype(int), (x / spread(2.0**exponent, 32) * element_scale).astype(F32)


def quest(x):
    """Quartet's: from the standard deviation of the block."""
    b = blocks(x.astype(F64), 32)
    deviation = np.sqrt((b * b).mean(axis=2) - b.mean(axis=2) ** 2)
    exponent = floor_exponent(2.92247856 / 6 * deviation + 1e-8)
    return (exponent + 127).astype(int), x / spread(2.0**exponent, 32)


def quartet2(x, cap, over):
    """Returns the tensor's step, and a function for the scales of blocks of 16 from `times` their amax."""
    amax = np.abs(x).max()
    largest = F32(6) * F32(over)
    step = amax / F32(cap) / largest

    def scales(times):
        code = nearest((F32(times) * np.abs(blocks(x, 16)).max(axis=2)) / largest / step, E4M3)
        return np.where(code == 0, nearest(1.0, E4M3), code)

    return amax, step, scales


def steps_of(scales, step):
    return E4M3.astype(F32)[scales] * step


def four_over_six(x):
    amax, step, scales = quartet2(x, 256, 1)
    six, four = scales(1), scales(1.5)

    def error(s):
        block_step = spread(steps_of(s, step), 16)
        q = values_of(codes_of(x / block_step)) * block_step.astype(F64)
        return (blocks(q - x, 16) ** 2).sum(axis=2)

    chosen = np.where(error(four) < error(six), four, six)
    return amax, chosen, codes_of(x / spread(steps_of(chosen, step), 16)), (chosen != six).mean()


def eden(x, group):
    amax, step, scales = quartet2(x, 255.99, 1.0120177)
    start = scales(1)
    scaled = x / spread(steps_of(start, step), 16)
    codes = codes_of(scaled)
    b, q = blocks(scaled.astype(F64), group), blocks(values_of(codes), group)
    products = (b * q).sum(axis=2)
    correction = np.where(products == 0, 1, (b * b).sum(axis=2) / np.where(products == 0, 1, products)).astype(F32)
    correction = spread(correction, group // 16)
    wanted = (E4M3.astype(F32)[start] * correction).astype(F64)
    seed = WORD << 32 | STREAM
    draws = np.array([[random_bits(seed, place(r, c)) for c in range(0, COLS, 16)] for r in range(ROWS)])
    low = np.clip(np.searchsorted(E4M3, wanted, side="right") - 1, 0, 125)
    up = draws / 2.0**32 < (wanted - E4M3[low]) / (E4M3[low + 1] - E4M3[low])
    return amax, np.where(up, low + 1, low), codes


def matrix():
    """Returns normal values of at most 8 bits, so that sums of 128 are exact in FP32; some blocks
    small, one zero."""
    x = np.clip(np.round(np.random.default_rng(20251122).standard_normal((ROWS, COLS)) * 32), -255, 255) / 32
    x[3, 32:64] *= 2.0**-6
    x[7] *= 2.0**-9
    x[12, :128] = 0
    x[20, 5] = 31
    return x.astype(F32)


if __name__ == "__main__":
    x = matrix()
    assert (bf16(x) == x).all()
    section("input", x.view(np.uint32) >> 16)
    section("word", [WORD, STREAM, FIRST_ROW, SIGNS])
    scales, scaled = mxfp4(x, 1)
    emit("mxfp4", scales, codes_of(scaled))
    turned = transformed(x, 64, random_signs(64, SIGNS))
    section("h64", turned.view(np.uint32) >> 16)
    scales, scaled = mxfp4(turned, 0.75)
    emit("mxfp4.h64.sr", scales, stochastic_codes(scaled))
    turned = transformed(x, 32, random_signs(32, SIGNS))
    section("h32", turned.view(np.uint32) >> 16)
    scales, scaled = mxfp4(turned, 0.75)
    emit("mxfp4.h32", scales, codes_of(scaled))
    emit("mxfp4.h32.sr", scales, stochastic_codes(scaled))
    turned = transformed(x, 32, np.ones(32))
    section("h32.plain", turned.view(np.uint32) >> 16)
    scales, scaled = quest(turned)
    emit("quest", scales, codes_of(scaled))
    section("quest.clipped", np.abs(scaled) >= 6)
    amax, scales, codes, part = four_over_six(x)
    assert 0.2 < part < 0.8
    emit("four_over_six", scales, codes, amax)
    turned = transformed(x, 128, random_signs(128, SIGNS))
    section("h128", turned.view(np.uint32) >> 16)
    for name, group in (("eden", 16), ("eden128", 128)):
        amax, scales, codes = eden(turned, group)
        emit(name, scales, codes, amax)
