// Tests the report from record files to text.
#include "tools/report/report.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "results/record/step_time.h"
#include "tools/analysis/mfu.h"
#include "tools/report/report_cli.h"
#include "tools/report/study_command.h"

using namespace precbench;

namespace {

std::string run_report(const std::vector<Record>& records, const std::string& format) {
  const TempDirectory folder;
  for (const Record& record : records) append_record(folder / "records.jsonl", record);
  ReportOptions options{{folder.path().string()}, format, folder / "report.txt"};
  options.sections = format == "term" || format == "md" || format == "html" ? "all" : "";
  options.wide = format == "term";
  setenv("COLUMNS", "110", 1);
  REQUIRE(report(options) == 0);
  return file_text(options.output);
}

std::string line_with(const std::string& text, const std::string& start) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(start, 0) == 0) return line;
  return "";
}

/// Returns a terminal report from a section on; empty if it lacks the section.
std::string from_section(const std::string& text, const std::string& title) {
  const std::size_t begin = text.find("\n\n" + title + '\n');
  return begin == std::string::npos ? "" : text.substr(begin + 2);
}

std::string refusal(const ReportOptions& options) {
  return refusal_of([&] { report(options); });
}

/// Splits a CSV line into cells. Does not support escaped quotes, which these records lack.
std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> result(1);
  bool quoted = false;
  for (char c : line) {
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      result.emplace_back();
    else
      result.back() += c;
  }
  return result;
}

}  // namespace

TEST_CASE("report: terminal format of a GPU sweep", "[report]") {
  const std::string text =
      run_report({samples::gpu_record("bf16", 250), samples::gpu_record("blockwise", 200, 0.01),
                  samples::failed_record("rowwise", Status::oom, "20 GiB for activations")},
                 "term");
  INFO(text);
  CHECK(contains(text, "precbench report: 3 cases, 2 ok, 1 failed"));
  CHECK(contains(text, "NVIDIA H200 (compute capability 9.0, 140.40 GiB"));
  CHECK(contains(text, "model llama3.2-1b, seq 2048 tokens, batch 8 sequences"));
  const std::string header = line_with(text, "recipe");
  for (const char* title :
       {"status", "tokens/s", "speed-up", "MFU bf16", "peak memory", "memory ratio", "note"})
    CHECK(contains(header, title));
  CHECK_FALSE(contains(header, "seq"));  // constant, hence in the header lines
  const std::string row = line_with(text, "blockwise");
  for (const char* cell : {" ok ", "81,920", "1.25x", "GiB", "0.95x"}) CHECK(contains(row, cell));
  CHECK(std::regex_search(line_with(text, "rowwise"), std::regex("oom( +-)+ +20 GiB for activations")));
  CHECK(contains(text,
                 "oom: rowwise: 20 GiB for activations; predicted peak 37.46 GiB, the GPU has 140.40 GiB"));
  CHECK(contains(text, "against oom, try: --recompute attention+ffn+norm or block"));
  CHECK(contains(text, "MFU bf16 of NVIDIA H200: 989 TFLOP/s (NVIDIA H200 data sheet, dense)"));
}

TEST_CASE("report: FP8 recipes have their share of the FP8 peak beside that of the BF16 peak", "[report]") {
  const Record bf16 = samples::gpu_record("bf16", 250), fp8 = samples::gpu_record("blockwise", 200);
  REQUIRE(fp8.metrics->peaks->fp8_tflops == 1979);
  const auto cell = [&](const Record& record) {
    const LocatedRecord located{record, {}};
    Row row;
    row.members = {&located};
    row.mfu_bf16 = record.metrics->mfu_bf16;
    return mfu_fp8(row);
  };
  CHECK_FALSE(cell(bf16));
  CHECK(std::abs(*cell(fp8) * 1979 - *fp8.metrics->tflops_per_gpu) < 1e-6);
  Record unknown = fp8;
  unknown.metrics->peaks->fp8_tflops.reset();
  CHECK_FALSE(cell(unknown));
  unknown = fp8;
  unknown.definition.reset();
  CHECK_FALSE(cell(unknown));
  const std::string csv = run_report({bf16, fp8}, "csv");
  CHECK(contains(csv, ",mfu_fp8,"));
  const std::string text = run_report({bf16, fp8}, "md");
  CHECK(contains(line_with(text, "| recipe"), "MFU fp8"));
  CHECK(contains(text, "MFU fp8 of NVIDIA H200: 1979 TFLOP/s (NVIDIA H200 data sheet, dense)"));
  CHECK_FALSE(contains(run_report({bf16}, "md"), "MFU fp8"));
}

