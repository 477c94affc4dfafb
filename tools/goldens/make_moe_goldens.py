#!/usr/bin/env python3
"""Makes models/transformer/golden/step_NAME.safetensors.xz for MoE models, like make_step_goldens.py for dense
ones.

    python3 tools/goldens/make_moe_goldens.py [NAME...]

Needs torch (CPU), transformers 5 and safetensors, only to regenerate the files.

The plain step uses Hugging Face's own modules: its Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, GLM-4.5, MiniMax-M2, ERNIE 4.5 and gpt-oss; its Llama 4 with RoPE in
every layer, no q and k norm and full attention; its DeepSeek-V3 MoE layer in the blocks of its Qwen3, the first of which is dense, and DeepSeek-V2's in those of its Llama. The rounded step is our own. Experts have
separate tensors here, which the library stacks. Auxiliary losses of the routers are 0.

DeepSeek V2 and V3 with latent attention are the library's own.

Llama 4's weights are also written in the form of its checkpoints, to bench/step/golden/llama4*.safetensors: a
layer's experts in two transposed tensors, and rows of q and k in the order of its RoPE pairs.
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import make_step_goldens as step
import step_model

SHAPE = dict(num_hidden_layers=2, hidden_size=16, num_attention_heads=4, num_key_value_heads=2, vocab_size=24,
             hidden_act="silu", tie_word_embeddings=False, max_position_embeddings=96)
F_EXPERT = 8
# The rounded step must not depend on the order of sums, or another correct order would give another
# step. Seeds are tried until no routing choice is closer than LEAST_GAP between selected and unselected
# keys, and until FP32 sums, which round some values differently from FP64 sums, move no gradient by
# more than MOST_APART.
LEAST_GAP, MOST_APART = 4e-3, 1e-3
FIRST_SEED = {"deepseek-v3-like": 10}  # where the sums of precbench round differently from both
gaps = []
MODELS = {
    "mixtral": dict(SHAPE, model_type="mixtral", intermediate_size=F_EXPERT, num_local_experts=4, num_experts_per_tok=2,
                    rms_norm_eps=1e-5, rope_theta=1000000.0, head_dim=16, sliding_window=None),
    "qwen3-moe": dict(SHAPE, model_type="qwen3_moe", intermediate_size=24, moe_intermediate_size=F_EXPERT, num_experts=4,
                      num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
                      rms_norm_eps=1e-6, rope_theta=1000000.0, head_dim=16, attention_bias=False),
    "olmoe": dict(SHAPE, model_type="olmoe", hidden_size=32, num_attention_heads=2, num_key_value_heads=1, intermediate_size=F_EXPERT, num_experts=4, num_experts_per_tok=3,
                  norm_topk_prob=False, rms_norm_eps=1e-5, rope_theta=10000.0, attention_bias=False, clip_qkv=None,
                  pad_token_id=None, eos_token_id=None),
    "llama4": dict(SHAPE, model_type="llama4_text", intermediate_size=F_EXPERT, intermediate_size_mlp=24, num_local_experts=4,
                   num_experts_per_tok=1, rms_norm_eps=1e-5, rope_theta=500000.0, head_dim=16, attention_bias=False,
                   use_qk_norm=False, attn_temperature_tuning=False, attention_chunk_size=None, interleave_moe_layer_step=1,
                   no_rope_layers=[1, 1]),
    # A layer without experts, one without RoPE. The chunk and the first position of the temperature are the sequence's last.
    "llama4-scout": dict(step.SMALL_SHAPE, model_type="llama4_text", intermediate_size=8, intermediate_size_mlp=24,
                         num_local_experts=4, num_experts_per_tok=1, rms_norm_eps=1e-5, rope_theta=500000.0,
                         attention_bias=False, tie_word_embeddings=False, use_qk_norm=True, attn_temperature_tuning=True, attn_scale=0.5, floor_scale=step.T,
                         attention_chunk_size=step.T, interleave_moe_layer_step=2, no_rope_layers=[1, 0], **step.NO_TOKENS),
    "qwen2-moe": dict(step.SMALL_SHAPE, model_type="qwen2_moe", moe_intermediate_size=16, shared_expert_intermediate_size=24,
                      num_experts=4, num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[0],
                      rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True, use_sliding_window=False),
    "glm4-moe": dict(step.SMALL_SHAPE, model_type="glm4_moe", moe_intermediate_size=8, n_routed_experts=8, n_shared_experts=2,
                     num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.5,
                     first_k_dense_replace=1, use_qk_norm=True, attention_bias=True, partial_rotary_factor=0.5,
                     rms_norm_eps=1e-5, rope_theta=1000000.0, tie_word_embeddings=True, num_nextn_predict_layers=0,
                     **step.NO_TOKENS),
    "minimax-m2": dict(step.SMALL_SHAPE, model_type="minimax_m2", num_hidden_layers=1, intermediate_size=16,
                       num_local_experts=4, num_experts_per_tok=2, rotary_dim=8, rms_norm_eps=1e-6, rope_theta=5000000.0,
                       tie_word_embeddings=False, scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True,
                       router_jitter_noise=0.0, **step.NO_TOKENS),
    "ernie4.5-moe": dict(step.SMALL_SHAPE, model_type="ernie4_5_moe", moe_intermediate_size=16, moe_num_experts=4, moe_k=2,
                         moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_interval=1, use_bias=False,
                         rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True, **step.NO_TOKENS),
    # A limit that gates and ups of the step exceed, and angles of which three quarters are beyond the original context.
    "gpt-oss": dict(step.SMALL_SHAPE, model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=7,
                    layer_types=["sliding_attention", "full_attention"], swiglu_limit=1.0, attention_bias=True,
                    rms_norm_eps=1e-5, tie_word_embeddings=False, rope_theta=150000.0,
                    rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                      original_max_position_embeddings=6), **step.NO_TOKENS),
}
# Latent attention: all widths differ. Three quarters of the positions are beyond the original context.
LATENT_SHAPE = dict(num_hidden_layers=2, hidden_size=16, intermediate_size=8, num_attention_heads=2, num_key_value_heads=2,
                    vocab_size=24, hidden_act="silu", max_position_embeddings=96, moe_intermediate_size=6, n_shared_experts=1,
                    n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1, rms_norm_eps=1e-5, rope_theta=10000.0,
                    tie_word_embeddings=False, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=12,
                    **step.NO_TOKENS)
YARN = dict(type="yarn", factor=4.0, original_max_position_embeddings=6, beta_fast=32, beta_slow=1)
MODELS.update({
    "deepseek-v2-lite": dict(LATENT_SHAPE, model_type="deepseek_v2", q_lora_rank=None, topk_method="greedy",
                             routed_scaling_factor=1.0, norm_topk_prob=False, n_group=1, topk_group=1,
                             rope_scaling=dict(YARN, mscale=0.707, mscale_all_dim=0.707)),
    "deepseek-v2": dict(LATENT_SHAPE, model_type="deepseek_v2", q_lora_rank=6, topk_method="group_limited_greedy",
                        routed_scaling_factor=2.0, norm_topk_prob=False, n_group=2, topk_group=1),
    "deepseek-v3": dict(LATENT_SHAPE, model_type="deepseek_v3", q_lora_rank=6, routed_scaling_factor=2.5, norm_topk_prob=True,
                        n_group=2, topk_group=1, rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=1.0),
                        num_nextn_predict_layers=0),
    "deepseek-v3-halves": dict(LATENT_SHAPE, model_type="deepseek_v3", num_hidden_layers=1, first_k_dense_replace=0,
                               q_lora_rank=None, routed_scaling_factor=1.0, norm_topk_prob=True, n_group=1, topk_group=1,
                               rope_interleave=False, num_nextn_predict_layers=0),
})
# Families whose files are read as another's.
MODELS.update({
    "glm4-moe-lite": dict({key: value for key, value in LATENT_SHAPE.items()
                           if key not in (*step.NO_TOKENS, "first_k_dense_replace")},
                          model_type="glm4_moe_lite", q_lora_rank=6, routed_scaling_factor=1.8, norm_topk_prob=True, n_group=1,
                          topk_group=1, mlp_layer_types=["dense", "sparse"]),
    "dots1": dict(step.SMALL_SHAPE, model_type="dots1", num_key_value_heads=2, moe_intermediate_size=8, n_routed_experts=4,
                  n_shared_experts=2, num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True,
                  routed_scaling_factor=2.5, first_k_dense_replace=1, sliding_window=None, rms_norm_eps=1e-5,
                  rope_theta=1000000.0, tie_word_embeddings=False, **step.NO_TOKENS),
    "solar-open": dict(step.SMALL_SHAPE, model_type="solar_open", moe_intermediate_size=8, n_routed_experts=4, n_shared_experts=1,
                       num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.0,
                       attention_bias=True, rms_norm_eps=1e-5, rope_theta=1000000.0, tie_word_embeddings=False,
                       **step.NO_TOKENS),
})
BIAS = "e_score_correction_bias"
# What differs in our own keys from a router of all experts by softmax, without a shared expert, in all layers.
ROUTERS = {
    "qwen2-moe": dict(names="qwen2", expert_ffn=16, shared=24, shared_gate=True, dense_layers=1),
    "glm4-moe": dict(expert_ffn=8, shared=16, dense_layers=1, score="sigmoid", normalise=True, groups=4, group_top_k=2,
                     route_scale=1.5, bias="mlp.gate." + BIAS, qk_norm=True),
    "minimax-m2": dict(names="mixtral", expert_ffn=16, score="sigmoid", normalise=True, bias="block_sparse_moe." + BIAS,
                       qk_norm=True, qk_norm_over="heads"),
    "ernie4.5-moe": dict(expert_ffn=16, shared=16, dense_layers=1, normalise=True, bias="mlp.moe_statics." + BIAS),
    "gpt-oss": dict(names="gpt_oss", expert_ffn=8, normalise=True, expert_bias=True, attention_sinks=True, swiglu_limit=1.0),
}
ROUTERS["llama4-scout"] = dict(expert_ffn=8, shared=8)
DEEPSEEK_ROUTER = dict(expert_ffn=6, shared=6, dense_layers=1)
ROUTERS.update({
    "deepseek-v2-lite": DEEPSEEK_ROUTER,
    "deepseek-v2": dict(DEEPSEEK_ROUTER, groups=2, group_top_k=1, group_score="max", route_scale=2.0),
    "deepseek-v3": dict(DEEPSEEK_ROUTER, score="sigmoid", normalise=True, groups=2, group_top_k=1, route_scale=2.5,
                        bias="mlp.gate." + BIAS),
    "deepseek-v3-halves": dict(DEEPSEEK_ROUTER, dense_layers=0, score="sigmoid", normalise=True, bias="mlp.gate." + BIAS),
})
ROUTERS.update({
    "glm4-moe-lite": dict(DEEPSEEK_ROUTER, score="sigmoid", normalise=True, route_scale=1.8, bias="mlp.gate." + BIAS),
    "dots1": dict(expert_ffn=8, shared=16, dense_layers=1, score="sigmoid", normalise=True, route_scale=2.5,
                  bias="mlp.gate." + BIAS, qk_norm=True),
    "solar-open": dict(expert_ffn=8, shared=8, score="sigmoid", normalise=True, bias="mlp.gate." + BIAS),
})
# The library's names of the biases, where they are not ours.
THEIR_BIASES = {"block_sparse_moe." + BIAS: "mlp." + BIAS, "mlp.moe_statics." + BIAS: "mlp.gate.moe_statics." + BIAS}
DEEPSEEK_MOE = dict(step.SMALL_SHAPE, model_type="deepseek", moe_intermediate_size=16, n_routed_experts=4, n_shared_experts=1,
                    num_experts_per_tok=2, norm_topk_prob=False, first_k_dense_replace=1, moe_layer_freq=1,
                    scoring_func="softmax", rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=True)
# In our own keys.
DEEPSEEK = dict(name="deepseek-v3-like", layers=2, width=16, ffn=24, heads=4, kv_heads=2, head_dim=16, vocab=24, tied=False,
                qk_norm=True, rope_theta=10000.0, norm_eps=1e-6, experts=8, top_k=3, expert_ffn=F_EXPERT,
                shared_ffn=2 * F_EXPERT, dense_layers=1, score="sigmoid", normalise=True, route_scale=2.5, route_bias=True,
                groups=4, group_top_k=2, group_score="top2")


def has_experts(config, layer):
    return layer >= config["dense_layers"] and (layer + 1) % config.get("layer_interval", 1) == 0


def expert_names(config, layer):
    """Returns the names of the router, of every expert's gate, up and down, and the prefix of the
    shared expert's."""
    mixtral, llama4 = config["names"] == "mixtral", config["names"] == "llama4"
    at = f"model.layers.{layer}." + ("block_sparse_moe." if mixtral else "feed_forward." if llama4 else "mlp.")
    parts = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    experts = [[f"{at}experts.{e}.{part}.weight" for part in parts] for e in range(config["experts"])]
    one_shared = llama4 or config["names"] == "qwen2"
    return at + ("router.weight" if llama4 or config["names"] == "gpt_oss" else "gate.weight"), experts, at + ("shared_expert." if one_shared else "shared_experts.")


