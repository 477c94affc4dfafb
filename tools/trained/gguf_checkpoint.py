#!/usr/bin/env python3
"""Converts a GGUF file of llama.cpp to a Hugging Face checkpoint that precbench can train from.

  tools/trained/gguf_checkpoint.py MODEL.gguf --out FOLDER
  build/precbench sweep --model FOLDER/config.json --init-from FOLDER/model.safetensors ...

FOLDER gets config.json, model.safetensors and, for BPE, tokenizer.json, which tools/data/tokenize_text.py reads,
and tokenizer_config.json with the special tokens and the chat template, if there are any, for tools/data/tokenize_chats.py.
F32, F16 and BF16 tensors keep their dtype; quantized tensors are dequantized to F32. Both are exact. llama.cpp's order of
the rows of q and k is undone, and so is the 1 that it adds to Gemma's norm weights. Each file is written under a temporary
name and renamed when complete.

Architectures: llama, qwen2, qwen3, gemma3, dense only. Whatever would change the model's output and cannot be expressed in config.json
is refused with one line and exit status 2.

Needs: pip install gguf (which installs numpy).
"""
import argparse
import pathlib

import gguf_model
import gguf_tokenizer
from checkpoint_file import refusing, write_json, write_safetensors


def convert(source, folder, with_tokenizer):
    # Everything is checked before the first byte is written.
    model = gguf_model.Model(source)
    config, tensors = model.config(), model.tensors()
    tokenizer = gguf_tokenizer.from_fields(model.fields, config["vocab_size"]) if with_tokenizer else None
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors)
    if tokenizer:
        write_json(folder / "tokenizer.json", tokenizer)
        if chat := gguf_tokenizer.chat_config(model.fields):
            write_json(folder / "tokenizer_config.json", chat)
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
    with refusing(arguments.source):
        convert(arguments.source, arguments.out, not arguments.no_tokenizer)


if __name__ == "__main__":
    main()
