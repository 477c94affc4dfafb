#!/usr/bin/env python3
"""Tests of the scripts that check the pages: each test makes one thing wrong and expects it to be found.

Usage: tools/ci/pages_test.py
"""
import json
import tempfile
import unittest

import check_losses
import check_outputs
import house
import page_tables
import prediction_tables
import profile_table
from check_links import anchors, fault
from readme_tables import ROOT, filled

README = ROOT / "README.md"
SCALING = ROOT / "results/scaling.md"
LAW = ROOT / "results/law.md"


def faults_of(page, text):
    """Returns what readme_tables.py --check reports if the page reads `text`."""
    wrong = []
    filled(page, text, set(), wrong)
    return wrong


class Predictions(unittest.TestCase):
    def test_few_sources_are_less_certain_than_many(self):
        # The same ten points, eight of them covered: ten sources of one, or two sources of which one is never covered.
        many = prediction_tables.cluster_interval([[i < 8] for i in range(10)])
        few = prediction_tables.cluster_interval([[True] * 8, [False] * 2])
        self.assertEqual(few, (0.0, 1.0))
        self.assertGreater(many[0], 0.4)
        self.assertLessEqual(many[1], 1.0)
        self.assertEqual(prediction_tables.cluster_interval([[True], [True, True]]), (1.0, 1.0))
        self.assertEqual(many, prediction_tables.cluster_interval([[i < 8] for i in range(10)]))

    def test_signed_errors_are_relative_or_differences(self):
        self.assertAlmostEqual(prediction_tables.signed_error({"as": "absolute_stack", "published": 100, "predicted": 90}), -0.1)
        self.assertAlmostEqual(prediction_tables.signed_error({"as": "speedup", "published": 1.2, "predicted": 1.3}), 0.1)

    def test_every_judged_value_is_counted_once(self):
        judged = prediction_tables.judged()
        for table in prediction_tables.predicted_machines(), prediction_tables.predicted_clusters():
            rows = [line.split(" | ") for line in table.splitlines()[2:]]
            rows = [row for row in rows if not row[0].startswith(("| all", "| not judged"))]
            column = 2 if "GPU" in table.splitlines()[0] else 1
            self.assertEqual(sum(int(row[column]) for row in rows), len(judged))
        shown = {id for id, _ in prediction_tables.shown_dense()}
        self.assertFalse(shown & {id for id, one in judged if one["as"].startswith("absolute")})

    def test_stack_factors_are_judged_with_the_error_of_our_step(self):
        row = {"stack": "pytorch", "experts": False, "compares": "tokens/s", "source": "a", "ours": 100.0, "theirs": 80.0,
               "without_source": [0.9, 0.85, 0.953], "without_model": [0.8, 0.75, 0.853]}
        stacks = prediction_tables.stacks
        try:
            for log_error, inside in (0.0, "0 of 1"), (0.1, "1 of 1"):
                prediction_tables.stacks = lambda: {"evidence": [row | {"log_error": log_error}]}
                cells = prediction_tables.stack_held_out().splitlines()[2].split(" | ")
                self.assertEqual(cells[3:5], ["12.5%", inside])
                self.assertEqual(cells[6:8], ["0.0%", "1 of 1"])
        finally:
            prediction_tables.stacks = stacks

    def test_every_stack_factor_names_a_source(self):
        known = prediction_tables.points()
        for row in prediction_tables.stacks()["evidence"]:
            if row["kind"] == "published":
                self.assertEqual(prediction_tables.source_of(row["id"]), row["source"])
                self.assertTrue(known[row["id"]]["source"])
            else:
                folder = prediction_tables.RESULTS / row["source"].split()[0]
                self.assertTrue((folder / "pytorch.ndjson").exists())
                files = [path for path in folder.iterdir() if ".jsonl" in path.name]
                self.assertIn(row["id"], {record["id"] for path in files for record in prediction_tables.lines(path)})


