#!/usr/bin/env python3
"""Rounds the weights of a checkpoint to what a GGUF type can store, as if it had been quantized by llama.cpp and converted back.

  tools/trained/round_checkpoint.py FOLDER --type Q4_1 --embedding Q8_0 --out NEW

It answers how much of a recipe's loss gap is due to weights that came from a quantized file: study a model as trained, and
rounded (base_precision.sh).
Matrices of the blocks are rounded to --type, the embedding and the output head to --embedding; vectors, the norms among them,
keep their values. NEW gets model.safetensors in F32, and copies of config.json and tokenizer.json where FOLDER has them.

Needs: pip install gguf (which installs numpy).
"""
import argparse
import json
import math
import pathlib
import shutil

from checkpoint_file import Refused, refusing, write_safetensors

try:
    import gguf
    import numpy as np
except ImportError:
    gguf = None

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # that the gguf library can write
EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class RoundedTensor:
    """A tensor of a safetensors file, in F32, rounded to a type of GGUF unless `kind` is None."""
    dtype = "F32"

    def __init__(self, path, name, entry, start, kind):
        self.path, self.name, self.shape, self.stored = path, name, entry["shape"], entry["dtype"]
        self.offset, self.kind = start + entry["data_offsets"][0], kind
        self.elements = math.prod(self.shape)
        self.bytes = 4 * self.elements
        if self.stored not in DTYPES:
            raise Refused(f"tensor {name} is {self.stored}, which is not supported; known: {', '.join(DTYPES)}")
        if kind and self.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            raise Refused(f"tensor {name}: rows of {self.shape[-1]} values cannot be divided into blocks of {kind.name}")

    def load(self):
        data = np.fromfile(self.path, DTYPES[self.stored], self.elements, offset=self.offset)
        data = (data.astype("<u4") << 16).view("<f4") if self.stored == "BF16" else data.astype("<f4")
        data = data.reshape(self.shape)
        if self.kind:
            data = gguf.quants.dequantize(gguf.quants.quantize(data, self.kind), self.kind).reshape(self.shape)
        return np.ascontiguousarray(data, "<f4")


def header_of(path):
    """Returns the tensors of a safetensors file by name, and where their data start."""
    with open(path, "rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(min(start, path.stat().st_size) - 8))
            header.pop("__metadata__", None)
            whole = all(start + entry["data_offsets"][1] <= path.stat().st_size and len(entry["shape"]) and entry["dtype"]
                        for entry in header.values())
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            whole = False
    if not whole:
        raise Refused("model.safetensors: truncated, or not a safetensors file")
    return header, start


def convert(folder, out, block_type, embedding_type):
    if gguf is None:
        raise Refused("needs the Python package gguf: pip install gguf")
    path = folder / "model.safetensors"
    header, start = header_of(path)

    def kind(name, shape):
        chosen = embedding_type if name in EMBEDDINGS else block_type
        return gguf.GGMLQuantizationType[chosen] if len(shape) >= 2 else None

    tensors = [RoundedTensor(path, name, entry, start, kind(name, entry["shape"])) for name, entry in header.items()]
    out.mkdir(parents=True, exist_ok=True)
    write_safetensors(out / "model.safetensors", tensors)
    for name in "config.json", "tokenizer.json":
        if (folder / name).exists():
            shutil.copyfile(folder / name, out / name)
    rounded = sum(tensor.elements for tensor in tensors if tensor.kind)
    print(f"{out}: {rounded:,} of {sum(tensor.elements for tensor in tensors):,} parameters rounded")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("--out", required=True, metavar="NEW", type=pathlib.Path)
    parser.add_argument("--type", choices=TYPES, default="Q4_1", help="type of the blocks' matrices (default %(default)s)")
    parser.add_argument("--embedding", choices=TYPES, default="Q8_0",
                        help="type of the embedding and the output head (default %(default)s)")
    arguments = parser.parse_args()
    with refusing(arguments.folder):
        convert(arguments.folder, arguments.out, arguments.type, arguments.embedding)


if __name__ == "__main__":
    main()
