// Checks JSON, schema and record of a line, in this order. See record_line.h.
#include "results/record/record_line.h"

#include <fmt/format.h>

#include <functional>
#include <vector>

#include "results/record/contradiction.h"
#include "results/record/schema.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

void parse(const std::string& line, ReduceRecord reduce, RecordLine& result) {
  if (const auto why = beyond(line, kRecordLimits)) return void(result.problem = *why);
  const Json json = Json::parse(line, nullptr, false);
  result.problem = json.is_discarded() ? kNotJson : not_a_record_reason(json).value_or("");
  if (!result.problem.empty()) return;
  result.record = json.get<Record>();
  result.contradiction = contradiction(*result.record);
  result.hash = std::hash<Json>{}(json);
  if (reduce) reduce(*result.record);
}

}  // namespace

std::optional<std::string> not_a_record_reason(const Json& json) {
  if (!json.is_object()) return "not a record but a JSON " + std::string(json.type_name());
  const auto schema = json.find("schema");
  if (schema == json.end() || !schema->is_number_integer()) return "not a record: it has no schema version";
  if (*schema < 1 || *schema > kSchemaVersion)
    return fmt::format("schema version {}, but this program reads 1 to {}", schema->dump(), kSchemaVersion);
  const auto violations = Schema::record().violations(json);
  if (!violations.empty()) {
    const std::string more =
        violations.size() > 1 ? fmt::format(" (and {} more)", violations.size() - 1) : "";
    return "not a valid record: " + violations.front() + more;
  }
  if (*schema > 1 && !json.contains("definition")) return "not a valid record: /definition: missing";
  return std::nullopt;
}

RecordLine parse_record_line(const std::string& line, ReduceRecord reduce) noexcept {
  RecordLine result;
  try {
    parse(line, reduce, result);
  } catch (...) {
    result.record.reset();
    result.failure = std::current_exception();
  }
  return result;
}

}  // namespace precbench