TEST_CASE("report: emulated recipes on the CPU device are marked", "[report]") {
  const std::string text =
      run_report({samples::cpu_record("bf16"), samples::cpu_record("mxfp8", 0.003)}, "term");
  INFO(text);
  CHECK(contains(line_with(text, "mxfp8"), "emulated"));
  CHECK(contains(line_with(from_section(text, "Convergence"), "mxfp8"), "+0.0030"));
  CHECK(contains(text, "mxfp8: the cpu device has no FP8 arithmetic"));
  CHECK_FALSE(contains(line_with(text, "recipe"), "status"));  // all are ok
  CHECK_FALSE(contains(line_with(text, "recipe"), "MFU"));     // no row has one
  CHECK(contains(text, "status ok"));
}

TEST_CASE("report: Markdown has the same rows", "[report]") {
  const std::string text =
      run_report({samples::gpu_record("bf16", 250), samples::gpu_record("blockwise", 200)}, "md");
  CHECK(text.rfind("# precbench report: 2 cases\n", 0) == 0);
  CHECK(contains(line_with(text, "| blockwise"), " 1.25x |"));
  CHECK(contains(line_with(text, "| :---"), "-: |"));
}

TEST_CASE("report: CSV has a row per record with raw values and units", "[report]") {
  Record failed = samples::failed_record("rowwise", Status::crashed, "illegal address, in \"gemm\"");
  failed.case_fields["gather"] = "fp8";
  const std::string text =
      run_report({samples::gpu_record("bf16", 250), samples::gpu_record("blockwise", 200), failed}, "csv");
  std::istringstream lines(text);
  std::vector<std::vector<std::string>> table;
  for (std::string line; std::getline(lines, line);) table.push_back(cells(line));
  REQUIRE(table.size() == 4);
  for (const auto& row : table) CHECK(row.size() == table[0].size());
  const auto at = [&](std::size_t row, const std::string& name) -> std::string {
    const auto column = std::find(table[0].begin(), table[0].end(), name);
    return column == table[0].end() ? "no such column"
                                    : table[row][static_cast<std::size_t>(column - table[0].begin())];
  };
  CHECK(at(2, "case.recipe") == "blockwise");
  CHECK(at(2, "case.seq [tokens]") == "2048");
  CHECK(at(2, "metrics.tokens_per_s [tokens/s]") == "81920.0");
  CHECK(at(2, "speedup_vs_bf16") == "1.25");
  CHECK(at(2, "execution") == "native");
  CHECK(at(2, "case.gather") == "");
  CHECK(at(3, "case.gather") == "fp8");
  CHECK(at(3, "status") == "crashed");
  CHECK(at(3, "error") == "illegal address, in gemm");
  CHECK(at(3, "metrics.tokens_per_s [tokens/s]") == "");
  CHECK(at(3, "memory.measured.peak [bytes]") == "");
  CHECK(contains(at(1, "origin"), "records.jsonl:1"));
}

