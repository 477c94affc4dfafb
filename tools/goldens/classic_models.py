"""Models with LayerNorm, non-gated MLPs, parallel residuals or learned positions: their config.json, their
blocks in our own terms, and their tensors as in the library's checkpoints. Used by make_step_goldens.py.
"""
import torch
import torch.nn.functional as F

# Smaller than the other models' shapes: what these blocks add does not depend on the width.
SHAPE = dict(num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=2, vocab_size=48,
             max_position_embeddings=64, initializer_range=0.02, bos_token_id=None, eos_token_id=None, pad_token_id=None)
GPT_SHAPE = dict(n_layer=2, n_embd=32, n_head=2, n_positions=32, n_inner=48, vocab_size=48, resid_pdrop=0.0, embd_pdrop=0.0,
                 attn_pdrop=0.0, layer_norm_epsilon=1e-5, bos_token_id=None, eos_token_id=None, pad_token_id=None)
CLASSIC = {
    "gpt2": dict(GPT_SHAPE, model_type="gpt2", activation_function="gelu_new", tie_word_embeddings=True),
    "gpt-bigcode": dict(GPT_SHAPE, model_type="gpt_bigcode", n_inner=16, vocab_size=24, multi_query=True,
                        activation_function="gelu_pytorch_tanh", tie_word_embeddings=True),
    "gpt-j": dict(GPT_SHAPE, model_type="gptj", activation_function="gelu_new", rotary_dim=8, tie_word_embeddings=False),
    "gpt-neox": dict(SHAPE, model_type="gpt_neox", hidden_act="gelu", rotary_pct=0.25, rotary_emb_base=10000,
                     use_parallel_residual=True, layer_norm_eps=1e-5, attention_dropout=0.0, hidden_dropout=0.0,
                     tie_word_embeddings=False),
    "gpt-neox-sequential": dict(SHAPE, model_type="gpt_neox", hidden_act="gelu_new", rotary_pct=1.0, rotary_emb_base=10000,
                                use_parallel_residual=False, attention_bias=False, layer_norm_eps=1e-5, attention_dropout=0.0,
                                hidden_dropout=0.0, tie_word_embeddings=True),
    "phi": dict(SHAPE, model_type="phi", hidden_act="gelu_new", num_key_value_heads=1, partial_rotary_factor=0.5,
                layer_norm_eps=1e-5, rope_theta=10000.0, qk_layernorm=False, tie_word_embeddings=False),
    "starcoder2": dict(SHAPE, num_key_value_heads=1, intermediate_size=16, vocab_size=24, model_type="starcoder2",
                       hidden_act="gelu_pytorch_tanh", sliding_window=9, use_bias=True, norm_epsilon=1e-5,
                       rope_theta=100000.0, residual_dropout=0.0, embedding_dropout=0.0, tie_word_embeddings=True),
    "stablelm": dict(SHAPE, model_type="stablelm", hidden_act="silu", num_key_value_heads=2, use_qkv_bias=True,
                     layer_norm_eps=1e-5, partial_rotary_factor=0.25, rope_theta=10000.0, use_parallel_residual=False,
                     tie_word_embeddings=False),
    "stablelm-parallel": dict(SHAPE, model_type="stablelm", hidden_act="silu", num_key_value_heads=1, use_qkv_bias=False,
                              layer_norm_eps=1e-5, partial_rotary_factor=0.25, rope_theta=10000.0,
                              use_parallel_residual=True, tie_word_embeddings=False),
    "nemotron": dict(SHAPE, num_attention_heads=4, num_key_value_heads=2, model_type="nemotron", hidden_act="relu2", head_dim=16,
                     hidden_size=40, norm_eps=1e-5, partial_rotary_factor=0.5, rope_theta=10000.0, attention_bias=False,
                     mlp_bias=False, tie_word_embeddings=False),
    "nemotron-biases": dict(SHAPE, model_type="nemotron", hidden_act="relu2", head_dim=16, num_key_value_heads=1,
                            norm_eps=1e-5, partial_rotary_factor=0.5, rope_theta=10000.0, attention_bias=True, mlp_bias=True,
                            tie_word_embeddings=False),
    "cohere": dict(SHAPE, num_key_value_heads=1, intermediate_size=16, vocab_size=24, model_type="cohere", hidden_act="silu",
                   layer_norm_eps=1e-5, logit_scale=0.125, rope_theta=10000.0, use_qk_norm=False, attention_bias=False),
    "cohere2": dict(SHAPE, model_type="cohere2", hidden_act="silu", head_dim=16, num_key_value_heads=1, layer_norm_eps=1e-5,
                    logit_scale=0.25, rope_theta=50000.0, attention_bias=False, sliding_window=7, sliding_window_pattern=2),
}
FIRST_SEED = 23
# Models whose weights are also written as in their checkpoints, for bench/step.
STORED = ("gpt2", "gpt-bigcode", "gpt-j", "gpt-neox", "phi", "starcoder2")
ACTIVATIONS = dict(gelu_new=lambda x: F.gelu(x, approximate="tanh"), gelu_pytorch_tanh=lambda x: F.gelu(x, approximate="tanh"),
                   gelu=F.gelu, silu=F.silu, relu2=lambda x: F.relu(x).square())
