#!/usr/bin/env python3
"""Makes models/transformer/golden/rope.json.xz: RoPE of published models by Hugging Face's own rotary embedding.

    python3 tools/goldens/make_rope_goldens.py

Needs torch (CPU) and transformers, only to regenerate the file.

A list of {name, D, config, attention_factor, frequencies [D/2], positions, cos, sin [positions][D/2]}.
`config` has the RoPE keys of the model's config.json; the numbers are float32, as the library computes them.
"""
import json
import lzma
import pathlib

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

POSITIONS = [0, 1, 7, 100, 4095, 8191, 8192, 32768, 131071]
MODELS = {
    "plain": dict(head_dim=128, rope_theta=500000.0, max_position_embeddings=8192),
    "llama3.1-8b": dict(head_dim=128, rope_theta=500000.0, max_position_embeddings=131072, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    "llama3.2-1b": dict(head_dim=64, rope_theta=500000.0, max_position_embeddings=131072, rope_scaling=dict(
        rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    "linear": dict(head_dim=128, rope_theta=10000.0, max_position_embeddings=16384,
                   rope_scaling=dict(rope_type="linear", factor=4.0)),
    "qwen2.5 with yarn": dict(head_dim=128, rope_theta=1000000.0, max_position_embeddings=32768, rope_scaling=dict(
        type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    "deepseek-v3": dict(head_dim=64, rope_theta=10000.0, max_position_embeddings=163840, rope_scaling=dict(
        type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=0.8,
        original_max_position_embeddings=4096)),
    "gpt-oss": dict(head_dim=64, rope_theta=150000.0, max_position_embeddings=131072, rope_scaling=dict(
        rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
        original_max_position_embeddings=4096)),
}


def golden(name, rope):
    shape = dict(hidden_size=2 * rope["head_dim"], num_attention_heads=2, num_key_value_heads=2,
                 intermediate_size=64, num_hidden_layers=1, vocab_size=64)
    config = LlamaConfig(**json.loads(json.dumps(rope)), **shape)  # a copy, since the library
                                                                   # modifies its input
    module = LlamaRotaryEmbedding(config)
    cos, sin = module(torch.zeros(1, 1, 1), torch.tensor([POSITIONS]))
    half = rope["head_dim"] // 2
    rows = lambda table: [[float(x) for x in row[:half]] for row in table[0]]
    return dict(name=name, D=rope["head_dim"], config=dict(model_type="llama", **rope, **shape),
                attention_factor=float(module.attention_scaling),
                frequencies=[float(x) for x in module.inv_freq], positions=POSITIONS, cos=rows(cos), sin=rows(sin))


def main():
    path = pathlib.Path(__file__).resolve().parents[2] / "models" / "transformer" / "golden" / "rope.json.xz"
    goldens = [golden(name, rope) for name, rope in MODELS.items()]
    text = json.dumps(goldens).replace('{"name"', '\n{"name"') + "\n"
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path.name}: {path.stat().st_size} bytes, {len(goldens)} models")


if __name__ == "__main__":
    main()
