// Reads records or tables of text. See base_runs.h.
#include "tools/advise/base_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/base/untrusted_input.h"
#include "results/record/line_reader.h"
#include "results/record/record_file.h"
#include "results/record/record_folder.h"
#include "tools/analysis/analysis.h"

namespace precbench {
namespace {

constexpr std::size_t kLongestLine = 4096;
constexpr std::size_t kMostLines = 10'000'000;

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  const bool commas = line.find(',') != std::string::npos;
  std::string cell;
  const auto end_cell = [&] {
    if (commas || !cell.empty()) cells.push_back(cell);
    cell.clear();
  };
  for (const char c : line) {
    if (c == '\r') continue;
    if (commas ? c == ',' : (c == ' ' || c == '\t'))
      end_cell();
    else if (c != ' ' && c != '\t')
      cell += c;
  }
  end_cell();
  return cells;
}

BaseRun read_table(const std::string& path) {
  open_regular_file(path);  // refuses what would block
  LineReader reader(path, kLongestLine);
  BaseRun run{std::filesystem::path(path).filename().string(), {}, {}, {}};
  if (!reader.next()) throw InvalidInput(fmt::format("--base {}: empty", path));
  const std::vector<std::string> header = cells_of(std::string(without_byte_order_mark(reader.line())));
  const auto column = [&](const char* name) -> std::optional<std::size_t> {
    const auto found = std::find(header.begin(), header.end(), name);
    return found == header.end() ? std::nullopt : std::optional<std::size_t>(found - header.begin());
  };
  const auto tokens = column("tokens"), loss = column("loss"), rate = column("lr");
  if (!tokens || !loss)
    throw InvalidInput(fmt::format(
        "--base {}: needs a header line with the columns tokens and loss, and optionally lr", path));
  while (reader.next()) {
    const std::vector<std::string> cells = cells_of(reader.line());
    if (cells.empty() || (cells.size() == 1 && cells[0].empty())) continue;
    const auto number = [&](std::size_t place) {
      const auto value = place < cells.size() ? parse_number<double>(cells[place]) : std::nullopt;
      if (!value || !std::isfinite(*value))
        throw InvalidInput(
            fmt::format("--base {}:{}: not a number in column {}", path, reader.number(), header[place]));
      return *value;
    };
    run.tokens.push_back(number(*tokens));
    run.loss.push_back(number(*loss));
    if (rate) run.rate.push_back(number(*rate));
    if (run.loss.size() > kMostLines)
      throw InvalidInput(fmt::format("--base {}: more than {} lines", path, kMostLines));
  }
  return run;
}

bool is_base(const Record& record) {
  const bool fork = record.study && record.study->part != StudyPart::trunk;
  return !fork && record.training && record.training->tokens_per_step && record.training->loss.size() > 1 &&
         record.status == Status::ok && case_text(record, "recipe") == "bf16";
}

void add_records(std::vector<BaseRun>& runs, const std::string& path) {
  const std::size_t before = runs.size();
  const RecordSet set = read_records({path});
  for (const LocatedRecord& located : set.records) {
    const Record& record = located.record;
    if (!is_base(record)) continue;
    BaseRun run{located.origin.text(), {}, record.training->loss, record.training->lr};
    // An imported record has the losses of some steps.
    const bool some = record.source && record.source->steps.size() == run.loss.size();
    if (record.source && !some) continue;
    for (std::size_t i = 0; i < run.loss.size(); ++i)
      run.tokens.push_back(static_cast<double>(*record.training->tokens_per_step) *
                           static_cast<double>(some ? record.source->steps[i] : static_cast<std::int64_t>(i + 1)));
    if (run.rate.size() != run.loss.size()) run.rate.clear();
    runs.push_back(std::move(run));
  }
  if (runs.size() == before) throw InvalidInput(fmt::format("--base {}: no BF16 run in it", path));
}

}  // namespace

std::vector<BaseRun> read_base_runs(const std::vector<std::string>& paths) {
  std::vector<BaseRun> runs;
  for (const std::string& path : paths)
    if (is_record_file(path) || std::filesystem::is_directory(path))
      add_records(runs, path);
    else
      runs.push_back(read_table(path));
  return runs;
}

}  // namespace precbench
