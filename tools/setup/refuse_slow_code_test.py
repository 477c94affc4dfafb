#!/usr/bin/env python3
"""Tests refuse_slow_code.sh with fake compilers that only print: what is refused, what passes, and which
output remains."""
import pathlib, subprocess, unittest

SCRIPT = pathlib.Path(__file__).with_name("refuse_slow_code.sh")


def compiled(text, status=0):
    return subprocess.run(["sh", SCRIPT, "sh", "-c", f"cat >&2; exit {status}"], input=text, capture_output=True, text=True)


def frame(size, name="_Z4castv"):
    return (f"ptxas info    : Function properties for {name}\n"
            f"    {size} bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
            "ptxas info    : Used 80 registers, used 1 barriers\n")


class RefuseSlowCode(unittest.TestCase):
    def test_quick_code_passes_without_a_word(self):
        for text in ("", frame(0), frame(128) + frame(255)):
            done = compiled(text)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_a_structure_in_local_memory_is_refused_by_name(self):
        done = compiled(frame(16, "_Z5otherv") + frame(408) + frame(0, "_Z4lastv"))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "refused: a stack frame of 408 bytes in _Z4castv\n")

    def test_remarks_are_refused_and_shown(self):
        for remark in ("ptxas warning : Registers are spilled to local memory in function 'k'",
                       "ptxas warning : Local memory used for function 'k'",
                       "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
                       "insufficient register resources for the wgmma pipeline in function 'k'"):
            done = compiled(frame(0) + remark + "\n")
            self.assertEqual(done.returncode, 1)
            self.assertIn(remark, done.stderr)
            self.assertIn("refused", done.stderr)

    def test_warnings_and_failures_are_the_compilers(self):
        done = compiled("k.cu(1): warning: odd\n")
        self.assertEqual((done.returncode, done.stderr), (0, "k.cu(1): warning: odd\n"))
        done = compiled("k.cu(1): error: no\n" + frame(408), 2)
        self.assertEqual((done.returncode, done.stderr), (2, "k.cu(1): error: no\n"))


unittest.main()
