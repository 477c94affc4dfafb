#!/usr/bin/env python3
"""Compares committed goldens with the code of the formulas' authors, run on this CPU from their source trees.

    tools/goldens/check_third_party.py --te DIR --torchao DIR --quartet DIR --quartet2 DIR --mx DIR
                                       --mxfp4-llm DIR --msamp DIR --coat DIR --lion DIR [--goldens ROOT]

Needs numpy, ml_dtypes, torch with Triton, safetensors, scipy, g++, and for --torchao an installed torchao or
what its tree imports. Omitted trees are not checked. Prints "name: N values, N equal" for each quantizer;
exit status 1 if a value differs and is not masked. Masked are ties between two codes, which Quartet rounds
down and Quartet II up, and their consequences: in MS-EDEN and four over six, the whole group.

The random numbers are passed to the third-party code. If its kernel only returns values, the values of the
golden's codes and scales are compared, in the kernel's own order of operations. README.md lists what is not
run.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from types import SimpleNamespace

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiled code equals eager mode, but takes seconds to compile
os.environ["TRITON_INTERPRET"] = "1"  # must be set before Triton is imported

import numpy as np
import torch

import make_fp4_goldens as fp4
import make_history_goldens as delayed
import third_party
import third_party_compare
import third_party_cuda
from third_party import interpreted, load, placeholders
from third_party_compare import F32, Golden, compare
from third_party_optimizers import check_coat, check_lion, check_msamp



def numpy_bytes(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().astype(np.int64)


def pairs_apart(packed):
    """Returns the codes [rows, cols] from bytes of two codes."""
    packed = numpy_bytes(packed)
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def without_signs_of_zeros(codes):
    return np.where(codes == 8, 0, codes)


# Shape of the input in fp4.txt
SHAPE = (32, 256)


def e2m1_values(golden, section):
    return fp4.values_of(golden.codes(f"{section}.codes", SHAPE)).astype(F32)


def powers(golden, section):
    return np.repeat(np.exp2(golden.words(f"{section}.scales", (32, 8)) - 127.0), 32, axis=1).astype(F32)


# ---- TransformerEngine


def check_te(tree, goldens):
    te = pathlib.Path(tree)
    python = te / "transformer_engine/pytorch"

    class Quantizer:
        def __init__(self, *, rowwise, columnwise):
            self.rowwise_usage, self.columnwise_usage = rowwise, columnwise

    placeholders("transformer_engine.pytorch.quantized_tensor", Quantizer=Quantizer, QuantizedTensorStorage=object)
    utils = load("transformer_engine.pytorch.custom_recipes.reference_utils", python / "custom_recipes/reference_utils.py")
    module = load("transformer_engine.pytorch.custom_recipes.reference_nvfp4", python / "custom_recipes/reference_nvfp4.py")
    golden = goldens("numerics/golden/nvfp4.txt")
    x = torch.from_numpy(golden.bf16("input", (64, 48))).bfloat16()

    def check_form(name, section, codes, scales, amax, square=False):
        compare(f"TransformerEngine NVFP4 {name}, amax", amax.float().numpy(), golden.floats(f"{section}.amax"))
        want = golden.words(f"{section}.scales", scales.shape if not square else (64, 3))
        want_codes = golden.codes(f"{section}.codes", (64, 48) if square else (codes.shape[0], codes.shape[1] * 2))
        if square == "turned":
            want, want_codes = np.repeat(want[::16].T, 16, axis=0), want_codes.T
        compare(f"TransformerEngine NVFP4 {name}, scales", numpy_bytes(scales), want)
        compare(f"TransformerEngine NVFP4 {name}, codes", without_signs_of_zeros(pairs_apart(codes)),
                without_signs_of_zeros(want_codes))

    e2m1 = utils.Fp4Formats.E2M1
    quantizer = module.NVFP4QuantizerRef(dtype=e2m1, quant_tile_shape=(1, 16), with_rht=True)
    made = quantizer.quantize(x)
    turned = quantizer._apply_rht(x.t().contiguous())
    compare("TransformerEngine Hadamard 16", turned.float().numpy(), golden.bf16("rht"))
    check_form("1x16", "1x16", made.data, made.scale, made.global_amax_row)
    check_form("1x16 of X^T behind Hadamard", "rht.1x16", made.data_t, made.scale_t, made.global_amax_col)
    made = module.NVFP4QuantizerRef(dtype=e2m1, quant_tile_shape=(16, 16)).quantize(x)
    check_form("16x16", "16x16", made.data, made.scale, made.global_amax_row, "rows")
    check_form("16x16 of W^T", "16x16", made.data_t, made.scale_t, made.global_amax_col, "turned")

    cuda = third_party_cuda.TransformerEngineCuda(tree)
    scales = fp4.E4M3.astype(F32)[golden.words("1x16.scales", (64, 3))]
    encode = F32(2688) / golden.floats("1x16.amax")[0]
    with np.errstate(divide="ignore"):
        multiplier = np.minimum(F32(1) / (scales * (F32(1) / encode)), np.finfo(F32).max)
    scaled = x.float().numpy() * np.repeat(multiplier, 16, axis=1)
    rounded = cuda.stochastic_e2m1(scaled, golden.words("1x16.stochastic.bytes", (64, 48)))
    want = fp4.values_of(golden.codes("1x16.stochastic.codes"))
    compare("TransformerEngine NVFP4 1x16 stochastic, e2m1 in software", rounded, want)
    golden = goldens("device/golden/fp4.txt")
    scaled = golden.bf16("h64", SHAPE) / powers(golden, "mxfp4.h64.sr") * F32(0.75)
    rounded = cuda.stochastic_e2m1(scaled, fp4.random_bytes())
    compare("TransformerEngine's stochastic e2m1 in MXFP4", rounded, e2m1_values(golden, "mxfp4.h64.sr"))

    placeholders("pytest", "transformer_engine_torch", "transformer_engine.common.recipe", "transformer_engine.pytorch.quantization")
    module = load("te_mxfp8_2d", te / "tests/pytorch/test_mxfp8_2d_quantize.py")
    golden = goldens("device/golden/mx.txt")
    codes, rows, columns = module._mxfp8_2d_quantize_reference(torch.from_numpy(golden.bf16("squares", (64, 96))).bfloat16())
    want = golden.words("squares.e4m3.scales", (2, 3))
    compare("TransformerEngine MXFP8 32x32 E4M3, codes", numpy_bytes(codes), golden.words("squares.e4m3.codes"))
    compare("TransformerEngine MXFP8 32x32 E4M3, scales by row", numpy_bytes(rows), np.repeat(want, 32, axis=0))
    compare("TransformerEngine MXFP8 32x32 E4M3, scales by column", numpy_bytes(columns), np.repeat(want, 32, axis=1))

    placeholders("transformer_engine.pytorch.constants", "transformer_engine.pytorch.utils")
    placeholders("transformer_engine.pytorch.jit", jit_fuser=lambda function: function)
    module = load("transformer_engine.pytorch.quantization", python / "quantization.py")
    golden = goldens("device/golden/history.txt")
    for section in golden.sections:
        if section.startswith("history.") or section.endswith("amaxes"):
            continue
        prefix = "wild." if section.startswith("wild.") else ""
        form, length, algorithm, margin = section.removeprefix(prefix).split(".")
        recent, length = algorithm == "most_recent", int(length)
        amaxes = golden.floats(f"{prefix}amaxes")
        runs = golden.words(section, (-1, 2))
        want = np.repeat(runs[:, 1].astype(np.uint32).view(F32), runs[:, 0])
        name = f"TransformerEngine delayed scaling {section}"
        maximum = delayed.MAXIMA[form]
        scaled_max = maximum * F32(2) ** F32(-int(margin))
        got, histories = cuda.scales(delayed.finite(amaxes), scaled_max, length, recent)
        compare(f"{name}, the kernel", got, want)
        dumped = [step for step in range(len(amaxes)) if f"history.{step}.{section}" in golden.sections]
        assert dumped
        compare(f"{name}, the kernel's history", histories[dumped].view(np.uint32),
                np.stack([golden.words(f"history.{step}.{section}") for step in dumped]))
        if prefix:
            # Non-finite amaxes are compared with a second implementation of its rule; the
            # golden treats them as 0.
            got, histories = cuda.scales(amaxes, scaled_max, length, recent)
            scales, kept = delayed.kept(amaxes, maximum, length, algorithm, int(margin))
            compare(f"{name}, the kernel with what is not finite", got, scales)
            compare(f"{name}, the kernel's history with what is not finite", histories.view(np.uint32), kept.view(np.uint32))
            print(f"  where its scale is not ours in {(got != want).sum()} of {want.size} steps", flush=True)
            continue
        recipe = SimpleNamespace(amax_compute_algo=algorithm, scaling_factor_compute_algo=None, margin=int(margin))
        # A tensor, because PyTorch computes number / tensor as a product with a reciprocal, a rounding
        # that the kernel lacks.
        over = torch.tensor(float(maximum))
        history, scale, got = torch.zeros(length, 1), torch.ones(1), []
        for amax in amaxes:
            # The kernel keeps a history that the unfused update would roll.
            if amax != 0:
                history[0] = float(amax)
                module._amax_and_scale_update(history, scale, over, recipe)
            got.append(scale.item())
        compare(f"{name}, in Python", np.array(got, F32), want)


# ---- torchao


def check_torchao(tree, goldens):
    sys.path[:0] = [tree, str(pathlib.Path(tree, "test/prototype/moe_training/nvfp4_training"))]
    import nvfp4_reference as reference
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

    golden = goldens("numerics/golden/nvfp4.txt")
    x = torch.from_numpy(golden.bf16("input", (64, 48))).bfloat16()
    turned = reference.reference_rht(x)
    compare("torchao Hadamard 16", turned.float().numpy(), golden.bf16("rht"))
    for section, source, block in (("1x16", x, "1x16"), ("16x16", x, "16x16"), ("rht.1x16", turned, "1x16")):
        made = reference.nvfp4_reference_quantize(source, source.float().abs().max(), block=block)
        compare(f"torchao NVFP4 {section}, scales", numpy_bytes(made.scales), golden.words(f"{section}.scales"))
        compare(f"torchao NVFP4 {section}, codes", numpy_bytes(made.codes), golden.words(f"{section}.codes"))
    golden = goldens("device/golden/mx.txt")
    x = torch.from_numpy(golden.bf16("input", (32, 64))).bfloat16()
    squares = torch.from_numpy(golden.bf16("squares", (2, 32, 3, 32))).bfloat16().permute(0, 2, 1, 3).reshape(6, 1024)
    for form, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        for mode in ScaleCalculationMode:
            scales, codes = to_mx(x, dtype, 32, mode)
            compare(f"torchao MX {form} {mode.value}, scales", numpy_bytes(scales), golden.words(f"{form}.{mode.value}.scales"))
            compare(f"torchao MX {form} {mode.value}, codes", numpy_bytes(codes), golden.words(f"{form}.{mode.value}.codes"))
        scales, codes = to_mx(squares, dtype, 1024, ScaleCalculationMode.RCEIL)
        codes = numpy_bytes(codes).reshape(2, 3, 32, 32).transpose(0, 2, 1, 3)
        compare(f"torchao MX {form} rceil in squares, scales", numpy_bytes(scales), golden.words(f"squares.{form}.scales"))
        compare(f"torchao MX {form} rceil in squares, codes", codes, golden.words(f"squares.{form}.codes"))


# ---- MXFP4: Microsoft's library with mxfp4-llm's patch, and Quartet

def between(scaled, middles):
    return np.isin(np.abs(scaled), np.array(middles, F32))


def check_mx(tree, patch, goldens):
    folder = tempfile.TemporaryDirectory()
    shutil.copytree(pathlib.Path(tree, "mx"), pathlib.Path(folder.name, "mx"))
    patched = pathlib.Path(patch, "patch_override_scripts/microxcaling.patch").resolve()
    subprocess.run(["git", "apply", "--include=mx/*", patched], cwd=folder.name, check=True)
    placeholders("mx")
    for name in ("formats", "specs", "elemwise_ops", "mx_ops"):
        module = load(f"mx.{name}", pathlib.Path(folder.name, f"mx/{name}.py"))
    golden = goldens("device/golden/fp4.txt")

    def quantized(source, rounding):
        x = torch.from_numpy(golden.bf16(source, SHAPE).copy())
        return module._quantize_mx(x, 8, module.ElemFormat.fp4_e2m1, axes=[-1], block_size=32, round=rounding).numpy()

    compare("microxcaling MXFP4 1x32", quantized("input", "even"), e2m1_values(golden, "mxfp4") * powers(golden, "mxfp4"))
    draws = torch.from_numpy(fp4.random_bytes() / 256).float().reshape(32, 8, 32)
    theirs, torch.rand_like = torch.rand_like, lambda like, **_: draws.reshape(like.shape)
    for source in ("h64", "h32"):
        section = f"mxfp4.{source}.sr"
        steps = powers(golden, section) * F32(4)
        compare(f"mxfp4-llm MXFP4 1x32 stochastic times 3/4, {source}", quantized(source, "dither_scale"),
                e2m1_values(golden, section) * steps / F32(3))
    torch.rand_like = theirs


def check_quartet(tree, goldens):
    module = interpreted("quartet_mxfp4", pathlib.Path(tree, "src/models/quantization/quantizers/mxfp4_triton.py"))
    golden = goldens("device/golden/fp4.txt")

    def forward(source, **options):
        x = torch.from_numpy(golden.bf16(source, SHAPE).copy())
        made, clipped = module.mxfp4_forward_kernel_wrapper(x, torch.eye(32), **options)
        return made.numpy(), clipped

    x = golden.bf16("h32.plain", SHAPE)
    made, inside = forward("h32.plain", quest=True, gaussian_scale=2.92247856 / 6.0, return_clip_mask=True)
    scale = powers(golden, "quest")
    compare("Quartet QuEST MXFP4 1x32", made, e2m1_values(golden, "quest") * scale,
            between(x / scale, [0.75, 1.75, 3.5]))
    compare("Quartet QuEST mask", ~inside.numpy(), golden.words("quest.clipped"))
    for source, section in (("h32", "mxfp4.h32"), ("h32", "mxfp4.h32.sr"), ("h64", "mxfp4.h64.sr")):
        stochastic = section.endswith("sr")
        # Ours rounds up if the fraction plus r / 256 reaches 1, theirs if a draw is below the fraction.
        third_party.Draws.values = np.nextafter(1 - fp4.random_bytes().reshape(-1) / 256, 0)
        made, _ = forward(source, quest=False, stochastic_round=stochastic)
        scaled = golden.bf16(source, SHAPE) / powers(golden, section) * F32(0.75)
        masked = between(scaled, [] if stochastic else [0.75, 1.75, 3.5])
        name = f"Quartet MXFP4 1x32 times 3/4{' stochastic' if stochastic else ''}, {source}"
        compare(name, made, e2m1_values(golden, section) * (powers(golden, section) / F32(0.75)), masked)


# ---- Quartet II


def check_quartet2(tree, goldens):
    source = pathlib.Path(tree, "src/models/quantization")
    placeholders("models.quantization.quantizers")
    kernels = interpreted("models.quantization.quantizers.nvfp4_triton", source / "quantizers/nvfp4_triton.py")
    scheme = interpreted("quartet2_scheme", source / "schemes/quartet_2.py")
    golden = goldens("device/golden/fp4.txt")

    for n, section in ((32, "h32"), (64, "h64"), (128, "h128")):
        h = scheme.get_hadamard_matrix(n, torch.float32, "cpu").double().numpy()
        sums = (golden.bf16("input", SHAPE) * np.tile(fp4.random_signs(n, fp4.SIGNS), 256 // n)).reshape(-1, n) @ h
        compare(f"Quartet II Hadamard {n}, rounded to BF16 here", fp4.bf16(sums.astype(F32)), golden.bf16(section))

    def stepped(section, cap, over):
        """Returns the golden's e2m1 values, block scales, and the tensor's step."""
        amax = golden.floats(f"{section}.amax")[0]
        scales = np.repeat(fp4.E4M3.astype(F32)[golden.words(f"{section}.scales", (32, 16))], 16, axis=1)
        return e2m1_values(golden, section), scales, amax / F32(cap) / F32(6 / over)

    def groups(where, n):
        return np.repeat(where.reshape(-1, n).any(axis=1), n).reshape(SHAPE)

    x = golden.bf16("input", SHAPE)
    q, scales, step = stepped("four_over_six", 256, 1)
    made = kernels.rtn_1x16s_fp4_kernel_wrapper(torch.from_numpy(x.copy()), scale_override=1.0, group_size=16, four_over_six=True)
    masked = groups(between(x / (scales * step), [0.25, 1.25, 2.5, 5]), 16)
    compare("Quartet II four over six", made.numpy(), q * (scales * step), masked)

    over = scheme.Quartet_II_fn.backward_scale_override
    x = golden.bf16("h128", SHAPE)
    amax = torch.from_numpy(golden.floats("eden.amax").copy())
    for section, group in (("eden", 16), ("eden128", 128)):
        seed = fp4.WORD << 32 | fp4.STREAM
        draws = [fp4.random_bits(seed, fp4.place(r, c)) / 2.0**32 for r in range(32) for c in range(0, 256, 16)]
        third_party.Draws.values = np.array(draws)
        q, scales, step = stepped(section, 255.99, over)
        # Elements were rounded with the scale before its correction.
        largest = np.abs(x).reshape(32, 16, 16).max(axis=2) / F32(6 / over) / step
        before = torch.from_numpy(largest).to(torch.float8_e4m3fn).float().numpy()
        scaled = x / np.repeat(np.where(before == 0, F32(1), before) * step, 16, axis=1)
        masked = groups(between(scaled, [0.25, 1.25, 2.5, 5]), group)
        made = kernels.eden_1x16s_fp4_kernel_wrapper(torch.from_numpy(x.copy()), over, group, 16, False)
        compare(f"Quartet II MS-EDEN, corrected by {group}", made.numpy(), q * scales * step, masked)
        made, amax_after = scheme.eden_1x16s_fp4_kernel_wrapper(torch.from_numpy(x.copy()), torch.eye(group), over, 16, amax)
        compare(f"Quartet II MS-EDEN of its scheme, corrected by {group}", made.numpy(), q * scales * step, masked)
        compare(f"Quartet II MS-EDEN of its scheme, amax by {group}", amax_after.numpy(), amax.numpy())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    trees = ("te", "torchao", "quartet", "quartet2", "mx", "mxfp4-llm", "msamp", "coat", "lion")
    for tree in trees:
        parser.add_argument(f"--{tree}", metavar="DIR")
    parser.add_argument("--goldens", metavar="ROOT", default=pathlib.Path(__file__).resolve().parents[2],
                        help="the tree whose goldens are checked")
    args = parser.parse_args()
    if not any(getattr(args, tree.replace("-", "_")) for tree in trees):
        parser.error("no tree is given")
    if bool(args.mx) != bool(args.mxfp4_llm):
        parser.error("--mx and --mxfp4-llm go together: the one has the other's patch")

    def goldens(path):
        return Golden(pathlib.Path(args.goldens, "kernels", path))

    for check, tree in ((check_torchao, args.torchao), (check_te, args.te), (check_quartet, args.quartet),
                        (check_quartet2, args.quartet2), (check_coat, args.coat)):
        if tree:
            check(os.path.abspath(tree), goldens)
    if args.mx:
        check_mx(args.mx, args.mxfp4_llm, goldens)
    if args.lion:
        check_lion(args.lion, args.goldens)
    if args.msamp:
        check_msamp(os.path.abspath(args.msamp), goldens)
    sys.exit(third_party_compare.failed)


if __name__ == "__main__":
    main()