class LossGaps(unittest.TestCase):
    def test_a_ratio_needs_a_resolved_gap(self):
        forks = [0.0010, 0.0011, 0.0012]
        self.assertEqual(page_tables.ratio([-0.002, 0.001, 0.002], forks), "-")
        self.assertTrue(page_tables.ratio([0.0030, 0.0033, 0.0036], forks).startswith("3.0 ["))

    def test_an_expected_gap_is_judged_only_by_a_measurement_that_can_tell(self):
        self.assertEqual(prediction_tables.verdict_on(0.001, 0.003, 0.002, 0.0005), "yes")
        self.assertEqual(prediction_tables.verdict_on(0.001, 0.003, 0.004, 0.0005), "**no**")
        self.assertEqual(prediction_tables.verdict_on(0.001, 0.003, 0.004, 0.01), "not resolved")

    def test_served_gaps_pair_runs_with_bf16_of_the_same_seed(self):
        def run(recipe, seed, perturb="none", **readings):
            return {"case": {"recipe": recipe, "seed": seed, "perturb": perturb}, "training":
                    {"evaluations": [{"readings": [{"recipe": name, "loss": loss} for name, loss in readings.items()]}]}}
        runs = [run("bf16", 1, bf16=2.0, mxfp8=2.5), run("bf16", 2, bf16=3.0, mxfp8=3.5), run("bf16", 1, "ulp", bf16=9.0, mxfp8=9.0),
                run("mxfp8", 2, bf16=3.25, mxfp8=3.375), run("mxfp8", 1, bf16=2.125, mxfp8=2.375), run("rowwise", 1, bf16=2.5, rowwise=2.75)]
        bf16, gaps = page_tables.served_gaps(runs, lambda one: one["case"]["seed"])
        self.assertEqual(bf16, [2.0, 3.0])
        self.assertEqual(gaps, {("mxfp8", "in BF16"): [0.25, 0.125], ("mxfp8", "in the recipe"): [-0.125, -0.125],
                                ("mxfp8", "raw"): [0.375, 0.375], ("rowwise", "in BF16"): [0.5], ("rowwise", "raw"): [0.75]})


class Tables(unittest.TestCase):
    def test_a_committed_page_passes(self):
        for page in README, SCALING, LAW:
            self.assertEqual(faults_of(page, page.read_text()), [])

    def test_a_changed_digit_is_found(self):
        text = SCALING.read_text()
        self.assertIn("| 40,088 (96.9%, 1.00x) |", text)
        wrong = text.replace("| 40,088 (96.9%, 1.00x) |", "| 40,088 (69.9%, 1.00x) |", 1)
        self.assertRegex("".join(faults_of(SCALING, wrong)), "^results/scaling.md: report h200x4/scaling.jsonl.xz .* --pivot gpus$")
        self.assertEqual(filled(SCALING, wrong, set(), []), text)

    def test_a_changed_forecast_is_found(self):
        wrong = LAW.read_text().replace("| 8B | 1T | mxfp8 | 0.0", "| 8B | 1T | mxfp8 | 0.1", 1)
        self.assertEqual(faults_of(LAW, wrong), ["results/law.md: law sizes"])

    def test_code_blocks_are_not_filled(self):
        self.assertEqual(faults_of(README, "```\n<!-- table fsdp2 -->\n<!-- end -->\n```\n"), [])

    def test_broken_marks_end_the_check(self):
        for text in ("<!-- table fsdp2 -->\n", "<!-- table nothing -->\n<!-- end -->\n",
                     "<!-- law nothing -->\n<!-- end -->\n",
                     "<!-- report nothing.jsonl --columns tokens/s -->\n<!-- end -->\n",
                     "<!-- table fsdp2 -->\n<!-- report x -->\n<!-- end -->\n"):
            with self.assertRaises(SystemExit):
                faults_of(README, text)


