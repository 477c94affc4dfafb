// Table of report columns. See columns.h.
#include "tools/analysis/columns.h"

#include <fmt/format.h>

#include "results/record/printable.h"
#include "results/record/schema.h"
#include "tools/analysis/mfu.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;
using Number = std::optional<double> Row::*;

template <Number member>
Json number(const Row& row) {
  return row.*member ? Json(*(row.*member)) : Json();
}

template <Number member>
std::string percent(const Row& row) {
  return row.*member ? fmt::format("{:.1f}%", 100 * *(row.*member)) : "";
}

template <Number member>
std::string ratio(const Row& row) {
  return row.*member ? fmt::format("{:.2f}x", *(row.*member)) : "";
}

std::string tokens_text(const Row& row) {
  if (row.status == Status::ok && row.path == ExecutionPath::emulated) return "emulated";
  return row.tokens_per_s ? rate_text(*row.tokens_per_s) : "";
}

std::string tflops_text(const Row& row) {
  if (!row.tflops_per_gpu) return "";
  return *row.tflops_per_gpu < 100 ? fmt::format("{:.3g}", *row.tflops_per_gpu)
                                   : fmt::format("{:.1f}", *row.tflops_per_gpu);
}

std::string memory_text(const Row& row) { return row.peak_memory ? bytes_text(*row.peak_memory) : ""; }

std::string delta_text(const Row& row) {
  if (!row.loss_delta || row.is_bf16()) return "";
  return fmt::format("{:+.4f}", *row.loss_delta);
}

Json paired_value(const Row& row) { return row.paired_seeds > 0 ? Json(row.paired_seeds) : Json(); }

std::string paired_text(const Row& row) {
  return row.paired_seeds > 0 ? fmt::format("{}", row.paired_seeds) : "";
}

Json compared_value(const Row& row) { return row.paired_steps > 0 ? Json(row.paired_steps) : Json(); }

std::string compared_text(const Row& row) {
  return row.paired_steps > 0 && !row.is_bf16() ? fmt::format("{}", row.paired_steps) : "";
}

Json load_value(const Row& row) {
  const auto& moe = row.record().moe;
  return moe && moe->load.max ? Json(*moe->load.max) : Json();
}

std::string load_text(const Row& row) {
  const Json value = load_value(row);
  return value.is_null() ? "" : fmt::format("{:.2f}", value.get<double>());
}

Json mfu_fp8_value(const Row& row) {
  const std::optional<double> value = mfu_fp8(row);
  return value ? Json(*value) : Json();
}

std::string mfu_fp8_text(const Row& row) {
  const std::optional<double> value = mfu_fp8(row);
  return value ? fmt::format("{:.1f}%", *value * 100) : "";
}

Json status_value(const Row& row) { return name_of(row.status); }
std::string status_text(const Row& row) { return name_of(row.status); }

Json path_value(const Row& row) { return row.path ? Json(name_of(*row.path)) : Json(); }
std::string no_text(const Row&) { return ""; }

Json error_value(const Row& row) { return row.record().error ? Json(*row.record().error) : Json(); }

std::string error_text(const Row& row) {
  constexpr std::size_t kWidth = 60;  // the section on failures shows the whole text
  return row.record().error ? shorten(printable(*row.record().error), kWidth) : "";
}

}  // namespace

std::string title_of(const Column& column, const char* rank) {
  std::string title = column.title;
  if (const std::size_t at = title.find("GPU"); at != std::string::npos) title.replace(at, 3, rank);
  return title;
}