def choose(keys, count):
    """Selects the largest keys and records the gap to the others."""
    if count < keys.shape[-1]:
        best = keys.detach().topk(count + 1, -1).values
        gaps.append((best[..., -2] - best[..., -1]).min().item())
    return keys.topk(count, -1).indices


def route(config, z, layer):
    """Returns the weights of all experts for every token, 0 for those not selected."""
    p = z.softmax(-1) if config["score"] == "softmax" else z.sigmoid()
    bias = config.get("bias")
    keys = p + config["buffers"][f"model.layers.{layer}.{bias}"] if bias else z
    if config["groups"] == 1:
        index = choose(keys, config["top_k"])
    else:
        keys = keys.unflatten(-1, (config["groups"], -1))
        best = keys.topk(1 if config.get("group_score") == "max" else 2, -1).values.sum(-1)
        groups = choose(best, config["group_top_k"])
        kept = torch.zeros(keys.shape[:-1]).scatter(-1, groups, 1).bool()
        index = choose(keys.masked_fill(~kept[..., None], -torch.inf).flatten(-2), config["top_k"])
    chosen = p.gather(-1, index)
    if config["normalise"]:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, index, chosen * config["route_scale"])


def clamped_swiglu(gate, up, limit):
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def mixture(config, w, h, layer, mode, linear):
    """Rounds like precbench: every expert's rows have their own gradient, whose sum is rounded once."""
    if not has_experts(config, layer):
        return step_model.swiglu(config, w, h, layer, mode, linear)
    router, experts, at = expert_names(config, layer)
    shape, h = h.shape, h.flatten(0, 1)
    biased = config.get("expert_bias")
    weights = route(config, h @ w[router].T + (w[router.replace("weight", "bias")] if biased else 0), layer)
    out = torch.zeros_like(h)
    for e, (gate, up, down) in enumerate(experts):
        tokens = weights[:, e].nonzero().flatten()
        of_rows = weights[tokens, e, None]
        at_input, at_swiglu = (of_rows, 1) if config["weight_at"] == "input" else (1, of_rows)
        names = gate, up
        gate, up = linear(mode.stored(h[tokens] * at_input), gate, up)
        if biased:
            gate, up = (mode.stored(x + w[name.replace("weight", "bias")]) for x, name in zip((gate, up), names))
            swiglu = clamped_swiglu(gate, up, config["swiglu_limit"])
        else:
            swiglu = F.silu(gate) * up
        (y,) = linear(mode.stored(swiglu * at_swiglu), down)
        out = out.index_add(0, tokens, y)
    if biased:
        out = mode.stored(out) + weights @ torch.stack([w[down.replace("weight", "bias")] for _, _, down in experts])
    if config["shared"]:
        h = mode.stored(h)
        gate, up = linear(mode.stored(h) if config.get("shared_gate") else h, at + "gate_proj.weight", at + "up_proj.weight")
        (y,) = linear(mode.stored(F.silu(gate) * up), at + "down_proj.weight")
        if config.get("shared_gate"):
            y = mode.stored(torch.sigmoid(h @ w[at[:-1] + "_gate.weight"].T) * y)
        out = out + y
    return mode.stored(out).unflatten(0, shape[:-1])


