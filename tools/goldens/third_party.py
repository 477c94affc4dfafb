"""Runs Python and Triton code of other projects on a CPU, from their source trees: for check_third_party.py
and scripts that make goldens.

- `placeholders` and `load`: one file of a package that cannot be imported as a whole. Unused imports become
  placeholders.
- `interpreted`: a file of Triton kernels, with Triton's interpreter.

third_party_cuda.py handles pieces of CUDA files.
"""
import importlib.util
import os
import sys
import types

import numpy as np


class Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder


class Placeholder(metaclass=Anything):
    """Acts as a class, an instance, a decorator or a pair, as the importing file requires."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *_, **__):
        return Placeholder()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder()

    def __iter__(self):
        return iter((False, ""))


class PlaceholderModule(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}", Placeholder)


def placeholders(*names, **attributes):
    """Registers empty modules under these names; `attributes` belong to the last one."""
    for name in names:
        for end in [i for i, c in enumerate(name) if c == "."] + [len(name)]:
            sys.modules.setdefault(name[:end], PlaceholderModule(name[:end]))
    for key, value in attributes.items():
        setattr(sys.modules[names[-1]], key, value)


def load(name, path):
    """Loads the file as a module of that name, the base of its relative imports."""
    parent = name.rpartition(".")[0]
    if parent:
        placeholders(parent)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Launcher:
    """Replaces an autotuned kernel by its first configuration, since tuning measures time, which an
    interpreter lacks."""

    def __init__(self, kernel, configuration):
        self.kernel, self.configuration = kernel, configuration

    def __getitem__(self, grid):
        return lambda **arguments: self.kernel[grid(self.configuration)](**arguments, **self.configuration)


class Draws:
    """Results of the kernels' tl.rand by offset: FP64, so that comparisons are exact."""

    values = None

    @classmethod
    def rand(cls, _, offsets):
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        at = offsets.handle.data
        # Offsets beyond the tensor are masked later.
        found = cls.values[np.minimum(at, len(cls.values) - 1)]
        return tl.tensor(TensorHandle(found, tl.float64), tl.block_type(tl.float64, list(at.shape)))


def interpreted(name, path):
    assert os.environ.get("TRITON_INTERPRET") == "1", "set before Triton is imported"
    import torch
    import triton
    import triton.language as tl
    from triton.runtime import interpreter

    if not hasattr(interpreter, "precbench_casts"):
        theirs = interpreter.precbench_casts = interpreter._convert_float

        def casts(data, source, target, rounding):
            """Replaces the interpreter's e4m3 cast, which unlike hardware neither saturates nor
            has subnormals."""
            if target == tl.float8e4nv and source == tl.float32:
                x = torch.from_numpy(np.array(data, np.float32)).clamp(-448, 448)
                return x.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
            if source == tl.float8e4nv and target == tl.float32:
                codes = torch.from_numpy(np.array(data).view(np.uint8))
                return codes.view(torch.float8_e4m3fn).float().numpy().view(np.uint32)
            return theirs(data, source, target, rounding)

        interpreter._convert_float = casts
        tl.rand = Draws.rand
        triton.autotune = lambda configs, key: lambda kernel: Launcher(kernel, configs[0].kwargs)
    return load(name, path)
