// Converts costs of ops. See op_record.h.
#include "bench/predict/op_record.h"

#include <string>
#include <utility>
#include <vector>

namespace precbench {

OpRecord op_record(const OpCost& one, std::int64_t calls, double ms) {
  const auto count = static_cast<double>(calls);
  OpRecord record{one.name, name_of(one.op_class), calls, ms, count * one.flops, count * one.bytes};
  if (std::vector<std::int64_t> shape = used_entries(one.shape); !shape.empty())
    record.shape = std::move(shape);
  if (std::string formats = formats_text(one); !formats.empty()) record.formats = std::move(formats);
  return record;
}

}  // namespace precbench
