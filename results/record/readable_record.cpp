// Replaces values that the schema does not allow, one by one. See readable_record.h.
#include "results/record/readable_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "results/record/contradiction.h"
#include "results/record/record_line.h"
#include "results/record/schema.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;
using Pointer = Json::json_pointer;

[[noreturn]] void cannot_be_read(const std::string& why) {
  throw InvalidInput("this record cannot be read back: " + why);
}

bool breaks_schema_at(const Json& json, const std::string& pointer) {
  const auto violations = Schema::record().find_violations(json);
  return std::any_of(violations.begin(), violations.end(),
                     [&](const SchemaViolation& violation) { return violation.pointer == pointer; });
}

/// Returns the value, or its type if the text is too long for a warning.
std::string shown_value(const Json& value) {
  constexpr std::size_t kMostLetters = 40;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kMostLetters ? text : std::string(value.type_name());
}

/// Sets the value at `pointer` to null or removes it, whichever the schema allows; otherwise does so to what
/// contains it. Returns the pointer to the removed value; nullopt if that would be the whole record.
std::optional<std::string> take_out(Json& json, const std::string& pointer) {
  for (Pointer place(pointer); !place.empty(); place.pop_back()) {
    if (!json.contains(place)) continue;  // a missing value is mended through its object
    const std::string text = place.to_string();
    Json changed = json;
    changed[place] = nullptr;
    if (!breaks_schema_at(changed, text)) return json = std::move(changed), text;
    if (Json& parent = changed[place.parent_pointer()]; parent.is_object()) {
      parent.erase(place.back());
      if (!breaks_schema_at(changed, text)) return json = std::move(changed), text;
    }
  }
  return std::nullopt;
}

/// Mends the record and returns a warning for each removed value.
std::vector<std::string> mend(Json& json) {
  std::vector<std::string> warnings;
  for (;;) {
    const auto violations = Schema::record().find_violations(json);
    if (violations.empty()) return warnings;
    const SchemaViolation first = violations.front();
    const Pointer place(first.pointer);
    const std::string value = json.contains(place) ? shown_value(json.at(place)) : "";
    const auto gone = take_out(json, first.pointer);
    if (!gone) cannot_be_read(first.text());
    std::string warning = first.text();
    if (first.what.find(value) == std::string::npos) warning += fmt::format(" (value {})", value);
    if (*gone != first.pointer) warning += fmt::format("; {} was left out whole", *gone);
    warnings.push_back(warning);
  }
}

}  // namespace

Record readable_record(Record record) {
  Json json = record;
  const std::vector<std::string> mended = mend(json);
  if (const auto why = not_a_record_reason(json)) cannot_be_read(*why);
  const auto read_back = json.get<Record>();
  if (!mended.empty()) record = read_back;
  const auto warn = [&](const std::string& line) {
    if (std::find(record.warnings.begin(), record.warnings.end(), line) == record.warnings.end())
      record.warnings.push_back(line);
  };
  for (const std::string& line : mended) warn("not recorded: " + line);
  if (const auto why = contradiction(read_back)) warn("contradicts itself: " + *why);
  return record;
}

}  // namespace precbench
