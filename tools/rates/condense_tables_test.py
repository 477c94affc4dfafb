#!/usr/bin/env python3
"""Tests of condense_tables.py on a package of its own: tiny CSV tables whose ratios are known.

Usage: tools/rates/condense_tables_test.py
"""
import contextlib
import csv
import io
import json
import math
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

import condense_tables
from condense_tables import Comparison, Tables, averages, condensed, neighbours, version_key

GEMM = "gemm/{}/1.0/gemm_perf.csv"
ATTENTION = "attention/{}/1.0/context_attention_perf.csv"
CAST = "quantize/{}/1.0/scale_matrix_perf.csv"


class Condensed(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        info = self.root / "tables-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: tables\nVersion: 1.2\nLicense-Expression: Apache-2.0\n\nText.\n")
        for gpu, faster in ("h200_sxm", 1), ("gb200", 2):
            for stack, slower in ("cublas", 1), ("triton", 1.2), ("untuned", 2 if gpu == "gb200" else 1):
                self.write(gpu, GEMM.format(stack), [
                    {"gemm_dtype": format_, "m": m, "n": 4096, "k": 4096, "latency": m / rate / faster * slower}
                    for m in (1024, 4096, 4097, 16)
                    for format_, rate in (("bfloat16", 1), ("fp8", 2), ("fp8_block", 1.5 if faster == 1 else 2.5),
                                          *((("nvfp4", 3),) if faster == 2 else ()))])
                self.write(gpu, ATTENTION.format(stack), [
                    {"attn_dtype": dtype, "kv_cache_dtype": dtype, "batch_size": 1, "isl": isl, "num_heads": heads,
                     "num_key_value_heads": 8, "head_dim": 128, "window_size": window, "step": 0,
                     "latency": slower / faster * (9 if window or heads < 32 or dtype == "fp8" else 1) ** faster}
                    for isl in (1024, 4096) for heads in (16, 32) for window in (0, 128) for dtype in ("bfloat16", "fp8")])
                self.write(gpu, CAST.format(stack), [{"quant_dtype": "fp8", "m": 32768, "k": 8192, "latency": slower / faster},
                                                     {"quant_dtype": "fp8", "m": 128, "k": 128, "latency": 1}])
        self.write("gb200", "comm/nccl/2.9/nccl_perf.csv", self.gathers(4))
        self.write("gb200", "comm/nccl/2.10/nccl_perf.csv", self.gathers(2))

    @staticmethod
    def gathers(milliseconds):
        return [{"nccl_dtype": dtype, "num_gpus": 4, "message_size": size, "op_name": "all_gather", "latency": milliseconds}
                for dtype in ("half", "int8") for size in (2**19, 2**27, 1000)]

    def write(self, gpu, path, rows):
        path = self.root / "package/systems/data" / gpu / path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)

    def content(self):
        return condensed(Tables(self.root), "gb200")

    def test_ratios_compare_the_fastest_stacks(self):
        gemms = {gemm["format"]: gemm for gemm in self.content()["gemm"]}
        self.assertEqual(set(gemms["bf16"]["ratios"]), {2.0})
        # FP8 with one scale is as fast as FP8 with scales of blocks, where the table has that faster.
        self.assertEqual(set(gemms["fp8"]["ratios"]), {2.5})
        self.assertEqual(set(gemms["mxfp8"]["ratios"]), {2.5})
        self.assertEqual({round(ratio, 3) for ratio in gemms["fp8_block"]["ratios"]}, {3.333})
        self.assertEqual(set(gemms["nvfp4"]["ratios"]), {3.0})
        self.assertEqual(gemms["nvfp4"]["over"], "fp8")
        self.assertEqual(len(gemms["bf16"]["ratios"]), math.prod(len(gemms["bf16"][axis]) for axis in "mnk"))

    def test_shapes_of_no_training_step_do_not_count(self):
        self.assertEqual({gemm["shapes"] for gemm in self.content()["gemm"]}, {2})  # neither 16 nor 4097 rows
        attention = self.content()["attention"]
        self.assertEqual([(one["head_dim"], one["shapes"], set(one["ratios"])) for one in attention], [(128, 2, {2.0})])
        self.assertEqual((self.content()["cast"]["shapes"], self.content()["cast"]["ratio"]), (1, 2.0))

    def test_every_file_states_source_version_and_license(self):
        content = self.content()
        self.assertEqual(content["source"], {"package": "tables", "version": "1.2", "license": "Apache-2.0",
                                             "copyright": "NVIDIA CORPORATION & AFFILIATES", "tables": ["h200_sxm", "gb200"]})
        self.assertEqual(content["gemm"][0]["stacks"], ["cublas 1.0", "triton 1.0", "untuned 1.0"])
        self.assertEqual((content["machine"], content["over"]), ("gb200-nvl72", "h200"))

    def test_collectives_are_of_the_newest_nccl(self):
        # 3/4 of 2^20 and of 2^28 bytes in 2 ms; 2000 bytes are no size of the table.
        self.assertEqual(self.content()["bus_gb_per_s"],
                         {"nccl": "2.10", "all_gather": {"4": [[2**20, 0.3932], [2**28, 100.7]]}})

    def test_a_stack_that_only_one_gpu_has_is_left_out(self):
        shutil.rmtree(self.root / "package/systems/data/h200_sxm/gemm/untuned")
        self.assertEqual(self.content()["gemm"][0]["stacks"], ["cublas 1.0", "triton 1.0"])

    def test_kinds_that_one_side_lacks_are_left_out(self):
        for kind in "attention", "quantize":
            shutil.rmtree(self.root / "package/systems/data/gb200" / kind)
        content = self.content()
        self.assertEqual((content["attention"], content["cast"]), ([], None))
        self.assertIn("nvfp4", [gemm["format"] for gemm in content["gemm"]])
        shutil.rmtree(self.root / "package/systems/data/h200_sxm/gemm")
        self.assertEqual(self.content()["gemm"], [])

    def test_writes_a_file_for_every_gpu_with_tables(self):
        out = self.root / "out"
        errors = io.StringIO()
        with mock.patch.object(sys, "argv", ["condense_tables.py", str(self.root), "--out", str(out)]), \
                contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            condense_tables.main()
        self.assertEqual([path.name for path in out.iterdir()], ["gb200-nvl72.json"])
        self.assertEqual(json.loads((out / "gb200-nvl72.json").read_text()), self.content())
        self.assertIn("gb300: no tables", errors.getvalue())

    def test_a_folder_that_is_no_package_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "is this the unpacked package"):
            Tables(self.root / "package/systems/data/gb200")
        (self.root / "tables-1.2.dist-info/METADATA").unlink()
        with self.assertRaisesRegex(SystemExit, "states version and license"):
            Tables(self.root)


