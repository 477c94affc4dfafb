"""Writes small GGUF files for tests, with random weights derived from integers, so that all machines
produce equal bytes."""
import hashlib
import random

import gguf
import numpy as np

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, VOCABULARY = 2, 256, 256, 8, 4, 320  # K-quants need rows
                                                                            # of multiples of 256
# Types that the library cannot quantize to. Their blocks are random bits, with FP16 scales from these least
# bit patterns. 0x0400 is 2^-14, 0x0800 is 2^-13. The second scale is that of the subtracted minimum; it gives
# weights of mean 0.
K_QUANTS = {"Q4_K": (0x0800, 0x1400), "Q5_K": (0x0400, 0x1400), "Q6_K": (0x0400,)}

# Name -> (architecture, type of the matrices, further differences). golden/losses.json has the loss
# and weights of each.
CASES = {
    **{name.lower(): ("llama", name, {}) for name in
       ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")},
    "tied": ("llama", "Q4_1", {"tied": True}),
    "llama3_rope": ("llama", "F32", {"llama3_factor": 8.0}),
    "linear_rope": ("llama", "F32", {"linear_factor": 4.0}),
    "qwen2": ("qwen2", "Q8_0", {}),
    "qwen3": ("qwen3", "Q8_0", {"head_dim": 64}),
    "gemma3": ("gemma3", "Q8_0", {"head_dim": 64, "tied": True, "layers": 6, "window": 12, "theta": 1e6}),  # layer 5 has no window
}


def uniform(chosen, shape, scale):
    """Returns FP32 values between -scale and scale in steps of scale / 32768; `scale` is a power of two, so they are exact."""
    integers = np.frombuffer(chosen.randbytes(2 * int(np.prod(shape))), "<i2")
    return (integers.astype(np.float32) * np.float32(scale / 32768)).reshape(shape)


def quantized(chosen, values, name):
    """Returns (data, type) of a matrix as GGUFWriter.add_tensor takes them."""
    kind = gguf.GGMLQuantizationType[name]
    if name not in K_QUANTS:
        return gguf.quants.quantize(values, kind), kind
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.frombuffer(chosen.randbytes(values.size // 256 * size), np.uint8).reshape(-1, size).copy()
    scales = np.frombuffer(chosen.randbytes(2 * len(K_QUANTS[name]) * len(blocks)), "<u2").reshape(len(blocks), -1)
    scales = (scales % 0x400 + np.array(K_QUANTS[name])).astype("<u2").view(np.uint8)
    if name == "Q6_K":
        blocks[:, -2:] = scales
    else:
        blocks[:, :4] = scales
    return blocks.reshape(values.shape[0], -1), kind


def write(path, case, tokenizer=None, change=lambda writer: None):
    """Writes the file of CASES[case]. `tokenizer` is (tokens, types, merges, pre); `change` may add to the writer."""
    architecture, name, options = CASES[case]
    chosen, head_dim = random.Random(case), options.get("head_dim", WIDTH // HEADS)
    layers = options.get("layers", LAYERS)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(options.get("theta", 10000.0))
    writer.add_vocab_size(VOCABULARY)
    if "head_dim" in options:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if "window" in options:
        writer.add_sliding_window(options["window"])
    if "linear_factor" in options:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(options["linear_factor"])
    if tokenizer:
        add_tokenizer(writer, *tokenizer)

    def matrix(tensor, rows, columns, scale):
        data, kind = quantized(chosen, uniform(chosen, (rows, columns), scale), name)
        writer.add_tensor(tensor, data, raw_dtype=kind)

    def vector(tensor, size, center, scale):
        writer.add_tensor(tensor, np.float32(center) + uniform(chosen, (size,), scale))

    matrix("token_embd.weight", VOCABULARY, WIDTH, 0.125 if options.get("tied") else 1.0)
    for layer in range(layers):
        block = f"blk.{layer}."
        vector(block + "attn_norm.weight", WIDTH, 1.0, 0.25)
        for short, heads in ("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS):
            matrix(f"{block}attn_{short}.weight", heads * head_dim, WIDTH, 0.25)
            if architecture == "qwen2":
                vector(f"{block}attn_{short}.bias", heads * head_dim, 0.0, 1.0)
            if architecture in ("qwen3", "gemma3") and short != "v":
                vector(f"{block}attn_{short}_norm.weight", head_dim, 1.0, 0.5)
        matrix(block + "attn_output.weight", WIDTH, HEADS * head_dim, 0.25)
        vector(block + "ffn_norm.weight", WIDTH, 1.0, 0.25)
        if architecture == "gemma3":
            vector(block + "post_attention_norm.weight", WIDTH, 4.0, 0.25)
            vector(block + "post_ffw_norm.weight", WIDTH, 4.0, 0.25)
        for part in "gate", "up":
            matrix(f"{block}ffn_{part}.weight", INNER, WIDTH, 0.125)
        matrix(block + "ffn_down.weight", WIDTH, INNER, 0.125)
    vector("output_norm.weight", WIDTH, 1.0, 0.25)
    if not options.get("tied"):
        matrix("output.weight", VOCABULARY, WIDTH, 0.125)
    if "llama3_factor" in options:
        writer.add_tensor("rope_freqs.weight", llama3_frequencies(head_dim, options["llama3_factor"]))
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer, tokens, types, merges, pre):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)


def llama3_frequencies(head_dim, factor):
    """Returns the tensor that llama.cpp's converter stores for Llama 3.1: each wavelength according to
    its own branch."""
    result = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * 10000.0 ** (i / head_dim)
        if wavelength < 8192 / 4:
            result.append(1.0)
        elif wavelength > 8192 / 1:
            result.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            result.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(result, np.float32)


def digest(tensors):
    """Returns the SHA-256 of FP32 tensors in name order."""
    result = hashlib.sha256()
    for name in sorted(tensors):
        result.update(name.encode() + np.ascontiguousarray(tensors[name], "<f4").tobytes())
    return result.hexdigest()