def mixture_weights(config, layer, matrix):
    if not has_experts(config, layer):
        return step.swiglu_weights(config, layer, matrix)
    C, N = config["width"], config.get("expert_ffn", F_EXPERT)
    router, experts, at = expert_names(config, layer)
    matrix(router, config["experts"], C, C**-0.5)
    for gate, up, down in experts:
        matrix(gate, N, C, C**-0.5)
        matrix(up, N, C, C**-0.5)
        matrix(down, C, N, N**-0.5)
    if config["shared"]:
        matrix(at + "gate_proj.weight", config["shared"], C, C**-0.5)
        matrix(at + "up_proj.weight", config["shared"], C, C**-0.5)
        matrix(at + "down_proj.weight", C, config["shared"], config["shared"]**-0.5)
    if config.get("shared_gate"):
        matrix(at[:-1] + "_gate.weight", 1, C, C**-0.5)


class Library(step.HuggingFace):
    """Stacks experts on the way in, and splits their gradients."""

    def __init__(self, description, ours):
        super().__init__(description)
        self.ours.update(ours)
        if hasattr(self.model.config, "num_experts_per_tok"):
            self.model.set_experts_implementation("eager")  # other implementations do not support float64

    def gradients(self, weights, tokens):
        config, stacked = self.ours, dict(weights)
        for layer in range(config["dense_layers"], config["layers"]):
            router, experts, _ = expert_names(config, layer)
            at = f"model.layers.{layer}.mlp."
            stacked[at + "gate.weight"] = stacked.pop(router)
            parts = [[stacked.pop(name) for name in names] for names in experts]
            stacked[at + "experts.gate_up_proj"] = torch.stack([torch.cat((gate, up)) for gate, up, _ in parts])
            stacked[at + "experts.down_proj"] = torch.stack([down for _, _, down in parts])
        for name, values in config.get("buffers", {}).items():
            own = ".".join(name.split(".")[3:])
            theirs = THEIR_BIASES.get(own, own)
            stacked[name.replace(own, theirs)] = values[None] if "moe_statics" in own else values
        loss, grads = super().gradients(stacked, tokens)
        for layer in range(config["dense_layers"], config["layers"]):
            router, experts, _ = expert_names(config, layer)
            at = f"model.layers.{layer}.mlp."
            grads[router] = grads.pop(at + "gate.weight")
            gate_up, down = grads.pop(at + "experts.gate_up_proj"), grads.pop(at + "experts.down_proj")
            for e, names in enumerate(experts):
                grads[names[0]], grads[names[1]] = gate_up[e].chunk(2)
                grads[names[2]] = down[e]
        return loss, grads


