"""Writes the files of a Hugging Face checkpoint, and ends scripts with one line if their input is refused."""
import contextlib
import json
import os
import sys


class Refused(Exception):
    """A file that is damaged or asks for something not supported. The message is one line without the file's name."""


@contextlib.contextmanager
def refusing(source):
    """Ends the program with one line and exit status 2 if Refused or OSError is raised."""
    try:
        yield
        return
    except Refused as error:
        message = f"{source}: {error}"
    except OSError as error:
        message = f"{error.filename or source}: {error.strerror or error}"
    print(f"{sys.argv[0]}: {message}", file=sys.stderr)
    sys.exit(2)


def write_safetensors(path, tensors):
    """Writes tensors one after the other, so that only one is in memory at a time. Each has a name, a safetensors dtype, a
    shape, its number of bytes, and load(), which returns a little-endian array."""
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
    """Opens a temporary file next to `path`; it is renamed when complete, and removed after an error."""
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
