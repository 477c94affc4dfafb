// A row of a history: one run of one case, in the 0.6 kB that tell a slower commit from a slower machine. A record has
// 26 kB, of which a year of nights would keep 100 MB.
//
// A history file has one row per line. It is made from records (history_row), so rows of other programs' runs come from
// imported records.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "results/record/optional_number.h"
#include "results/record/record.h"

namespace precbench {

/// Version of a row's layout, the value of its first key, "history".
inline constexpr int kHistoryVersion = 1;
/// Longest line of a history file that is read, bytes.
inline constexpr std::size_t kMostRowBytes = std::size_t{1} << 16;

/// Names of HistoryRow::ops, in order: the classes of Breakdown. The last one exists with experts only.
inline constexpr const char* kHistoryOps[] = {"GEMM",       "quantize",  "attention",     "norm, elementwise",
                                              "head, loss", "optimizer", "communication", "idle",
                                              "routing"};

struct HistoryRow {
  std::string id;      ///< of the case
  std::string source;  ///< program whose log was imported; empty: measured by precbench
  int method = kMethodVersion;
  std::string created;    ///< ISO 8601, UTC, like Record::created
  std::int64_t time = 0;  ///< the same, in seconds since 1970
  std::string commit;     ///< first 12 digits, or the version of the source; empty: unknown
  bool dirty = false;     ///< built with uncommitted changes
  std::string machine;    ///< machine_of(): GPU model, or model of the CPU
  std::string board;      ///< UUID of the GPU, else the host; empty: unknown
  std::string driver, cuda, cublaslt, cudnn, nccl;  ///< versions; empty: unknown
  double step_ms = 0;                               ///< median; mean of an imported run
  OptionalNumber wall_ms, clock_mhz, power_w, peak_bytes, loss;
  bool doubted = false;     ///< the record doubts its own step times (speed_doubts())
  std::vector<double> ops;  ///< ms of a profiled step by kHistoryOps; empty: not profiled
  /// Case fields that are not at their defaults, and always model and recipe.
  std::shared_ptr<const nlohmann::ordered_json> fields;

  std::int64_t day() const { return time / 86400; }
};

/// Returns the row of a record; null for a run without a speed: it failed, is emulated or belongs to a study.
/// `default_case`: all case fields at their defaults.
std::optional<HistoryRow> history_row(const Record& record, const nlohmann::ordered_json& default_case);

/// Returns the row as one line with its newline.
std::string row_line(const HistoryRow& row);

/// Returns true if a line of a file is a row, valid or not, and no record.
bool is_row_line(std::string_view line);

/// Parses a line. Throws InvalidInput with the reason: another version, a missing or impossible value.
HistoryRow parse_row(const std::string& line);

/// Returns the seconds since 1970 of a time such as "2026-01-31T09:30:00Z"; null for anything else.
std::optional<std::int64_t> seconds_of(std::string_view created);

}  // namespace precbench