class Latent(Library):
    """DeepSeek V2 and V3."""

    def __init__(self, description, ours):
        super().__init__(description, ours)
        c = self.model.config
        self.ours.update(head_dim=c.qk_head_dim, latent=dict(q_rank=c.q_lora_rank, kv_rank=c.kv_lora_rank,
                                                             rope_dim=c.qk_rope_head_dim, v_dim=c.v_head_dim),
                         attention_scale=self.model.model.layers[0].self_attn.scaling,
                         rope_pairs="interleaved" if getattr(c, "rope_interleave", True) else "halves")

    def rotary(self, c, model_type):
        if model_type != "deepseek_v2":
            return super().rotary(c, model_type)
        turns = self.model.model.rotary_emb(torch.zeros(1, dtype=torch.float64), torch.arange(step.T)[None])[0]
        return turns.real, turns.imag


class GptOss(step.HuggingFace):
    """Converts to the library's own form: all experts of a layer in transposed tensors, whose columns alternate between
    gate and up."""

    def __init__(self, description, ours):
        super().__init__(description)
        self.ours.update(ours)
        self.model.set_experts_implementation("eager")  # other implementations do not support float64

    def fuse(self, weights):
        its = dict(weights)
        for layer in range(self.ours["layers"]):
            at = f"model.layers.{layer}.mlp.experts."
            for kind, suffix in (("weight", ""), ("bias", "_bias")):
                experts = [[its.pop(name.replace("weight", kind)) for name in names]
                           for names in expert_names(self.ours, layer)[1]]
                its[at + "gate_up_proj" + suffix] = torch.stack([torch.stack((gate.T, up.T), -1).flatten(-2) for gate, up, _ in experts])
                its[at + "down_proj" + suffix] = torch.stack([down.T for _, _, down in experts])
        return its

    def split(self, fused, weights):
        grads = dict(fused)
        for layer in range(self.ours["layers"]):
            at = f"model.layers.{layer}.mlp.experts."
            for kind, suffix in (("weight", ""), ("bias", "_bias")):
                gate_up, down = grads.pop(at + "gate_up_proj" + suffix), grads.pop(at + "down_proj" + suffix)
                for e, names in enumerate(expert_names(self.ours, layer)[1]):
                    names = [name.replace("weight", kind) for name in names]
                    grads[names[0]], grads[names[1]] = gate_up[e][..., ::2].T, gate_up[e][..., 1::2].T
                    grads[names[2]] = down[e].T
        return {name: grads[name] for name in weights}


