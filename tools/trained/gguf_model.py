"""Reads a GGUF file: its architecture as a Hugging Face config, its tensors under Hugging Face names. Raises
Refused with one line for any damage and for everything that precbench does not model.
"""
import collections
import math
import re

from checkpoint_file import Refused

try:
    import gguf
    import numpy as np
except ImportError:
    gguf = None

# Types that trained_test.py compares with another implementation.
FLOAT_TYPES = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
QUANTIZED_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
BYTES = {"F32": 4, "F16": 2, "BF16": 2}

# By architecture: Hugging Face's model_type and class, and whether rows of q and k are in llama.cpp's order, q, k and v have a
# bias, q and k have a norm, the outputs of attention and MLP have one, and the file's norm weights have 1 added.
Architecture = collections.namedtuple("Architecture", "model_type name permuted qkv_bias qk_norm output_norms one_added")
ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", True, False, False, False, False),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", False, True, False, False, False),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", False, False, True, False, False),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", False, False, True, True, True),
}

# Keys of an architecture that are read, or do not change the output. A key in neither list is refused unless
# its value is 0, false or empty, since it would change the model's output.
READ = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
        "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear")
READ_OF_GEMMA3 = ("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa")
WITHOUT_EFFECT = ("vocab_size", "rope.scaling.original_context_length", "rope.scaling.finetuned", "attention.causal",
                  "expert_used_count", "tensor_data_layout")

# Llama 3's RoPE scaling is stored as the resulting factors. All published checkpoints share
# these three settings.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

# A GGUF file of Gemma 3 need not store these: every sixth layer sees all keys, the others have a window and this theta.
# Scores are divided by the root of the head dimension; only in the model of 62 layers, 27B, by that of width / heads.
GEMMA3_PATTERN, GEMMA3_LOCAL_THETA, LAYERS_OF_GEMMA3_27B = 6, 10000.0, 62


def shortest(value):
    """Returns the shortest decimal number that converts back to this FP32 value: 1e-05, not
    9.999999747378752e-06."""
    return float(str(np.float32(value)))


class StoredTensor:
    """A tensor to be written: its Hugging Face name, safetensors dtype and shape; load() reads the data."""

    def __init__(self, name, shape, source, heads, one_added):
        self.name, self.shape, self.source, self.heads, self.one_added = name, list(shape), source, heads, one_added
        self.dtype = FLOAT_TYPES.get(source.tensor_type.name, "F32")
        if one_added and source.tensor_type.name != "F32":
            raise Refused(f"tensor {source.name} is {source.tensor_type.name}: norms are expected in F32")
        self.elements = math.prod(shape)
        self.bytes = self.elements * BYTES[self.dtype]

    def load(self):
        """Returns the data, little-endian; BF16 as 16-bit integers."""
        data = self.source.data
        if self.source.tensor_type.name in QUANTIZED_TYPES:
            data = gguf.quants.dequantize(data, self.source.tensor_type)
        elif self.dtype == "BF16":
            data = data.view(np.uint16)
        data = data.reshape(self.shape)
        if self.heads:
            data = split_halves(data, self.heads)
        if self.one_added:
            data = data - np.float32(1)
        return np.ascontiguousarray(data, data.dtype.newbyteorder("<"))