class Outputs(unittest.TestCase):
    def test_what_is_shown_is_printed_in_this_order(self):
        output = "recipe  ms  GiB\n------  --  ---\nbf16    12  3.4\nmxfp8   10  3.5\n"
        for shown in output, "recipe GiB\n--- ---\nmxfp8 3.5\n", "bf16 12 3.4\n...\n":
            self.assertIsNone(check_outputs.missing(shown, output), shown)
        for shown in "bf16 13 3.4\n", "bf16 3.4 12\n", "mxfp8 10\nbf16 12\n", "bf16 12\nbf16 12\n":
            self.assertEqual(check_outputs.missing(shown, output)[1], shown.splitlines()[-1])

    def test_only_what_trains_nothing_is_run(self):
        self.assertEqual(check_outputs.command("a\nbuild/precbench sweep --dry-run \\\n  --seq 8  # why\n"), ["sweep", "--dry-run", "--seq", "8"])
        self.assertEqual(check_outputs.command("build/precbench study --model tiny  # excerpt of results/x.jsonl\n"), ["report", "results/x.jsonl"])
        self.assertIsNone(check_outputs.command("build/precbench sweep --model tiny\n"))

    def test_a_changed_digit_is_found(self):
        text = README.read_text()
        self.assertIn("sweep --dry-run", text)
        self.assertEqual(check_outputs.faults(README, text), [])
        self.assertRegex("".join(check_outputs.faults(README, text.replace("bf16           43.3", "bf16           43.4"))),
                         r"^README.md: sweep --dry-run .* does not print: bf16 +43.4")


class House(unittest.TestCase):
    def test_lines_are_those_with_code(self):
        self.assertEqual(house.lines_of('int a;  // one\n\n/* two\n   three */\nconst char* b = "// four";\n'), 2)
        self.assertEqual(house.lines_of('auto a = R"x(\n// text\n)x";\nchar q = \'"\';  // "\n'), 4)

    def test_tests_and_families_are_told_apart(self):
        for path in "bench/step/rank_test.cpp", "models/config/hugging_face_testing.h", "tools/fuzz/record_fuzz.cpp":
            self.assertTrue(house.TEST.search(path), path)
        self.assertFalse(house.TEST.search("kernels/testing/test_main.cpp"))
        self.assertTrue(house.FAMILY.search("is_gpt_bigcode(config)"))
        self.assertFalse(house.FAMILY.search("bytes of an ophiuchus"))

    def test_long_pages_and_versions_are_named(self):
        self.assertEqual([line.split(" has ")[0] for line in house.long_pages({"a.md": 2500, "b.md": 2501})], ["b.md"])
        text = "# Changelog\n\n## Unreleased\n" + "- x\n" * 60 + "\n## 0.2.0 (1 May)\n" + "- x\n" * 39 + "\n## 0.1.0\n" + "- x\n" * 40
        self.assertEqual(house.long_versions("c.md", text), ["c.md: 0.1.0 has 41 lines, and at most 40 may be"])


class Links(unittest.TestCase):
    def test_good_ones(self):
        for text, link in [("x", "bench/README.md"), ("x", "plots"), ("x", "https://example.org/nothing"), ("x", "results/scaling.md#known-limits"),
                           ("x", "#" + sorted(anchors(README))[0]), ("`run_sweep`", "bench/sweep/sweep.cpp")]:
            self.assertIsNone(fault(README, text, link), link)

    def test_bad_ones(self):
        for text, link in [("x", "bench/nothing.md"), ("x", "../elsewhere.md"), ("x", "#no-such-heading"),
                           ("x", "results/scaling.md#no-such-heading"), ("x", "tools/program/main.cpp#part"),
                           ("`run_sweeps`", "bench/sweep/sweep.cpp"), ("`no_such()`", "tools/program/main.cpp")]:
            self.assertIsNotNone(fault(README, text, link), link)


