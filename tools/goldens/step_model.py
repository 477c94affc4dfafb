"""The models of make_step_goldens.py in PyTorch: their loss in any dtype, plain or rounded to BF16 where precbench's `bf16`
recipe rounds (kernels/device/device.h), forward and backward.
"""
import math

import torch
import torch.nn.functional as F

B, T = 2, 24  # sequences of a golden step, and their tokens


def rounding_op(of_output, of_gradient):
    """Returns an op that rounds its output, and its gradient, which arrives summed over all uses."""

    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return of_output(x)

        @staticmethod
        def backward(ctx, dx):
            return of_gradient(dx)

    return Round.apply


def unrounded(x):
    return x


def bf16(x):
    return x.to(torch.bfloat16).to(x.dtype)


round_both = rounding_op(bf16, bf16)
round_gradient = rounding_op(unrounded, bf16)  # where an op rounds it before a bias adds it up


def hidden_keys(tokens, window):
    """Returns the mask of the keys that a query does not see: later ones, and those before its window."""
    everything = torch.ones(tokens, tokens, dtype=torch.bool)
    return everything.triu(1) | everything.tril(-window) if window else everything.triu(1)


def soft_capped(x, cap):
    return cap * torch.tanh(x / cap) if cap else x


class Attention(torch.autograd.Function):
    """Causal attention whose backward uses the stored output: delta = rowsum(dout * rounded out). Sinks [heads] scale
    an output that was stored without them, so it is rounded twice."""

    @staticmethod
    def forward(ctx, q, k, v, window, cap, sinks, rounding):
        scores = soft_capped(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), cap)
        slope = 1 - (scores / cap) ** 2 if cap else torch.ones_like(scores)
        scores = scores.masked_fill(hidden_keys(q.shape[-2], window), -torch.inf)
        p = scores.softmax(-1)
        out = rounding(p @ v)
        share = None
        if sinks is not None:
            share = torch.sigmoid(sinks[:, None, None] - scores.logsumexp(-1, keepdim=True))
            out, p = rounding(out * (1 - share)), p * (1 - share)
        ctx.save_for_backward(q, k, v, p, slope, out, share)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, p, slope, out, share = ctx.saved_tensors
        delta = (dout * out).sum(-1, keepdim=True)
        dscores = p * (dout @ v.transpose(-1, -2) - delta) * slope / math.sqrt(q.shape[-1])
        dsinks = None if share is None else -(share * delta).sum((0, 2, 3))
        return dscores @ k, dscores.transpose(-1, -2) @ q, p.transpose(-1, -2) @ dout, None, None, dsinks, None


def plain_attention(q, k, v, window, cap, sinks=None):
    if not window and not cap and sinks is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = soft_capped(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), cap)
    scores = scores.masked_fill(hidden_keys(q.shape[-2], window), -torch.inf)
    if sinks is None:
        return scores.softmax(-1) @ v
    both = torch.cat((scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)), -1)
    return both.softmax(-1)[..., :-1] @ v


class Plain:
    """PyTorch's own ops without rounding."""

    stored = staticmethod(unrounded)
    kept = staticmethod(unrounded)  # inputs of norms and of SwiGLU
    gradient = staticmethod(unrounded)
    factor = staticmethod(unrounded)
    attention = staticmethod(plain_attention)


class Bf16:
    """Rounds what precbench's bf16 recipe stores between ops."""

    stored = round_both
    kept = staticmethod(unrounded)
    gradient = round_gradient
    factor = staticmethod(lambda x: bf16(torch.tensor(x)).item())
    attention = staticmethod(lambda *args: round_both(Attention.apply(*args, bf16)))


class Unrounded:
    """Our attention without rounding, to show that its backward equals PyTorch's."""

    stored = staticmethod(unrounded)
    kept = staticmethod(unrounded)
    gradient = staticmethod(unrounded)
    factor = staticmethod(unrounded)
    attention = staticmethod(lambda *args: Attention.apply(*args, unrounded))


def rope(x, config, layer):
    """Rotates the first elements of [B, heads, T, D], in halves or interleaved. A scale of attention is a
    factor on queries and keys."""
    rotated = config.get("rotary_dim") or x.shape[-1]
    half = rotated // 2
    scale = math.sqrt(config["attention_scale"] * math.sqrt(x.shape[-1])) if config.get("attention_scale") else 1
    if layer in config.get("layers_without_rope", ()):
        return x * scale
    if "rotary" in config:
        rotary = config["rotary"]
        cos, sin = (table.to(x.dtype) for table in (rotary[layer] if isinstance(rotary, list) else rotary))
    else:
        frequency = config["rope_theta"] ** (-torch.arange(half, dtype=x.dtype) / half)
        angle = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), frequency)
        cos, sin = angle.cos(), angle.sin()
    x, rest = x[..., :rotated], x[..., rotated:]
    if config.get("rope_pairs") == "interleaved":
        a, b = x[..., ::2], x[..., 1::2]
        x = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = x.split(half, -1)
        x = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((x, rest), -1) * scale