TEST_CASE("report: NaN and infinity are never printed", "[report]") {
  Record zero = samples::gpu_record("bf16", 250);
  zero.metrics->tokens_per_s = 0;
  zero.memory->measured->peak = 0;
  Record hollow = samples::gpu_record("rowwise", 200);
  hollow.timing->samples_ms = {0, 0, 0};
  hollow.training->loss = {std::numeric_limits<double>::quiet_NaN(), 1, 2};
  hollow.training->grad_norm = {std::numeric_limits<double>::infinity()};
  Record empty = samples::gpu_record("blockwise", 200);
  empty.training = Training{};
  empty.timing = Timing{};
  empty.metrics = Metrics{};
  empty.memory = Memory{};
  Record bare = samples::failed_record("mxfp8", Status::timeout, "60 s are over");
  bare.env = Environment{};
  bare.support.reset();
  bare.flops.reset();
  bare.memory.reset();
  Record timeless = samples::gpu_record("rowwise", 200), instant = timeless;
  timeless.case_fields["gpus"] = 2;
  timeless.timing.reset();
  timeless.id += "-2";
  instant.case_fields["gpus"] = 4;
  instant.timing->median_ms = 0;
  instant.id += "-4";
  for (const char* format : {"term", "md", "csv", "json", "html"}) {
    const std::string text = run_report({zero, hollow, empty, bare, timeless, instant}, format);
    INFO(text);
    CHECK_FALSE(std::regex_search(text, std::regex("(^|[^a-z])[-+]?(nan|inf)([^a-z]|$)", std::regex::icase)));
    CHECK(contains(text, "60 s are over"));
  }
}

TEST_CASE("report: warnings of the records are counted and none is added", "[report]") {
  Record stuck = samples::gpu_record("bf16", 250);
  stuck.training->params_changed = 0;
  stuck.warnings = {"146 of 146 parameter tensors did not change in the first step"};
  Record busy = samples::gpu_record("rowwise", 200);
  busy.warnings = {"another process uses the GPU"};
  const std::string text = run_report({stuck, busy}, "term");
  CHECK(contains(text, "1 of 2 cases (bf16): 146 of 146 parameter tensors did not change in the first step"));
  CHECK(contains(text, "1 of 2 cases (rowwise): another process uses the GPU"));
  const std::size_t once = text.find("parameter tensors");
  CHECK(text.find("parameter tensors", once + 1) == std::string::npos);
}

TEST_CASE("report: a timing with few samples or a time limit gets a warning", "[report]") {
  const auto timed = [](const char* recipe, const std::vector<double>& samples, StopReason reason) {
    Record record = samples::gpu_record(recipe, samples.back());
    samples::set_samples(record, samples);
    record.timing->stop_reason = reason;
    return record;
  };
  const std::string text = run_report(
      {timed("bf16", {250}, StopReason::fixed_steps), timed("rowwise", {199, 200}, StopReason::fixed_steps),
       timed("blockwise", {190, 200, 210, 200, 201, 199}, StopReason::time_limit),
       timed("mxfp8", {200, 200, 200, 200, 201, 199}, StopReason::time_limit)},
      "term");
  INFO(text);
  CHECK(contains(text,
                 "2 of 4 cases (bf16/rowwise): fewer than 5 samples, so speeds and ratios are uncertain; "
                 "raise --steps"));
  CHECK(contains(text, "1 of 4 cases (blockwise): sampling ended at the time limit, while the noise"));
  CHECK(std::regex_search(line_with(text, "bf16"), std::regex("^bf16 +65,536 +- ")));
  CHECK(std::regex_search(line_with(text, "rowwise"), std::regex("^rowwise +82,125 +0.3% ")));
  // Emulated recipes have no speed, hence no warning about its uncertainty.
  Record emulated = samples::cpu_record("mxfp8");
  samples::set_samples(emulated, {750});
  CHECK_FALSE(contains(run_report({emulated}, "term"), "fewer than 5 samples"));
}

