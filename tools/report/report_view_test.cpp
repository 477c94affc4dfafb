// Overview, sections and selections of a report, and a terminal's width, pager and colors.
#include <fmt/format.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <sstream>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/characters.h"
#include "results/record/record_folder.h"
#include "results/record/record_samples.h"
#include "tools/law/expected_gaps.h"
#include "tools/report/reduce_record.h"
#include "tools/report/report.h"
#include "tools/report/sections_testing.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> names_in(const Document& document) {
  std::vector<std::string> names;
  for (const Section& section : document.sections) names.push_back(section.name);
  return names;
}

RecordSet timed() {
  Record small = with(samples::gpu_record("bf16", 200), "model", "llama3.2-1b");
  small.id = "small";
  Record fast = with(samples::gpu_record("blockwise", 160), "model", "llama3.2-1b");
  fast.id = "fast";
  const auto large = [](const char* recipe, double ms) {
    return with(samples::gpu_record(recipe, ms), "model", "llama3.1-8b");
  };
  return samples::set_of({large("bf16", 250), large("rowwise", 200), large("blockwise", 220), small, fast});
}

/// Runs a shell command in a terminal and returns what it prints there.
std::string printed_on_terminal(const std::string& command, unsigned short columns) {
  winsize size{};
  size.ws_row = 24, size.ws_col = columns;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  REQUIRE(child >= 0);
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  std::string text;
  char part[4096];
  for (ssize_t count; (count = read(terminal, part, sizeof part)) > 0;)  // -1 once the child is gone
    text.append(part, static_cast<std::size_t>(count));
  waitpid(child, nullptr, 0);
  close(terminal);
  std::erase(text, '\r');
  return text;
}

std::string report_command(const std::string& arguments) {
  return PRECBENCH_BINARY_DIR "/precbench report " + arguments;
}

const std::string kStudy = PRECBENCH_SOURCE_DIR "/results/cpu/study-flow.jsonl.xz";

TEST_CASE("report: every committed record file fits 80 columns with its headline on top", "[report]") {
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(PRECBENCH_SOURCE_DIR "/results")) {
    // results/predicted has predictions, not records. The largest studies have no section that smaller ones lack.
    if (!is_record_file(entry.path().string()) || entry.path().parent_path().filename() == "predicted" ||
        entry.file_size() > std::uintmax_t{1} << 20)
      continue;
    ++files;
    const RecordSet set = read_records({entry.path().string()}, reduce_for_report);
    for (const char* sections : {"", "all"}) {
      const std::vector<std::string> lines =
          lines_of(render_term(make_report(set, {{}, sections, true}), {80, true}));
      INFO(entry.path() << " " << sections);
      CHECK(std::find(lines.begin(), lines.begin() + 10, "At a glance") != lines.begin() + 10);
      for (const std::string& line : lines)
        if (width_of(line) > 80) FAIL_CHECK(line);
    }
  }
  CHECK(files > 50);
}

TEST_CASE("report: the overview of a large sweep fits two screens", "[report]") {
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz"}, reduce_for_report);
  const std::vector<std::string> lines = lines_of(render_term(make_report(set, {{}, "", true}), {80, true}));
  CHECK(lines.size() <= 100);
  // The fastest recipe of the first model stands among the first ten lines.
  CHECK(std::any_of(lines.begin(), lines.begin() + 10, [](const std::string& line) {
    return line.rfind("tensorwise", 0) == 0 && contains(line, "1.38x");
  }));
}

TEST_CASE("report: a page has all sections and an overview names those that it leaves out", "[report]") {
  const RecordSet set = timed();
  const Document page = make_report(set), overview = make_report(set, {{}, "", true});
  CHECK(names_in(page).front() == "summary");
  CHECK(names_in(overview) == std::vector<std::string>{"headline", "summary", "convergence"});
  CHECK(page.more.empty());
  CHECK(overview.more.rfind("more: --section speed, memory, ", 0) == 0);
  CHECK(names_in(make_report(set, {{}, "memory|speed", true})) ==
        std::vector<std::string>{"speed", "memory"});
  CHECK(names_in(make_report(set, {{}, "scaling,headline", false})) == std::vector<std::string>{"headline"});
  CHECK(names_in(make_report(set, {{}, "all", false})).size() == names_in(page).size() + 1);
}

