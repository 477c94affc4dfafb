#!/usr/bin/env python3
"""Converts text to token files for `precbench --data FILE`: PREFIX.u16 (vocabulary up to 65,536) or
PREFIX.u32, raw and little-endian, with held-out documents in PREFIX.eval.u16 or .u32 for --eval-data.
PREFIX.json describes them; `bytes` over `tokens`, the mean length of a token of this text, makes losses of
models with different tokenizers comparable (nats per byte).

  tools/data/tokenize_text.py --tokenizer TOKENIZER --out PREFIX INPUT...

INPUT is a text file (divided into documents by the separator), a .jsonl or .parquet file (one document per
row, with its text in --field), a folder (every file below it, in sorted order), or @LIST, a file with one
such path per line. TOKENIZER is a tokenizer.json, a folder that contains one, or a name on the Hugging Face
hub if there is a network. Documents are separated by --separator, which must be a token of the tokenizer. For a
model that expects every sequence to begin with a token, such as Gemma, --begin TOKEN --seq T writes PREFIX.jsonl instead, for
runs with --seq T: each line is a document whose prompt is TOKEN and whose answer the next T tokens of the text. A
tokenizer with more tokens than the model's vocabulary is refused; the model is the config.json in the
tokenizer's folder, or --model. Only one batch is kept in memory. Equal input gives equal bytes.

Needs: pip install tokenizers (and pyarrow for .parquet).
"""
import argparse
import array
import json
import os
import pathlib
import sys

from output_files import OutputFile, add_held_out, check_held_out, document_line, fail, is_held_out

# Gemma has "<eos>", and "</s>" as a tag of HTML.
SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>", "<|im_end|>")
BATCH_BYTES = 16 << 20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", metavar="INPUT")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--model", metavar="CONFIG", help="config.json of the model the tokens are for (default: the one in the "
                        "tokenizer's folder, if there is one)")
    parser.add_argument("--out", required=True, metavar="PREFIX")
    parser.add_argument("--field", default="text", help="name of the text field in .jsonl and .parquet rows (default: text)")
    parser.add_argument("--separator", help="token after each document (default: the tokenizer's end of text)")
    parser.add_argument("--begin", metavar="TOKEN", help="first token of every sequence; needs --seq")
    parser.add_argument("--seq", type=int, metavar="T", help="tokens of a sequence; needs --begin")
    add_held_out(parser)
    parser.add_argument("--tokens", type=int, metavar="N", help="stop after the document that reaches N tokens")
    arguments = parser.parse_args()
    check_held_out(arguments.held_out)
    if arguments.tokens is not None and arguments.tokens < 1:
        fail(f"--tokens {arguments.tokens}: not a number of tokens")
    if (arguments.begin is None) != (arguments.seq is None):
        fail("--begin and --seq need each other")
    if arguments.seq is not None and arguments.seq < 1:
        fail(f"--seq {arguments.seq}: not a number of tokens")
    return arguments


def without_losses(tokenizer):
    """Returns the tokenizer with truncation, padding and dropout switched off, which its file may carry from an earlier
    use: truncation would cut documents, padding would put tokens between them, and dropout would choose merges at
    random. AutoTokenizer ignores them, too."""
    carried = [name for name in ("truncation", "padding") if getattr(tokenizer, name) is not None]
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
        carried.append("dropout")
    if carried:
        print(f"the tokenizer's file switches on {' and '.join(carried)}: not used", file=sys.stderr)
    return tokenizer


def load_tokenizer(name):
    try:
        import tokenizers
    except ImportError:
        fail("needs the Python package tokenizers: pip install tokenizers")
    path = pathlib.Path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        if path.is_file():
            return without_losses(tokenizers.Tokenizer.from_file(str(path)))
        if path.suffix == ".json" or path.exists():
            fail(f"--tokenizer {path}: no such file")
        return without_losses(tokenizers.Tokenizer.from_pretrained(name))
    except Exception as error:  # the library raises plain Exception
        fail(f"--tokenizer {name}: {error}")


def check_vocabulary(vocabulary, tokenizer, model):
    """Fails if the tokenizer has tokens without an embedding in the model."""
    path = pathlib.Path(model or os.path.join(tokenizer, "config.json"))
    if not model and not path.is_file():
        return
    try:
        config = json.loads(path.read_text())
        size = config.get("vocab_size", config.get("vocab"))
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except (ValueError, AttributeError):
        fail(f"{path}: not a JSON object")
    if not isinstance(size, int):
        fail(f"{path}: has no vocab_size")
    if vocabulary > size:
        fail(f"--tokenizer {tokenizer}: {vocabulary} tokens, the model of {path} has {size}: not its tokenizer")


class Bytes:
    """Replaces a tokenizer by plain text: precbench reads its separator as one token."""

    class Encoding:
        def __init__(self, text):
            self.ids = text.encode()

    def encode_batch(self, batch, add_special_tokens):
        return map(self.Encoding, batch)


def separator_of(tokenizer, wanted):
    for token in (wanted,) if wanted else SEPARATORS:
        number = tokenizer.token_to_id(token)
        if number is not None:
            return token, number
    fail(f"--separator: the tokenizer has no token {wanted or ' or '.join(SEPARATORS)}")


def files_of(inputs):
    for name in inputs:
        if name.startswith("@"):
            try:
                listed = pathlib.Path(name[1:]).read_text().splitlines()
            except OSError as error:
                fail(f"{name}: {error.strerror}")
            yield from files_of(line for line in listed if line)
        elif os.path.isdir(name):
            yield from sorted(str(path) for path in pathlib.Path(name).rglob("*") if path.is_file())
        else:
            yield name