TEST_CASE("report: native recipes are called unverified only where a record says so", "[report]") {
  const char* const title = "Native, unverified";
  Record bf16 = samples::gpu_record("bf16", 250), rowwise = samples::gpu_record("rowwise", 200),
         mxfp8 = samples::cpu_record("mxfp8");
  CHECK_FALSE(contains(run_report({bf16, rowwise}, "term"), title));
  bf16.support->verified = true;
  rowwise.support->verified = false;
  const std::string text = from_section(run_report({bf16, rowwise}, "term"), title);
  CHECK(contains(text, "rowwise"));
  CHECK(contains(text, "doctor --run"));
  CHECK_FALSE(contains(line_with(text, "rowwise"), "bf16"));
  CHECK(contains(run_report({bf16, rowwise}, "md"), title));
  CHECK(contains(run_report({bf16, rowwise}, "html"), title));
  rowwise.support->verified = true;
  CHECK_FALSE(contains(run_report({bf16, rowwise}, "term"), title));
  mxfp8.support->verified = false;  // emulated: nothing to verify
  CHECK_FALSE(contains(run_report({mxfp8}, "term"), title));
}

TEST_CASE("report: timing runs show paired seeds only if some row has several", "[report]") {
  const auto timed = [](const char* recipe, double ms, int seed) {
    Record record = samples::gpu_record(recipe, ms, 0, seed);
    record.case_fields["steps"] = "auto";
    return record;
  };
  const auto losses = [](const std::vector<Record>& records) {
    return from_section(run_report(records, "term"), "Convergence");
  };
  std::vector<Record> records = {timed("bf16", 250, 1), timed("rowwise", 200, 1)};
  CHECK_FALSE(contains(line_with(losses(records), "recipe"), "seeds"));
  for (const char* recipe : {"bf16", "rowwise"}) records.push_back(timed(recipe, 225, 2));
  records.push_back(timed("blockwise", 200, 1));
  const std::string text = losses(records);
  CHECK(contains(text, "These runs time the recipes"));
  CHECK(contains(line_with(text, "recipe"), "seeds"));
  CHECK(std::regex_search(line_with(text, "rowwise"), std::regex(" 2$")));
  CHECK(std::regex_search(line_with(text, "blockwise"), std::regex(" 1$")));
}

TEST_CASE("report: every machine has its own tables", "[report]") {
  Record b200 = samples::gpu_record("bf16", 150);
  b200.env.gpu->name = "NVIDIA B200";
  b200.case_fields["seq"] = 4096;
  Record failed = samples::failed_record("mxfp8", Status::crashed, "illegal address");
  failed.env = b200.env;
  const std::string text = run_report({samples::gpu_record("blockwise", 200), b200, failed}, "term");
  INFO(text);
  CHECK(contains(text, "Results on NVIDIA H200\n  The case: status ok"));
  CHECK(contains(text, "Results on NVIDIA B200"));
  CHECK(contains(text, "crashed: mxfp8, seq 2048, on NVIDIA B200: illegal address"));
  CHECK_FALSE(contains(line_with(text, "blockwise"), "x  "));  // no ratio against another machine
}

TEST_CASE("report: different builds on one machine are listed", "[report]") {
  Record other = samples::gpu_record("rowwise", 200);
  other.env.git = "fedcba9";
  const std::string text = run_report({samples::gpu_record("bf16", 250), other}, "term");
  CHECK(contains(text, "precbench 0123abc"));
  CHECK(contains(text, "precbench fedcba9"));
  CHECK(contains(text, "NVIDIA H200: builds, boards, hosts or settings differ"));
}

TEST_CASE("report: an older record is doubted by its samples", "[report]") {
  Record record = samples::gpu_record("bf16", 250);
  record.warnings.clear();
  std::vector<double> samples_ms = record.timing->samples_ms;
  for (std::size_t i = 0; i < samples_ms.size(); ++i) samples_ms[i] *= i % 2 ? 0.8 : 1.2;
  samples::set_samples(record, samples_ms);
  CHECK(contains(run_report({record}, "md"), "step times are noisy: "));
  record.warnings = speed_doubts(record);
  const std::string text = run_report({record}, "md");
  CHECK(text.find("step times are noisy: ") == text.rfind("step times are noisy: "));  // said once
}

