"""Writes goldens of steps: .safetensors packed with xz, which tests unpack (models/transformer/golden_testing.h)."""
import lzma

from safetensors.torch import save

# For words of four bytes: half as large as with the defaults. No file is larger than the dictionary.
FILTERS = [dict(id=lzma.FILTER_LZMA2, preset=9 | lzma.PRESET_EXTREME, lc=0, lp=2, pb=2, dict_size=1 << 21)]


def save_packed(tensors, path, metadata=None):
    """Writes PATH.xz; returns its size in bytes."""
    data = lzma.compress(save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata), filters=FILTERS)
    return path.with_name(path.name + ".xz").write_bytes(data)
