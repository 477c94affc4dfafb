// Reads, extends, judges and prints a history. See history_command.h.
#include "tools/history/history_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/compressed.h"
#include "results/record/line_reader.h"
#include "results/record/printable.h"
#include "tools/history/history_render.h"
#include "tools/text/screen.h"
#include "tools/text/text.h"
#include "tools/text/write_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Returns true if the locale of the terminal has block elements.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (!value || !*value) continue;
    std::string text = value;
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

void check_history_options(const HistoryOptions& options) {
  if (options.format != "term" && options.format != "md" && options.format != "json")
    throw InvalidInput("--format " + options.format + ": a history is written as term, md or json");
  if (!options.fail_on.empty() && options.fail_on != "slower")
    throw InvalidInput("--fail-on: unknown value \"" + options.fail_on + "\"; it is slower");
  if (options.append.empty()) return;
  if (named_descriptor(options.append)) throw InvalidInput("--append: needs a file, not a stream");
  if (fs::is_directory(options.append))
    throw InvalidInput("--append " + options.append + ": a folder; it takes one file");
  if (options.append.ends_with(".xz"))
    throw InvalidInput("--append " + options.append +
                       ": packed files cannot be extended; unpack it with xz -d");
  make_folder(fs::path(options.append).parent_path().string());
  check_writable(options.append);
}

/// Reads the runs, and extends the history file. Sets `appended` to the line that says so.
HistoryRows runs_of(const HistoryOptions& options, const HistoryCases& cases, std::string& appended) {
  refuse_compressed(options.paths, "precbench report --history -");
  HistoryRows rows = read_history(options.paths, cases.defaults);
  if (options.append.empty()) return rows;
  HistoryRows known;
  if (fs::exists(options.append)) known = read_history({options.append}, cases.defaults);
  const std::size_t count = append_history(options.append, rows, known);
  appended = fmt::format("{} appended to {}.", plural(count, "row"), options.append);
  known.repeated = 0;  // a night that is judged again is no fault
  rows = joined(std::move(rows), std::move(known));
  rows.repeated = 0;
  return rows;
}

}  // namespace

std::int64_t since_time(std::string_view text, std::int64_t newest) {
  constexpr std::int64_t kDay = 86400, kMostDays = 100000;
  if (const auto date = seconds_of(std::string(text) + "T00:00:00Z")) return *date;
  std::int64_t count = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool fits =
      error == std::errc() && stop + 1 == text.data() + text.size() && (*stop == 'd' || *stop == 'w');
  const std::int64_t days = !fits ? 0 : *stop == 'w' ? (count > kMostDays ? 0 : 7 * count) : count;
  if (days < 1 || days > kMostDays)
    throw InvalidInput(fmt::format(
        "--since: \"{}\" is neither a number of days or weeks such as 14d or 2w nor a date such as 2026-01-31",
        text));
  return newest - days * kDay;
}

int report_history(const HistoryOptions& options, const HistoryCases& cases) {
  check_outputs({{"-o", options.output}, {"--append", options.append}}, options.paths);
  if (!options.since.empty()) since_time(options.since, 0);  // refuses it before anything is read or written
  check_history_options(options);
  HistoryView view{cases.rerun, options.format != "term" || !options.output.empty() || locale_is_utf8(),
                   !options.fail_on.empty(), ""};
  HistoryRows rows = runs_of(options, cases, view.appended);
  if (rows.rows.empty())
    throw InvalidInput(fmt::format("{}: no run with a speed in it{}", fmt::join(options.paths, ", "),
                                   rows.problems.empty() ? "" : " (" + rows.problems.front() + ")"));
  HistoryRules rules;
  if (!options.since.empty()) {
    const auto newest =
        std::max_element(rows.rows.begin(), rows.rows.end(),
                         [](const HistoryRow& a, const HistoryRow& b) { return a.time < b.time; });
    rules.since = since_time(options.since, newest->time);
  }
  const History history = judge_history(std::move(rows), rules);
  std::string text;
  if (options.format == "json") {
    text = json_text(history_json(history, view));
  } else if (options.format == "md") {
    text = history_markdown(history, view);
  } else {
    Screen screen = standard_screen(options.color);
    screen.fitted = !options.wide;
    if (!options.output.empty()) screen.color = options.color == "always";
    text = history_term(history, view, screen);
  }
  if (!options.output.empty()) {
    make_folder(fs::path(options.output).parent_path().string());
    write_file(options.output, text);
  } else if (options.format == "term") {
    page_text(text);
  } else {
    write_standard_output(text);
  }
  return history_status(history, view.fails);
}

void add_history_options(CLI::App& command, HistoryOptions& options) {
  const char* group = "A history of nights";
  command
      .add_flag("--history", options.asked,
                "changes of the step time over many runs: when, by how much, between which commits")
      ->group(group);
  const auto add = [&](const char* flag, std::string& value, const char* help, const char* type) {
    command.add_option(flag, value, help)->type_name(type)->group(group);
  };
  add("--since", options.since,
      "changes from then on: days or weeks before the newest run, or a date; older runs are still compared with "
      "(default all changes)",
      "14d|2w|DATE");
  add("--fail-on", options.fail_on, "exit status 1 if a case got slower since then, 3 if that is undecided",
      "slower");
  add("--append", options.append, "history file, read too, that gets the runs it lacks: 0.6 kB each", "FILE");
}

}  // namespace precbench