# Names of the library's tensors: of a block's prefix, and of what is in it and around it.
BLOCKS = dict(gpt2="transformer.h.", gpt_bigcode="transformer.h.", gptj="transformer.h.", gpt_neox="gpt_neox.layers.")
GPT_NAMES = {"model.embed_tokens": "transformer.wte", "model.embed_positions": "transformer.wpe",
             "model.norm": "transformer.ln_f", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
             "self_attn.qkv_proj": "attn.c_attn", "self_attn.o_proj": "attn.c_proj", "mlp.up_proj": "mlp.c_fc",
             "mlp.down_proj": "mlp.c_proj"}
NAMES = dict(
    gpt2=GPT_NAMES,
    gpt_bigcode=GPT_NAMES,
    gptj=dict(GPT_NAMES, **{"self_attn.q_proj": "attn.q_proj", "self_attn.k_proj": "attn.k_proj",
                            "self_attn.v_proj": "attn.v_proj", "self_attn.o_proj": "attn.out_proj", "mlp.up_proj": "mlp.fc_in",
                            "mlp.down_proj": "mlp.fc_out"}),
    gpt_neox={"model.embed_tokens": "gpt_neox.embed_in", "lm_head": "embed_out", "model.norm": "gpt_neox.final_layer_norm",
              "self_attn.qkv_proj": "attention.query_key_value", "self_attn.o_proj": "attention.dense",
              "mlp.up_proj": "mlp.dense_h_to_4h", "mlp.down_proj": "mlp.dense_4h_to_h"},
    phi={"model.norm": "model.final_layernorm", "self_attn.o_proj": "self_attn.dense", "mlp.up_proj": "mlp.fc1",
         "mlp.down_proj": "mlp.fc2"},
    starcoder2={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
    stablelm={}, nemotron={}, cohere={}, cohere2={})


# Names that the library gives tensors of its checkpoints in memory.
IN_MEMORY = dict(gpt_neox={"embed_out.weight": "lm_head.weight"})


def in_memory(model_type, stored):
    return {IN_MEMORY.get(model_type, {}).get(name, name): weight for name, weight in stored.items()}


def stored_name(model_type, name):
    """Returns the library's name of one of our tensors."""
    names = NAMES[model_type]
    parts = name.split(".")
    if parts[1] != "layers":
        module, _, which = name.rpartition(".")
        return f"{names.get(module, module)}.{which}"
    module = ".".join(parts[3:-1])
    return f"{BLOCKS.get(model_type, 'model.layers.')}{parts[2]}.{names.get(module, module)}.{parts[-1]}"


def stored_tensors(model_type, weights, ours):
    """Returns weights as in the library's checkpoints."""
    stored = {}
    for name, weight in weights.items():
        which = name.split(".")[-1]
        if model_type in ("gpt2", "gpt_bigcode", "gpt_neox") and ".self_attn.q_proj." in name:
            q, k, v = (weights[name.replace("q_proj", part + "_proj")] for part in "qkv")
            if model_type == "gpt_neox":  # q, k and v of one head, then those of the next
                parts = [x.unflatten(0, (ours["heads"], -1)) for x in (q, k, v)]
                weight = torch.stack(parts, 1).flatten(0, 2)
            else:
                weight = torch.cat([q, k, v])
            name = name.replace("q_proj", "qkv_proj")
        elif model_type in ("gpt2", "gpt_bigcode", "gpt_neox") and (".k_proj." in name or ".v_proj." in name):
            continue
        if model_type == "gpt2" and which == "weight" and weight.ndim == 2 and ".layers." in name:
            weight = weight.T  # Conv1D
        stored[stored_name(model_type, name)] = weight.contiguous()
    return stored


def our_tensors(model_type, stored, weights, ours):
    """Returns the library's tensors as those of `weights`: the inverse of stored_tensors."""
    first, numbers = 0, {}
    for name, weight in weights.items():
        numbers[name] = torch.arange(first, first + weight.numel(), dtype=torch.int64).reshape(weight.shape)
        first += weight.numel()
    flat = torch.empty(first, dtype=torch.float64)
    for name, places in in_memory(model_type, stored_tensors(model_type, numbers, ours)).items():
        flat[places.flatten()] = stored[name].flatten()
    return {name: flat[places] for name, places in numbers.items()}


def rotary_tables(model, model_type, tokens):
    """Returns cosines and sines [tokens, half of what rotates], or None without RoPE."""
    if model_type in ("gpt2", "gpt_bigcode"):
        return None
    base = model.gpt_neox if model_type == "gpt_neox" else model.transformer if model_type == "gptj" else model.model
    out = base.rotary_emb(torch.zeros(1, tokens, 1, dtype=torch.float64), torch.arange(tokens)[None])
    if model_type == "gptj":  # sines first
        sin, cos = (x.reshape(tokens, -1) for x in out)
        return cos, sin
    cos, sin = (x[0] for x in out)
    half = cos.shape[-1] // 2
    if model_type in ("cohere", "cohere2"):  # each angle twice
        return cos[:, ::2], sin[:, ::2]
    return cos[:, :half], sin[:, :half]


def our_config(c, model, tokens):
    """Returns the model in the terms of make_step_goldens.py, from the library's configuration."""
    kind = c.model_type
    heads, width = c.num_attention_heads, c.hidden_size
    biased = dict(gpt2=True, gpt_bigcode=True, gptj=False, phi=True, starcoder2=getattr(c, "use_bias", True)).get(
        kind, getattr(c, "attention_bias", False))
    ours = dict(
        layers=c.num_hidden_layers, width=width, ffn=getattr(c, "n_inner", None) or getattr(c, "intermediate_size", 4 * width),
        heads=heads, kv_heads=1 if getattr(c, "multi_query", False) else getattr(c, "num_key_value_heads", None) or heads,
        head_dim=getattr(c, "head_dim", None) or width // heads, vocab=c.vocab_size, tied=c.tie_word_embeddings, qk_norm=False,
        norm="layer", norm_bias=not kind.startswith("cohere"),
        qkv_bias=c.use_qkv_bias if kind == "stablelm" else biased, o_bias=biased,
        activation=ACTIVATIONS[getattr(c, "activation_function", None) or c.hidden_act])
    ours["norm_eps"] = next(getattr(c, key) for key in ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
                            if hasattr(c, key))
    ours["gated"] = kind in ("stablelm", "cohere", "cohere2")
    ours["ffn_bias"] = kind in ("gpt2", "gpt_bigcode", "gptj", "gpt_neox", "phi") or (
        kind == "starcoder2" and c.use_bias) or (kind == "nemotron" and c.mlp_bias)
    if kind in ("gptj", "phi", "cohere", "cohere2") or (kind == "stablelm" and c.use_parallel_residual):
        ours["residual"] = "parallel_one_norm"
    if kind == "gpt_neox" and c.use_parallel_residual:
        ours["residual"] = "parallel"
    if kind in ("gpt2", "gpt_bigcode"):
        ours["learned_positions"] = c.n_positions
    if kind in ("gptj", "phi"):
        ours["head_bias"] = True
    if kind == "nemotron":
        ours["gains_minus_one"] = True
    if kind in ("gptj", "cohere", "cohere2"):
        ours["rope_pairs"] = "interleaved"
    if kind.startswith("cohere"):
        ours["logit_scale"] = c.logit_scale
    if getattr(c, "sliding_window", None):
        types = getattr(c, "layer_types", None) or ["sliding_attention"] * c.num_hidden_layers
        ours["windows"] = {i: c.sliding_window for i, kind_ in enumerate(types) if kind_ == "sliding_attention"}
        if kind == "cohere2":
            ours["layers_without_rope"] = [i for i, kind_ in enumerate(types) if kind_ == "full_attention"]
    tables = rotary_tables(model, kind, tokens)
    if tables is None:
        ours["layers_without_rope"] = list(range(c.num_hidden_layers))
    else:
        ours.update(rotary=tables, rotary_dim=2 * tables[0].shape[-1])
    return ours
