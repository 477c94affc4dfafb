"""Converts the byte-level BPE inside a GGUF file to a Hugging Face tokenizer.json.

The key tokenizer.ggml.pre names the pre-tokenizer, the rule that splits text into words before BPE. The rules
below are those in Hugging Face's tokenizer.json of the same models.
"""
from checkpoint_file import Refused

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type: special tokens, and tokens added to the vocabulary

GPT_WORDS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES_ONLY = {**GPT_WORDS, "use_regex": False}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def tiktoken_words(digits):
    """Returns the rule shared by Llama 3 (three digits at a time) and Qwen2 (one)."""
    return [split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits +
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), BYTES_ONLY]


ONE_DIGIT = [{"type": "Digits", "individual_digits": True}, GPT_WORDS]
LLAMA3 = tiktoken_words(r"\p{N}{1,3}")
QWEN2 = tiktoken_words(r"\p{N}")
# By tokenizer.ggml.pre: the steps; are words that are tokens kept whole (Llama 3); is text
# normalized to NFC (Qwen).
PRE_TOKENIZERS = {
    "gpt-2": ([GPT_WORDS], False, False),
    "smollm": (ONE_DIGIT, False, False),
    "starcoder": (ONE_DIGIT, False, False),
    "llama-bpe": (LLAMA3, True, False),
    "llama3": (LLAMA3, True, False),
    "llama-v3": (LLAMA3, True, False),
    "qwen2": (QWEN2, False, True),
    "deepseek-r1-qwen": (QWEN2, False, True),
}
HINT = "with --no-tokenizer the weights are converted alone; then tokenize with the tokenizer.json of the model's authors"


def chat_config(fields):
    """Returns tokenizer_config.json with the file's chat template, or none if it has no template."""
    template, tokens = fields.get("tokenizer.chat_template"), fields.get("tokenizer.ggml.tokens") or []
    if not template:
        return None
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    for key, name in (("bos", "bos_token"), ("eos", "eos_token")):
        number = fields.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            config[name] = tokens[number]
    return config


def from_fields(fields, vocabulary):
    """Returns tokenizer.json as a dictionary; `vocabulary` is the number of rows of the model's embedding."""
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind is None:
        raise Refused(f"has no tokenizer; {HINT}")
    if kind != "gpt2":
        raise Refused(f"its tokenizer is of kind {kind!r}, not byte-level BPE; {HINT}")
    if pre not in PRE_TOKENIZERS:
        raise Refused(f"pre-tokenizer {pre!r} is not known, only {', '.join(PRE_TOKENIZERS)}; {HINT}")
    tokens = fields.get("tokenizer.ggml.tokens") or []
    types = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(tokens) != vocabulary or len(types) != vocabulary:
        raise Refused(f"its tokenizer has {len(tokens)} tokens, its embedding {vocabulary}: not the tokenizer of this model")
    numbers = {token: number for number, token in enumerate(tokens)}
    if len(numbers) != len(tokens):
        raise Refused("its tokenizer has a token twice")
    merges = [merge.split(" ") for merge in fields.get("tokenizer.ggml.merges") or []]
    for merge in merges:
        if len(merge) != 2 or "".join(merge) not in numbers or any(part not in numbers for part in merge):
            raise Refused(f"its tokenizer merges {' and '.join(map(repr, merge))}, which are not tokens of its vocabulary")
    if not merges:
        raise Refused("its tokenizer has no merges")
    steps, ignore_merges, nfc = PRE_TOKENIZERS[pre]
    added = [{"id": number, "content": tokens[number], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": types[number] == CONTROL}
             for number in range(vocabulary) if types[number] in (CONTROL, USER_DEFINED)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges,
                  "vocab": numbers, "merges": merges},
    }
