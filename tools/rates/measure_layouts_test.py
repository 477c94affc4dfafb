#!/usr/bin/env python3
"""Tests of measure_layouts.py with a program that only writes plans and records.

Usage: tools/rates/measure_layouts_test.py
"""
import contextlib
import io
import pathlib
import shutil
import stat
import sys
import tempfile
import unittest

import measure_layouts

# Steps are faster with larger micro-batches and slower with recomputation; plan proposes what PROPOSAL says.
PROGRAM = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
flags = dict(zip(words[1::2], words[2::2]))
if words[0] == "plan":
    batch, recompute = {proposal!r}
    print(json.dumps({{"recipes": [{{"proposals": [{{"batch": batch, "micro_batches": 8 // batch, "recompute": recompute}}]}}]}}))
else:
    out = pathlib.Path(flags["--out"])
    out.mkdir(parents=True)
    with open(out / "records.jsonl", "w") as file:
        for recompute in flags["--recompute"].split(","):
            batch = int(flags["--batch"])
            status = "oom" if batch == 8 and recompute == "none" else "ok"
            ms = 100 / batch + (10 if recompute != "none" else 0)
            file.write(json.dumps({{"status": status, "timing": {{"median_ms": ms}}, "predicted": {{"step_ms": 2 * ms}}, "case":
                {{"batch": batch, "accumulation": int(flags["--accumulation"]), "recompute": recompute}}}}) + "\\n")
"""


class MeasureLayouts(unittest.TestCase):
    def answer(self, proposal):
        root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, root)
        program = root / "program"
        program.write_text(PROGRAM.format(python=sys.executable, proposal=proposal))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        measure_layouts.PRECBENCH = str(program)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = measure_layouts.main(["--on", "h200", "--model", "tiny", "--seq", "64", "--global-batch", "8", "--out",
                                           str(root / "out")])
        return status, said.getvalue()

    def test_fastest_layout(self):
        status, text = self.answer((8, "block"))  # 22.5 ms; 8 without recomputation does not fit, 4 takes 25 ms
        self.assertEqual(status, 0)
        self.assertIn("19 layouts: the first proposal takes 0.0% longer than the fastest: within 3%", text)
        self.assertTrue(text.splitlines()[0].lstrip().startswith("22.50 ms"))

    def test_slow_layout(self):
        status, text = self.answer((4, "none"))
        self.assertEqual(status, 1)
        self.assertIn("11.1% longer than the fastest: NOT within 3%", text)

    def test_layout_that_did_not_run(self):
        with self.assertRaises(SystemExit) as refused:
            self.answer((8, "none"))
        self.assertIn("was not measured", str(refused.exception))

    def test_several_gpus(self):
        options, _ = measure_layouts.arguments(["--on", "h200", "--model", "tiny", "--seq", "64", "--global-batch", "4", "--gpus", "2"])
        flags = [" ".join(one) for one in measure_layouts.sweeps(options)]
        self.assertEqual(len(flags), 2 * (2 + 3))  # ddp and fsdp; micro-batches 1, 2 of two replicas, 1, 2, 4 of one with context
        self.assertTrue(any("--context 2 --batch 4 --accumulation 1" in one for one in flags))


if __name__ == "__main__":
    unittest.main()
