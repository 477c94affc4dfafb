// Reading, joining and extending of histories. See history_file.h.
#include "tools/history/history_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/line_reader.h"
#include "results/record/parallel.h"
#include "results/record/record_folder.h"
#include "results/record/record_line.h"
#include "tools/text/write_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMostHistoryProblems = 20;
/// Bytes of lines that are parsed at once.
constexpr std::size_t kHistoryRound = std::size_t{4} << 20;

/// Identity of a run.
using RunKey = std::tuple<std::string, std::string, std::string, int, std::string, std::string>;
auto key_of(const HistoryRow& row) {
  return std::tie(row.created, row.id, row.machine, row.method, row.source, row.board);
}

/// Collects problems, and counts those beyond kMostHistoryProblems.
class Problems {
 public:
  void add(std::string text) {
    if (lines_.size() < kMostHistoryProblems)
      lines_.push_back(std::move(text));
    else
      ++more_;
  }
  std::vector<std::string> finish() {
    if (more_ > 0) lines_.push_back(fmt::format("and {} more", plural(more_, "problem")));
    return std::move(lines_);
  }

 private:
  std::vector<std::string> lines_;
  std::size_t more_ = 0;
};

/// Result of one line.
struct ParsedLine {
  std::optional<HistoryRow> row;
  std::string problem{};  ///< empty: a row, or a record without a speed
  std::exception_ptr failure{};
};

/// Drops what a row does not use, as early as possible.
void reduce_for_history(Record& record) {
  if (record.breakdown) record.breakdown->ops.clear();
  record.definition.reset();
  record.quantization.clear();
  record.fidelity.clear();
}

ParsedLine parse_history_line(const std::string& line, const Json& default_case) noexcept {
  try {
    if (is_row_line(line)) {
      if (line.size() >= kMostRowBytes) return {std::nullopt, "longer than any row"};
      return {parse_row(line), ""};
    }
    RecordLine parsed = parse_record_line(line, reduce_for_history);
    if (parsed.failure) return {std::nullopt, "", parsed.failure};
    if (!parsed.record) return {std::nullopt, parsed.problem};
    if (parsed.contradiction) return {std::nullopt, "contradicts itself: " + *parsed.contradiction};
    return {history_row(*parsed.record, default_case), ""};
  } catch (const InvalidInput& error) {
    return {std::nullopt, error.what()};
  } catch (...) {  // out of memory
    return {std::nullopt, "", std::current_exception()};
  }
}

std::vector<std::string> files_among(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (named_descriptor(path) || !fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const std::vector<std::string> found = record_files_in(path);
    if (found.empty())
      throw InvalidInput(path +
                         ": no record file (*.jsonl, *.jsonl.xz) in this folder or in the folders in it");
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

/// Sorts the rows by time and keeps each run once.
void settle(HistoryRows& history, Problems& problems) {
  std::vector<HistoryRow>& rows = history.rows;
  std::stable_sort(rows.begin(), rows.end(),
                   [](const HistoryRow& a, const HistoryRow& b) { return key_of(a) < key_of(b); });
  std::vector<HistoryRow> kept;
  for (std::size_t i = 0; i < rows.size();) {
    std::size_t end = i + 1;
    bool agree = true;
    for (; end < rows.size() && key_of(rows[end]) == key_of(rows[i]); ++end)
      agree = agree && rows[end].step_ms == rows[i].step_ms && rows[end].commit == rows[i].commit;
    if (agree)
      history.repeated += end - i - 1;
    else
      problems.add(
          fmt::format("case {} has {} different runs of {}, left out", rows[i].id, end - i, rows[i].created));
    if (agree) kept.push_back(std::move(rows[i]));
    i = end;
  }
  rows = std::move(kept);
}

}  // namespace

HistoryRows read_history(const std::vector<std::string>& paths, const Json& default_case) {
  struct Line {
    std::string text;
    std::string place;
    std::size_t bytes;
  };
  HistoryRows history;
  Problems problems;
  std::map<std::string, std::shared_ptr<const Json>> fields;  // by their text: rows of a case share them
  std::vector<Line> round;
  std::size_t bytes = 0;
  const auto parse = [&] {
    std::vector<ParsedLine> parsed(round.size());
    for_each_index(round.size(), 1 + bytes / (kHistoryRound / 16), [&](std::size_t i) {
      if (round[i].bytes <= kRecordLimits.bytes) parsed[i] = parse_history_line(round[i].text, default_case);
    });
    for (std::size_t i = 0; i < round.size(); ++i) {
      if (parsed[i].failure) std::rethrow_exception(parsed[i].failure);
      if (round[i].bytes > kRecordLimits.bytes) parsed[i].problem = "longer than any record";
      if (!parsed[i].problem.empty()) problems.add(round[i].place + ": " + parsed[i].problem + ", left out");
      if (parsed[i].row) {
        auto& shared = parsed[i].row->fields;
        shared = fields.try_emplace(shared->dump(-1, ' ', false, Json::error_handler_t::replace), shared)
                     .first->second;
        history.rows.push_back(std::move(*parsed[i].row));
      } else if (parsed[i].problem.empty()) {
        ++history.without_time;
      }
    }
    round.clear();
    bytes = 0;
  };
  for (const std::string& path : files_among(paths)) {
    LineReader reader(path, kRecordLimits.bytes);
    const std::string name = input_name(path);
    while (reader.next()) {
      if (reader.line().find_first_not_of(" \t\r") == std::string::npos) continue;
      round.push_back({reader.line(), fmt::format("{}:{}", name, reader.number()), reader.bytes()});
      bytes += reader.line().size();
      if (bytes >= kHistoryRound) parse();
    }
    parse();
  }
  settle(history, problems);
  history.problems = problems.finish();
  return history;
}

HistoryRows joined(HistoryRows a, HistoryRows b) {
  Problems problems;
  for (const HistoryRows* one : {&a, &b})
    for (const std::string& problem : one->problems) problems.add(problem);
  a.rows.insert(a.rows.end(), std::make_move_iterator(b.rows.begin()), std::make_move_iterator(b.rows.end()));
  a.repeated += b.repeated, a.without_time += b.without_time;
  settle(a, problems);
  a.problems = problems.finish();
  return a;
}

std::size_t append_history(const std::string& path, const HistoryRows& history, const HistoryRows& known) {
  std::set<RunKey> there;
  for (const HistoryRow& row : known.rows) there.insert(key_of(row));
  std::string text;
  std::size_t count = 0;
  for (const HistoryRow& row : history.rows)
    if (!there.contains(key_of(row))) text += row_line(row), ++count;
  if (count == 0) return 0;
  // Completes the last line of a writer that was killed, so that the first row has a line of its own.
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (file && file.tellg() > 0) {
    file.seekg(-1, std::ios::end);
    if (file.get() != '\n') text.insert(text.begin(), '\n');
  }
  write_file(path, text, true);
  return count;
}

}  // namespace precbench
