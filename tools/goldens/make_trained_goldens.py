#!/usr/bin/env python3
"""Makes tools/trained/golden/losses.json: results of Hugging Face Transformers for small GGUF files.

    pip install torch transformers accelerate gguf==0.19.0 && tools/goldens/make_trained_goldens.py [CASE...]

With names of cases only these are made again.
For each file of tools/trained/tiny_gguf.py:
  weights     SHA-256 of the FP32 tensors read by Transformers' own GGUF reader, under Hugging Face names
  tokens      sampled from the model: windows of T + 1 that share their ends
  loss        their mean cross-entropy in nats, in float64
  unpermuted  (llama) the loss if the rows of q and k stay in llama.cpp's order, as after a wrong conversion
  one_added   (gemma3) the loss if 1 stays added to the weights of norms

Also writes golden/torch_save.bin, a dictionary of tensors by torch.save: F32, F16, BF16, transposed, a
slice, tied, a parameter. Transformers reads neither RoPE scaling nor Qwen3's head dimension from GGUF;
they are set here, and so are Gemma 3's scale of the scores and its two RoPEs.
"""
import json
import pathlib
import sys
import tempfile

import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

SEQUENCES, T = 8, 32
TRAINED = pathlib.Path(__file__).resolve().parents[1] / "trained"
sys.path.insert(0, str(TRAINED))
import tiny_gguf  # noqa: E402


def config_of(folder, case):
    """Returns the configuration that Transformers reads, plus what it does not read from GGUF."""
    config = transformers.AutoConfig.from_pretrained(folder, gguf_file=f"{case}.gguf")
    options = tiny_gguf.CASES[case][2]
    config.head_dim = options.get("head_dim", config.hidden_size // config.num_attention_heads)
    rope = {"rope_theta": options.get("theta", 10000.0), "rope_type": "default"}
    if "llama3_factor" in options:
        rope |= dict(rope_type="llama3", factor=options["llama3_factor"], low_freq_factor=1.0, high_freq_factor=4.0,
                     original_max_position_embeddings=8192)
    elif "linear_factor" in options:
        rope |= dict(rope_type="linear", factor=options["linear_factor"])
    config.rope_parameters = rope
    if tiny_gguf.CASES[case][0] == "gemma3":
        config.query_pre_attn_scalar = config.head_dim
        config.layer_types = ["sliding_attention"] * 5 + ["full_attention"]
        # Of the full layers the file's theta, of the others the one that llama.cpp has for a file without it.
        config.rope_parameters = {"full_attention": rope, "sliding_attention": {**rope, "rope_theta": 10000.0}}
    return config


def load(folder, case):
    path = pathlib.Path(folder) / f"{case}.gguf"
    tiny_gguf.write(path, case)
    model = transformers.AutoModelForCausalLM.from_config(config_of(folder, case), dtype=torch.float32)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(read, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.double().eval()


def windows(tokens):
    return [(tokens[start:start + T], tokens[start + 1:start + T + 1]) for start in range(0, len(tokens) - 1, T)]


def draw(model, case):
    """Returns tokens sampled from the model itself, so that their loss is low and a wrong
    model's is higher."""
    generator = torch.Generator().manual_seed(len(case))
    tokens = [1]
    with torch.no_grad():
        for _ in range(SEQUENCES):
            window = tokens[-1:]
            for _ in range(T):
                probabilities = (2 * model(torch.tensor([window])).logits[0, -1]).softmax(-1)
                window.append(torch.multinomial(probabilities, 1, generator=generator).item())
            tokens += window[1:]
    return tokens


def loss_of(model, tokens):
    with torch.no_grad():
        losses = [torch.nn.functional.cross_entropy(model(torch.tensor([inputs])).logits[0], torch.tensor(targets)).item()
                  for inputs, targets in windows(tokens)]
    return sum(losses) / len(losses)


def permute_again(model):
    """Puts the rows of q and k in llama.cpp's order."""
    for name, parameter in model.named_parameters():
        for short, heads in ("q_proj.weight", tiny_gguf.HEADS), ("k_proj.weight", tiny_gguf.KV_HEADS):
            if name.endswith(short):
                rows = parameter.data.reshape(heads, 2, -1, parameter.shape[1]).swapaxes(1, 2)
                parameter.data = rows.reshape(parameter.shape).contiguous()


def add_one_again(model):
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data += 1


def save_bin(path):
    counting = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 8
    torch.save({"f32": counting, "f16": counting.half(), "bf16": counting.bfloat16(), "transposed": counting.T,
                "slice": counting[1:3, ::2], "tied": counting, "parameter": torch.nn.Parameter(counting + 1),
                "model.layers.0.self_attn.rotary_emb.inv_freq": counting[0]}, path)


def main():
    path = TRAINED / "golden/losses.json"
    chosen = sys.argv[1:] or list(tiny_gguf.CASES)
    result = json.loads(path.read_text()) if sys.argv[1:] else {}
    result.pop("made_with", None)
    for case in chosen:
        architecture = tiny_gguf.CASES[case][0]
        with tempfile.TemporaryDirectory() as folder:
            model = load(folder, case)
        tensors = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            tensors.pop("lm_head.weight", None)
        weights = tiny_gguf.digest(tensors)
        tokens = draw(model, case)
        result[case] = {"weights": weights, "tokens": tokens, "loss": loss_of(model, tokens)}
        if architecture == "llama":
            permute_again(model)
            result[case]["unpermuted"] = loss_of(model, tokens)
        if architecture == "gemma3":
            add_one_again(model)
            result[case]["one_added"] = loss_of(model, tokens)
        print(case, {key: value for key, value in result[case].items() if key != "tokens"})
    (TRAINED / "golden").mkdir(exist_ok=True)
    save_bin(TRAINED / "golden/torch_save.bin")
    made_with = {"transformers": transformers.__version__, "torch": torch.__version__}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {"made_with": made_with, **result}.items())
    path.write_text(f"{{\n{lines}\n}}\n")


main()
