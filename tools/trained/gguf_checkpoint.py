#!/usr/bin/env python3
"""Makes a Hugging Face checkpoint, which precbench trains from, out of a GGUF file of llama.cpp.

  tools/trained/gguf_checkpoint.py MODEL.gguf --out FOLDER
  build/precbench sweep --model FOLDER/config.json --init-from FOLDER/model.safetensors ...

FOLDER gets config.json, model.safetensors and, for byte-level BPE, tokenizer.json, which tools/data/tokenize_text.py reads.
F32, F16 and BF16 tensors keep their dtype; quantized tensors are dequantized to F32. Both are exact. llama.cpp's order of
the rows of q and k is undone. Each file is written under a temporary name and renamed when complete.

Architectures: llama, qwen2, qwen3, dense only. Whatever would change the model's output and cannot be expressed in config.json
is refused with one line and exit status 2.

Needs: pip install gguf (which installs numpy).
"""
import argparse
import contextlib
import json
import os
import pathlib
import sys

import gguf_model
import gguf_tokenizer
from gguf_model import Refused


def fail(message):
    print(f"{sys.argv[0]}: {message}", file=sys.stderr)
    sys.exit(2)


def write_safetensors(path, tensors):
    """Writes StoredTensor objects one after the other, so that only one is in memory at a time."""
    header, end = {}, 0
    for tensor in tensors:
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [end, end + tensor.bytes]}
        end += tensor.bytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data start at a multiple of 8 bytes
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            data = tensor.load()
            if data.nbytes != tensor.bytes:
                raise Refused(f"tensor {tensor.name}: {data.nbytes} bytes of data, {tensor.bytes} expected")
            file.write(data.tobytes())


@contextlib.contextmanager
def replacing(path):
    """Opens a temporary file beside `path`; it takes the name when complete, and is removed after an error."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path, value):
    with replacing(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def convert(source, folder, with_tokenizer):
    # Everything is checked before the first byte is written.
    model = gguf_model.Model(source)
    config, tensors = model.config(), model.tensors()
    tokenizer = gguf_tokenizer.from_fields(model.fields, config["vocab_size"]) if with_tokenizer else None
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors)
    if tokenizer:
        write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "config.json", config)
    parameters = sum(tensor.elements for tensor in tensors)
    print(f"{folder}: {config['model_type']}, {parameters:,} parameters in {len(tensors)} tensors, from {model.types()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="MODEL.gguf", type=pathlib.Path)
    parser.add_argument("--out", required=True, metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("--no-tokenizer", action="store_true",
                        help="write no tokenizer.json: for tokenizers that cannot be converted")
    arguments = parser.parse_args()
    try:
        convert(arguments.source, arguments.out, not arguments.no_tokenizer)
    except Refused as error:
        fail(f"{arguments.source}: {error}")
    except OSError as error:
        fail(f"{error.filename or arguments.source}: {error.strerror or error}")


if __name__ == "__main__":
    main()