const std::vector<Column>& report_columns() {
  static const std::vector<Column> columns = {
      {Topic::all, kStatusKey, false, "status", "", true, "", status_value, status_text, "", false, kKeyRank},
      {Topic::none, "execution", true, "", "", true, "", path_value, no_text},
      {Topic::speed, "tokens_per_s", false, "tokens/s", "tokens/s", false,
       "all ranks together, from the median step", number<&Row::tokens_per_s>, tokens_text, "", false,
       kKeyRank},
      {Topic::speed, "relative_iqr", true, "IQR", "", false,
       "interquartile range of the step time over its median", number<&Row::relative_iqr>,
       percent<&Row::relative_iqr>},
      {Topic::speed, "speedup_vs_bf16", true, "speed-up", "", false,
       "against bf16, only where both ran natively", number<&Row::speedup>, ratio<&Row::speedup>, "", true,
       kKeyRank},
      {Topic::speed, "tflops_per_gpu", false, "TFLOP/s per GPU", "TFLOP/s", false,
       "model FLOPs, nothing recomputed", number<&Row::tflops_per_gpu>, tflops_text},
      {Topic::speed, "mfu_bf16", false, "MFU bf16", "", false, "against the dense BF16 peak",
       number<&Row::mfu_bf16>, percent<&Row::mfu_bf16>},
      {Topic::speed, "mfu_fp8", true, "MFU fp8", "", false,
       "the same FLOPs against the dense FP8 peak, of recipes with FP8 GEMMs", mfu_fp8_value, mfu_fp8_text,
       "", false, kDetailRank + 1},
      {Topic::speed, "sol", false, "SOL", "", false,
       "speed of light, each op at the peak of its own precision or at memory bandwidth, over "
       "the measured time",
       number<&Row::sol>, percent<&Row::sol>},
      {Topic::speed, "sol_measured", true, "SOL measured", "", false,
       "as SOL, against the best rates that any case of these records measured on this machine",
       number<&Row::sol_measured>, percent<&Row::sol_measured>, "", false, kDetailRank},
      {Topic::speed, "peak_memory", false, "peak memory", "bytes", false,
       "measured, on the rank that needs most", number<&Row::peak_memory>, memory_text, "", false,
       kOrdinaryRank + 1},
      {Topic::speed, "memory_vs_bf16", true, "memory ratio", "", false,
       "peak against bf16's, only where both ran natively", number<&Row::memory_ratio>,
       ratio<&Row::memory_ratio>, "", true, kDetailRank},
      {Topic::speed, "load", true, "load", "", false,
       "slots of the most loaded expert over the mean, in the worst layer", load_value, load_text},
      // Timing runs end after different numbers of steps, so their final losses are not comparable.
      {Topic::none, "final_loss", true, "", "nats", false, "", number<&Row::final_loss>, no_text},
      {Topic::loss, "loss_minus_bf16", true, "loss - bf16", "nats", false,
       "after as many steps as both have done: mean of the last tenth of them, of 5 at least, over the seeds "
       "that both have, in nats",
       number<&Row::loss_delta>, delta_text, "", true},
      {Topic::loss, "compared_steps", true, "steps", "steps", false, "after which loss - bf16 is taken",
       compared_value, compared_text},
      {Topic::loss, "paired_seeds", true, "seeds", "", false, "pairs behind loss - bf16", paired_value,
       paired_text, "1"},
      {Topic::none, "last_grad_norm", true, "", "", false, "", number<&Row::last_grad_norm>, no_text},
      {Topic::speed, "error", false, "note", "", true, "", error_value, error_text},
  };
  return columns;
}

std::string case_unit(const std::string& key) {
  static const std::vector<SchemaField> fields = Schema::record().scalar_fields();
  for (const SchemaField& field : fields)
    if (field.pointer == "/case/" + key) return field.unit;
  return "";
}

std::string rate_text(double value) {
  if (value < 1000) return fmt::format("{:.{}f}", value, value < 10 ? 3 : value < 100 ? 2 : 1);
  std::string digits = fmt::format("{:.0f}", value);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string bytes_text(double bytes) {
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  return bytes >= kGiB ? fmt::format("{:.2f} GiB", bytes / kGiB) : fmt::format("{:.1f} MiB", bytes / kMiB);
}

std::string wire_text(double bytes) {
  return bytes >= 1e9   ? fmt::format("{:.2f} GB", bytes / 1e9)
         : bytes >= 1e6 ? fmt::format("{:.3g} MB", bytes / 1e6)
                        : fmt::format("{:.3g} kB", bytes / 1e3);
}

}  // namespace precbench
