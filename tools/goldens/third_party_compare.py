"""Reads a golden's sections and compares them with the output of other projects' code: for
check_third_party.py."""
import lzma

import numpy as np

F32 = np.float32
failed = False  # True if an unmasked value differed


class Golden:
    """Sections of the golden PATH, committed as PATH.xz."""

    def __init__(self, path):
        self.sections = {}
        words = iter(lzma.open(f"{path}.xz", "rt").read().split())
        for name in words:
            count = int(next(words))
            self.sections[name] = np.array([int(next(words), 16) for _ in range(count)], np.int64)

    def words(self, name, shape=-1):
        return self.sections[name].reshape(shape)

    def floats(self, name, shape=-1):
        return self.sections[name].astype(np.uint32).view(F32).reshape(shape)

    def bf16(self, name, shape=-1):
        return (self.sections[name] << 16).astype(np.uint32).view(F32).reshape(shape)

    def codes(self, name, shape=-1):
        """Returns e2m1 codes, one per element."""
        pairs = self.sections[name]
        return np.stack([pairs & 15, pairs >> 4], axis=1).reshape(shape)


def compare(name, got, want, masked=None):
    """Compares values; NaNs equal nothing. `masked`: positions at which a difference is due to a tie."""
    global failed
    got, want = np.asarray(got).reshape(-1), np.asarray(want).reshape(-1)
    equal = got == want if got.shape == want.shape else np.zeros(want.shape, bool)
    masked = np.zeros(want.shape, bool) if masked is None else np.asarray(masked).reshape(-1) & ~equal
    wrong = ~equal & ~masked
    line = f"{name}: {want.size} values, {equal.sum()} equal"
    if masked.any():
        line += f", {masked.sum()} masked as ties"
    if wrong.any():
        line += f", {wrong.sum()} DIFFER, the first at {int(np.flatnonzero(wrong)[0])}"
        failed = True
    print(line, flush=True)
