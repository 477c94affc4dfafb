// The command line: what it prints, writes and refuses, and that check and report take the records.
#include "tools/import/import_command.h"

#include <filesystem>

#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"
#include "tools/gate/gate.h"
#include "tools/import/import_testing.h"

using namespace precbench;
using namespace precbench::import_testing;

namespace {

Answer precbench_says(const std::string& arguments) {
  return output_of("COLUMNS=1000 " PRECBENCH_BINARY_DIR "/precbench " + arguments);
}

/// Returns a baseline's record set: runs of one unchanged program, each a little faster or slower as a whole.
RecordSet repeats(const std::vector<double>& factors, const std::string& name = "mxfp8") {
  RecordSet set;
  ImportValues given;
  given.recipe = name;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    TorchtitanLines lines;
    lines.tps = {1200, 5900};
    for (int line = 0; line < 12; ++line)
      lines.tps.push_back(factors[i] * (6500 + 15 * ((7 * line) % 5 - 2)));
    Record record = *imported(torchtitan_log(lines), given).record;
    record.created = fmt::format("2026-03-0{}T10:00:00Z", i + 1);
    set.records.push_back({record, {"f", i + 1}});
  }
  return set;
}

GateVerdict speed_of(const RecordSet& baseline, double factor, const std::string& name = "mxfp8") {
  RecordSet run = repeats({factor}, name);
  run.records[0].record.created = "2026-04-01T10:00:00Z";
  const GateResult result = judge(baseline, run, {});
  REQUIRE(result.cases.size() == 1);
  for (const MetricResult& metric : result.cases[0].metrics)
    if (metric.metric == "tokens/s") {
      INFO(metric.reason);
      return metric.verdict;
    }
  return GateVerdict::missing;
}

}  // namespace

TEST_CASE("check: an imported run 5% slower is SLOWER against its own source, and a rerun is not",
          "[import]") {
  const RecordSet baseline = repeats({1, 1.003, 0.998, 1.001});
  CHECK(speed_of(baseline, 0.95) == GateVerdict::slower);
  CHECK(speed_of(baseline, 1.002) == GateVerdict::pass);
  CHECK(speed_of(baseline, 0.999) == GateVerdict::pass);
}

TEST_CASE("check: imports are compared with imports of the same source, recipe and window alone",
          "[import]") {
  const RecordSet baseline = repeats({1, 1.003, 0.998});
  CHECK(speed_of(baseline, 1, "bf16") == GateVerdict::missing);
  RecordSet measured = samples::set_of({samples::gpu_record("mxfp8", 250)});
  CHECK(contains(refusal_of([&] { judge(measured, baseline, {}); }), "method version"));
  CHECK(contains(refusal_of([&] { judge(baseline, measured, {}); }), "method version"));
  RecordSet other = repeats({1});
  for (const char* const field : {"source", "window_steps", "seq", "model"}) {
    RecordSet changed = repeats({1});
    Record& record = changed.records[0].record;
    record.case_fields[field] = record.case_fields.at(field).is_number() ? nlohmann::ordered_json(77)
                                                                         : nlohmann::ordered_json("other");
    record.id = "other";
    const GateResult result = judge(baseline, changed, {});
    INFO(field);
    CHECK(result.cases.at(0).verdict() == GateVerdict::missing);
  }
}

TEST_CASE("check: losses of imports are compared only at the same steps", "[import]") {
  const RecordSet baseline = repeats({1});
  RecordSet run = repeats({1});
  run.records[0].record.source->steps[1] = 9;
  CHECK(contains(judge(baseline, run, {}).cases.at(0).metrics.at(0).reason, "source.steps of line 2 is 10"));
}

TEST_CASE("check: memory of an import is judged by its kind", "[import]") {
  const RecordSet baseline = repeats({1, 1.003, 0.998});
  RecordSet run = repeats({1});
  run.records[0].record.created = "2026-04-01T10:00:00Z";
  *run.records[0].record.source->memory_bytes += *run.records[0].record.source->memory_bytes / 20;
  const auto metric = [&](const RecordSet& current) {
    const GateResult result = judge(baseline, current, {});
    for (const MetricResult& one : result.cases.at(0).metrics)
      if (one.metric == "reserved memory") return one.verdict;
    return GateVerdict::missing;
  };
  CHECK(metric(run) == GateVerdict::bigger);
  run.records[0].record.source->memory = "allocated";
  CHECK(metric(run) == GateVerdict::missing);
}

