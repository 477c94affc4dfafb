// Checks JSON, schema and record of a line, in this order. See record_line.h.
#include "results/record/record_line.h"

#include <fmt/format.h>

#include <functional>
#include <set>
#include <vector>

#include "results/record/contradiction.h"
#include "results/record/schema.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the number of members of all objects of a text that is JSON.
std::size_t members_in(const std::string& text) {
  std::size_t members = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\') ++i;
    if (!in_string && text[i] == ':') ++members;
  }
  return members;
}

std::size_t members_in(const Json& json) {
  if (!json.is_structured()) return 0;
  std::size_t members = json.is_object() ? json.size() : 0;
  for (const Json& value : json) members += members_in(value);
  return members;
}

/// Returns the first key that its object has twice. Parses the text again.
std::string repeated_key(const std::string& text) {
  std::vector<std::set<std::string>> open;
  std::string found;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second &&
        found.empty())
      found = parsed.get<std::string>();
    return true;
  };
  const Json ignored = Json::parse(text, watch, false);
  return found;
}

void parse(const std::string& line, ReduceRecord reduce, RecordLine& result) {
  if (const auto why = beyond(line, kRecordLimits)) return void(result.problem = *why);
  const Json json = Json::parse(line, nullptr, false);
  result.problem = json.is_discarded() ? kNotJson : not_a_record_reason(json).value_or("");
  // The parser keeps the last value of a repeated key, and another reader the first.
  if (result.problem.empty() && members_in(line) != members_in(json))
    result.problem =
        fmt::format("not a valid record: \"{}\" is there twice in one object", repeated_key(line));
  if (!result.problem.empty()) return;
  result.record = json.get<Record>();
  result.contradiction = contradiction(*result.record);
  result.hash = std::hash<Json>{}(json);
  if (reduce) reduce(*result.record);
}

}  // namespace

std::optional<std::string> not_a_record_reason(const Json& json) {
  if (!json.is_object()) return "not a record but a JSON " + std::string(json.type_name());
  if (json.contains("history")) return "a row of a history, not a record; precbench report --history FILE reads it";
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
  const bool imported = json.contains("source");
  if (*schema > 1 && !imported && !json.contains("definition"))
    return "not a valid record: /definition: missing";
  if (imported != (json.at("method_version") == kImportMethodVersion))
    return fmt::format("not a valid record: /source: {} a record of method version {}",
                       imported ? "not of" : "missing in", json.at("method_version").dump());
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
