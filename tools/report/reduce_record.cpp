// Series cut to what is looked at. See reduce_record.h.
#include "tools/report/reduce_record.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tools/analysis/workloads.h"

namespace precbench {
namespace {

/// Of a study's trunk the rate before each age is looked at, of its ladder of rates each rung's.
bool shows_rates(const Record& record) {
  return record.study &&
         (record.study->part == StudyPart::trunk || record.study->part == StudyPart::learning_rate);
}

/// Seeds make no versions of a file, and runs of many seeds share what is left.
void drop_seed(DefinitionPart& part) {
  if (!part || !part->contains("seed")) return;
  nlohmann::ordered_json rest = *part;
  rest.erase("seed");
  part = std::make_shared<const nlohmann::ordered_json>(std::move(rest));
}

}  // namespace

void reduce_for_table(Record& record) {
  // The versions of a recipe's file are told by roles and formats; how much noise there was is the gate's.
  if (!is_file(record.case_fields, "recipe")) record.quantization.clear();
  if (!record.study) record.fidelity.clear();
  if (record.timing) record.timing->outliers.clear();
  if (!record.training) return;
  Training& training = *record.training;
  training.converted_layers.clear();
  // The last norm is shown; of the learning rate only how long it rises.
  const PackedSeries norm = std::move(training.grad_norm);
  training.grad_norm = norm.empty() ? PackedSeries{} : PackedSeries{norm.back()};
  if (shows_rates(record)) return;
  const PackedSeries rate = std::move(training.lr);
  const auto highest = std::max_element(rate.begin(), rate.end());
  if (highest == rate.begin()) return;
  training.lr = std::vector<double>(rate.begin(), highest + 1);
  training.lr.pack();
}

void reduce_for_report(Record& record) {
  reduce_for_table(record);
  if (!record.definition) return;
  drop_seed(record.definition->data);
  drop_seed(record.definition->init);
}

}  // namespace precbench