def latent_heads(config, w, h, at, mode, linear):
    """Returns queries, keys and values [B, heads, T, D] of latent attention."""
    c, stored = config["latent"], mode.stored
    rope_dim, nope_dim = c["rope_dim"], config["head_dim"] - c["rope_dim"]
    of_rope = {key: config[key] for key in ("rotary", "rope_pairs") if key in config}
    rotated = lambda x: rope(x, of_rope, None)
    heads = lambda x: x.unflatten(-1, (config["heads"], -1)).transpose(1, 2)

    def up(latent, name):
        normed = F.rms_norm(latent, latent.shape[-1:], w[f"{at}{name}_a_layernorm.weight"], 1e-6)
        return linear(stored(normed), f"{at}{name}_b_proj.weight")[0]

    q, kv = linear(h, at + ("q_a_proj.weight" if c["q_rank"] else "q_proj.weight"), at + "kv_a_proj_with_mqa.weight")
    q = heads(up(q, "q") if c["q_rank"] else q)
    latent, key = kv.split([c["kv_rank"], rope_dim], -1)
    nope, v = heads(up(latent, "kv")).split([nope_dim, c["v_dim"]], -1)
    key = rotated(key.unsqueeze(1)).expand(-1, config["heads"], -1, -1)
    scale = config["attention_scale"] * math.sqrt(config["head_dim"]) if config.get("attention_scale") else 1
    q = torch.cat((q[..., :nope_dim], rotated(q[..., nope_dim:])), -1) * scale
    return stored(q), stored(torch.cat((nope, key), -1)), stored(v)


def ungated(config, w, h, layer, mode, linear):
    """Computes a second half without a gate."""
    at = f"model.layers.{layer}.mlp."
    (up,) = linear(h, at + "up_proj.weight")
    if config["ffn_bias"]:
        up = mode.gradient(up + w[at + "up_proj.bias"])
    (branch,) = linear(mode.stored(config["activation"](up)), at + "down_proj.weight")
    return mode.stored(branch + w[at + "down_proj.bias"]) if config["ffn_bias"] else branch


def swiglu(config, w, h, layer, mode, linear):
    """Computes a block's second half, between its norm and the residual stream."""
    if not config.get("gated", True):
        return ungated(config, w, h, layer, mode, linear)
    at = f"model.layers.{layer}.{config.get('ffn_name', 'mlp')}."
    gate, up = mode.kept(torch.cat(linear(h, at + "gate_proj.weight", at + "up_proj.weight"), -1)).chunk(2, -1)
    (branch,) = linear(mode.stored(config.get("activation", F.silu)(gate) * up), at + "down_proj.weight")
    return branch


def swiglu_weights(config, layer, matrix):
    at, C, N = f"model.layers.{layer}.{config.get('ffn_name', 'mlp')}.", config["width"], config["ffn"]
    if config.get("gated", True):
        matrix(at + "gate_proj.weight", N, C, C**-0.5)
    matrix(at + "up_proj.weight", N, C, C**-0.5)
    matrix(at + "down_proj.weight", C, N, N**-0.5)