class Llama4(step.HuggingFace):
    """Converts to the library's own form on the way in, and to ours on the way out."""

    def __init__(self, description, ours):
        from transformers import Llama4ForCausalLM, Llama4TextConfig

        # It builds the chunked mask even if no layer uses it.
        whole = dict(layer_types=["full_attention"] * description["num_hidden_layers"], attention_chunk_size=8192)
        c = Llama4TextConfig(**dict(json.loads(json.dumps(description)), **({} if description["attention_chunk_size"] else whole)))
        c._attn_implementation = "eager"
        self.model = Llama4ForCausalLM(c).double()
        self.model_type, self.fused = "llama4_text", {}
        turns = self.model.model.rotary_emb(torch.zeros(1, dtype=torch.float64), torch.arange(step.T)[None])[0]
        self.ours = dict(layers=c.num_hidden_layers, width=c.hidden_size, ffn=c.intermediate_size_mlp, ffn_name="feed_forward",
                         layer_interval=c.interleave_moe_layer_step, unit_queries_and_keys=c.use_qk_norm,
                         layers_without_rope=[layer for layer, rope in enumerate(c.no_rope_layers) if not rope],
                         temperature=c.attn_temperature_tuning and c.attn_scale, heads=c.num_attention_heads, kv_heads=c.num_key_value_heads, head_dim=2 * turns.shape[-1],
                         vocab=c.vocab_size, tied=c.tie_word_embeddings, norm_eps=c.rms_norm_eps,
                         rotary=(turns.real, turns.imag), **ours)

    def pairs(self, name, back=False):
        """Permutes rows of q and k: RoPE rotates rows 0 and 1, 2 and 3, ... here, and the two halves of
        a head in ours."""
        half = self.ours["head_dim"] // 2
        if not name.endswith(("q_proj.weight", "k_proj.weight")):
            return lambda x: x
        if back:
            return lambda x: x.unflatten(0, (-1, half, 2)).transpose(1, 2).flatten(0, 2)
        return lambda x: x.unflatten(0, (-1, 2, half)).transpose(1, 2).flatten(0, 2)

    def layers_with_experts(self):
        return [layer for layer in range(self.ours["layers"]) if has_experts(self.ours, layer)]

    def its_form(self, weights):
        its = {name: self.pairs(name)(weight) for name, weight in weights.items()}
        for layer in self.layers_with_experts():
            experts = [[its.pop(name) for name in names] for names in expert_names(self.ours, layer)[1]]
            at = f"model.layers.{layer}.feed_forward.experts."
            its[at + "gate_up_proj"] = torch.stack([torch.cat((gate, up)).T for gate, up, _ in experts])
            its[at + "down_proj"] = torch.stack([down.T for _, _, down in experts])
        return its

    def gradients(self, weights, tokens):
        loss, grads = super().gradients(self.its_form(weights), tokens)
        grads = {name: self.pairs(name, back=True)(grad) for name, grad in grads.items()}
        for layer in self.layers_with_experts():
            at = f"model.layers.{layer}.feed_forward.experts."
            gate_up, down = grads.pop(at + "gate_up_proj"), grads.pop(at + "down_proj")
            for e, names in enumerate(expert_names(self.ours, layer)[1]):
                grads[names[0]], grads[names[1]] = gate_up[e].T.chunk(2)
                grads[names[2]] = down[e].T
        return loss, grads

    def leave(self, path, seed):
        """Writes the weights of the step with this seed in the library's form."""
        weights = step.random_weights(self.ours, torch.Generator().manual_seed(seed))
        self.model.load_state_dict({name: weight.double() for name, weight in self.its_form(weights).items()})
        save_file({name: weight.to(torch.bfloat16).contiguous() for name, weight in self.model.state_dict().items()}, path)


