#!/usr/bin/env python3
"""Converts the pytorch_model.bin of a Hugging Face folder to a model.safetensors that precbench can read.

  tools/trained/pytorch_checkpoint.py FOLDER --out NEW

FOLDER has config.json and pytorch_model.bin, or its parts with pytorch_model.bin.index.json. NEW gets a
single model.safetensors, and copies of config.json and tokenizer.json. Tensors keep their dtype: F32, F16 or
BF16. PyTorch is not needed, and no code in the file is run: its pickle may only call functions of a fixed
list.

Needs: pip install numpy.
"""
import argparse
import collections
import copy
import json
import math
import os
import pathlib
import pickle
import shutil
import zipfile

from checkpoint_file import Refused, refusing, write_safetensors

try:
    import numpy as np
except ImportError:
    np = None

# By PyTorch's storage class: safetensors dtype, and a NumPy dtype that copies elements unchanged.
STORAGES = {"FloatStorage": ("F32", "<f4"), "HalfStorage": ("F16", "<f2"), "BFloat16Storage": ("BF16", "<u2")}

MOST_DIMENSIONS = 16


def stored_size(archive, name):
    """Returns the size of an entry in bytes. Refuses a compressed one, which torch.save does not write, and which could
    expand to any size."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
        raise Refused("not written by torch.save: its data are compressed")
    if entry.file_size > os.fstat(archive.fp.fileno()).st_size:
        raise Refused("truncated or damaged: an entry is larger than the file")
    return entry.file_size


class StoredTensor:
    """A view of a part of a file: its storage, and offset and strides in elements."""

    def __init__(self, archive, storage, offset, shape, strides):
        self.archive, (self.dtype, self.kind, self.entry), self.offset = archive, storage, offset
        self.shape, self.strides, self.name = list(shape), list(strides), None
        numbers = [offset, *self.shape, *self.strides]
        if len(self.shape) != len(self.strides) or not all(type(number) is int and number >= 0 for number in numbers):
            raise Refused("truncated or damaged: the shape, strides or offset of a tensor are no whole numbers of"
                          " elements")
        if len(self.shape) > MOST_DIMENSIONS:
            raise Refused(f"truncated or damaged: a tensor of {len(self.shape)} dimensions")
        self.bytes = math.prod(self.shape) * np.dtype(self.kind).itemsize
        last = offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))
        size = stored_size(archive, self.entry) // np.dtype(self.kind).itemsize
        # Strides of 0 would give a tensor of any size from one element.
        if self.bytes and (last >= size or math.prod(self.shape) > size):
            raise Refused(f"truncated or damaged: a tensor of shape {self.shape} lies outside its data")

    def load(self):
        data = np.frombuffer(self.archive.read(self.entry), self.kind)[self.offset:]
        size = data.itemsize
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(data, self.shape, [size * step for step in self.strides]))


class Unpickler(pickle.Unpickler):
    """Reads a dictionary of tensors and only calls functions listed here."""

    def __init__(self, archive, prefix):
        stored_size(archive, prefix + "data.pkl")
        super().__init__(archive.open(prefix + "data.pkl"))
        self.archive, self.prefix = archive, prefix

    def find_class(self, module, name):
        known = {("collections", "OrderedDict"): collections.OrderedDict,
                 ("torch._utils", "_rebuild_tensor_v2"): self.tensor,
                 ("torch._utils", "_rebuild_parameter"): lambda data, *_: data}
        if module == "torch" and name in STORAGES:
            return name
        if (module, name) not in known:
            raise Refused(f"has a {module}.{name}, which is not supported; known: tensors of F32, F16 and BF16")
        return known[module, name]

    def persistent_load(self, reference):
        _, storage, key, *_ = reference
        return (*STORAGES[storage], f"{self.prefix}data/{key}")

    def tensor(self, storage, offset, shape, strides, *_):
        return StoredTensor(self.archive, storage, offset, shape, strides)


def tensors_of(path):
    """Returns the tensors of one file, each with its name."""
    with open(path, "rb"):  # a file that cannot be read raises OSError with its name
        pass
    try:
        archive = zipfile.ZipFile(path)
        names = archive.namelist()
        pickles = [name for name in names if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise Refused("not written by torch.save")
        prefix = pickles[0][:-len("data.pkl")]
        order = prefix + "byteorder"
        if order in names and stored_size(archive, order) and archive.read(order) != b"little":
            raise Refused("big-endian data are not supported")
        state = Unpickler(archive, prefix).load()
    except Refused:
        raise
    except zipfile.BadZipFile:
        raise Refused("truncated, or not written by torch.save of PyTorch 1.6 or later") from None
    except Exception as error:  # a damaged pickle may raise any exception
        raise Refused(f"truncated or damaged: {type(error).__name__}") from None
    if not isinstance(state, dict) or not all(isinstance(name, str) and isinstance(value, StoredTensor)
                                              for name, value in state.items()):
        raise Refused("not a dictionary of tensors")
    result = [copy.copy(tensor) for tensor in state.values()]  # tied names share one object
    for name, tensor in zip(state, result):
        tensor.name = name
    return result


def files_of(folder):
    index = folder / "pytorch_model.bin.index.json"
    if not index.exists():
        return [folder / "pytorch_model.bin"]
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        names = sorted(set(map(str, weight_map.values())))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise Refused(f"{index.name} has no weight_map") from None
    # A part lies in the folder of its index. Anything but a plain file name could lead out of it.
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
            raise Refused(f"{index.name} gives no plain file name as the part of tensor {tensor!r}")
    return [folder / name for name in names]


def convert(folder, out):
    if np is None:
        raise Refused("needs the Python package numpy: pip install numpy")
    tensors = []
    for path in files_of(folder):
        try:
            tensors += tensors_of(path)
        except Refused as error:
            raise Refused(f"{path.name}: {error}") from None
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise Refused("a tensor is in two parts")
    # Old Llama files also contain these, which follow from the configuration.
    tensors = [tensor for tensor in tensors if not tensor.name.endswith(".rotary_emb.inv_freq")]
    config = (folder / "config.json").read_bytes()
    out.mkdir(parents=True, exist_ok=True)
    write_safetensors(out / "model.safetensors", tensors)
    if (folder / "tokenizer.json").exists():
        shutil.copyfile(folder / "tokenizer.json", out / "tokenizer.json")
    (out / "config.json").write_bytes(config)
    print(f"{out}: {sum(math.prod(tensor.shape) for tensor in tensors):,} parameters in {len(tensors)} tensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("--out", required=True, metavar="NEW", type=pathlib.Path)
    arguments = parser.parse_args()
    with refusing(arguments.folder):
        convert(arguments.folder, arguments.out)


if __name__ == "__main__":
    main()
