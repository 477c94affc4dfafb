// Fuzzes a line of a record file against the schema: accepted lines can be read and written again.
#include <nlohmann/json.hpp>

#include "kernels/base/untrusted_input.h"
#include "results/record/contradiction.h"
#include "results/record/schema.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(record) {
  using Json = nlohmann::ordered_json;
  const std::string_view line = text_of(data, size);
  taken([&] {
    const Json json = parse_untrusted<Json>(line.substr(0, line.find('\n')), kDescriptionLimits);
    if (!Schema::record().violations(json).empty()) return;
    const Record record = json.get<Record>();
    contradiction(record);
    Json(record).dump();
  });
  return 0;
}