def is_steady(config, seed):
    """Returns True if the step is independent of the order of sums, and every expert has a token."""
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
    return all(grad.norm() > 0 and (single[name] - grad).norm() <= MOST_APART * grad.norm() for name, grad in exact.items())


def deepseek(generator):
    """DeepSeek-V3's MoE layer in Qwen3's blocks, with a bias that changes the routing."""
    from transformers.models.deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    c = DEEPSEEK
    attention = dict(SHAPE, model_type="qwen3", num_hidden_layers=c["layers"], intermediate_size=c["ffn"],
                     rms_norm_eps=c["norm_eps"], rope_theta=c["rope_theta"], head_dim=c["head_dim"])
    buffers = {f"model.layers.{layer}.mlp.gate.e_score_correction_bias": 0.1 * torch.randn(c["experts"], generator=generator)
               for layer in range(c["dense_layers"], c["layers"])}
    ours = dict(c, names="qwen3", weight_at="swiglu", shared=c["shared_ffn"], bias="mlp.gate." + BIAS, buffers=buffers, second_half=mixture,
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


def deepseek_moe(description):
    """The first DeepSeek-MoE, which the library lacks: DeepSeek-V2's MoE layer in Llama's blocks."""
    from transformers.models.deepseek_v2 import DeepseekV2Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe

    d = description
    dense = d["first_k_dense_replace"]
    ours = dict(names="qwen3", weight_at="swiglu", qk_norm=False, experts=d["n_routed_experts"], top_k=d["num_experts_per_tok"],
                score="softmax", normalise=False, route_scale=1.0, groups=1, dense_layers=dense,
                expert_ffn=d["moe_intermediate_size"], shared=d["n_shared_experts"] * d["moe_intermediate_size"],
                second_half=mixture, second_half_weights=mixture_weights)
    library = Library(dict({key: d[key] for key in step.SMALL_SHAPE}, model_type="llama", rms_norm_eps=d["rms_norm_eps"],
                           rope_theta=d["rope_theta"], tie_word_embeddings=d["tie_word_embeddings"]), ours)
    moe = DeepseekV2Config(hidden_size=d["hidden_size"], num_attention_heads=d["num_attention_heads"],
                           moe_intermediate_size=d["moe_intermediate_size"],
                           n_shared_experts=d["n_shared_experts"], n_routed_experts=d["n_routed_experts"],
                           num_experts_per_tok=d["num_experts_per_tok"], topk_method="greedy", norm_topk_prob=False,
                           routed_scaling_factor=1.0, hidden_act="silu")
    moe._experts_implementation = "eager"
    for block in library.model.model.layers[dense:]:
        block.mlp = DeepseekV2Moe(moe).double()
    return library


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    folder = root / "models" / "transformer" / "golden"
    for name in (*MODELS, "deepseek-v3-like", "deepseek-moe"):
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        if name in MODELS:
            description = MODELS[name]
            llama4 = name.startswith("llama4")
            ours = dict(names=name if name == "mixtral" else "llama4" if llama4 else "qwen3", qk_norm=name in ("qwen3-moe", "olmoe"),
                        qk_norm_over="heads" if name == "olmoe" else "head", experts=description.get("num_local_experts") or description.get("num_experts"),
                        top_k=description.get("num_experts_per_tok"), score="sigmoid" if llama4 else "softmax",
                        normalise=name in ("mixtral", "qwen3-moe"), route_scale=1.0, groups=1, weight_at="input" if llama4 else "swiglu",
                        dense_layers=0, shared=F_EXPERT if llama4 else 0, second_half=mixture,
                        second_half_weights=mixture_weights)
            if name in ROUTERS:
                ours.update(experts=description.get("num_local_experts") or description.get("num_experts") or
                            description.get("n_routed_experts") or description.get("moe_num_experts"),
                            top_k=description.get("num_experts_per_tok") or description.get("moe_k"), **ROUTERS[name])
                generator = torch.Generator().manual_seed(1)
                if ours.get("bias"):
                    ours["buffers"] = {f"model.layers.{layer}.{ours['bias']}": 0.1 * torch.randn(ours["experts"], generator=generator)
                                       for layer in range(ours["dense_layers"], description["num_hidden_layers"])}
            kind = (Llama4 if llama4 else GptOss if name == "gpt-oss" else
                    Latent if "kv_lora_rank" in description else Library)
            library = kind(description, ours)
        elif name == "deepseek-moe":
            description = DEEPSEEK_MOE
            library = deepseek_moe(description)
        else:
            description = DEEPSEEK
            library = deepseek(torch.Generator().manual_seed(1))
        seed = next(seed for seed in range(FIRST_SEED.get(name, 0), 10000) if is_steady(library.ours, seed))
        step.make_golden(folder / f"step_{name}.safetensors", seed, library.ours, json.loads(json.dumps(description)),
                         library)
        if isinstance(library, Llama4):
            path = root / "bench" / "step" / "golden" / f"{name}.safetensors"
            path.parent.mkdir(exist_ok=True)
            library.leave(path, seed)


if __name__ == "__main__":
    main()
