// Origin of a record that was read from another program's log (tools/import) instead of measured by this program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace precbench {

/// Method version of imported records, apart from those of bench: programs that know no imports refuse to compare such
/// records with their own.
inline constexpr int kImportMethodVersion = 1001;

/// Origin of an imported record, and what its log says that this program did not measure.
struct ImportSource {
  std::string program;                 ///< "torchtitan"
  std::optional<std::string> version;  ///< null if the log does not tell
  std::string format;                  ///< reader of tools/import: "torchtitan"
  std::string file_sha256;             ///< of the log, 64 hex digits
  std::int64_t run = 1;                ///< number of the run within the log, from 1
  /// Lines of the whole log: of steps that belong to a run, with facts about a run, and neither.
  std::int64_t lines_used = 0, lines_header = 0, lines_skipped = 0;
  /// Steps that a line of the log averages over; a sample of timing is one such line.
  std::int64_t window_steps = 1;
  std::optional<std::int64_t> tokens_per_step;        ///< all ranks together
  std::optional<std::int64_t> first_step, last_step;  ///< of the settled samples; null without a speed
  /// Counting of attention in the log's FLOPs, as inferred from its numbers: "causal", "full"; null: none agrees.
  std::optional<std::string> convention;
  /// Values that the log states in a convention of its own: fraction, and TFLOP/s per GPU. Null: not stated.
  std::optional<double> claimed_mfu, claimed_tflops;
  std::string loss = "step";                 ///< kind of training.loss: step, window (mean) or ema
  std::optional<std::string> memory;         ///< kind of memory_bytes: allocated, reserved or driver
  std::optional<std::int64_t> memory_bytes;  ///< highest, on the rank that the log shows
  std::vector<std::int64_t> steps;           ///< step of each entry of training.loss, ascending
};

}  // namespace precbench
