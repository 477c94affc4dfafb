// Imported runs section: records from logs of other programs, each source by itself. A speed-up is over the BF16 run of the same
// source, beside the one that is predicted for that program.
#include <fmt/format.h>

#include <cmath>

#include "kernels/base/plural.h"
#include "results/record/short_text.h"
#include "results/record/step_time.h"
#include "tools/analysis/columns.h"
#include "tools/report/sections.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

constexpr double kGibibyte = 0x1p30;

const Row* bf16_of(const Group& group) {
  for (const Row& row : group.rows)
    if (row.is_bf16()) return &row;
  return nullptr;
}

/// Returns the log's claim of MFU, "41.1%, attention in full"; "-" without one.
std::string claim_of(const ImportSource& source) {
  std::string text = source.claimed_mfu      ? fmt::format("{:.1f}%", 100 * *source.claimed_mfu)
                     : source.claimed_tflops ? fmt::format("{:.0f} TFLOP/s", *source.claimed_tflops)
                                             : std::string("-");
  if (text == "-") return text;
  if (!source.convention) return text + ", counted otherwise";
  return text + (*source.convention == "full"     ? ", attention in full"
                 : *source.convention == "causal" ? ", as ours"
                                                  : ", no attention");
}

/// Returns the speed-up that both records' predictions give; null without them.
std::optional<double> predicted_speedup(const Row& row, const Row* bf16) {
  if (!bf16 || !row.record().predicted || !bf16->record().predicted || !(row.record().predicted->step_ms > 0))
    return std::nullopt;
  return bf16->record().predicted->step_ms / row.record().predicted->step_ms;
}

std::string or_dash(const std::optional<double>& value, const char* format) {
  return value && std::isfinite(*value) ? fmt::format(fmt::runtime(format), *value) : "-";
}

/// Returns the predicted step with its interval, "251.0 [240.1, 262.3]".
std::string predicted_text(const Record& record) {
  if (!record.predicted) return "-";
  return fmt::format("{:.1f} [{:.1f}, {:.1f}]", record.predicted->step_ms, record.predicted->low_ms,
                     record.predicted->high_ms);
}

}  // namespace

Section imports_section(const ReportInput& input, const MachineRecords& machine) {
  Section section{title_on(input, machine, "Imported runs"), {}, {}, {}};
  RowTable result(machine);
  for (const char* title : {"tokens/s per GPU", "over bf16", "predicted", "MFU", "log's own", "step (ms)",
                            "predicted step (ms)", "memory (GiB)", "lines not read"})
    result.table.columns.push_back({title});
  Distinct sources;
  std::size_t rows = 0;
  bool skipped = false;
  for (const Group& group : machine.analysis.groups) {
    const Row* const bf16 = bf16_of(group);
    const std::size_t before = rows;
    for (const Row& row : group.rows) {
      const Record& record = row.record();
      if (!record.source) continue;
      const ImportSource& source = *record.source;
      if (rows == before && before > 0) result.table.group_starts.push_back(before);
      ++rows;
      sources.add(source.version ? fmt::format("{} {}", source.program, *source.version) : source.program);
      skipped = skipped || source.lines_skipped > 0;
      std::vector<std::string>& cells = result.begin(row);
      const std::optional<double> rate =
          record.metrics ? record.metrics->tokens_per_s_per_gpu : OptionalNumber();
      cells.push_back(rate ? rate_text(*rate) : "-");
      cells.push_back(or_dash(row.speedup, "{:.2f}x"));
      cells.push_back(or_dash(predicted_speedup(row, bf16), "{:.2f}x"));
      cells.push_back(row.mfu_bf16 ? fmt::format("{:.1f}%", 100 * *row.mfu_bf16) : "-");
      cells.push_back(claim_of(source));
      cells.push_back(or_dash(step_ms_of_speed(record), "{:.1f}"));
      cells.push_back(predicted_text(record));
      cells.push_back(source.memory_bytes && source.memory
                          ? fmt::format("{:.2f} {}", static_cast<double>(*source.memory_bytes) / kGibibyte,
                                        *source.memory)
                          : "-");
      cells.push_back(std::to_string(source.lines_skipped));
    }
  }
  if (rows == 0) return section;
  section.lines = {fmt::format(
      "{} from logs of {}, not measured by precbench. Speed-ups are over bf16 of the same source.",
      plural(rows, "row"), short_printable(sources.joined(), kLongestLine))};
  result.move_to(section);
  section.notes = {
      "MFU counts half of attention, against the dense BF16 peak; the log's own stands beside it with how it counts, as inferred from "
      "its numbers. Predicted: by our cost model and the factors of that program's stack.",
      "Memory is of the kind that the log names: allocated by tensors, reserved by the allocator, or of the driver."};
  if (skipped)
    section.notes.push_back("Lines not read: lines of the log that are neither steps nor known facts.");
  return section;
}

}  // namespace precbench
