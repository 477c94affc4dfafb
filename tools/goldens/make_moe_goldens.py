#!/usr/bin/env python3
"""Makes models/transformer/golden/step_NAME.safetensors of mixtures of experts, as make_step_goldens.py does of others.

    python3 tools/goldens/make_moe_goldens.py [NAME...]  # needs torch (CPU), transformers 5, safetensors; only to remake files

The plain step is that of Hugging Face's own modules: its Mixtral and Qwen3-MoE; and, since our attention is not latent, its
DeepSeek-V3 mixture in the blocks of its Qwen3, the first of which is dense. The rounded step is ours. Experts have tensors
of their own here, which the library stacks. The routers' auxiliary losses are 0.
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

import make_step_goldens as step

SHAPE = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, vocab_size=96,
             hidden_act="silu", tie_word_embeddings=False, max_position_embeddings=96)
F_EXPERT = 32
# The rounded step must not hang on the order of sums, or another correct one would be another step. Seeds are tried until no
# choice is closer than this between the keys of what is chosen and what is not, and until FP32 sums, which round some values
# to the other neighbour than FP64 sums do, move no gradient by more than this.
LEAST_GAP, MOST_APART = 4e-3, 1e-3
FIRST_SEED = {"qwen3-moe": 8}  # of 7 the sums of precbench round otherwise than both
gaps = []
MODELS = {
    "mixtral": dict(SHAPE, model_type="mixtral", intermediate_size=F_EXPERT, num_local_experts=8, num_experts_per_tok=2,
                    rms_norm_eps=1e-5, rope_theta=1000000.0, head_dim=16, sliding_window=None),
    "qwen3-moe": dict(SHAPE, model_type="qwen3_moe", intermediate_size=96, moe_intermediate_size=F_EXPERT, num_experts=8,
                      num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
                      rms_norm_eps=1e-6, rope_theta=1000000.0, head_dim=16, attention_bias=False),
}
# In our own keys.
DEEPSEEK = dict(name="deepseek-v3-like", layers=3, width=64, ffn=96, heads=4, kv_heads=2, head_dim=16, vocab=96, tied=False,
                qk_norm=True, rope_theta=10000.0, norm_eps=1e-6, experts=8, top_k=3, expert_ffn=F_EXPERT,
                shared_ffn=2 * F_EXPERT, dense_layers=1, score="sigmoid", normalise=True, route_scale=2.5, route_bias=True,
                groups=4, group_top_k=2, group_score="top2")


def expert_names(config, layer):
    """Of the router, and of every expert's gate, up and down."""
    if config["mixtral"]:
        at, gate, up, down = f"model.layers.{layer}.block_sparse_moe.", "w1", "w3", "w2"
    else:
        at, gate, up, down = f"model.layers.{layer}.mlp.", "gate_proj", "up_proj", "down_proj"
    experts = [[f"{at}experts.{e}.{part}.weight" for part in (gate, up, down)] for e in range(config["experts"])]
    return at + "gate.weight", experts


def choose(keys, count):
    """The largest ones; notes how clearly they are."""
    if count < keys.shape[-1]:
        best = keys.detach().topk(count + 1, -1).values
        gaps.append((best[..., -2] - best[..., -1]).min().item())
    return keys.topk(count, -1).indices


def route(config, z, layer):
    """The weights of every expert for every token, 0 of those that it does not go to."""
    if config["score"] == "softmax":
        p = z.softmax(-1)
        index = choose(z, config["top_k"])
    else:
        p = z.sigmoid()
        keys = (p + config["buffers"][f"model.layers.{layer}.mlp.gate.e_score_correction_bias"]).unflatten(
            -1, (config["groups"], -1))
        groups = choose(keys.topk(2, -1).values.sum(-1), config["group_top_k"])
        kept = torch.zeros(keys.shape[:-1]).scatter(-1, groups, 1).bool()
        index = choose(keys.masked_fill(~kept[..., None], -torch.inf).flatten(-2), config["top_k"])
    chosen = p.gather(-1, index)
    if config["normalise"]:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, index, chosen * config["route_scale"])


def mixture(config, w, h, layer, mode, linear):
    """Rounds where ours does: every expert's rows have a gradient of their own, of which the sum is rounded once."""
    if layer < config["dense_layers"]:
        return step.swiglu(config, w, h, layer, mode, linear)
    router, experts = expert_names(config, layer)
    shape, h = h.shape, h.flatten(0, 1)
    weights = route(config, h @ w[router].T, layer)
    out = torch.zeros_like(h)
    for e, (gate, up, down) in enumerate(experts):
        tokens = weights[:, e].nonzero().flatten()
        gate, up = linear(mode.stored(h[tokens]), gate, up)
        (y,) = linear(mode.stored(F.silu(gate) * up * weights[tokens, e, None]), down)
        out = out.index_add(0, tokens, y)
    if config["shared"]:
        at = f"model.layers.{layer}.mlp.shared_experts."
        gate, up = linear(mode.stored(h), at + "gate_proj.weight", at + "up_proj.weight")
        (y,) = linear(mode.stored(F.silu(gate) * up), at + "down_proj.weight")
        out = out + y
    return mode.stored(out).unflatten(0, shape[:-1])


