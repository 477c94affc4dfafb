// precbench report --history as a program: statuses, files, refusals; and the scripts that it names.
#include "tools/history/history_command.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "tools/history/history_testing.h"

namespace precbench {
namespace {

using namespace history_testing;
using Json = nlohmann::ordered_json;

Answer report_says(const std::string& arguments) {
  return output_of("COLUMNS=1000 LC_ALL=C.UTF-8 " PRECBENCH_BINARY_DIR "/precbench report --history " +
                   arguments);
}

std::string lines_of_rows(const std::vector<HistoryRow>& rows) {
  std::string text;
  for (const HistoryRow& row : rows) text += row_line(row);
  return text;
}

/// Returns a record of a night as the sweep writes it.
std::string record_line(int night, double ms) {
  Record record = samples::gpu_record("rowwise", ms);
  record.created = night_row("rowwise", night).created;
  return Json(record).dump() + "\n";
}

}  // namespace

TEST_CASE("report --history: status, text and JSON of a slower case", "[history]") {
  const TempDirectory directory;
  const std::string path = directory.write("h.jsonl", lines_of_rows(nights_of_case("rowwise", 60, 44, 0.03)));
  const Answer plain = report_says(path);
  CHECK(plain.status == 0);
  CHECK(contains(plain.text, "SLOWER "));
  CHECK(contains(plain.text, "git bisect start"));
  CHECK(contains(plain.text, "tools/history/rerun_both.sh"));
  CHECK(contains(plain.text, "--recipe rowwise"));
  CHECK(report_says(path + " --fail-on slower").status == 1);
  CHECK(report_says(path + " --fail-on slower --since 14d").status == 0);  // the newest run is of night 59
  CHECK(report_says(path + " --fail-on slower --since 3w").status == 1);
  CHECK(report_says(path + " --fail-on slower --since 2026-10-01").status == 1);
  const Answer json = report_says(path + " --fail-on slower --format json");
  CHECK(json.status == 1);
  const Json parsed = Json::parse(json.text);
  CHECK(parsed.at("exit") == 1);
  CHECK(parsed.at("events").at(0).at("kind") == "SLOWER");
  CHECK(parsed.at("events").at(0).at("change").at("low").get<double>() > 0.02);
  CHECK(parsed.at("events").at(0).at("medians").size() > 8);
  const Answer page = report_says(path + " --format md");
  CHECK(contains(page.text, "## SLOWER"));
  CHECK(contains(page.text, "```sh\ngit log --oneline"));
  CHECK(report_says(path + " -o " + (directory / "out/h.md") + " --format md").text.empty());
  CHECK(contains(file_text(directory / "out/h.md"), "## SLOWER"));
}

TEST_CASE("report --history: nights of records are appended to a history file", "[history]") {
  const TempDirectory directory;
  const std::string history = directory / "kept/history.jsonl";
  for (int night = 0; night < 12; ++night) {
    const std::string run = directory.write("run.jsonl", record_line(night, 100 + 0.01 * night));
    const Answer answer = report_says(run + " --append " + history);
    CAPTURE(night, answer.text);
    CHECK(answer.status == (night < 9 ? 3 : 0));
    CHECK(contains(answer.text, night < 9 ? "Not judged: a change needs 10 nights" : "no change"));
    CHECK(contains(answer.text, "1 row appended to "));
  }
  CHECK(std::filesystem::file_size(history) < 12 * 900);  // a case with most fields off their defaults
  // The same night again adds nothing, and a killed writer's half line costs its line alone.
  const std::string run = directory.write("run.jsonl", record_line(11, 100.11));
  const std::string before = file_text(history);
  CHECK(contains(report_says(run + " --append " + history).text, "0 rows appended"));
  CHECK(file_text(history) == before);
  directory.write("kept/history.jsonl", before + "{\"history\":1,\"met");
  const std::string next = directory.write("run.jsonl", record_line(12, 100));
  CHECK(contains(report_says(next + " --append " + history).text, "1 row appended"));
  const Answer whole = report_says(history);
  CHECK(whole.status == 0);
  CHECK(contains(whole.text, "1 case over 13 nights"));
  CHECK(contains(whole.text, "history.jsonl:13: "));
}

TEST_CASE("report --history: rows of committed records have 0.6 kB on average", "[history]") {
  const TempDirectory directory;
  const std::string history = directory / "h.jsonl";
  report_says(PRECBENCH_SOURCE_DIR "/results/baseline/nvidia-h200.jsonl.xz --append " + history);
  const std::string text = file_text(history);
  const auto rows = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  CHECK(rows == 11);
  CHECK(text.size() <= rows * 600);
}

TEST_CASE("report --history: bad lines are counted, and the others judged", "[history][hostile]") {
  const TempDirectory directory;
  std::vector<HistoryRow> rows = nights_of_case("rowwise", 30);
  std::string text = lines_of_rows(rows);
  text += row_line(rows[3]) + row_line(rows[4]);  // twice
  HistoryRow other = rows[5];
  other.step_ms *= 2;  // another result of the same time
  text += row_line(other);
  text += "{\"history\":99,\"method\":2}\nnot json\n{\"history\":1}\n" + std::string(100000, 'x') + "\n";
  const Answer answer = report_says(directory.write("h.jsonl", text));
  CHECK(answer.status == 0);
  CHECK(contains(answer.text, "2 rows left out that other rows say, too"));
  CHECK(contains(answer.text, "has 2 different runs of 2026-09-06T02:00:00Z, left out"));
  CHECK(contains(answer.text, "a row of version 99, and this program reads 1, left out"));
  CHECK(contains(answer.text, "29 nights"));
}

TEST_CASE("report --history: what cannot be is refused in one line", "[history]") {
  const TempDirectory directory;
  const std::string path = directory.write("h.jsonl", lines_of_rows(nights_of_case("bf16", 12)));
  const auto refused = [&](const std::string& arguments) { return refusal_in(report_says(arguments)); };
  CHECK(contains(refused(path + " --since tomorrow"), "--since: \"tomorrow\" is neither"));
  for (const char* since : {"0d", "-3d", "14", "d", "14h", "99999999999999999999d", "2026-02-30", "9999999w"})
    CHECK(contains(refused(path + " --since " + since), "--since: "));
  CHECK(contains(refused(path + " --fail-on faster"), "--fail-on"));
  CHECK(contains(refused(path + " --format html"), "a history is written as term, md or json"));
  CHECK(contains(refused(path + " --section speed"), "--section: not with --history"));
  CHECK(contains(refused(path + " --append -"), "--append: needs a file"));
  CHECK(contains(refused(path + " --append " + path), path));
  CHECK(contains(refused(path + " --append h.jsonl.xz"), "--append h.jsonl.xz: packed"));
  CHECK(contains(refused(directory / "missing.jsonl"), "missing.jsonl"));
  CHECK(contains(refused(directory.write("empty.jsonl", "")), "no run with a speed in it"));
  const Answer without = output_of(PRECBENCH_BINARY_DIR "/precbench report " + path + " --since 14d");
  CHECK(contains(refusal_in(without), "--since: needs --history"));
}

TEST_CASE("report --history: --since counts from the newest run", "[history]") {
  CHECK(since_time("1d", 1000000) == 1000000 - 86400);
  CHECK(since_time("2w", 10000000) == 10000000 - 14 * 86400);
  CHECK(since_time("1970-01-02", 5) == 86400);
  CHECK_THROWS_AS(since_time("", 5), InvalidInput);
}

TEST_CASE("history scripts: a bisection step is good, bad or skipped", "[history]") {
  const TempDirectory directory;
  std::filesystem::create_directories(directory / "bin"),
      std::filesystem::create_directories(directory / "build");
  const auto program = [&](const std::string& name, const std::string& text) {
    directory.write(name, "#!/bin/sh\n" + text + "\n");
    std::filesystem::permissions(directory / name, std::filesystem::perms::owner_all);
  };
  program("bin/cmake", "exit ${BUILD_STATUS:-0}");
  program("build/precbench",
          "[ \"$*\" = \"run --model tiny\" ] && printf '{\"timing\": {\"median_ms\": %s}}' \"$MS\"");
  directory.write("build/CMakeCache.txt", "");
  const auto step = [&](const std::string& variables, const std::string& arguments) {
    return output_of("cd " + directory.path().string() + " && env PATH=" + (directory / "bin") + ":$PATH " +
                     variables + " bash " PRECBENCH_SOURCE_DIR "/tools/history/bisect_step.sh " + arguments);
  };
  CHECK(step("MS=99", "above 100 --model tiny").status == 0);
  const Answer bad = step("MS=101", "above 100 --model tiny");
  CHECK(bad.status == 1);
  CHECK(contains(bad.text, "101, 101, 101 ms, limit 100: bad"));
  CHECK(step("MS=101", "below 100 --model tiny").status == 0);
  CHECK(step("MS=99", "below 100 --model tiny").status == 1);
  CHECK(step("MS=99 BUILD_STATUS=1", "above 100 --model tiny").status == 125);
  CHECK(step("MS=none", "above 100 --model tiny").status == 125);
  CHECK(step("MS=99", "above 100 --model other").status == 125);
  CHECK(step("MS=99", "above fast --model tiny").status == 128);
  CHECK(step("MS=99", "").status == 128);
}

TEST_CASE("history scripts: both commits run A B B A", "[history]") {
  const TempDirectory directory;
  std::filesystem::create_directories(directory / "bin");
  // A build copies the program that a commit has.
  directory.write(
      "bin/cmake",
      "#!/bin/sh\n[ \"$1\" = -S ] && mkdir -p \"$4\" && cp \"$2/program\" \"$4/precbench\"\nexit 0\n");
  std::filesystem::permissions(directory / "bin/cmake", std::filesystem::perms::owner_all);
  const Answer answer = output_of(
      "cd " + directory.path().string() +
      " && git init -q . && git config user.email a@b.c && git config user.name n && "
      "for ms in 100 103; do printf '#!/bin/sh\\necho \"{\\\\\"timing\\\\\": {\\\\\"median_ms\\\\\": %s}}\"\\n' $ms >program; "
      "chmod +x program; git add program; git commit -qm $ms; done && env PATH=" +
      (directory / "bin") +
      ":$PATH bash " PRECBENCH_SOURCE_DIR
      "/tools/history/rerun_both.sh $(git rev-parse HEAD~1) $(git rev-parse HEAD) --model tiny");
  INFO(answer.text);
  CHECK(answer.status == 0);
  const std::size_t a = answer.text.find("100.0 ms"), b = answer.text.find("103.0 ms"),
                    c = answer.text.rfind("103.0 ms"), d = answer.text.rfind("100.0 ms");
  REQUIRE(d != std::string::npos);
  CHECK((a < b && b < c && c < d));
  CHECK(contains(answer.text, "+3.00%"));
}

TEST_CASE("history scripts: a nightly run keeps its history on a branch", "[history]") {
  const TempDirectory directory;
  const std::string root = directory.path().string();
  const Answer made = output_of(
      "cd " + root + " && git init -q --bare origin && git clone -q origin tree 2>&1 && mkdir -p tree/build && printf '#!/bin/sh\n"
      "echo \"$NIGHT\" >>out/history.jsonl\nexit $STATUS\n' >tree/build/precbench && chmod +x tree/build/precbench");
  INFO(made.text);
  REQUIRE(made.status == 0);
  const auto night = [&](const std::string& name, int status) {
    return output_of(fmt::format("cd {}/tree && env NIGHT={} STATUS={} bash {}/tools/history/nightly.sh 2>&1", root, name, status,
                                 PRECBENCH_SOURCE_DIR))
        .status;
  };
  const auto kept = [&] { return output_of("cd " + root + "/origin && git show nightly-history:history.jsonl").text; };
  CHECK(night("first", 3) == 3);
  CHECK(kept() == "first\n");
  CHECK(night("second", 1) == 1);
  CHECK(kept() == "first\nsecond\n");
  CHECK(night("broken", 2) == 2);
  CHECK(kept() == "first\nsecond\n");
  CHECK(night("third", 0) == 0);
  CHECK(kept() == "first\nsecond\nthird\n");
  // An unreachable origin is no new history.
  output_of("rm -rf " + root + "/origin");
  CHECK(night("fourth", 0) == 2);
}

}  // namespace precbench
