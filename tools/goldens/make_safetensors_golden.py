#!/usr/bin/env python3
"""Regenerates models/checkpoint/golden/reference.safetensors with the reference implementation of the format.

Needs the Python packages torch and safetensors; the tests only need the file.
usage: tools/goldens/make_safetensors_golden.py
"""
import pathlib

import safetensors.torch
import torch

# Values that every dtype here represents exactly; also in safetensors_test.cpp.
values = torch.tensor([[0.0, 1.0, -2.0], [0.5, 448.0, -0.015625]])
tensors = {
    "weights.f32": values,
    "weights.f16": values.to(torch.float16),
    "weights.bf16": values.to(torch.bfloat16),
    "weights.e4m3": values.to(torch.float8_e4m3fn),
    "ids.i64": torch.tensor([2**40, -1]),
    "ids.i32": torch.tensor([7, -8, 9], dtype=torch.int32),
    "scalar": torch.tensor(3.25),
    "empty": torch.zeros(0, 4),
    "größe \"x\"": torch.tensor([True, False, True]),
}
path = pathlib.Path(__file__).resolve().parents[2] / "models" / "checkpoint" / "golden" / "reference.safetensors"
safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
print(f"{path}: {path.stat().st_size} bytes")