def parts_of(file, separator):
    """Yields the documents of an open text file in order."""
    rest = ""
    while chunk := file.read(BATCH_BYTES):
        *whole, rest = (rest + chunk).split(separator)
        yield from whole
    yield rest


def documents_of(path, field, separator):
    """Yields the texts of a file in order."""
    if path.endswith(".parquet"):
        try:
            import pyarrow.parquet
        except ImportError:
            fail(f"{path}: needs the Python package pyarrow: pip install pyarrow")
        try:
            table = pyarrow.parquet.ParquetFile(path)
        except pyarrow.ArrowException as error:
            fail(f"{path}: {error}")
        if field not in table.schema_arrow.names:
            fail(f"{path}: has no column {field}; it has {', '.join(table.schema_arrow.names)}")
        for batch in table.iter_batches(columns=[field]):
            yield from (value for value in batch.column(0).to_pylist() if value is not None)
    elif path.endswith(".jsonl"):
        with open(path, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    text = json.loads(line)[field]
                except (ValueError, KeyError, TypeError):
                    text = None
                if not isinstance(text, str):
                    fail(f"{path}:{number}: not a JSON object with a text named {field}")
                yield text
    else:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            yield from parts_of(file, separator)


def batches_of(inputs, field, separator):
    """Yields batches of non-empty documents, some megabytes each."""
    batch, size = [], 0
    for path in files_of(inputs):
        try:
            for text in documents_of(path, field, separator):
                if not text:
                    continue
                batch.append(text)
                size += len(text)
                if size >= BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
        except OSError as error:
            fail(f"{path}: {error.strerror}")
    if batch:
        yield batch


class TokenFile(OutputFile):
    def __init__(self, path, typecode):
        super().__init__(path)
        self.typecode, self.tokens, self.documents, self.bytes = typecode, 0, 0, 0

    def add(self, text, tokens, separator):
        for part in tokens, separator:
            self.append(part)
        self.tokens += len(tokens) + 1
        self.documents += 1
        self.bytes += len(text.encode("utf-8", "surrogatepass"))

    def append(self, tokens):
        values = array.array(self.typecode, tokens)
        if sys.byteorder == "big":
            values.byteswap()
        self.write(values.tobytes())

    def finish(self):
        return super().finish() | {"documents": self.documents, "tokens": self.tokens, "bytes": self.bytes}


class SequenceFile(TokenFile):
    """Sequences of equal length, each a document with the token `begin` as its prompt. The end of the text that does not fill
    a sequence is left out."""

    def __init__(self, path, begin, seq):
        super().__init__(path, None)
        self.begin, self.seq, self.rest = begin, seq, []

    def append(self, tokens):
        self.rest += tokens
        whole = len(self.rest) // self.seq * self.seq
        for first in range(0, whole, self.seq):
            self.write(document_line([self.begin], self.rest[first:first + self.seq]))
        del self.rest[:whole]

    def finish(self):
        self.tokens -= len(self.rest)
        return super().finish()


def main():
    arguments = parse_arguments()
    begin_id = None
    if arguments.tokenizer == "bytes":
        if arguments.begin is not None:
            fail("--begin: bytes have no such token")
        if arguments.separator not in (None, SEPARATORS[0]):
            fail(f"--separator {arguments.separator}: in text it is {SEPARATORS[0]}")
        tokenizer, separator, vocabulary, suffix, typecode = Bytes(), SEPARATORS[0], 256, ".txt", "B"
        separator_ids = separator.encode()
    else:
        tokenizer = load_tokenizer(arguments.tokenizer)
        separator, separator_id = separator_of(tokenizer, arguments.separator)
        separator_ids = [separator_id]
        if arguments.begin is not None:
            begin_id = tokenizer.token_to_id(arguments.begin)
            if begin_id is None:
                fail(f"--begin: the tokenizer has no token {arguments.begin}")
        vocabulary = max(tokenizer.get_vocab().values()) + 1  # ids may have gaps
        suffix, typecode = (".u16", "H") if vocabulary <= 65536 else (".u32", "I")
    check_vocabulary(vocabulary, arguments.tokenizer, arguments.model)
    try:
        pathlib.Path(arguments.out).parent.mkdir(parents=True, exist_ok=True)
        if begin_id is not None:
            training, held_out = (SequenceFile(f"{arguments.out}{part}.jsonl", begin_id, arguments.seq) for part in ("", ".eval"))
        else:
            training, held_out = (TokenFile(arguments.out + part + suffix, typecode) for part in ("", ".eval"))
    except OSError as error:
        fail(f"--out {arguments.out}: {error.strerror}")
    for batch in batches_of(arguments.inputs, arguments.field, separator):
        for text, encoding in zip(batch, tokenizer.encode_batch(batch, add_special_tokens=False)):
            if arguments.tokens is None or training.tokens < arguments.tokens:
                target = held_out if is_held_out(text, arguments.held_out) else training
                target.add(text, encoding.ids, separator_ids)
        print(f"\r{training.tokens:,} tokens", end="", file=sys.stderr, flush=True)
        if arguments.tokens is not None and training.tokens >= arguments.tokens:
            break
    print(file=sys.stderr)
    if training.tokens == 0:
        training.discard(), held_out.discard()
        fail("the input has no document to train on")
    if held_out.tokens == 0:
        print("no document was held out: of few, choose a larger part (--held-out)", file=sys.stderr)
    manifest = {"tokenizer": os.path.basename(os.path.normpath(arguments.tokenizer)), "vocab": vocabulary,
                "separator": separator, "training": training.finish(), "held_out": held_out.finish()}
    text = json.dumps(manifest, indent=2) + "\n"
    pathlib.Path(arguments.out + ".json").write_text(text)
    print(text, end="")


main()
