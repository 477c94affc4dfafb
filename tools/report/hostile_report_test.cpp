// Tests malicious text and paths through report and check.
#include <cstdlib>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/printable.h"
#include "results/record/record_samples.h"
#include "tools/gate/gate_render.h"
#include "tools/report/report.h"
#include "tools/report/sections_testing.h"
#include "tools/text/gnuplot.h"
#include "tools/text/write_file.h"

using namespace precbench;
using Json = nlohmann::ordered_json;

namespace {

/// Escape sequence, its C1 form, a bidirectional override, markup, a noncharacter, a table cell break, and
/// two GitHub Actions commands.
const std::string kEvil = "\x1b[2J\u009b31m\u202e</td><script>\uFFFE\\|`x`##[error]y\n::error::z";

RecordSet evil_set() {
  std::vector<Record> records;
  for (const char* recipe : {"bf16", "mxfp8"}) {
    Record r = samples::gpu_record(recipe, 200);
    r.case_fields["model"] = "model" + kEvil;
    r.case_fields["note" + kEvil] = recipe + kEvil;
    r.env.host = "host" + kEvil;
    r.env.gpu->name = "GPU" + kEvil;
    r.warnings = {"warning" + kEvil};
    records.push_back(r);
  }
  records.push_back(samples::failed_record("rowwise", Status::crashed, "error" + kEvil));
  RecordSet set = samples::set_of(records);
  set.problems = {"problem" + kEvil, "\xff.jsonl:1: not UTF-8"};
  return set;
}

/// Returns true if printable() leaves every line unchanged.
bool is_printable(const std::string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (printable(line) != line) return false;
    begin = end + 1;
  }
  return true;
}

GateResult evil_result() {
  GateResult result;
  CaseResult one{"id" + kEvil, {{"model", "m" + kEvil}}, "label" + kEvil, {}};
  one.metrics = {{"final loss", "nats", GateVerdict::worse, 1.0, 2.0, 1.0, 0.1, "reason" + kEvil}};
  result.cases = {one};
  result.notes = {"note" + kEvil};
  return result;
}

}  // namespace

TEST_CASE("make_report: malicious text cannot control terminal or page", "[report][hostile]") {
  const RecordSet set = evil_set();
  const Document document = make_report(set);
  for (const std::string& text :
       {render_term(document), render_markdown(document), render_html(document), csv_of(set)})
    CHECK(is_printable(text));
  CHECK_FALSE(contains(render_html(document), "<script>\xEF"));
  CHECK_FALSE(contains(render_html(document), "</td><script>"));
  CHECK_FALSE(contains(render_markdown(document), "<script>"));
}

TEST_CASE("gate outputs: malicious text is escaped", "[gate][hostile]") {
  const GateResult result = evil_result();
  for (const std::string& text : {gate_term(result, "base" + kEvil, rerun_with_all_flags),
                                  gate_markdown(result, "base" + kEvil, rerun_with_all_flags),
                                  gate_junit(result, rerun_with_all_flags)})
    CHECK(is_printable(text));
  const std::string annotations = gate_annotations(result, rerun_with_all_flags);
  REQUIRE(annotations.starts_with("::"));  // only our own commands
  CHECK(is_printable(annotations.substr(2)));
  const std::string xml = gate_junit(result, rerun_with_all_flags);
  CHECK_FALSE(contains(xml, "\uFFFE"));
  CHECK_FALSE(contains(xml, "<script>"));
  CHECK_FALSE(contains(gate_markdown(result, "b", rerun_with_all_flags).substr(0, 400), "<script>"));
}

TEST_CASE("make_csv: a case field may have any name", "[report][hostile]") {
  Record record = samples::gpu_record("bf16", 250);
  record.case_fields["a~b"] = "tilde";
  record.case_fields["c/d"] = "slash";
  record.case_fields["~1"] = "both";
  record.case_fields["=1+1"] = "formula, \"quoted\"";
  const std::string csv = csv_of(samples::set_of({record}));
  for (const char* machine :
       {",case.a~b,case.c.d,case.~1,", ",tilde,slash,both,\"formula, \"\"quoted\"\"\","})
    CHECK(contains(csv, machine));
}

TEST_CASE("report: JSON output is ASCII for any file and case names", "[report][hostile]") {
  const TempDirectory folder;
  const std::string file = folder / "\xff.jsonl";
  append_record(file, samples::gpu_record("bf16", 250));
  append_record(file, evil_set().records.front().record);
  write_file(file, "no record\n", true);
  const ReportOptions options{{file}, "json", folder / "out.json"};
  REQUIRE(report(options) == 0);
  const std::string text = file_text(options.output);
  CHECK(contains(text, "\\u009b31m"));
  CHECK(std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
  CHECK(contains(Json::parse(text).at("problems").at(0).get<std::string>(), "\uFFFD.jsonl:3: not JSON"));
}

TEST_CASE("draw_figures: without a temporary folder the report has no figures and reports it",
          "[report][hostile]") {
  const TempDirectory folder;
  std::vector<Record> records;
  for (const int seq : {1024, 2048})
    for (const char* recipe : {"bf16", "mxfp8"}) {
      Record r = samples::gpu_record(recipe, 200);
      r.id += std::to_string(seq);
      r.case_fields["seq"] = seq;
      records.push_back(r);
    }
  Document document = make_report(samples::set_of(records));
  // It suffices that a program of this name exists; it is never started.
  const std::string program = folder.write("gnuplot", "#!/bin/sh\nexit 1\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const char* path = std::getenv("PATH");
  const char* place = std::getenv("TMPDIR");
  const std::optional<std::string> old_path = path ? std::optional<std::string>(path) : std::nullopt;
  const std::optional<std::string> old_place = place ? std::optional<std::string>(place) : std::nullopt;
  ::setenv("PATH", folder.path().c_str(), 1);
  ::setenv("TMPDIR", (folder / "no/such/folder").c_str(), 1);
  CHECK_NOTHROW(draw_figures(document, "", ""));
  old_path ? ::setenv("PATH", old_path->c_str(), 1) : ::unsetenv("PATH");
  old_place ? ::setenv("TMPDIR", old_place->c_str(), 1) : ::unsetenv("TMPDIR");
  CHECK(contains(document.notice, "tables and no figures: no folder for temporary files"));
  CHECK(contains(render_html(document), "tables and no figures"));
}

TEST_CASE("report: an overlong name takes few lines of a terminal", "[report][hostile]") {
  std::vector<Record> records;
  for (const char* recipe : {"bf16", "mxfp8"}) {
    Record r = samples::gpu_record(recipe, 200);
    r.case_fields["model"] = std::string(100'000, 'm');
    records.push_back(r);
  }
  const std::string text = render_term(make_report(samples::set_of(records)));
  CHECK(text.size() < 100'000);
  CHECK(std::count(text.begin(), text.end(), '\n') < 1000);
}
