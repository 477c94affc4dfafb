"""Compares goldens of optimizers and their state with the code of MS-AMP, COAT and Lion: for
check_third_party.py."""
import lzma
import pathlib
import sys
from types import SimpleNamespace

import numpy as np
import safetensors.torch
import torch

import make_msamp_adamw_golden as msamp_adamw
import make_optimizer_goldens
import third_party_cuda
from third_party import load, placeholders
from third_party_compare import F32, compare


def check_msamp(tree, goldens):
    common = pathlib.Path(tree, "msamp/common")
    placeholders("msamp.common.utils")
    dtypes = load("msamp.common.dtype.dtypes", common / "dtype/dtypes.py")
    sys.modules["msamp.common.dtype"].Dtypes = dtypes.Dtypes
    floating = load("msamp.common.dtype.floating", common / "dtype/floating.py")
    sys.modules["msamp.common.dtype"].Floating = floating.Floating
    meta = load("msamp.common.tensor.meta", common / "tensor/meta.py")
    cast = load("msamp.common.tensor.cast", common / "tensor/cast.py").TypeCast
    golden = goldens("device/golden/scaled.txt")

    def started(qtype, scale):
        return meta.ScalingMeta(qtype, torch.tensor(float(scale)), torch.tensor(1.0), torch.zeros(1))

    scales, want_scales, codes, want_codes, decoded, want_decoded = ([] for _ in range(6))
    for section in golden.sections:
        if not section.endswith(".src"):
            continue
        name = section.removesuffix(".src")
        kind = name.split(".")[0]
        src = golden.bf16(section) if kind == "reduce" else golden.floats(section)
        want_scales.append(golden.floats(f"{name}.scale"))
        if kind == "f16":
            state = started(dtypes.Dtypes.kfloat16, 4)
            made = cast.cast_to_fp16(torch.from_numpy(src.copy()), state)
            codes.append(made.numpy().view(np.uint16)), want_codes.append(golden.words(f"{name}.codes"))
            decoded.append(cast.cast_from_fp16(made, state, dtypes.Dtypes.kfloat32).numpy())
            want_decoded.append(golden.floats(f"{name}.decoded"))
        else:
            state = started(dtypes.Dtypes.kfloat8_e4m3, 1 if kind == "reduce" else 4)
            state.amax[0] = float(np.abs(src).max())
            state.reset_scaling_factor()
        scales.append(state.scale.numpy().reshape(1))
    compare("MS-AMP scales", np.concatenate(scales), np.concatenate(want_scales))
    compare("MS-AMP FP16, codes", np.concatenate(codes), np.concatenate(want_codes))
    compare("MS-AMP FP16, values", np.concatenate(decoded), np.concatenate(want_decoded))
    check_msamp_adamw(tree, goldens, dtypes.Dtypes, floating.Floating, meta.ScalingMeta, cast)


