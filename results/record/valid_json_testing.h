// For tests: a record as JSON that is known to be valid.
#pragma once

#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "results/record/schema.h"

namespace precbench {

/// Returns the record as JSON. Checks that it follows the schema, and is the same when it was read and written again.
inline nlohmann::ordered_json valid_json(const Record& record) {
  const nlohmann::ordered_json json = record;
  INFO(record.error.value_or("no error"));
  CHECK(Schema::record().violations(json) == std::vector<std::string>{});
  CHECK(nlohmann::ordered_json(json.get<Record>()).dump() == json.dump());
  return json;
}

}  // namespace precbench
