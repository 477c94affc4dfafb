#!/usr/bin/env python3
"""Makes bench/step/golden/qwen3-moe-fp8.safetensors, a small random Qwen3-MoE whose matrices are stored in FP8 under
the conventions of published checkpoints, and qwen3-moe-fp8-f32.safetensors.xz with their values, computed by NumPy.

    pip install torch transformers ml_dtypes safetensors && tools/goldens/make_fp8_checkpoint_golden.py

Values are products in float32 of the decoded element and its scale, as Hugging Face Transformers dequantizes, which is
checked here for blocks without partial edges.
"""
import pathlib

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from packed import save_packed

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "bench/step/golden"
WIDTH, HEADS, KV_HEADS, HEAD, EXPERTS, EXPERT_FFN, VOCAB, BLOCK = 136, 9, 3, 16, 2, 8, 16, 128
LAYER = "model.layers.0."
RANDOM = np.random.default_rng(0)


def codes_of(rows, cols, dtype):
    """Returns random finite codes, each of which may occur."""
    codes = RANDOM.integers(0, 256, (rows, cols), dtype=np.uint8)
    finite = np.isfinite(codes.view(dtype).astype(np.float32))
    return np.where(finite, codes, np.uint8(0x88))


def expanded(scales, rows, cols):
    """Returns the scale of every element: of the tensor, of its row, or of its block."""
    if scales.size == 1:
        return np.full((rows, cols), scales.reshape(()))
    if scales.shape in ((rows,), (rows, 1)):
        return np.repeat(scales.reshape(rows, 1), cols, 1)
    return np.repeat(np.repeat(scales, BLOCK, 0), BLOCK, 1)[:rows, :cols]


def values_of(codes, dtype, scales):
    return codes.view(dtype).astype(np.float32) * expanded(scales.astype(np.float32), *codes.shape).astype(np.float32)


def check_against_transformers():
    codes = codes_of(2 * BLOCK, 3 * BLOCK, ml_dtypes.float8_e4m3fn)
    scales = RANDOM.uniform(1e-4, 1e-2, (2, 3)).astype(np.float32)
    theirs = Fp8Dequantize(None)._dequantize_one(
        torch.from_numpy(codes).view(torch.float8_e4m3fn), torch.from_numpy(scales), output_dtype=torch.float32)
    assert np.array_equal(theirs.numpy(), values_of(codes, ml_dtypes.float8_e4m3fn, scales))


def main():
    check_against_transformers()
    stored, values = {}, {}

    def matrix(module, rows, cols, suffix, shape, scale_dtype, dtype=ml_dtypes.float8_e4m3fn):
        codes = codes_of(rows, cols, dtype)
        scales = (2.0 ** RANDOM.integers(-12, -6, shape) if scale_dtype == ml_dtypes.float8_e8m0fnu else
                  RANDOM.uniform(1e-4, 1e-2, shape))
        scales = np.asarray(scales, dtype=scale_dtype)
        types = {np.float32: torch.float32, np.float16: torch.float16, ml_dtypes.bfloat16: torch.bfloat16,
                 ml_dtypes.float8_e8m0fnu: torch.float8_e8m0fnu}
        name = LAYER + module + ".weight"
        stored[name] = torch.from_numpy(codes).view(
            torch.float8_e5m2 if dtype == ml_dtypes.float8_e5m2 else torch.float8_e4m3fn)
        stored[name + suffix] = torch.from_numpy(np.frombuffer(scales.tobytes(), np.uint8).copy()).view(
            types[scale_dtype]).reshape(shape)
        values[name] = torch.from_numpy(values_of(codes, dtype, scales))

    def plain(name, *shape):
        stored[name] = torch.from_numpy(RANDOM.standard_normal(shape).astype(np.float32)).bfloat16()

    # Blocks of 128x128 (DeepSeek, Qwen, MiniMax): partial in both dimensions, scales in FP32 and BF16.
    matrix("self_attn.q_proj", HEADS * HEAD, WIDTH, "_scale_inv", (2, 2), np.float32)
    matrix("self_attn.o_proj", WIDTH, HEADS * HEAD, "_scale_inv", (2, 2), ml_dtypes.bfloat16)
    # One scale for each row (compressed-tensors, FBGEMM).
    matrix("self_attn.k_proj", KV_HEADS * HEAD, WIDTH, "_scale", (KV_HEADS * HEAD, 1), ml_dtypes.bfloat16)
    matrix("self_attn.v_proj", KV_HEADS * HEAD, WIDTH, "_scale", (KV_HEADS * HEAD,), np.float32)
    # One for the tensor (ModelOpt; Ministral 3 under the other name), blocks of one block, scales in other formats.
    first, second = "mlp.experts.0.", "mlp.experts.1."
    matrix(first + "gate_proj", EXPERT_FFN, WIDTH, "_scale", (), np.float32)
    matrix(first + "up_proj", EXPERT_FFN, WIDTH, "_scale_inv", (1,), np.float32)
    matrix(first + "down_proj", WIDTH, EXPERT_FFN, "_scale_inv", (2, 1), ml_dtypes.float8_e8m0fnu)
    matrix(second + "gate_proj", EXPERT_FFN, WIDTH, "_scale_inv", (1, 2), np.float16)
    matrix(second + "up_proj", EXPERT_FFN, WIDTH, "_scale", (1, 1), ml_dtypes.bfloat16)
    matrix(second + "down_proj", WIDTH, EXPERT_FFN, "_scale", (WIDTH, 1), np.float32, ml_dtypes.float8_e5m2)
    for name in ("self_attn.q_proj.input_scale", first + "gate_proj.input_scale", "self_attn.k_proj.k_scale"):
        stored[LAYER + name] = torch.tensor(0.5)
    plain("model.embed_tokens.weight", VOCAB, WIDTH)
    plain("lm_head.weight", VOCAB, WIDTH)
    plain("model.norm.weight", WIDTH)
    plain(LAYER + "mlp.gate.weight", EXPERTS, WIDTH)
    for norm, size in (("input_layernorm", WIDTH), ("post_attention_layernorm", WIDTH), ("self_attn.q_norm", HEAD),
                       ("self_attn.k_norm", HEAD)):
        plain(LAYER + norm + ".weight", size)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, FOLDER / "qwen3-moe-fp8.safetensors")
    save_packed(values, FOLDER / "qwen3-moe-fp8-f32.safetensors")


main()
