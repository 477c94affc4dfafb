// Speed, memory and energy of each recipe in one setting: measured by the reader, committed, or predicted.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/record/record_file.h"
#include "results/record/statistics.h"
#include "tools/advise/advise_command.h"
#include "tools/advise/advise_host.h"

namespace precbench {

enum class SpeedSource : std::uint8_t { measured, committed, predicted };
const char* name_of(SpeedSource source);

/// Records of one source.
struct SourceRecords {
  SpeedSource source;
  const RecordSet* set;
};

/// Returns the case's number of GPUs; 1 if it has no such field.
double gpus_of(const Record& record);

struct SpeedRow {
  std::string recipe;    ///< as the case names it
  std::string gather{};  ///< "fp8", "bf16"; empty if ranks share no weights
  SpeedSource source = SpeedSource::predicted;
  std::optional<double> tokens_per_s{};  ///< all GPUs together
  /// Over BF16 of the same source and setting; of a prediction with the interval of its errors.
  std::optional<MeanWithInterval> speedup{};
  std::optional<double> joules_per_token{};  ///< GPU boards, all GPUs together
  std::optional<double> peak_bytes{};        ///< largest peak of any GPU
  bool fits = true;                          ///< also if the GPU's memory is unknown
  bool runs = true;                          ///< precbench runs the setting; false: it only predicts it
  nlohmann::ordered_json fields{};  ///< the whole case, in the recipe's own setting; null if there is none
  std::string no_speed{};           ///< why tokens_per_s is unknown
  std::string stack{};              ///< whose speed it is; empty: ours
  std::optional<double> own_tokens_per_s{};  ///< ours, beside a stack's; so is the next
  std::optional<MeanWithInterval> own_speedup{};

  bool is_bf16() const { return recipe == "bf16"; }
};

/// full: all weights are trained. lora: adapters, because training all weights does not fit.
enum class TrainedPart : std::uint8_t { full, lora };
const char* name_of(TrainedPart part);

struct SpeedTable {
  nlohmann::ordered_json setting;  ///< the whole case in BF16
  Record bf16_counts;              ///< its dry run
  GpuModel gpu;
  TrainedPart part = TrainedPart::full;
  /// One per recipe, fastest first, those without a speed last; of adapters, those on the most exact weights first.
  std::vector<SpeedRow> rows;
  std::vector<std::string> emulated;     ///< recipes in question that such a GPU emulates
  bool multiplies_bf16_alone = false;    ///< the GPU has neither FP8 nor FP4 natively
  nlohmann::ordered_json defaults;       ///< of a case
  std::vector<std::string> notes;        ///< how predictions were made, and how accurate they are
  std::optional<double> least_bytes;     ///< that training all weights needs at least, if nothing fits
  std::optional<std::string> would_fit;  ///< the nearest change with which BF16 fits, if nothing does
  std::int64_t limit_bytes = 0;          ///< that a case may need; 0: unknown
  std::optional<std::string> rates_borrowed_from;  ///< GPU model whose rates of ops predict the rows
  std::string stack;                               ///< whose speeds the rows have (in_stack()); empty: ours
};

/// Builds the table. `candidates`: recipes to compare if the user names none. Sources come in order of preference.
/// Throws InvalidInput.
SpeedTable speed_table(const AdviseOptions& options, const AdviseHost& host,
                       const std::vector<SourceRecords>& sources, const std::vector<std::string>& candidates);

/// Returns what settings differ in: micro-batch x micro-batches, ranks and recomputation, "2 x 4 tp8 block".
std::string short_setting(const nlohmann::ordered_json& fields);

/// Formats the setting: "seq 4096, batch 2, fsdp, master fp32, ...".
std::string setting_words(const nlohmann::ordered_json& setting);

/// Returns the text of a case field; empty if the object has no such key.
std::string text_at(const nlohmann::ordered_json& object, const char* key);

}  // namespace precbench
