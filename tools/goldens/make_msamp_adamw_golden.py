#!/usr/bin/env python3
"""Makes kernels/device/golden/msamp_adamw.txt.xz, whole steps of MS-AMP's AdamW for
kernels/device/msamp_adamw_test.cpp: first moment in e4m3, second in FP16, weights in FP32 or FP16; all but
FP32 have a power-of-two scale per tensor.

Needs numpy and ml_dtypes. Usage:
  tools/goldens/make_msamp_adamw_golden.py | xz -9e > kernels/device/golden/msamp_adamw.txt.xz

The order of operations is that of MS-AMP (msamp/optim/adamw.py and adamw.cu), reimplemented: decay first,
moments, the update by moments that are not yet rounded, then their codes. All arithmetic is FP32, one
operation at a time.

Two runs. "exact": every operation is exact (betas of few digits, gradients of 12 bits, a power-of-two
learning rate, neither decay nor bias correction), so that no other order and no FMA gives other bits.
"usual": options of a training run.

Sections: a name, a count, and hexadecimal words. "RUN.options": FP32 bits of lr, beta1, beta2, eps, decay,
and whether the bias is corrected. "RUN.gradients": FP32 bits, step by step. "RUN.STEP.m.codes", ".m.scale",
".v.codes", ".v.scale"; "RUN.STEP.f32": weights; "RUN.STEP.f16.codes", ".f16.scale": weights of a second run.
Step 0 holds the initial weights.
"""
import numpy as np

from make_scaled_goldens import F32, decode, encode, section

COUNT = 523  # more than one block in MS-AMP
STEPS = 4
RUNS = {"exact": (2.0**-10, 0.875, 0.9375, 1e-8, 0.0, 0), "usual": (1e-3, 0.9, 0.95, 1e-8, 0.1, 1)}


def gradients(rng, exact):
    """Returns gradients of wide range, with zeros; their size varies from step to step, so
    that scales change."""
    steps = []
    for size in (1.0, 5.0, 0.3, 40.0):
        g = (size * rng.standard_normal(COUNT) * np.exp2(rng.uniform(-12, 0, COUNT))).astype(F32)
        g[::19] = 0
        if exact:
            digits, exponents = np.frexp(g)
            g = np.ldexp(np.round(digits * 2048) / 2048, exponents).astype(F32)
        steps.append(g)
    return steps


def moments(m, v, g, beta1, beta2):
    """Returns FP32 moments from codes and scales."""
    inverses = [F32(1) / scale for _, scale in (m, v)]
    mean = beta1 * m[0].astype(F32) * inverses[0] + (F32(1) - beta1) * g
    square = beta2 * v[0].astype(F32) * inverses[1] + (F32(1) - beta2) * (g * g)
    return mean, square


def run(options, weights, grads, narrow):
    """Returns, after each step, codes and scale of m, of v, and of the weights, whose scale
    is None in FP32."""
    lr, beta1, beta2, eps, decay, corrected = options
    b1, b2 = F32(beta1), F32(beta2)
    m = v = (np.zeros(COUNT, np.float16), F32(1))
    w = encode(weights, "f16", F32(1)) if narrow else (weights, None)
    found = [(None, None, w)]
    for t, g in enumerate(grads, 1):
        corrections = [F32(1 - np.float64(b) ** t) if corrected else F32(1) for b in (b1, b2)]
        value = decode(*w) if narrow else w[0]
        if decay:
            value = value * F32(1 - lr * decay)
        mean, square = moments(m, v, g, b1, b2)
        root = np.sqrt(square) / np.sqrt(corrections[1]) + F32(eps)
        value = value - F32(lr) / corrections[0] * (mean / root)
        assert value.dtype == F32 and mean.dtype == F32 and square.dtype == F32
        # Without an amax MS-AMP's scale is 1 rather than the previous one.
        m, v = encode(mean, "e4m3", F32(1)), encode(square, "f16", F32(1))
        w = encode(value, "f16", w[1]) if narrow else (value, None)
        found.append((m, v, w))
    return found


if __name__ == "__main__":
    rng = np.random.default_rng(20251123)
    for name, options in RUNS.items():
        grads = gradients(rng, name == "exact")
        weights = (0.02 * rng.standard_normal(COUNT)).astype(F32)
        section(f"{name}.options", np.array(options, F32))
        section(f"{name}.gradients", np.concatenate(grads))
        for t, (wide, narrow) in enumerate(zip(run(options, weights, grads, False), run(options, weights, grads, True))):
            for part, state in zip("mv", wide):
                if state:
                    section(f"{name}.{t}.{part}.codes", state[0])
                    section(f"{name}.{t}.{part}.scale", state[1])
            section(f"{name}.{t}.f32", wide[2][0])
            section(f"{name}.{t}.f16.codes", narrow[2][0])
            section(f"{name}.{t}.f16.scale", narrow[2][1])
