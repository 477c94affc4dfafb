#!/usr/bin/env python3
"""Makes kernels/device/golden/history.txt, the reference that kernels/device/history_test.cpp holds delayed scaling against.

Needs numpy. Usage: tools/goldens/make_history_goldens.py > kernels/device/golden/history.txt

The rules are those of TransformerEngine's bulk update (transformer_engine/common/recipe/delayed_scaling.cu, kernel_bulk),
written anew in its own terms: a history of `length` entries whose first one is where a step leaves its amax, rolled by one
with that amax in the last place, unless it is 0. Its precision is FP32 throughout, as the kernel's.

Sections: a name, a count, and hexadecimal words. "amaxes": what 1,040 steps leave, finite. "FORMAT.LENGTH.ALGORITHM.MARGIN":
the bits of the scale after each step, as pairs of how often and which.
"""
import numpy as np

STEPS = 1040
F32 = np.float32
MAXIMA = {"e4m3": F32(448), "e5m2": F32(57344)}


def script():
    """Amaxes of a run's kind: noise, a spike, zeros, a ramp, values near both ends of FP32."""
    rng = np.random.default_rng(20251122)
    amaxes = np.exp(rng.normal(0, 0.3, STEPS)).astype(F32)
    amaxes[3] = F32(4096)                       # seen for as long as the history is
    amaxes[[10, 11, 12, 500]] = 0
    amaxes[700:800] *= np.exp2(np.arange(100) / 10).astype(F32)
    amaxes[950:960] = F32(1e-37)                # 448 / 1e-37 is beyond FP32
    amaxes[960] = F32(1e-45)
    return amaxes


def scales(amaxes, maximum, length, algorithm, margin):
    history = np.zeros(length, F32)
    scale = F32(1)
    scaled_max = F32(maximum * F32(2.0) ** F32(-margin))
    found = []
    for staged in amaxes:
        history[0] = staged
        amax = F32(0)
        last = history[0]
        if last != 0:
            rolled = np.append(history[1:], last)
            amax = rolled.max()
            history = rolled.copy()
            history[0] = 0
        if algorithm == "most_recent":
            amax = last
        if np.isfinite(amax) and amax > 0:
            with np.errstate(over="ignore"):
                scale = F32(scaled_max / amax)
            if np.isinf(scale):
                scale = np.finfo(F32).max
        found.append(scale)
    return np.array(found, F32)


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


if __name__ == "__main__":
    amaxes = script()
    section("amaxes", [int(b) for b in amaxes.view(np.uint32)])
    for name, length, algorithm, margin in [("e4m3", 1024, "max", 0), ("e5m2", 1024, "max", 0), ("e4m3", 16, "max", 0),
                                            ("e4m3", 1, "most_recent", 0), ("e5m2", 16, "most_recent", 3)]:
        section(f"{name}.{length}.{algorithm}.{margin}", runs(scales(amaxes, MAXIMA[name], length, algorithm, margin)))
