// Drops unused series of records. See reduce_record.h.
#include "tools/report/reduce_record.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tools/analysis/workloads.h"

namespace precbench {
namespace {

/// Returns true if all learning rates are needed: of a study's trunk, before each age, and of each rung of
/// its ladder of rates.
bool shows_rates(const Record& record) {
  return record.study &&
         (record.study->part == StudyPart::trunk || record.study->part == StudyPart::learning_rate);
}

/// Drops the seed, which does not distinguish versions of a file, so that runs of many seeds share the rest.
void drop_seed(DefinitionPart& part) {
  if (!part || !part->contains("seed")) return;
  nlohmann::ordered_json rest = *part;
  rest.erase("seed");
  part = std::make_shared<const nlohmann::ordered_json>(std::move(rest));
}

}  // namespace

void reduce_for_table(Record& record) {
  // Versions of a recipe file are inferred from roles and formats; quantization noise is
  // only used by the gate.
  if (!is_file(record.case_fields, "recipe")) record.quantization.clear();
  if (!record.study) record.fidelity.clear();
  if (record.timing) record.timing->outliers.clear();
  if (!record.training) return;
  Training& training = *record.training;
  training.converted_layers.clear();
  // Reports show the last gradient norm, and use the learning rates only up to their maximum.
  const std::vector<double> norm = std::move(training.grad_norm);
  training.grad_norm = norm.empty() ? std::vector<double>{} : std::vector<double>{norm.back()};
  if (shows_rates(record)) return;
  const std::vector<double> rate = std::move(training.lr);
  const auto highest = std::max_element(rate.begin(), rate.end());
  if (highest == rate.begin()) return;
  training.lr = std::vector<double>(rate.begin(), highest + 1);
}

void reduce_for_report(Record& record) {
  reduce_for_table(record);
  if (!record.definition) return;
  drop_seed(record.definition->data);
  drop_seed(record.definition->init);
}

}  // namespace precbench