def mixture_weights(config, layer, matrix):
    if layer < config["dense_layers"]:
        return step.swiglu_weights(config, layer, matrix)
    C = config["width"]
    router, experts = expert_names(config, layer)
    matrix(router, config["experts"], C, C**-0.5)
    for gate, up, down in experts:
        matrix(gate, F_EXPERT, C, C**-0.5)
        matrix(up, F_EXPERT, C, C**-0.5)
        matrix(down, C, F_EXPERT, F_EXPERT**-0.5)
    if config["shared"]:
        at = f"model.layers.{layer}.mlp.shared_experts."
        matrix(at + "gate_proj.weight", config["shared"], C, C**-0.5)
        matrix(at + "up_proj.weight", config["shared"], C, C**-0.5)
        matrix(at + "down_proj.weight", C, config["shared"], config["shared"]**-0.5)


class Library(step.HuggingFace):
    """Experts are stacked on the way in, and their gradients taken apart."""

    def __init__(self, description, ours):
        super().__init__(description)
        self.ours.update(ours)
        if hasattr(self.model.config, "num_experts_per_tok"):
            self.model.set_experts_implementation("eager")  # the others take no float64

    def gradients(self, weights, tokens):
        config, stacked = self.ours, dict(weights)
        for layer in range(config["dense_layers"], config["layers"]):
            router, experts = expert_names(config, layer)
            at = f"model.layers.{layer}.mlp."
            stacked[at + "gate.weight"] = stacked.pop(router)
            parts = [[stacked.pop(name) for name in names] for names in experts]
            stacked[at + "experts.gate_up_proj"] = torch.stack([torch.cat((gate, up)) for gate, up, _ in parts])
            stacked[at + "experts.down_proj"] = torch.stack([down for _, _, down in parts])
        for name, values in config.get("buffers", {}).items():
            stacked[name] = values
        loss, grads = super().gradients(stacked, tokens)
        for layer in range(config["dense_layers"], config["layers"]):
            router, experts = expert_names(config, layer)
            at = f"model.layers.{layer}.mlp."
            grads[router] = grads.pop(at + "gate.weight")
            gate_up, down = grads.pop(at + "experts.gate_up_proj"), grads.pop(at + "experts.down_proj")
            for e, names in enumerate(experts):
                grads[names[0]], grads[names[1]] = gate_up[e].chunk(2)
                grads[names[2]] = down[e]
        return loss, grads


def is_steady(config, seed):
    """Whether the step of these weights and tokens is that of any order of sums."""
    gaps.clear()
    generator = torch.Generator().manual_seed(seed)
    weights = step.random_weights(config, generator)
    tokens = torch.randint(0, config["vocab"], (step.B, step.T + 1), generator=generator, dtype=torch.int32)
    with torch.no_grad():
        for mode in (step.Plain, step.Bf16):
            step.loss_of(config, {name: weight.double() for name, weight in weights.items()}, tokens, mode)
    if min(gaps) < LEAST_GAP:
        return False
    exact, single = (step.gradients(config, weights, tokens, step.Bf16, dtype)[1] for dtype in (torch.float64, torch.float32))
    return all((single[name] - grad).norm() <= MOST_APART * grad.norm() for name, grad in exact.items())


def deepseek(generator):
    """Its mixture in Qwen3's blocks, and a bias that changes choices."""
    from transformers.models.deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    c = DEEPSEEK
    attention = dict(SHAPE, model_type="qwen3", num_hidden_layers=c["layers"], intermediate_size=c["ffn"],
                     rms_norm_eps=c["norm_eps"], rope_theta=c["rope_theta"], head_dim=c["head_dim"])
    buffers = {f"model.layers.{layer}.mlp.gate.e_score_correction_bias": 0.1 * torch.randn(c["experts"], generator=generator)
               for layer in range(c["dense_layers"], c["layers"])}
    ours = dict(c, mixtral=False, shared=c["shared_ffn"], buffers=buffers, second_half=mixture,
                second_half_weights=mixture_weights)
    library = Library(attention, ours)
    moe = DeepseekV3Config(hidden_size=c["width"], moe_intermediate_size=F_EXPERT, n_shared_experts=2,
                           n_routed_experts=c["experts"], num_experts_per_tok=c["top_k"], n_group=c["groups"],
                           topk_group=c["group_top_k"], norm_topk_prob=True, routed_scaling_factor=c["route_scale"],
                           hidden_act="silu")
    moe._experts_implementation = "eager"
    for block in library.model.model.layers[c["dense_layers"]:]:
        block.mlp = DeepseekV3MoE(moe).double()
    return library


def main():
    folder = pathlib.Path(__file__).resolve().parents[2] / "models" / "transformer" / "golden"
    for name in (*MODELS, "deepseek-v3-like"):
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        if name in MODELS:
            description = MODELS[name]
            ours = dict(mixtral=name == "mixtral", qk_norm=name == "qwen3-moe", experts=8,
                        top_k=description["num_experts_per_tok"], score="softmax", normalise=True, route_scale=1.0,
                        dense_layers=0, shared=0, second_half=mixture, second_half_weights=mixture_weights)
            library = Library(description, ours)
        else:
            description = DEEPSEEK
            library = deepseek(torch.Generator().manual_seed(1))
        seed = next(seed for seed in range(FIRST_SEED.get(name, 0), 10000) if is_steady(library.ours, seed))
        step.make_golden(folder / f"step_{name}.safetensors", seed, library.ours, json.loads(json.dumps(description)),
                         library)


if __name__ == "__main__":
    main()
