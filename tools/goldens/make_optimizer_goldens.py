#!/usr/bin/env python3
"""Writes models/transformer/golden/optimizers.safetensors.xz: weights after six steps of each optimizer, by
independent code.

    pip install torch==2.15 numpy safetensors && tools/goldens/make_optimizer_goldens.py

AdamW, Adafactor and Muon are torch.optim's; Lion is its authors' formulas (Chen et al. 2023, Algorithm 2) in
the order of their code, so that check_third_party.py finds equal bits. Weights and gradients are hashed
integers, which a test can reproduce. Muon rounds to BF16 internally, so a second version runs its iteration
in FP64; the test compares the distance of both programs from it.
"""

import json
import pathlib

import numpy as np
import torch

from packed import save_packed

MODEL = dict(layers=1, width=32, ffn=96, heads=2, kv_heads=1, head_dim=16, vocab=40, norm_eps=1e-5, rope_theta=1e4)
GOLDEN = "models/transformer/golden/optimizers.safetensors"
STEPS, MAX_NORM, WEIGHT_DECAY = 6, 1.0, 0.1
# Learning rates at which all optimizers change the weights by similar amounts per step.
RATES = dict(adamw=1e-3, lion=1e-3, adafactor=1e-2, muon=1e-3)


def hashed(seed, size):
    """Returns hashed values, uniform in [-0.5, 0.5), exact in FP32."""
    x = (np.arange(size, dtype=np.uint64) * 2654435761 + seed * 2246822519 + 374761393) & 0xFFFFFFFF
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(2246822519)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(13)
    return torch.from_numpy((x >> np.uint64(8)).astype(np.float64) / 2**24 - 0.5).float()


def shapes():
    C, N, q, kv = MODEL["width"], MODEL["ffn"], 32, 16
    at = "model.layers.0."
    return {
        "model.embed_tokens.weight": (MODEL["vocab"], C), "lm_head.weight": (MODEL["vocab"], C),
        "model.norm.weight": (C,), at + "input_layernorm.weight": (C,), at + "post_attention_layernorm.weight": (C,),
        at + "self_attn.q_proj.weight": (q, C), at + "self_attn.k_proj.weight": (kv, C),
        at + "self_attn.v_proj.weight": (kv, C), at + "self_attn.o_proj.weight": (C, q),
        at + "mlp.gate_proj.weight": (N, C), at + "mlp.up_proj.weight": (N, C), at + "mlp.down_proj.weight": (C, N),
    }


def tensor(seed, shape):
    return hashed(seed, int(np.prod(shape))).reshape(shape)


class Lion(torch.optim.Optimizer):
    def __init__(self, groups, lr, betas):
        super().__init__(groups, dict(lr=lr, betas=betas, weight_decay=0.0))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(torch.sign(beta1 * m + (1 - beta1) * p.grad), alpha=group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Muon64(torch.optim.Muon):
    """torch.optim.Muon with its iteration in FP64."""

    def step(self):
        import torch.optim._muon as module

        rounded = module._zeropower_via_newtonschulz
        module._zeropower_via_newtonschulz = orthogonal64
        super().step()
        module._zeropower_via_newtonschulz = rounded


def orthogonal64(grad, coefficients, steps, eps):
    a, b, c = coefficients
    x = grad.double()
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.float()


def optimizers(name, params):
    lr = RATES[name.removesuffix("64")]
    blocks = [p for n, p in params.items() if p.ndim == 2 and "layers" in n]

    def groups(chosen):
        return [dict(params=[p for p in chosen if p.ndim == 2], weight_decay=WEIGHT_DECAY),
                dict(params=[p for p in chosen if p.ndim == 1], weight_decay=0.0)]

    adamw = dict(lr=lr, betas=(0.9, 0.95), eps=1e-8)
    if name == "adamw":
        return [torch.optim.AdamW(groups(params.values()), **adamw)]
    if name == "lion":
        return [Lion(groups(params.values()), lr=lr, betas=(0.9, 0.99))]
    if name == "adafactor":
        return [torch.optim.Adafactor(groups(params.values()), lr=lr)]
    others = [p for p in params.values() if not any(p is b for b in blocks)]
    kind = Muon64 if name == "muon64" else torch.optim.Muon
    muon = kind(blocks, lr=lr, weight_decay=WEIGHT_DECAY, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(groups(others), **adamw)]


def trained(optimizer):
    """Returns the weights after all steps, and the last gradient norm."""
    params = {name: torch.nn.Parameter(0.2 * tensor(i, shapes()[name])) for i, name in enumerate(sorted(shapes()))}
    rules = optimizers(optimizer, params)
    for step in range(1, STEPS + 1):
        for i, p in enumerate(params.values()):
            p.grad = 0.2 * tensor(1000 * step + i, p.shape)
        norm = torch.nn.utils.clip_grad_norm_(params.values(), MAX_NORM)
        for rule in rules:
            rule.step()
    return {name: p.detach().clone() for name, p in params.items()}, norm.item()


def main():
    tensors = {}
    for optimizer in ("adamw", "lion", "adafactor", "muon", "muon64"):
        weights, norm = trained(optimizer)
        tensors.update({f"{optimizer}.{name}": p for name, p in weights.items()})
        print(f"{optimizer}: gradient norm before clipping {norm:.4f}")
    path = pathlib.Path(__file__).resolve().parents[2] / GOLDEN
    metadata = dict(model=json.dumps(MODEL), rates=json.dumps(RATES), steps=str(STEPS))
    size = save_packed(tensors, path, metadata)
    print(f"{path.name}: {size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
