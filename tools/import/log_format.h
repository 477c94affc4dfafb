// Formats of training logs: one row and one reader for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/import/log_run.h"

namespace precbench {

enum class LineKind : std::uint8_t {
  other,   ///< not understood
  header,  ///< has facts about a run, or a value that is not imported
  step
};

/// Reads the lines of one log, in order.
class LogReader {
 public:
  virtual ~LogReader() = default;
  /// `line`: as plain_line() returns it. Adds what it says to `runs`.
  virtual LineKind read(std::string_view line, RunCollector& runs) = 0;
  /// Called after the last line. Returns the number of lines that became steps only now.
  virtual std::size_t finish(RunCollector&) { return 0; }
  /// Returns true if the whole text was understood at its end, so that its lines count for nothing.
  virtual bool read_whole() const { return false; }
  /// Returns true if a last line without an end may be read: it cannot be taken for a shorter whole one.
  virtual bool takes_cut_line() const { return false; }
  /// Returns true if the lines so far have what this format alone has.
  virtual bool recognised() const { return true; }
};

struct LogFormat {
  std::string name;         ///< --as
  std::string program;      ///< ImportSource::program
  std::string steps;        ///< pattern of a line of a step, for the help
  bool window_mean = true;  ///< time and tokens/s are means over the steps since the line before
  std::int64_t warmup = 0;  ///< steps at a start that compile, capture or autotune
  std::string loss;         ///< ImportSource::loss
  std::function<std::unique_ptr<LogReader>()> make;
};

/// Returns the formats. Of two that a log fits, the first is taken.
const std::vector<LogFormat>& log_formats();

/// Returns the format of that name. Throws InvalidInput with the known names.
const LogFormat& find_log_format(const std::string& name);

// Readers, by format.
std::unique_ptr<LogReader> torchtitan_reader();
std::unique_ptr<LogReader> megatron_bridge_reader();
std::unique_ptr<LogReader> megatron_lm_reader();
std::unique_ptr<LogReader> nemo_reader();
std::unique_ptr<LogReader> baseline_reader();
std::unique_ptr<LogReader> trainer_state_reader();
std::unique_ptr<LogReader> axolotl_reader();
std::unique_ptr<LogReader> trainer_lines_reader();
std::unique_ptr<LogReader> nanochat_reader();
std::unique_ptr<LogReader> llmq_reader();
std::unique_ptr<LogReader> deepspeed_reader();
std::unique_ptr<LogReader> llmc_reader();
std::unique_ptr<LogReader> composer_reader();

}  // namespace precbench
