// Series cut to what is looked at. See reduce_record.h.
#include "tools/report/reduce_record.h"

#include <algorithm>
#include <vector>

#include "tools/analysis/workloads.h"

namespace precbench {
namespace {

/// A copy, since a vector that is made shorter keeps its memory.
template <class T>
void keep(std::vector<T>& values, typename std::vector<T>::const_iterator begin,
          typename std::vector<T>::const_iterator end) {
  values = std::vector<T>(begin, end);
}

template <class T>
void drop(std::vector<T>& values) {
  keep(values, values.end(), values.end());
}

}  // namespace

void reduce_for_report(Record& record) {
  // The versions of a recipe's file are told by roles and formats; how much noise there was is the gate's.
  if (!is_file(record.case_fields, "recipe")) drop(record.quantization);
  if (!record.study) drop(record.fidelity);
  if (record.timing) drop(record.timing->outliers);
  if (!record.training) return;
  Training& training = *record.training;
  drop(training.converted_layers);
  // The last norm is shown; of the learning rate only how long it rises.
  auto &norm = training.grad_norm, &lr = training.lr;
  if (!norm.empty()) keep(norm, norm.end() - 1, norm.end());
  if (!lr.empty()) keep(lr, lr.begin(), std::max_element(lr.begin(), lr.end()) + 1);
}

}  // namespace precbench