TEST_CASE("import: writes records that report and check read, once for each run of a log", "[import]") {
  const TempDirectory scratch;
  const std::string bf16 = scratch.write("bf16.log", torchtitan_log());
  const std::string mxfp8 =
      scratch.write("mxfp8.log", torchtitan_log({.tps = {1200, 7000, 8000, 8010, 7990, 8005, 7995, 8000}}));
  const std::string out = scratch / "out";
  const auto first = precbench_says("import " + bf16 + " " + mxfp8 + " --recipe bf16,mxfp8 --out " + out);
  INFO(first.text);
  CHECK(first.status == 0);
  CHECK(contains(first.text, "torchtitan log: 8 step lines, 5 header lines, 0 not understood"));
  CHECK(contains(first.text, "llama3.1-8b: 8,030,261,248 parameters and FLOPs/token agree"));
  const auto again = precbench_says("import " + bf16 + " --recipe bf16 --out " + out);
  CHECK(contains(again.text, "already in"));
  CHECK(read_records({out}).records.size() == 2);
  const auto report = precbench_says("report " + out);
  INFO(report.text);
  CHECK(report.status == 0);
  CHECK(contains(report.text, "Imported runs"));
  CHECK(contains(report.text, "from logs of torchtitan, not measured by precbench"));
  CHECK(contains(report.text,
                 "2 cases of llama3.1-8b on NVIDIA H200, all imported from logs of other programs"));
  CHECK(contains(report.text, "1.23x"));
  // Beside records of our own nothing is compared across.
  scratch.write("own/records.jsonl", "");
  append_record(scratch / "own/records.jsonl", samples::gpu_record("bf16", 250));
  const auto mixed = precbench_says("report " + out + " " + scratch / "own");
  CHECK(contains(mixed.text,
                 "measured records and imported ones are mixed; they are not compared with each other"));
  CHECK(contains(mixed.text, "2 imported from logs of other programs"));
  CHECK(contains(report.text, "attention in full"));
  const std::string baseline = scratch / "baseline.jsonl";
  CHECK(precbench_says("check --baseline " + baseline + " " + out + " --accept").status == 0);
  const auto check = precbench_says("check --baseline " + baseline + " " + out + " --tokens-per-s 50%");
  INFO(check.text);
  CHECK(contains(check.text, "reserved memory"));
  CHECK(contains(precbench_says("import " + baseline).text, "these are records of precbench"));
}

TEST_CASE("import: a log that has grown replaces its record, and a shorter copy adds none", "[import]") {
  const TempDirectory scratch;
  const std::string whole = torchtitan_log(), out = " --recipe bf16 --out " + scratch / "out";
  const std::string part = scratch.write("part.log", whole.substr(0, whole.rfind("step: 70") + 20));
  const std::string log = scratch.write("whole.log", whole);
  const auto first = precbench_says("import " + part + out);
  CHECK(contains(first.text, "the last line has no end"));
  const auto second = precbench_says("import " + log + out);
  INFO(second.text);
  CHECK(contains(second.text, "replaces that of the shorter log"));
  CHECK(contains(precbench_says("import " + part + out).text, "already in"));
  const RecordSet set = read_records({scratch / "out"});
  REQUIRE(set.records.size() == 1);
  CHECK(set.problems.empty());
  CHECK(set.records[0].record.source->last_step == 70);
  CHECK(contains(precbench_says("import " + log + " " + part + " --recipe bf16").text,
                 "a run that was read before"));
}

TEST_CASE("import: runs of one time are repeats, and one that diverged is not forgotten", "[import]") {
  const TempDirectory scratch;
  // Without times in its lines a log has that of its file; files that were copied together share it.
  const auto log = [&](const std::string& name, double penalty, bool diverges) {
    std::string text;
    for (int i = 1; i <= 12; ++i)
      text += fmt::format(
          "Training epoch 0, iteration {}/99 | global_batch_size: 64 | train_step_timing in s: 2.0 | reduced_train_loss: {}\n",
          i, diverges && i > 9 ? "nan" : fmt::format("{:.4f}", 9 - 0.1 * i + penalty));
    const std::string path = scratch.write(name, text);
    std::filesystem::last_write_time(path, std::filesystem::file_time_type{});
    return path + " ";
  };
  const std::string flags = " --model llama3.1-8b --seq 8192 --gpus 16 --gpu h200 --out ",
                    out = scratch / "out";
  const std::string bf16 = log("a1", 0, false) + log("a2", 0.1, false) + log("a3", 0.2, false);
  const std::string mxfp8 = log("b1", 0, false) + log("b2", 0.1, true) + log("b3", 0.2, false);
  CHECK(precbench_says("import " + bf16 + flags + out + " --recipe bf16").status == 0);
  const std::string verdict = "loss of mxfp8 (3 runs) beside bf16 (3 runs): diverged";
  CHECK(contains(precbench_says("import " + mxfp8 + flags + out + " --recipe mxfp8").text, verdict));
  CHECK(contains(precbench_says("import --out " + out).text, verdict));
  CHECK(contains(precbench_says("import " + mxfp8 + flags + out + " --recipe mxfp8").text, "already in"));

  const std::string baseline = scratch / "baseline.jsonl";
  const auto accept = [&](const std::string& logs, const std::string& night) {
    precbench_says("import " + logs + flags + scratch / night + " --recipe bf16");
    return precbench_says("check --accept --baseline " + baseline + " " + scratch / night).text;
  };
  accept(scratch / "a1", "1"), accept(scratch / "a2", "2");
  CHECK(contains(accept(scratch / "a3", "3"), "(3 records: 3 of each)"));
  // A copy of a log is no repeat of it, whatever its time.
  CHECK(contains(accept(scratch.write("copy", file_text(scratch / "a1")), "4"), "(3 records: 3 of each)"));
  const auto own = precbench_says("check --baseline " + baseline + " " + scratch / "4");
  CHECK(contains(own.text, "own records: nothing new was measured; import the log of a new run"));
}

