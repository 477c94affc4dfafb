// Conversion between records and JSON. The fields of each struct (record_fields.h) drive both directions.
#include "results/record/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "results/record/record_fields.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr EnumNames<Status, 6> kStatusNames{{"ok", "oom", "unsupported", "timeout", "crashed", "diverged"}};
constexpr EnumNames<ExecutionPath, 3> kPathNames{{"native", "emulated", "unsupported"}};
constexpr EnumNames<StudyPart, 7> kPartNames{
    {"trunk", "fork", "learning_rate", "bits", "exponent_bits", "batch", "sensitivity"}};
constexpr EnumNames<CellKind, 6> kCellKindNames{{"whole", "control", "alone", "kept", "variant", "set"}};
constexpr EnumNames<StopReason, 4> kStopReasonNames{{"target", "stable_noise", "time_limit", "fixed_steps"}};

template <class Enum>
constexpr const auto& names_of() {
  if constexpr (std::is_same_v<Enum, Status>)
    return kStatusNames;
  else if constexpr (std::is_same_v<Enum, ExecutionPath>)
    return kPathNames;
  else if constexpr (std::is_same_v<Enum, StudyPart>)
    return kPartNames;
  else if constexpr (std::is_same_v<Enum, CellKind>)
    return kCellKindNames;
  else
    return kStopReasonNames;
}

/// Returns true for keys that are omitted if null.
bool left_out(std::string_view key) {
  if (key == "fp4_tflops" || key == "measured_fp4_tflops" || key == "emulated_shapes") return true;
  return key == "kernels" || key == "routing_ms" || key == "params" || key == "moe" || key == "grouped" ||
         key == "ep" || key == "exchange" || key == "dispatch" || key == "slots" || key == "columns" ||
         key == "bytes" || key == "predicted_dispatch" || key == "predicted_combine" || key == "flow" ||
         key == "route_flips" || key == "cpus" || key == "cpu_quota" || key == "speed_from" ||
         key == "nodes" || key == "sensitivity" || key == "note" || key == "verified" ||
         key == "trained_tokens" || key == "steady" || key == "against" || key == "outputs" ||
         key == "shape" || key == "formats" || key == "readings" || key == "sizes" ||
         key == "bytes_per_token" || key == "held_out_bytes_per_token";
}

/// Returns true for keys of a T that are omitted if null. Memory has a `predicted` that is not.
template <class T>
bool omitted_if_null(std::string_view key) {
  return left_out(key) || (std::is_same_v<T, Record> && (key == "predicted" || key == "source"));
}

template <class T>
Json write_value(const T& value) {
  if constexpr (kIsOptional<T>) {
    return value ? write_value(*value) : Json(nullptr);
  } else if constexpr (IsVector<T>::value) {
    Json array = Json::array();
    for (const auto& element : value) array.push_back(write_value(element));
    return array;
  } else if constexpr (std::is_enum_v<T>) {
    return name_of(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
                       std::is_same_v<T, CaseFields>) {
    return value;
  } else if constexpr (std::is_same_v<T, DefinitionPart>) {
    return value ? *value : Json::object();
  } else {
    Json object = Json::object();
    each_field(value, [&](const char* key, const auto& field) {
      Json member = write_value(field);
      if (!member.is_null() || !omitted_if_null<T>(key)) object[key] = std::move(member);
    });
    return object;
  }
}

/// Position of a value in the JSON that is read; converted to text only for errors.
struct Place {
  const Place* above = nullptr;
  const char* key = nullptr;  ///< key in an object; null in an array
  std::size_t index = 0;

  std::string text() const {
    return above ? above->text() + '/' + (key ? std::string(key) : std::to_string(index)) : "";
  }
};

[[noreturn]] void wrong_type(const Place& where, const char* wanted, const Json& json) {
  throw InvalidInput(where.text() + ": not " + wanted + " but " + json.type_name());
}

/// Returns true for keys of a T that older records lack; the default applies.
template <class T>
bool added_later(std::string_view key) {
  if constexpr (std::is_same_v<T, Record>)
    return key == "definition" || key == "durations" || key == "fidelity" || key == "study" ||
           omitted_if_null<T>(key);
  if constexpr (std::is_same_v<T, Training>) return key == "evaluations" || left_out(key);
  if constexpr (std::is_same_v<T, DeviceRates>) return left_out(key);
  if constexpr (std::is_same_v<T, GemmPath> || std::is_same_v<T, Breakdown> || std::is_same_v<T, MoeRecord> ||
                std::is_same_v<T, ExchangeBytes> || std::is_same_v<T, Fidelity> ||
                std::is_same_v<T, Environment> || std::is_same_v<T, Metrics> ||
                std::is_same_v<T, CellRecord> || std::is_same_v<T, StudyPlace> || std::is_same_v<T, Support>)
    return left_out(key);
  if constexpr (std::is_same_v<T, Evaluation> || std::is_same_v<T, Reading>) return left_out(key);
  if constexpr (std::is_same_v<T, OpRecord>) return key == "shape" || key == "formats";
  return std::is_same_v<T, Timing> && (key == "wall_ms" || key == "cpu_ms" || key == "cpu_wait_ms" || key == "runs" ||
                                       key == "between_runs");
}

/// Returns an integer in the range of T; accepts integral floating-point numbers such as 3.0.
template <class T>
T integer(const Json& json, const Place& where) {
  const auto fits = [&](auto number) {
    if (!std::in_range<T>(number)) throw InvalidInput(where.text() + ": " + json.dump() + " is out of range");
    return static_cast<T>(number);
  };
  if (json.is_number_unsigned()) return fits(json.get<std::uint64_t>());
  if (json.is_number_integer()) return fits(json.get<std::int64_t>());
  const double number = json.is_number_float() ? json.get<double>() : 0.5;
  if (std::floor(number) != number) wrong_type(where, "an integer", json);
  // Beyond 2^53 doubles have no odd integers, so such a value cannot be a count.
  if (std::abs(number) > 0x1p53) throw InvalidInput(where.text() + ": " + json.dump() + " is out of range");
  return fits(static_cast<std::int64_t>(number));
}

template <class T>
void read_value(const Json& json, const Place& where, T& value) {
  if constexpr (kIsOptional<T>) {
    if (json.is_null()) return value.reset();
    read_value(json, where, value.emplace());
  } else if constexpr (IsVector<T>::value) {
    if (!json.is_array()) wrong_type(where, "an array", json);
    value.clear();
    value.reserve(json.size());
    for (const Json& element : json) {
      typename T::value_type item{};
      read_value(element, {&where, nullptr, value.size()}, item);
      value.push_back(std::move(item));
    }
  } else if constexpr (std::is_enum_v<T>) {
    if (!json.is_string()) wrong_type(where, "a name", json);
    const auto found = names_of<T>().find(json.template get_ref<const std::string&>());
    if (!found)
      throw InvalidInput(where.text() + ": unknown value \"" + json.template get<std::string>() + "\"");
    value = *found;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) wrong_type(where, "true or false", json);
    value = json.template get<bool>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number() && !json.is_null()) wrong_type(where, "a number", json);
    value = json.is_null() ? std::numeric_limits<T>::quiet_NaN() : json.template get<T>();
  } else if constexpr (std::is_integral_v<T>) {
    value = integer<T>(json, where);
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) wrong_type(where, "a string", json);
    value = json.template get<std::string>();
  } else if constexpr (std::is_same_v<T, CaseFields>) {
    if (!json.is_object()) wrong_type(where, "an object", json);
    value = CaseFields(json);
  } else if constexpr (std::is_same_v<T, DefinitionPart>) {
    if (!json.is_object()) wrong_type(where, "an object", json);
    value = std::make_shared<const Json>(json);
  } else {
    if (!json.is_object()) wrong_type(where, "an object", json);
    each_field(value, [&](const char* key, auto& field) {
      const auto found = json.find(key);
      if (found == json.end() && added_later<T>(key)) return;
      const Place here{&where, key};
      if (found == json.end()) throw InvalidInput(here.text() + ": missing");
      read_value(*found, here, field);
    });
  }
}

}  // namespace

