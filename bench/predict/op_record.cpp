// Converts costs of ops. See op_record.h.
#include "bench/predict/op_record.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bench/predict/rates.h"

namespace precbench {

OpRecord op_record(const OpCost& one, std::int64_t calls, double ms) {
  const auto count = static_cast<double>(calls);
  OpRecord record{one.name, name_of(one.op_class), calls, ms, count * one.flops, count * one.bytes};
  if (std::vector<std::int64_t> shape = used_entries(one.shape); !shape.empty())
    record.shape = std::move(shape);
  if (std::string formats = formats_text(one); !formats.empty()) record.formats = std::move(formats);
  return record;
}

OpCost op_cost(const OpRecord& record) {
  const auto calls = static_cast<double>(record.calls);
  OpCost cost{.name = record.name.c_str(), .flops = record.flops / calls, .bytes = record.bytes / calls};
  for (int i = 0; i < kOpClasses; ++i)
    if (record.op_class == name_of(static_cast<OpClass>(i))) cost.op_class = static_cast<OpClass>(i);
  if (record.shape)
    std::copy_n(record.shape->begin(), std::min(record.shape->size(), cost.shape.size()), cost.shape.begin());
  if (record.flops > 0) cost.math = math_of_formats(record.formats.value_or(""));
  return cost;
}

}  // namespace precbench