def check_msamp_adamw(tree, goldens, dtypes, floating, meta, cast):
    """Runs their Python with their kernels: results of each step, and the scale after a
    non-finite gradient."""
    common, kernels = "msamp.common.tensor", third_party_cuda.MsAmpKernels(tree)
    # It modifies PyTorch's tensors and functions, so this must be the last check.
    placeholders(common, ScalingMeta=meta, TypeCast=cast)
    scaling = load(f"{common}.tensor", pathlib.Path(tree, "msamp/common/tensor/tensor.py")).ScalingTensor
    placeholders(common, ScalingTensor=scaling)
    placeholders("msamp.optim", LBAdamWBase=object)
    sys.modules["msamp_adamw"] = kernels
    step = load("msamp.optim.adamw", pathlib.Path(tree, "msamp/optim/adamw.py")).LBAdamW.adamw_fn

    def state(qtype, values, scale=1.0):
        scales = [torch.tensor(float(x)) for x in (scale, 1 / scale)]
        return scaling(torch.from_numpy(values.copy()), meta(qtype, *scales, torch.zeros(1)))

    def moments(n):
        return state(dtypes.kfloat8_e4m3, np.zeros(n, np.uint8)), state(dtypes.kfloat16, np.zeros(n, np.float16))

    def stepped(param, gradient, m, v, t, options):
        lr, beta1, beta2, eps, decay, corrected = options
        own = SimpleNamespace(tensor_scale=True, use_adam=False, bias_correction=bool(corrected))
        step(own, [param], [torch.from_numpy(gradient.copy())], [m], [v], [], [t], amsgrad=False, beta1=beta1, beta2=beta2,
             lr=lr, weight_decay=decay, eps=eps, maximize=False)

    golden = goldens("device/golden/msamp_adamw.txt")
    for run, options in msamp_adamw.RUNS.items():
        gradients = golden.floats(f"{run}.gradients", (msamp_adamw.STEPS, -1))
        compare(f"MS-AMP AdamW {run}, options", golden.floats(f"{run}.options"), np.array(options, F32))
        codes, scale = golden.words(f"{run}.0.f16.codes").astype(np.uint16), golden.floats(f"{run}.0.f16.scale")[0]
        for name, param in (("f32", torch.from_numpy(golden.floats(f"{run}.0.f32").copy())),
                            ("f16", state(dtypes.kfloat16, codes.view(np.float16), scale))):
            m, v = moments(gradients.shape[1])
            found = {}

            def kept(part, got, section):
                """Collects bits over all steps for one line of output."""
                got, want = np.asarray(got).reshape(-1), golden.words(section)
                found.setdefault(part, []).append((got.view(f"u{got.itemsize}").copy(), want))

            for t, gradient in enumerate(gradients, 1):
                stepped(param, gradient, m, v, t, options)
                kept("codes of m", m.value.numpy(), f"{run}.{t}.m.codes")
                kept("codes of v", v.value.numpy(), f"{run}.{t}.v.codes")
                kept("scales of m", F32(m.meta.scale), f"{run}.{t}.m.scale")
                kept("scales of v", F32(v.meta.scale), f"{run}.{t}.v.scale")
                if name == "f32":
                    kept("weights", param.numpy(), f"{run}.{t}.f32")
                else:
                    kept("codes of weights", param.value.numpy(), f"{run}.{t}.f16.codes")
                    kept("scales of weights", param.meta.scale.numpy(), f"{run}.{t}.f16.scale")
            for part, pairs in found.items():
                compare(f"MS-AMP AdamW {run}, weights in {name}, {part}", *(np.concatenate(side) for side in zip(*pairs)))

    # Ours keeps the previous scales. Theirs ignores NaN, and resets to 1 if an amax is infinite.
    for kind, want in ((np.nan, [256, 16384]), (np.inf, [1, 1])):
        m, v = moments(1024)
        options = (1e-3, 0.875, 0.9375, 1e-8, 0, 0)
        for t, value in enumerate((16.0, 4.0, kind), 1):
            gradient = np.full(1024, 4, F32)
            gradient[600] = value
            stepped(torch.zeros(1024), gradient, m, v, t, options)
        compare(f"MS-AMP AdamW, scales behind {kind}", np.array([m.meta.scale, v.meta.scale]), want)


def check_coat(tree, goldens):
    golden, coat = goldens("numerics/golden/coat.txt"), third_party_cuda.Coat(tree)
    values = golden.floats("m.values")
    for name, state in zip("mv", coat.encoded(values.copy())):
        for part, got in zip(("codes", "scale", "power", "middle"), state):
            section = f"{name}.{part}"
            compare(f"COAT {section}", got, golden.words(section) if part == "codes" else golden.floats(section))
        compare(f"COAT {name}.decoded", coat.decoded(state), golden.floats(f"{name}.decoded"))


def check_lion(tree, root):
    """Weights and gradients are our script's, the optimizer is the authors'."""
    make_optimizer_goldens.Lion = load("authors_lion", pathlib.Path(tree, "lion/lion_pytorch.py")).Lion
    golden = safetensors.torch.load(lzma.open(pathlib.Path(root, make_optimizer_goldens.GOLDEN + ".xz")).read())
    weights, _ = make_optimizer_goldens.trained("lion")
    for name, p in weights.items():
        compare(f"Lion {name}", p.numpy().view(np.uint32), golden[f"lion.{name}"].numpy().view(np.uint32))