def split_halves(rows, heads):
    """Returns the rows of q or k, [heads * dim, width], in Hugging Face's order. RoPE rotates pairs
    of rows: llama.cpp stores a pair side by side, Hugging Face the first of every pair in the first
    half of the head."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def open_reader(path):
    """Returns a gguf.GGUFReader that raises ValueError at the end of the file. The library's own reader
    continues with empty arrays: a damaged length of 2^60 would keep it busy forever."""

    class Reader(gguf.GGUFReader):
        def _get(self, offset, dtype, count=1, *others, **named):
            end = int(offset) + int(count) * np.dtype(dtype).itemsize
            if end > len(self.data):
                raise ValueError(f"the file has {len(self.data)} bytes, byte {end} is asked for")
            return super()._get(offset, dtype, count, *others, **named)

    return Reader(path)


class Model:
    def __init__(self, path):
        if gguf is None:
            raise Refused("needs the Python package gguf: pip install gguf")
        with open(path, "rb") as file:  # a file that cannot be read raises OSError with its name
            if file.read(4) != b"GGUF":
                raise Refused("not a GGUF file")
        try:
            reader = open_reader(path)
            self.fields = {name: field.contents() for name, field in reader.fields.items()}
        except Exception as error:  # the library checks little; numpy raises anything for a damaged file
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            unknown = re.search(r"(\d+)\)? is not a valid GGMLQuantizationType", text)
            if unknown:
                raise Refused(f"a tensor is of type {unknown[1]}, which the gguf library does not know") from None
            raise Refused(f"truncated or damaged: {text}") from None
        self.stored = {tensor.name: tensor for tensor in reader.tensors}
        self.name = self.fields.get("general.architecture")
        if self.name not in ARCHITECTURES:
            raise Refused(f"architecture {self.name!r} is not supported; known: {', '.join(ARCHITECTURES)}")
        self.architecture = ARCHITECTURES[self.name]
        self.refuse_unknown()

    def refuse_unknown(self):
        if self.fields.get("split.count", 1) > 1:
            raise Refused(f"one of {self.fields['split.count']} parts; merge them first: llama-gguf-split --merge")
        for key, value in self.fields.items():
            prefix, _, rest = key.partition(".")
            if prefix == self.name and rest not in self.known_keys() and value:
                raise Refused(f"{key} = {str(value)[:40]}: not supported")
        if not self.fields.get(f"{self.name}.attention.causal", True):
            raise Refused(f"{self.name}.attention.causal = False: not supported")
        for tensor in self.stored.values():
            if tensor.tensor_type.name not in (*FLOAT_TYPES, *QUANTIZED_TYPES):
                known = ", ".join((*FLOAT_TYPES, *QUANTIZED_TYPES))
                raise Refused(f"tensor {tensor.name} is {tensor.tensor_type.name}, which is not supported; known: {known}")

    def known_keys(self):
        return READ + WITHOUT_EFFECT + (READ_OF_GEMMA3 if self.name == "gemma3" else ())

    def number(self, key, default=None):
        """Returns a number from the architecture's keys; raises Refused if it is missing or a list."""
        value = self.fields.get(f"{self.name}.{key}", default)
        if value is None:
            raise Refused(f"has no {self.name}.{key}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise Refused(f"{self.name}.{key} = {str(value)[:40]}: not one positive number")
        return value

    def config(self):
        """Returns config.json as a dictionary."""
        heads, width = self.number("attention.head_count"), self.number("embedding_length")
        self.head_dim = self.number("attention.key_length", width // heads)
        for key in "attention.value_length", "rope.dimension_count":
            if self.number(key, self.head_dim) != self.head_dim:
                raise Refused(f"{self.name}.{key} is not the head dimension {self.head_dim}: not supported")
        embedding = self.tensor("token_embd.weight")
        config = {
            "model_type": self.architecture.model_type,
            "architectures": [self.architecture.name],
            "hidden_size": width,
            "intermediate_size": self.number("feed_forward_length"),
            "num_hidden_layers": self.number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.number("attention.head_count_kv", heads),
            "head_dim": self.head_dim,
            "vocab_size": int(embedding.shape[-1]),
            "max_position_embeddings": self.number("context_length"),
            "rms_norm_eps": shortest(self.number("attention.layer_norm_rms_epsilon")),
            "rope_theta": shortest(self.number("rope.freq_base", 10000.0)),
            "tie_word_embeddings": "output.weight" not in self.stored,
        }
        config |= self.gemma3_config(config) if self.name == "gemma3" else {"hidden_act": "silu"}
        scaling = self.rope_scaling(config)
        return {**config, **({"rope_scaling": scaling} if scaling else {})}

    def gemma3_config(self, config):
        """Returns the part of config.json that only Gemma 3 has."""
        layers, pattern = config["num_hidden_layers"], self.number("attention.sliding_window_pattern", GEMMA3_PATTERN)
        heads = config["num_attention_heads"]
        scalar = config["hidden_size"] // heads if layers == LAYERS_OF_GEMMA3_27B else self.head_dim
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": scalar,
            "sliding_window": self.number("attention.sliding_window"),
            "layer_types": ["sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(layers)],
            "rope_local_base_freq": shortest(self.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA)),
        }

    def rope_scaling(self, config):
        """Returns config.json's rope_scaling, or None for plain RoPE."""
        kind = self.fields.get(f"{self.name}.rope.scaling.type", "none")
        factor = self.number("rope.scaling.factor", self.number("rope.scale_linear", 1.0))
        if kind not in ("none", "linear"):
            raise Refused(f"{self.name}.rope.scaling.type = {kind}: not supported; known: none, linear and Llama 3's")
        if "rope_freqs.weight" not in self.stored:
            return {"rope_type": "linear", "factor": shortest(factor)} if factor != 1 else None
        # Frequencies that Llama 3 scales fully have the configuration's factor.
        stored = np.asarray(self.tensor("rope_freqs.weight").data, np.float64).reshape(-1)
        scaling = {"rope_type": "llama3", "factor": shortest(stored.max()), **LLAMA3}
        expected = llama3_factors(config["rope_theta"], self.head_dim, scaling)
        if factor != 1 or stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-5, atol=0):
            raise Refused("rope_freqs.weight: not the factors of Llama 3's RoPE scaling")
        return scaling

    def tensor(self, name):
        if name not in self.stored:
            raise Refused(f"has no tensor {name}")
        return self.stored[name]

    def tensors(self):
        """Returns every tensor of the model as a StoredTensor; raises Refused for a missing, unexpected
        or misshapen one."""
        config, result, taken = self.config(), [], {"rope_freqs.weight"}
        for name, hugging_face, shape, heads in expected_tensors(config, self.architecture):
            one_added = self.architecture.one_added and name.endswith("norm.weight")
            stored = self.tensor(name)
            if list(reversed(stored.shape.tolist())) != list(shape):
                raise Refused(f"tensor {name}: shape {list(reversed(stored.shape.tolist()))}, expected {list(shape)}")
            taken.add(name)
            result.append(StoredTensor(hugging_face, shape, stored, heads, one_added))
        foreign = sorted(set(self.stored) - taken)
        if foreign:
            raise Refused(f"tensor {foreign[0]}: not known in a model of architecture {self.name}")
        return result

    def types(self):
        """Returns the stored types and how many tensors have each: "210 Q4_1, 61 F32"."""
        counts = collections.Counter(tensor.tensor_type.name for tensor in self.stored.values())
        return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def llama3_factors(theta, head_dim, scaling):
    """Returns the divisors of the head_dim / 2 frequencies in Llama 3's scaling, as llama.cpp stores them."""
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def expected_tensors(config, architecture):
    """Yields (GGUF name, Hugging Face name, shape, heads) of every tensor; heads is nonzero if
    rows are permuted."""
    width, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    yield "token_embd.weight", "model.embed_tokens.weight", (vocabulary, width), 0
    for layer in range(config["num_hidden_layers"]):
        gguf_prefix, prefix = f"blk.{layer}.", f"model.layers.{layer}."
        yield gguf_prefix + "attn_norm.weight", prefix + "input_layernorm.weight", (width,), 0
        for short, count in ("q", heads), ("k", kv_heads), ("v", kv_heads):
            permuted = count if architecture.permuted and short != "v" else 0
            name = f"self_attn.{short}_proj"
            yield f"{gguf_prefix}attn_{short}.weight", f"{prefix}{name}.weight", (count * dim, width), permuted
            if architecture.qkv_bias:
                yield f"{gguf_prefix}attn_{short}.bias", f"{prefix}{name}.bias", (count * dim,), 0
            if architecture.qk_norm and short != "v":
                yield f"{gguf_prefix}attn_{short}_norm.weight", f"{prefix}self_attn.{short}_norm.weight", (dim,), 0
        yield gguf_prefix + "attn_output.weight", prefix + "self_attn.o_proj.weight", (width, heads * dim), 0
        norms = ({"post_attention_norm": "post_attention", "ffn_norm": "pre_feedforward", "post_ffw_norm": "post_feedforward"}
                 if architecture.output_norms else {"ffn_norm": "post_attention"})
        for short, name in norms.items():
            yield f"{gguf_prefix}{short}.weight", f"{prefix}{name}_layernorm.weight", (width,), 0
        for short, name, shape in (("gate", "gate_proj", (inner, width)), ("up", "up_proj", (inner, width)),
                                   ("down", "down_proj", (width, inner))):
            yield f"{gguf_prefix}ffn_{short}.weight", f"{prefix}mlp.{name}.weight", shape, 0
    yield "output_norm.weight", "model.norm.weight", (width,), 0
    if not config["tie_word_embeddings"]:
        yield "output.weight", "lm_head.weight", (vocabulary, width), 0