TEST_CASE("report: headline rows go from fastest to slowest and a study of another model is no verdict",
          "[report]") {
  const RecordSet set = timed();
  const std::string text = render_term(make_report(set, {{}, "headline", true}), {80, true});
  INFO(text);
  CHECK(contains(text, "model llama3.1-8b"));
  const std::size_t rowwise = text.find("\nrowwise "), blockwise = text.find("\nblockwise "),
                    bf16 = text.find("\nbf16 ");
  CHECK((rowwise < blockwise && blockwise < bf16));
  CHECK(contains(text, "1.25x"));
  CHECK_FALSE(contains(text, "inconclusive"));
  RecordSet both = read_records({PRECBENCH_SOURCE_DIR "/results/h200/study-36m.jsonl.xz",
                                 PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz"},
                                reduce_for_report);
  const std::string judged = render_term(make_report(both, {{}, "headline", true}), {80, true});
  INFO(judged);
  CHECK_FALSE(contains(judged, "1.38x     73.0  equivalent"));
  const auto expected = ExpectedGaps(committed_law(), {}, committed_evidence())
                            .at("tensorwise", {8030261248., 1e12, Serving::bf16}, 1e12);
  CHECK(contains(judged, fmt::format("1.38x     73.0  {:.4f} [{:.4f}, {:.4f}] at 1T", expected->gap.mean,
                                     expected->gap.low, expected->gap.high)));
  CHECK(contains(judged, "model 36m"));  // its cards judge no timed row
  CHECK(contains(judged, "equivalent, +0.0012 nats"));
}

TEST_CASE("report: headline has losses and gaps of emulated recipes beside BF16's speed, without a verdict", "[report]") {
  const RecordSet set = samples::set_of({samples::cpu_record("bf16"), samples::cpu_record("mxfp8", 0.001)});
  const std::string text = render_term(make_report(set, {{}, "headline", true}), {100, true});
  INFO(text);
  CHECK(contains(text, "loss gap"));
  CHECK(std::regex_search(text, std::regex("\nbf16 +[0-9.]+ +- +[0-9,]+")));
  CHECK(std::regex_search(text, std::regex("\nmxfp8 +[0-9.]+ +\\+0.0010 +emulated")));
  CHECK_FALSE(contains(text, "inconclusive"));
}

TEST_CASE("report: a selection keeps bf16 and changes no number", "[report]") {
  const RecordSet set = timed();
  const auto text_of = [&](const Selection& selection) {
    return render_markdown(make_report(set, {selection, "speed", false}));
  };
  const std::string all = text_of({}), some = text_of({{"llama3.1*"}, {"rowwise", "mxfp*"}});
  INFO(some);
  CHECK(contains(all, "blockwise"));
  CHECK(!contains(some, "blockwise"));
  CHECK(!contains(some, "llama3.2-1b |"));
  CHECK(contains(some, "bf16"));
  CHECK(contains(some, "1.25x"));
  CHECK(contains(some, "2 of 5 cases"));
  const Selection blockwise{{}, {"blockwise"}};
  CHECK(make_json(set, blockwise)["cases"].size() == 4);
  std::size_t csv_lines = 0;
  make_csv(set, blockwise, [&](const std::string&) { ++csv_lines; });
  CHECK(csv_lines == 5);
  // The cards keep the verdicts of the whole study, whose correction is over all its recipes.
  const RecordSet study = read_records({PRECBENCH_SOURCE_DIR "/results/cpu/study-tiny.jsonl.xz"}, reduce_for_report);
  const std::string whole = render_markdown(make_report(study, {{}, "study", false}));
  const std::string one = render_markdown(make_report(study, {{{}, {"mxfp8_floor"}}, "study", false}));
  std::size_t rows = 0;
  for (const std::string& line : lines_of(one))
    if (line.rfind("- mxfp8_floor:", 0) == 0) {
      ++rows;
      CHECK(contains(whole, line));
    }
  CHECK(rows == 1);
  CHECK(one.size() < whole.size());
}

TEST_CASE("report: views that make no sense are refused", "[report]") {
  const TempDirectory folder;
  append_record(folder / "records.jsonl", samples::gpu_record("bf16", 250));
  const auto refused = [&](auto&& change) {
    ReportOptions options{{folder / "records.jsonl"}, "term", folder / "report.txt"};
    change(options);
    return refusal_of([&] { report(options); });
  };
  CHECK(contains(refused([](ReportOptions& o) { o.sections = "speed,nothing"; }),
                 "--section: unknown name \"nothing\"; it is all or some of headline, summary,"));
  CHECK(contains(refused([](ReportOptions& o) { o.sections = "scaling"; }),
                 "--section: these records have no scaling; they have headline,"));
  CHECK(refused([](ReportOptions& o) { o.brief = true, o.sections = "speed"; }) ==
        "--brief is --section headline: use one of them");
  CHECK(refused([](ReportOptions& o) { o.brief = true, o.format = "csv"; }) ==
        "--brief: --format csv has no sections");
  CHECK(refused([](ReportOptions& o) { o.wide = true, o.format = "md"; }) ==
        "--wide: only for --format term");
  CHECK(refused([](ReportOptions& o) {
          o.selection.recipes = {"bf16", "mxfp9"};
        }) == "--recipe: no record of \"mxfp9\"; the records have bf16");
  CHECK(refused([](ReportOptions& o) { o.selection.models = {"13b"}; }) ==
        "--model: no record of \"13b\"; the records have llama3.2-1b");
}

TEST_CASE("report: a terminal's width and pager are used and verdicts are colored there alone", "[report]") {
  const std::string brief = report_command(kStudy + " --brief");
  const std::string paged = printed_on_terminal("PAGER='sed s/^/paged:/' TERM=xterm NO_COLOR= " + brief, 72);
  INFO(paged);
  const std::vector<std::string> lines = lines_of(paged);
  CHECK(lines.size() > 5);
  for (const std::string& line : lines) CHECK(line.rfind("paged:", 0) == 0);
  CHECK(contains(paged, "\033[3"));
  const std::string wide =
      printed_on_terminal("PAGER= TERM=xterm " + report_command(kStudy + " --section study"), 60);
  for (const std::string& line : lines_of(wide))
    CHECK(width_of(line) <= 60 + std::string("\033[32m\033[0m").size());
  for (const std::string environment : {"NO_COLOR=1 TERM=xterm", "NO_COLOR= TERM=dumb"})
    CHECK(!contains(printed_on_terminal("PAGER=cat " + environment + " " + brief, 72), "\033"));
  CHECK(!contains(printed_on_terminal("PAGER=cat TERM=xterm " + brief + " --color never", 72), "\033"));
  CHECK(
      contains(printed_on_terminal("PAGER=cat NO_COLOR=1 " + brief + " --color always | cat", 72), "\033["));
  CHECK(!contains(printed_on_terminal("TERM=xterm " + brief + " | cat", 72), "\033"));
  // A pager that does not exist shows nothing, so the report does.
  CHECK(contains(printed_on_terminal("PAGER=/no/such/pager " + brief, 72), "At a glance"));
  // A pager that ends early is no error.
  CHECK(contains(printed_on_terminal("PAGER=true " + report_command(kStudy) + "; echo status $?", 72),
                 "status 0"));
}

}  // namespace
}  // namespace precbench
