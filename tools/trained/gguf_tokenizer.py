"""Converts the tokenizer inside a GGUF file, byte-level BPE or SentencePiece's BPE, to a Hugging Face tokenizer.json.

For byte-level BPE the key tokenizer.ggml.pre names the pre-tokenizer, the rule that splits text into words before BPE. The
rules below are those in Hugging Face's tokenizer.json of the same models. SentencePiece has no such rule and no list of
merges: it joins the neighbours whose union is the token of the highest score.
"""
from checkpoint_file import Refused

# Values of tokenizer.ggml.token_type: special tokens, tokens added to the vocabulary, and bytes.
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6

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
    """Returns tokenizer_config.json with the file's chat template and special tokens, or none if it has neither."""
    template, tokens = fields.get("tokenizer.chat_template"), fields.get("tokenizer.ggml.tokens") or []
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | ({"chat_template": template} if template else {})
    for key, name in (("bos", "bos_token"), ("eos", "eos_token")):
        number = fields.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            config[name] = tokens[number]
    return config if len(config) > 1 else None


def from_fields(fields, vocabulary):
    """Returns tokenizer.json as a dictionary; `vocabulary` is the number of rows of the model's embedding."""
    kind = fields.get("tokenizer.ggml.model")
    if kind is None:
        raise Refused(f"has no tokenizer; {HINT}")
    parts_of = {"gpt2": byte_level_parts, "llama": sentencepiece_parts}.get(kind)
    if not parts_of:
        raise Refused(f"its tokenizer is of kind {kind!r}, not byte-level or SentencePiece's BPE; {HINT}")
    tokens = fields.get("tokenizer.ggml.tokens") or []
    types = fields.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    parts = parts_of(fields)
    if len(tokens) != vocabulary or len(types) != vocabulary:
        raise Refused(f"its tokenizer has {len(tokens)} tokens, its embedding {vocabulary}: not the tokenizer of this model")
    numbers = {token: number for number, token in enumerate(tokens)}
    if len(numbers) != len(tokens):
        raise Refused("its tokenizer has a token twice")
    merges = merges_of_scores(fields, tokens, types) if kind == "llama" else stored_merges(fields, numbers)
    if not merges:
        raise Refused("its tokenizer has no merges")
    added = [{"id": number, "content": tokens[number], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": types[number] == CONTROL}
             for number in range(vocabulary) if types[number] in (CONTROL, USER_DEFINED)]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": numbers, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts,
            "model": model | parts["model"]}


def byte_level_parts(fields):
    """Returns the parts of tokenizer.json that depend on the pre-tokenizer."""
    pre = fields.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise Refused(f"pre-tokenizer {pre!r} is not known, only {', '.join(PRE_TOKENIZERS)}; {HINT}")
    steps, ignore_merges, nfc = PRE_TOKENIZERS[pre]
    return {
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"ignore_merges": ignore_merges},
    }


def stored_merges(fields, numbers):
    merges = [merge.split(" ") for merge in fields.get("tokenizer.ggml.merges") or []]
    for merge in merges:
        if len(merge) != 2 or "".join(merge) not in numbers or any(part not in numbers for part in merge):
            raise Refused(f"its tokenizer merges {' and '.join(map(repr, merge))}, which are not tokens of its vocabulary")
    return merges


def sentencepiece_parts(fields):
    """Returns the parts of tokenizer.json that SentencePiece's BPE has: spaces are ▁, and unknown characters bytes."""
    if fields.get("tokenizer.ggml.add_space_prefix", True):
        raise Refused(f"its tokenizer puts a space before the text, which is not supported; {HINT}")
    tokens, unknown = fields.get("tokenizer.ggml.tokens") or [], fields.get("tokenizer.ggml.unknown_token_id", 0)
    if not isinstance(unknown, int) or not 0 <= unknown < len(tokens):
        raise Refused(f"tokenizer.ggml.unknown_token_id = {str(unknown)[:40]}: not a token of its vocabulary")
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"unk_token": tokens[unknown], "fuse_unk": True, "byte_fallback": True},
    }


def merges_of_scores(fields, tokens, types):
    """Returns the pairs of tokens that together are a token, in the order of its score."""
    scores = fields.get("tokenizer.ggml.scores") or []
    if len(scores) != len(tokens):
        raise Refused(f"its tokenizer has {len(tokens)} tokens and {len(scores)} scores")
    joined = {token for token, kind in zip(tokens, types) if kind == NORMAL}
    merges = []
    for number in sorted((number for number, kind in enumerate(types) if kind == NORMAL), key=lambda number: -scores[number]):
        token = tokens[number]
        merges += [[token[:at], token[at:]] for at in range(1, len(token)) if token[:at] in joined and token[at:] in joined]
    return merges
