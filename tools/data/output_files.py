"""What the scripts that make files of tokens and documents share: messages, held-out parts, and files that are either whole
or absent."""
import hashlib
import json
import os
import sys


def fail(message):
    print(f"{sys.argv[0]}: {message}", file=sys.stderr)
    sys.exit(2)


def add_held_out(parser):
    parser.add_argument("--held-out", type=float, default=0.01, metavar="FRACTION",
                        help="fraction of documents to hold out, chosen by a hash of their text (default: 0.01)")


def check_held_out(fraction):
    if not 0 <= fraction < 1:
        fail(f"--held-out {fraction}: not a fraction from 0 to below 1")


def is_held_out(text, fraction):
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "little")
    return number < fraction * 2**64


class OutputFile:
    """Written under a temporary name, and renamed when complete."""

    def __init__(self, path):
        self.path = path
        self.file = open(path + ".tmp", "wb")
        self.hash = hashlib.sha256()

    def write(self, data):
        self.file.write(data)
        self.hash.update(data)

    def discard(self):
        self.file.close()
        os.remove(self.path + ".tmp")

    def finish(self):
        """Returns the file's name and checksum."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.rename(self.path + ".tmp", self.path)
        return {"file": os.path.basename(self.path), "sha256": self.hash.hexdigest()}


def document_line(prompt, answer):
    """Returns the line of a document, of two lists of token ids."""
    return json.dumps({"prompt": prompt, "answer": answer}, separators=(",", ":")).encode() + b"\n"
