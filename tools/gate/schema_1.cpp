// Recomputes ids of schema 1. See schema_1.h.
#include "tools/gate/schema_1.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "kernels/base/fnv1a.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Fields that an id omits at these values, because they were added after the first records.
const std::map<std::string_view, std::string_view> kLeftOut = {
    {"shard_group", "1"}, {"gather", "bf16"}, {"reduce_amax", "off"},   {"keep_bf16", ""},    {"glob", "*"},
    {"init_from", ""},    {"graph", "on"},    {"deterministic", "off"}, {"attention", "auto"}};

/// Returns a value as a user would type it.
std::string word_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return value.dump();
}

bool names_files(const CaseFields& fields) {
  const auto word = [&](const char* key) { return word_of(fields.value(key, "")); };
  return word("model").ends_with(".json") || word("recipe").ends_with(".json") ||
         word("data") != "synthetic" || !word("init_from").empty();
}

/// Returns the id; `details`: the model's keys that take part.
std::string id_of(const Record& record, const Json& details) {
  std::uint64_t state = kFingerprintStart;
  add_to_fingerprint(state, fmt::format("method={}\n", record.method_version));
  for (const auto& field : record.case_fields.items()) {
    const std::string word = word_of(field.value());
    const auto left_out = kLeftOut.find(field.key());
    if (!changes_work(field.key()) || (left_out != kLeftOut.end() && word == left_out->second)) continue;
    add_to_fingerprint(state, fmt::format("{}={}\n", field.key(), word));
  }
  for (const char* key : {"rope_scaling", "qkv_bias"})
    if (const Json value = details.value(key, Json(false)); value != false)
      add_to_fingerprint(state, fmt::format("{}={}\n", key, value.dump()));
  return fmt::format("{:016x}", state);
}

}  // namespace

std::optional<std::string> other_model_reason(const Record& old, const Json& model) {
  if (names_files(old.case_fields) || old.id == id_of(old, model)) return std::nullopt;
  if (old.id == id_of(old, Json::object()))
    return "a model without RoPE scaling or biases by its id, but definition.model has them";
  return "an id that neither its fields nor definition.model give";
}

}  // namespace precbench
