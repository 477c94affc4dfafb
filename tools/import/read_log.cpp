// One pass over a log, with all formats at once until one is recognised. See read_log.h.
#include "tools/import/read_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/sha256.h"
#include "results/record/line_reader.h"
#include "results/record/shell.h"
#include "results/record/short_text.h"
#include "tools/import/line_scan.h"

namespace precbench {
namespace {

/// Steps after which a format is taken for recognised.
constexpr std::size_t kSteps = 8;
constexpr std::size_t kLongestShownLine = 100;

/// A format that the log may have, with what its reader made of the lines so far.
struct Candidate {
  const LogFormat* format;
  std::unique_ptr<LogReader> reader;
  RunCollector runs;
  LogLines lines;

  void read(const std::string& line, bool whole, bool ended) {
    const bool readable = whole && (ended || reader->takes_cut_line());
    const LineKind kind = readable ? reader->read(line, runs) : LineKind::other;
    if (kind == LineKind::step) {
      ++lines.used;
      if (LogSample* const last = runs.last(); last && !last->time)
        if (const auto time = time_of_line(line)) last->time = *time;
    } else if (kind == LineKind::header) {
      ++lines.header;
    } else if (line.find_first_not_of(" \t") != std::string::npos) {
      ++lines.skipped;
      if (lines.first_skipped.empty()) lines.first_skipped = short_printable(line, kLongestShownLine);
    }
  }

  void finish() {
    const auto late = static_cast<std::int64_t>(reader->finish(runs));
    if (reader->read_whole()) {
      lines = {};
      lines.used = late;
      return;
    }
    lines.used += late;
    const std::int64_t headers = std::min(late, lines.header);
    lines.header -= headers;
    lines.skipped = std::max<std::int64_t>(0, lines.skipped - (late - headers));
  }

  /// Returns the number of lines that it understood as steps; 0 without what marks the format.
  std::size_t steps() const { return reader->recognised() ? static_cast<std::size_t>(lines.used) : 0; }
};

std::vector<Candidate> candidates(const LogFormat* format) {
  std::vector<Candidate> all;
  const auto add = [&](const LogFormat& one) { all.push_back({&one, one.make(), {}, {}}); };
  if (format)
    add(*format);
  else
    for (const LogFormat& one : log_formats()) add(one);
  return all;
}

/// Leaves the best candidate alone: most lines of steps, of equal ones the first.
void choose(std::vector<Candidate>& all) {
  const auto best = std::max_element(
      all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.steps() < b.steps(); });
  Candidate chosen = std::move(*best);
  all.clear();
  all.push_back(std::move(chosen));
}

}  // namespace

LogFile read_log(const std::string& path, const LogFormat* format) {
  LineReader input(path, kLongestLogLine);
  std::vector<Candidate> all = candidates(format);
  Sha256 digest;
  LogFile log;
  while (input.next()) {
    digest.add(input.line());
    if (input.ended()) digest.add("\n");
    log.cut = !input.ended();
    const bool whole = input.bytes() <= kLongestLogLine;
    const std::string line = plain_line(input.line());
    if (input.number() == 1 && line.find("\"schema\":") != std::string::npos)
      log.looks_like = "records of precbench";
    for (Candidate& one : all) one.read(line, whole, input.ended());
    if (all.size() > 1 &&
        std::any_of(all.begin(), all.end(), [](const Candidate& c) { return c.steps() >= kSteps; }))
      choose(all);
  }
  for (Candidate& one : all) one.finish();
  choose(all);
  log.sha256 = hex(digest.digest());
  Candidate& found = all.front();
  log.lines = std::move(found.lines);
  const bool recognised = found.steps() > 0 || (format && log.lines.used > 0);
  if (!recognised) return log;
  log.format = found.format;
  log.runs = found.runs.take();
  return log;
}

std::string import_hint(const std::string& path) {
  constexpr std::size_t kLines = 2000;
  if (named_descriptor(path)) return "";
  std::vector<Candidate> all = candidates(nullptr);
  try {
    LineReader input(path, kLongestLogLine);
    while (input.number() < kLines && input.next())
      for (Candidate& one : all)
        one.read(plain_line(input.line()), input.bytes() <= kLongestLogLine, input.ended());
    for (Candidate& one : all) one.finish();
  } catch (const InvalidInput&) {
    return "";
  }
  choose(all);
  if (all.front().steps() == 0) return "";
  return fmt::format("; it looks like a {} log: precbench import {}", all.front().format->name,
                     shell_path(path));
}

}  // namespace precbench
