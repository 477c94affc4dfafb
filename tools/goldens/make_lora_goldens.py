#!/usr/bin/env python3
"""Makes models/transformer/golden/step_lora-NAME.safetensors.xz: one LoRA step of small models, by Hugging Face's peft.

    python3 tools/goldens/make_lora_goldens.py [NAME...]

Needs torch (CPU), transformers, peft and safetensors, only to regenerate the files.

Each file holds the model's frozen weights and the first weights of its adapters (BF16, under the names of
their checkpoints), `tokens` [B, T+1], and the step on them in float64, stored as float32: `loss`, grad.NAME,
`grad_norm` before clipping, and after.NAME after one clipped AdamW step in float32. Both A and B are
random, so that no gradient is 0. The metadata have the model (`config`), `optimizer`, and `lora` (rank, alpha).
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from make_step_goldens import OPTIMIZER, SMALL_SHAPE, adamw_step
from packed import save_packed

B, T = 2, 24
SHAPE = dict(SMALL_SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=24)
# A rank that is no multiple of anything, and a scale that is not exact.
LORA = dict(rank=3, alpha=4.0)
MODELS = {
    "llama": dict(SHAPE, model_type="llama", tie_word_embeddings=False, rms_norm_eps=1e-5, rope_theta=10000.0,
                  attention_bias=False, mlp_bias=False),
    "qwen2": dict(SHAPE, model_type="qwen2", tie_word_embeddings=True, rms_norm_eps=1e-6, rope_theta=10000.0,
                  use_sliding_window=False),
    "gemma2": dict(SHAPE, model_type="gemma2", rms_norm_eps=1e-6, query_pre_attn_scalar=20, sliding_window=9,
                   attn_logit_softcapping=2.0, final_logit_softcapping=3.0, attention_bias=False, pad_token_id=None,
                   bos_token_id=None, eos_token_id=None, hidden_act="gelu_pytorch_tanh"),
    "nemotron": dict(SHAPE, model_type="nemotron", tie_word_embeddings=False, norm_eps=1e-5, partial_rotary_factor=1.0,
                     hidden_act="relu2", mlp_bias=False),
    # Mixtures: routers and experts are frozen, as with peft's default targets; the shared expert has adapters.
    "mixtral": dict(SHAPE, model_type="mixtral", intermediate_size=16, num_local_experts=4, num_experts_per_tok=2,
                    rms_norm_eps=1e-5, rope_theta=1000000.0, sliding_window=None, tie_word_embeddings=False),
    "qwen2-moe": dict(SHAPE, model_type="qwen2_moe", moe_intermediate_size=16, shared_expert_intermediate_size=24, num_experts=4,
                      num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[0],
                      rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True, use_sliding_window=False),
}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def random_like(p, generator, gain=0.0):
    """Returns weights that are exact in BF16; vectors are random around `gain`. Larger matrices would make the FP32
    steps of any library less exact."""
    value = torch.randn(p.shape, generator=generator)
    value = 0.7 * value * p.shape[-1]**-0.5 if p.ndim > 1 else gain + 0.1 * value
    return value.to(torch.bfloat16)


def of_checkpoint(name, value, mixtral):
    """Returns the tensors of a checkpoint that the library keeps as one."""
    if mixtral:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    parts = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    at, _, kind = name.rpartition(".")
    if kind == "gate_up_proj":
        return {f"{at}.{e}.{part}.weight": half for e, expert in enumerate(value)
                for part, half in zip(parts, expert.chunk(2))}
    if kind == "down_proj":
        return {f"{at}.{e}.{parts[2]}.weight": expert for e, expert in enumerate(value)}
    return {name: value}


def make_golden(path, seed, description):
    generator = torch.Generator().manual_seed(seed)
    config = AutoConfig.for_model(**json.loads(json.dumps(description)))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float64)
    mixture = "num_experts_per_tok" in description
    if mixture:
        model.set_experts_implementation("eager")  # other implementations do not support float64
    minus_one = description["model_type"] in ("gemma2", "nemotron")
    frozen = {name: random_like(p, generator, 1.0 if "norm" in name and not minus_one and not name.endswith("bias") else 0.0)
              for name, p in model.named_parameters()}
    model.load_state_dict({name: value.double() for name, value in frozen.items()}, strict=False)
    model = get_peft_model(model, LoraConfig(r=LORA["rank"], lora_alpha=LORA["alpha"], lora_dropout=0.0, bias="none",
                                             target_modules=TARGETS if mixture else "all-linear",
                                             task_type="CAUSAL_LM"),
                           autocast_adapter_dtype=False).double()
    params = {name.replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}
    first = {name: random_like(p, generator) for name, p in params.items()}
    with torch.no_grad():
        for name, p in params.items():
            p.copy_(first[name])
    tokens = torch.randint(0, config.vocab_size, (B, T + 1), generator=generator, dtype=torch.int32)
    logits = model(tokens[:, :-1].long()).logits
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten().long())
    loss.backward()
    grads = {name: p.grad for name, p in params.items()}
    after, norm = adamw_step(first, grads)
    if mixture:
        frozen = {name: part for whole, value in frozen.items()
                  for name, part in of_checkpoint(whole, value, description["model_type"] == "mixtral").items()}
    tensors = dict(frozen, **first, tokens=tokens, loss=loss.detach().float().reshape(1), grad_norm=norm.reshape(1))
    tensors.update({"grad." + name: grad.float() for name, grad in grads.items()})
    tensors.update({"after." + name: weight for name, weight in after.items()})
    metadata = dict(config=json.dumps(description), optimizer=json.dumps(OPTIMIZER), lora=json.dumps(LORA))
    size = save_packed(tensors, path, metadata)
    print(f"{path.name}: {size} bytes, {len(params)} adapters, loss {loss.item():.6f}, "
          f"gradient norm {norm.item():.4f}")


def main():
    folder = pathlib.Path(__file__).resolve().parents[2] / "models" / "transformer" / "golden"
    for seed, (name, description) in enumerate(MODELS.items()):
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            make_golden(folder / f"step_lora-{name}.safetensors", seed, description)


if __name__ == "__main__":
    main()
