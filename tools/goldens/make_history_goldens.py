#!/usr/bin/env python3
"""Makes kernels/device/golden/history.txt.xz, the reference for delayed scaling in
kernels/device/history_test.cpp.

Needs numpy. Usage: tools/goldens/make_history_goldens.py | xz -9e > kernels/device/golden/history.txt.xz

Implements the rules of TransformerEngine's bulk update (transformer_engine/common/recipe/delayed_scaling.cu,
kernel_bulk) independently: a history of `length` entries whose first one receives a step's amax, rolled by
one with that amax in the last place, unless it is 0. All arithmetic is FP32, as in the kernel.

precbench, and so the goldens, treat a non-finite amax as 0. TransformerEngine rolls it in: `kept` is that
rule, for check_third_party.py.

Sections: a name, a count, and hexadecimal words. "amaxes": finite amaxes of 1,040 steps. "wild.amaxes":
zeros, a spike, an infinity, NaN and a ramp, 64 steps. "[wild.]FORMAT.LENGTH.ALGORITHM.MARGIN": the bits of
the scale after each step, as (count, value) pairs. "history.STEP." before such a name: the bits of the
history after that step (from 0), including its first entry.
"""
import numpy as np

STEPS = 1040
F32 = np.float32
MAXIMA = {"e4m3": F32(448), "e5m2": F32(57344)}
FORMS = [("e4m3", 1024, "max", 0), ("e5m2", 1024, "max", 0), ("e4m3", 16, "max", 0), ("e4m3", 1, "most_recent", 0),
         ("e5m2", 16, "most_recent", 3)]
WILD_FORMS = [("e4m3", 16, "max", 0), ("e4m3", 1, "most_recent", 0), ("e5m2", 16, "most_recent", 3)]
# After zeros, the first step, the spike, when a history of 16 is full, in the ramp, and at the end.
DUMPED = {1024: [12, 1039], 16: [0, 3, 12, 15, 16, 750, 960, 1039], 1: [0, 500]}
WILD_DUMPED = {16: [4, 8, 9, 20, 23, 24, 40, 63], 1: [8, 63]}


def script():
    """Returns amaxes like those of a run: noise, a spike, zeros, a ramp, values near both ends of FP32."""
    rng = np.random.default_rng(20251122)
    amaxes = np.exp(rng.normal(0, 0.3, STEPS)).astype(F32)
    amaxes[3] = F32(4096)                       # remembered for the length of the history
    amaxes[[10, 11, 12, 500]] = 0
    amaxes[700:800] *= np.exp2(np.arange(100) / 10).astype(F32)
    amaxes[950:960] = F32(1e-37)                # 448 / 1e-37 is beyond FP32
    amaxes[960] = F32(1e-45)
    return amaxes


def wild_script():
    """Returns amaxes that must not break a run: 0, a spike, infinity, a ramp, NaN, one after the
    other and combined."""
    rng = np.random.default_rng(20251124)
    amaxes = np.exp(rng.normal(0, 0.3, 64)).astype(F32)
    amaxes[[0, 1]] = 0
    amaxes[4] = F32(64)
    amaxes[8] = np.inf
    amaxes[9:20] *= np.exp2(np.arange(11)).astype(F32)  # exceeds the spike while the infinity is remembered
    amaxes[[20, 23]] = np.nan
    amaxes[40:44] = [np.inf, np.nan, 0, np.inf]
    return amaxes


def kept(amaxes, maximum, length, algorithm, margin):
    """Returns the scale and the history after each step; NaN is rolled in but never the maximum."""
    history = np.zeros(length, F32)
    scale = F32(1)
    scaled_max = F32(maximum * F32(2.0) ** F32(-margin))
    scales, histories = [], []
    for staged in amaxes:
        history[0] = staged
        amax = F32(0)
        last = history[0]
        if last != 0:
            rolled = np.append(history[1:], last)
            amax = np.fmax.reduce(rolled, initial=F32(0))
            history = rolled.copy()
            history[0] = 0
        if algorithm == "most_recent":
            amax = last
        if np.isfinite(amax) and amax > 0:
            with np.errstate(over="ignore"):
                scale = F32(scaled_max / amax)
            if np.isinf(scale):
                scale = np.finfo(F32).max
        scales.append(scale)
        histories.append(history.copy())
    return np.array(scales, F32), np.array(histories)


def finite(amaxes):
    return np.where(np.isfinite(amaxes), amaxes, F32(0))


def section(name, words):
    print(f"{name} {len(words)}")
    for i in range(0, len(words), 16):
        print(" ".join(f"{w:x}" for w in words[i : i + 16]))


def runs(values):
    words = []
    for bits in values.view(np.uint32):
        if words and words[-1] == int(bits):
            words[-2] += 1
        else:
            words += [1, int(bits)]
    return words


def write(amaxes, forms, dumped, prefix):
    section(f"{prefix}amaxes", [int(b) for b in amaxes.view(np.uint32)])
    for form, length, algorithm, margin in forms:
        name = f"{prefix}{form}.{length}.{algorithm}.{margin}"
        scales, histories = kept(finite(amaxes), MAXIMA[form], length, algorithm, margin)
        section(name, runs(scales))
        for step in dumped[length]:
            section(f"history.{step}.{name}", [int(b) for b in histories[step].view(np.uint32)])


if __name__ == "__main__":
    write(script(), FORMS, DUMPED, "")
    write(wild_script(), WILD_FORMS, WILD_DUMPED, "wild.")