def loss_of(config, w, tokens, mode):
    """Returns the loss of the step. Linears that share an input form one GEMM, so that its input gradient
    is rounded once."""
    stored, D = mode.stored, config["head_dim"]
    gain = lambda name: w[name] + 1 if config.get("gains_minus_one") else w[name]
    heads = lambda x: x.unflatten(-1, (-1, D)).transpose(1, 2)

    def linear(x, *names):
        weights = [w[name] for name in names]
        return stored(x @ torch.cat(weights).T).split([len(weight) for weight in weights], -1)

    def scaled(x, factor):
        return x if factor == 1 else stored(x * factor)

    def norm(x, name):
        if config.get("norm") == "layer":
            return F.layer_norm(x, (x.shape[-1],), gain(name), w.get(name.replace(".weight", ".bias")), config["norm_eps"])
        return F.rms_norm(x, (x.shape[-1],), gain(name), config["norm_eps"])

    def branch_output(branch, name):
        branch = scaled(branch, config.get("residual_scale", 1))
        return stored(norm(branch, name)) if norms in ("after", "both") else branch

    norms = config.get("norms", "before")
    norms_after = norms == "after"
    x = stored(F.embedding(tokens[:, :-1].long(), w["model.embed_tokens.weight"]))
    embedding_scale = config.get("embedding_scale", 1)
    x = scaled(x, mode.factor(embedding_scale) if config.get("embedding_scale_rounded") else embedding_scale)
    if config.get("learned_positions"):
        x = stored(x + w["model.embed_positions.weight"][:T])
    residual = config.get("residual", "sequential")
    for layer in range(config["layers"]):
        at = f"model.layers.{layer}."
        h = stored(x if norms_after else norm(mode.kept(x), at + "input_layernorm.weight"))
        if config.get("latent"):
            q, k, v = latent_heads(config, w, h, at + "self_attn.", mode, linear)
        else:
            q, k, v = linear(stored(h) if residual == "parallel_one_norm" else h,
                             *(f"{at}self_attn.{p}_proj.weight" for p in "qkv"))
        over_all = config["qk_norm"] and config.get("qk_norm_over") == "heads"
        if over_all:  # one op with RoPE, like a norm per head: nothing is stored between them
            q, k = norm(q, at + "self_attn.q_norm.weight"), norm(k, at + "self_attn.k_norm.weight")
        if not config.get("latent"):
            q, k, v = map(heads, (q, k, v))
        if config.get("qkv_bias"):  # one op with RoPE as well
            q, k, v = (y + heads(w[f"{at}self_attn.{p}_proj.bias"].expand(B, T, -1)) for p, y in zip("qkv", (q, k, v)))
            v = stored(v)
            if config.get("norm") == "layer":
                q, k = mode.gradient(q), mode.gradient(k)
        after_rope = config.get("qk_norm_after_rope")
        if config["qk_norm"] and not over_all and not after_rope:
            q, k = norm(q, at + "self_attn.q_norm.weight"), norm(k, at + "self_attn.k_norm.weight")
        with_rope = layer not in config.get("layers_without_rope", ())
        if config.get("unit_queries_and_keys") and with_rope:  # the norm commutes with RoPE
            q, k = (F.rms_norm(head, (D,), None, config["norm_eps"]) for head in (q, k))
        if not config.get("latent"):
            q, k = (stored(rope(head, config, layer)) for head in (q, k))
        if after_rope:  # an op of its own
            q, k = (stored(norm(y, f"{at}self_attn.{p}_norm.weight")) for p, y in zip("qk", (q, k)))
        if config.get("temperature") and not with_rope:  # of the last query alone
            factors = torch.ones(T, dtype=q.dtype)
            factors[-1] += config["temperature"] * math.log(2)
            q = stored(q * factors[:, None])
        group = config["heads"] // config["kv_heads"]
        out = mode.attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1),
                             config.get("windows", {}).get(layer), config.get("attention_softcap"), w.get(at + "self_attn.sinks"))
        (branch,) = linear(out.transpose(1, 2).flatten(2), at + "self_attn.o_proj.weight")
        if config.get("o_bias"):
            branch = stored(branch + w[at + "self_attn.o_proj.bias"])
        if residual != "sequential":  # each use of an input rounds its gradient
            stream = stored(x)
            one_norm = residual == "parallel_one_norm"
            second = stored(h) if one_norm else stored(norm(stream, at + "post_attention_layernorm.weight"))
            both = config.get("second_half", swiglu)(config, w, second, layer, mode, linear) + branch
            x = stored((x if one_norm else stream) + stored(both))
            continue
        glm4 = config.get("norm_names") == "glm4"
        x = stored(x + branch_output(branch, f"{at}post_{'self_attn' if glm4 else 'attention'}_layernorm.weight"))
        second = "pre_feedforward" if norms == "both" and not glm4 else "post_attention"
        h = stored(x if norms_after else norm(mode.kept(x), f"{at}{second}_layernorm.weight"))
        branch = config.get("second_half", swiglu)(config, w, h, layer, mode, linear)
        x = stored(x + branch_output(branch, f"{at}post_{'mlp' if glm4 else 'feedforward'}_layernorm.weight"))
    h = stored(norm(x, "model.norm.weight"))
    (logits,) = linear(h, "model.embed_tokens.weight" if config["tied"] else "lm_head.weight")
    if config.get("head_bias"):
        logits = stored(logits + w["lm_head.bias"])
    logits = soft_capped(scaled(logits, config.get("logit_scale", 1)), config.get("logit_softcap"))
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten().long())