TEST_CASE("report: problems of the files are part of the report", "[report]") {
  const TempDirectory folder;
  append_record(folder / "records.jsonl", samples::gpu_record("bf16", 250));
  std::ofstream(folder / "records.jsonl", std::ios::app) << "{\"half";
  const ReportOptions options{{folder / "records.jsonl"}, "term", folder / "out.txt"};
  report(options);
  CHECK(contains(file_text(options.output), "records.jsonl:2: half-written last line, left out"));
}

TEST_CASE("report: bad input is refused with one clear line", "[report]") {
  const TempDirectory folder;
  CHECK(contains(refusal({{folder / "none"}, "term", ""}), "none: no such file or folder"));
  const std::string empty = folder.write("empty.jsonl", "");
  CHECK(refusal({{empty}, "term", ""}) == empty + ": no record in it");
  const std::string foreign = folder.write("foreign.jsonl", "PNG\n\x89\n");
  CHECK(contains(refusal({{foreign}, "term", ""}), "no record in it (" + foreign + ":1: not JSON"));
  append_record(folder / "records.jsonl", samples::gpu_record("bf16", 250));
  CHECK(contains(refusal({{folder / "records.jsonl"}, "pdf", ""}), "it is one of term, md, html, csv, json"));
  CHECK(
      contains(refusal({{folder / "records.jsonl"}, "term", folder / "records.jsonl/r.md"}), "cannot make"));
  CHECK(contains(refusal({{folder / "records.jsonl"}, "term", "/dev/full"}), "No space left"));
  CHECK(contains(refusal({{folder / ""}, "csv", folder / "records.jsonl"}), "is read, and would be lost"));
  CHECK(std::filesystem::file_size(folder / "records.jsonl") > 0);
}

TEST_CASE("shares_of_time: adds up kinds of work over all cases, largest first", "[report]") {
  RecordSet set;
  CHECK(!shares_of_time(set));
  Record record = samples::gpu_record("bf16", 250);
  record.durations = {{"start", 6}, {"steps", 60}, {"held-out loss", 0.5}};
  set.records.push_back({.record = record, .origin = {}});
  record.durations = {{"start", 4}, {"fidelity probe", 29.5}};
  set.records.push_back({.record = record, .origin = {}});
  CHECK(shares_of_time(set) == "steps 60%, fidelity probe 30%, start 10%");
  for (LocatedRecord& row : set.records) row.record.durations.clear();
  CHECK(!shares_of_time(set));
}

TEST_CASE("finish_study: a full disk is an error and the old cards stay", "[report]") {
  const TempDirectory folder;
  append_record(folder / "records.jsonl", samples::gpu_record("bf16", 250));
  const std::string cards = folder.write("cards.json", "older");
  std::filesystem::create_symlink("/dev/full", cards + ".next");
  CHECK(refusal_of([&] { finish_study(folder.path().string()); }) ==
        "cannot write " + cards + ".next: No space left on device");
  CHECK(file_text(cards) == "older");
}

TEST_CASE("report: creates the output folder", "[report]") {
  const TempDirectory folder;
  append_record(folder / "records.jsonl", samples::gpu_record("bf16", 250));
  report({{folder / "records.jsonl"}, "md", folder / "new/folder/r.md"});
  CHECK(contains(file_text(folder / "new/folder/r.md"), "precbench report: 1 case"));
}

TEST_CASE("add_report_command: parsing fills the options", "[report]") {
  CLI::App app;
  ReportOptions options;
  CLI::App* command = add_report_command(app, options);
  app.parse("report out more.jsonl --format md -o r.md", false);
  CHECK(command->parsed());
  CHECK(options.paths == std::vector<std::string>{"out", "more.jsonl"});
  CHECK(options.format == "md");
  CHECK(options.output == "r.md");
  CHECK_THROWS_AS(app.parse("report out --format pdf", false), CLI::ParseError);
  CHECK_THROWS_AS(app.parse("report", false), CLI::ParseError);
}