const char* name_of(Status status) { return kStatusNames.of(status); }
const char* name_of(ExecutionPath path) { return kPathNames.of(path); }
const char* name_of(StudyPart part) { return kPartNames.of(part); }
const char* name_of(CellKind kind) { return kCellKindNames.of(kind); }
const char* name_of(StopReason reason) { return kStopReasonNames.of(reason); }

ExecutionPath Support::path() const { return std::max({fprop.path, dgrad.path, wgrad.path}); }

bool changes_work(const std::string& case_field) {
  static const std::set<std::string> kNotWork = {
      "save_init",     "save_final",     "save_grads",      "time_limit", "checkpoint_every",
      "checkpoint_at", "checkpoint_dir", "checkpoint_keep", "eval_every", "eval_tokens"};
  return !kNotWork.contains(case_field);
}

bool only_where_used(const std::string& case_field) {
  static const std::set<std::string> kWhereUsed = {"layers",        "flow",
                                                   "routing",       "capacity",
                                                   "grouped",       "aux",
                                                   "z_loss",        "ep",
                                                   "exchange",      "slots",
                                                   "dispatch",      "checkpoint_at",
                                                   "sensitivity",   "lora_rank",
                                                   "lora_alpha",    "packing",
                                                   "kept",          "eval_recipes",
                                                   "tensor",        "tensor_gather",
                                                   "pipeline",      "virtual_stages",
                                                   "micro_batches", "shard_optimizer",
                                                   "overlap",       "context_exchange"};
  return kWhereUsed.contains(case_field);
}

std::string machine_of(const Environment& env) {
  const std::string name = env.gpu ? env.gpu->name : env.cpu.value_or("unknown CPU");
  return env.nodes.value_or(1) > 1 ? fmt::format("{} on {} nodes", name, *env.nodes) : name;
}

void to_json(nlohmann::ordered_json& json, const Record& record) {
  json = write_value(record);
  if (!record.definition) json.erase("definition");
  if (!record.study) json.erase("study");
  if (record.status != Status::ok || !record.training) return;
  const auto& loss = record.training->loss;
  const auto bad = std::find_if(loss.begin(), loss.end(), [](double x) { return !std::isfinite(x); });
  if (bad == loss.end()) return;
  json["status"] = name_of(Status::diverged);
  if (!record.error) json["error"] = "the loss is not finite at step " + std::to_string(bad - loss.begin());
}

void from_json(const nlohmann::ordered_json& json, Record& record) {
  read_value(json, Place{}, record);
  if (!record.definition && !record.source && record.schema > 1) throw InvalidInput("/definition: missing");
  if (record.source.has_value() != (record.method_version == kImportMethodVersion))
    throw InvalidInput(record.source ? "/source: only in records of method version 1001"
                                     : "/source: missing in a record of method version 1001");
}

}  // namespace precbench