TEST_CASE("import: a line of --out that is no record is refused, not lost", "[import]") {
  const TempDirectory scratch;
  scratch.write("records.jsonl", "half a rec");
  const auto refused = precbench_says("import " + scratch.write("a.log", torchtitan_log()) +
                                      " --recipe bf16 --out " + scratch.path().string());
  INFO(refused.text);
  CHECK(refused.status == 2);
  CHECK(contains(refused.text, "records.jsonl:1: not JSON; remove that line"));
  CHECK(file_text(scratch / "records.jsonl") == "half a rec");
}

TEST_CASE(
    "import: losses of two arms get a verdict, and one run per arm the sentence that it decides nothing",
    "[import]") {
  const TempDirectory scratch;
  const std::string out = scratch / "out";
  std::string bf16, mxfp8;
  for (int seed = 1; seed <= 3; ++seed) {
    bf16 += scratch.write(fmt::format("a{}.log", seed), torchtitan_log({.penalty = 0.05 * seed})) + " ";
    mxfp8 += scratch.write(fmt::format("b{}.log", seed),
                           torchtitan_log({.tps = {1200, 7000, 8000, 8010, 7990, 8005, 7995, 8000},
                                           .penalty = 0.05 * seed + 0.0001 * seed})) +
             " ";
  }
  CHECK(precbench_says("import " + bf16 + "--recipe bf16 --seed 1,2,3 --out " + out).status == 0);
  const auto both = precbench_says("import " + mxfp8 + "--recipe mxfp8 --seed 1,2,3 --out " + out);
  INFO(both.text);
  CHECK(contains(both.text,
                 "loss of mxfp8 (3 runs) beside bf16 (3 runs) at step 70: equivalent, +0.00020 nats"));
  CHECK(contains(both.text, "paired by seed"));
  CHECK(contains(both.text, "Power: with so many runs"));
  const auto target = precbench_says("import --out " + out + " --target-loss 9");
  INFO(target.text);
  CHECK(target.status == 0);
  CHECK(contains(
      target.text,
      "samples to a loss of 9: mxfp8 (3 runs) beside bf16 (3 runs): not accepted, 1.000 times as many; 5% more are tolerated"));
  const auto one = precbench_says("import " + bf16.substr(0, bf16.find(' ')) + " " +
                                  mxfp8.substr(0, mxfp8.find(' ')) + " --recipe bf16,mxfp8");
  CHECK(contains(one.text, "One run per arm decides nothing"));
  const std::string map = scratch.write(
      "map.toml", "program = \"mine\"\nstep = \"i\"\nloss = \"l\"\nstep_time = [\"t\", \"ms\"]\n");
  std::string table = "i,l,t\n";
  for (int i = 1; i < 12; ++i) table += fmt::format("{},{},{}\n", i, 5.0 - 0.1 * i, 2000);
  const auto mapped =
      precbench_says("import " + scratch.write("t.csv", table) + " --map " + map +
                     " --model llama3.1-8b --seq 8192 --global-batch 64 --gpus 64 --gpu h200 --recipe bf16");
  INFO(mapped.text);
  CHECK(mapped.status == 0);
  CHECK(contains(mapped.text, "tokens/s per GPU 4,096 (steps 6-11, mean"));
  CHECK(precbench_says("import --out " + scratch / "none").status == 2);
  CHECK(precbench_says("import x.log --map " + map + " --as nemo").status == 2);
  CHECK(precbench_says("import " + bf16 + "--tolerance 5").status == 2);
}

TEST_CASE("import: exit status tells lacking values, unknown text and bad flags apart", "[import]") {
  const TempDirectory scratch;
  const std::string log = scratch.write("run.log", torchtitan_log());
  const auto lacks = precbench_says("import " + log);
  CHECK(lacks.status == 1);
  CHECK(contains(lacks.text, "the log does not say recipe (--recipe)"));
  const auto unknown =
      precbench_says("import " + scratch.write("other.txt", "hello\n\x1b[2J\x1b]0;title\x07\n"));
  CHECK(unknown.status == 3);
  CHECK_FALSE(contains(unknown.text, "\x1b"));
  for (const char* const flags : {"--recipe a,b,c", "--seq 0", "--as tensorboard", "--gpus 8 --recipe bf16",
                                  "--gpu abacus", "--model nothing"}) {
    INFO(flags);
    CHECK(precbench_says("import " + log + " " + flags).status == 2);
  }
  CHECK(precbench_says("import " + scratch / "absent.log").status == 2);
  const auto report = precbench_says("report " + log);
  CHECK(report.status == 2);
  CHECK(contains(report.text, "it looks like a torchtitan log: precbench import " + log));
}
