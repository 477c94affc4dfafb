#!/usr/bin/env python3
"""Makes models/transformer/golden/step_documents.safetensors.xz: a step of fine-tuning on documents of prompt and answer, by
Hugging Face's Llama, whose loss is that of its trainer: labels of -100 have none.

    python3 tools/goldens/make_documents_golden.py

Needs torch (CPU), transformers and safetensors, only to regenerate the file.

The file holds what make_step_goldens.py describes, for the plain step, and `answers` (u8 [B, T]): 1 for targets with a
loss. The documents are padded at their end; the padding differs from what precbench pads with, since it has no influence.
"""
import json
import pathlib

import torch

from make_step_goldens import B, HUGGING_FACE_SHAPE, OPTIMIZER, SHAPE, T, adamw_step, random_weights
from packed import save_packed

DESCRIPTION = dict(HUGGING_FACE_SHAPE, model_type="llama", head_dim=16, tie_word_embeddings=False, rms_norm_eps=1e-5,
                   rope_theta=500000.0, max_position_embeddings=96, attention_bias=False, mlp_bias=False)
# Of each document: tokens of the prompt, tokens of the whole.
DOCUMENTS = [(5, 20), (1, 9)]


def main():
    from transformers import AutoConfig, AutoModelForCausalLM

    generator = torch.Generator().manual_seed(7)
    weights = random_weights(dict(SHAPE, tied=False, qk_norm=False), generator)
    tokens = torch.randint(0, SHAPE["vocab"], (B, T + 1), generator=generator, dtype=torch.int32)
    labels = torch.full((B, T + 1), -100)
    for row, (prompt, whole) in enumerate(DOCUMENTS):
        labels[row, prompt:whole] = tokens[row, prompt:whole].long()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**DESCRIPTION), attn_implementation="eager",
                                             dtype=torch.float64)
    model.load_state_dict({name: weight.double() for name, weight in weights.items()})
    mask = torch.zeros(B, T + 1, dtype=torch.long)
    for row, (_, whole) in enumerate(DOCUMENTS):
        mask[row, :whole] = 1
    loss = model(tokens.long(), attention_mask=mask, labels=labels).loss
    loss.backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    after, norm = adamw_step(weights, grads)
    answers = (labels[:, 1:] >= 0).to(torch.uint8)
    tensors = dict(weights, tokens=tokens, answers=answers, loss=loss.detach().float().reshape(1), grad_norm=norm.reshape(1))
    tensors.update({f"grad.{name}": grad.float() for name, grad in grads.items()})
    tensors.update({f"after.{name}": weight for name, weight in after.items()})
    path = pathlib.Path(__file__).resolve().parents[2] / "models" / "transformer" / "golden" / "step_documents.safetensors"
    size = save_packed(tensors, path, dict(config=json.dumps(DESCRIPTION), optimizer=json.dumps(OPTIMIZER)))
    print(f"{path.name}: {size} bytes, loss {loss.item():.6f} of {answers.sum()} targets, "
          f"gradient norm {norm.item():.4f}")


if __name__ == "__main__":
    main()