class Losses(unittest.TestCase):
    def faults_with(self, **changes):
        """Returns the faults of the committed file after its first entry was changed."""
        data = json.loads(check_losses.FILE.read_text())
        data["losses"][0].update(changes)
        return check_losses.faults(data, check_losses.recipe_names())

    def test_the_committed_file_passes(self):
        self.assertEqual(self.faults_with(), [])

    def test_recipes_are_those_of_the_source(self):
        names = check_losses.recipe_names()
        self.assertLessEqual({"bf16", "tensorwise", "mxfp8_floor", "mxfp8_e5m2", "nvfp4_all", "quartet2"}, names)
        self.assertFalse({"row", "tensor", "none", "rceil"} & names)  # values of other enumerations

    def test_each_wrong_field_is_found(self):
        for change, message in (
                ({"nearest": "mxfp9"}, "no built-in recipe"), ({"tokens": -1}, "positive number"),
                ({"gap_nats": float("nan")}, "finite number"), ({"gap_nats": None}, "has 0 of gap_nats"),
                ({"kind": "win"}, "kind is 'win'"), ({"tier": "shown"}, "the rules say judged"),
                ({"tokens": None}, "the rules say shown"), ({"where": ""}, "where is no text"),
                ({"date": "2026"}, "not YYYY-MM"), ({"params_active": 1e15}, "more parameters are active"),
                ({"gap": 1}, "unknown key gap"), ({"bound_nats": 1}, "a gap has 1 of bound_nats")):
            self.assertIn(message, "".join(self.faults_with(**change)), change)

    def test_an_absent_field_and_a_repeated_id_are_found(self):
        data = json.loads(check_losses.FILE.read_text())
        del data["losses"][0]["read_in"]
        data["losses"].append(data["losses"][1])
        found = "".join(check_losses.faults(data, check_losses.recipe_names()))
        self.assertIn("lacks read_in", found)
        self.assertIn("2 entries have this id", found)

    def test_a_file_cut_short_is_found(self):
        data = json.loads(check_losses.FILE.read_text())
        data["losses"] = data["losses"][:10]
        self.assertIn("fewer than 40", "".join(check_losses.faults(data, check_losses.recipe_names())))


class Profiles(unittest.TestCase):
    HEADER = ["Kernel Name", "Grid Size", "gpu__time_duration.sum", *profile_table.BUSY.values(),
              *(f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in ("selected", "wait", "barrier"))]

    def rows_of(self, *launches):
        """Writes a file with the program's own output in between, as ncu does, and returns its rows."""
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            for cells in (self.HEADER, [""] * len(self.HEADER), ["==PROF== done"], *launches):
                file.write(",".join(f'"{cell}"' for cell in cells) + "\n")
            file.flush()
            return [profile_table.line(launch) for launch in profile_table.launches(file.name)]

    def test_the_last_launch_of_a_kernel_counts_and_the_longest_waits_come_first(self):
        name = "void a::multiply<Shape<(int)2, b::C>, Order>(Maps, int)"
        rows = self.rows_of([name, "(4, 1, 1)", "9,000", 1, 2, 3, 4, 5, 1, 2, 3], [name, "(4, 1, 1)", "1,234,500", 84.6, 2, 3, 4, 5, 1, 0.04, 3])
        self.assertEqual(rows, [["multiply<Shape<2, C>, Order>", "(4,1,1)", "1234", "85%", "2%", "3%", "4%", "5%", "barrier 3.0"]])

    def test_another_grid_is_another_line(self):
        rows = self.rows_of(["k(int)", "(4, 1, 1)", 1, 0, 0, 0, 0, 0, 0, 0, 0], ["k(int)", "(8, 1, 1)", 1, "", 0, 0, 0, 0, 0, 0, 0])
        self.assertEqual([row[:2] + row[3:4] for row in rows], [["k", "(4,1,1)", "0%"], ["k", "(8,1,1)", "-"]])


if __name__ == "__main__":
    unittest.main()