class Averages(unittest.TestCase):
    def test_a_shape_counts_at_the_places_around_it(self):
        self.assertEqual(neighbours(9, [8, 10]), [(8, 0.5), (10, 0.5)])
        self.assertEqual(neighbours(3, [8, 10]), [(8, 1.0)])
        self.assertEqual(neighbours(12, [8, 10]), [(10, 1.0)])
        means = averages({(256,): 1.0, (512,): 2.0, (1024,): 4.0}, {"m": [8, 10]})
        self.assertAlmostEqual(means[8,], (1.0 + 0.5 * 2.0) / 1.5)
        self.assertAlmostEqual(means[10,], (4.0 + 0.5 * 2.0) / 1.5)

    def test_the_spread_leaves_out_untuned_stacks(self):
        reference = {stack: {(256,): 1.0} for stack in "abc"}
        own = {"a": {(256,): 0.5}, "b": {(256,): 0.55}, "c": {(256,): 2.0}}
        comparison = Comparison(reference, own)
        self.assertAlmostEqual(comparison.log_ratios[256,], math.log(2))
        self.assertAlmostEqual(comparison.spread({"m": [8]}), math.log(1.1) / math.sqrt(2))

    def test_places_without_shapes_take_the_nearest(self):
        comparison = Comparison({"a": {(256,): 3.0}}, {"a": {(256,): 1.0}})
        self.assertEqual(comparison.grid({"m": [8, 9, 12]}), [3.0, 3.0, 3.0])

    def test_versions_are_ordered_by_number(self):
        self.assertEqual(max("2.9.1", "2.29.2", "2.27", key=version_key), "2.29.2")


if __name__ == "__main__":
    unittest.main()
