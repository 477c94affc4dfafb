#!/usr/bin/env python3
"""Makes bench/step/golden/gpt-oss-mxfp4.safetensors, a small random gpt-oss with experts in MXFP4, and
gpt-oss-mxfp4-bf16.safetensors with the values that Hugging Face Transformers dequantizes them to.

    pip install torch transformers accelerate safetensors && tools/goldens/make_mxfp4_checkpoint_golden.py
"""
import pathlib

import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "bench/step/golden"
SHAPE = dict(num_hidden_layers=1, hidden_size=64, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1,
             head_dim=16, vocab_size=16, num_local_experts=2, num_experts_per_tok=1)


def main():
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**SHAPE)).bfloat16()
    plain = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    packed = dict(plain)
    for name in [name for name in plain if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = plain[name].shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(100, 140, (experts, outputs, inputs // 32), dtype=torch.uint8)
        plain[name] = convert_moe_packed_tensors(blocks, scales).contiguous()
        assert plain[name].shape == (experts, inputs, outputs), plain[name].shape
        del packed[name]
        packed |= {name + "_blocks": blocks, name + "_scales": scales}
    save_file(packed, FOLDER / "gpt-oss-mxfp4.safetensors")
    save_file(plain, FOLDER / "gpt-oss-mxfp4-bf16.safetensors")


main()
