// Typed reading of JSON keys, and conversion of RoPE scaling. See config_keys.h.
#include "models/config/config_keys.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/untrusted_input.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;
using Kind = RopeScaling::Kind;

/// A positive number of a kind's object.
struct Number {
  const char* key;
  double RopeScaling::*member;
  std::optional<double> otherwise = std::nullopt;  ///< if it is absent; null: it may not be
};

/// A kind of scaling. Numbers are read and written by their table, the other keys by the functions below.
struct KindKeys {
  Kind kind;
  const char* name;
  std::vector<Number> numbers;
  std::vector<const char*> others = {};
};

const std::vector<KindKeys>& kinds() {
  using S = RopeScaling;
  static const std::vector<KindKeys> all = {
      {Kind::none, "default", {}},
      {Kind::linear, "linear", {}, {"factor"}},
      {Kind::llama3,
       "llama3",
       {{"low_freq_factor", &S::low_freq_factor}, {"high_freq_factor", &S::high_freq_factor}},
       {"factor", "original_max_position_embeddings"}},
      {Kind::yarn,
       "yarn",
       {{"beta_fast", &S::beta_fast, 32}, {"beta_slow", &S::beta_slow, 1}},
       {"factor", "original_max_position_embeddings", "truncate", "mscale", "mscale_all_dim",
        "attention_factor"}},
      {Kind::longrope,
       "longrope",
       {},
       {"factor", "original_max_position_embeddings", "short_factor", "long_factor", "attention_factor"}}};
  return all;
}

double positive(const json& object, const char* key, std::optional<double> otherwise) {
  if (!given(object, key) && !otherwise) refuse("rope_scaling: {}: missing", key);
  if (given(object, key) && !object.at(key).is_number())
    refuse("rope_scaling: {}: expected a number, got {}", key, shown(object.at(key)));
  const double value = given(object, key) ? object.at(key).get<double>() : *otherwise;
  if (!std::isfinite(value) || value <= 0)
    refuse("rope_scaling: {}: must be a positive number, got {}", key, value);
  return value;
}

/// Refuses a number that is below another one.
void require_order(const char* key, double value, const char* other, double bound) {
  if (value < bound) refuse("rope_scaling: {}: {} is below {} {}", key, value, other, bound);
}

void read_yarn(const json& object, RopeScaling& s) {
  require_order("beta_fast", s.beta_fast, "beta_slow", s.beta_slow);
  read(object, "truncate", s.truncate);
  s.attention_factor = yarn_temperature(s.factor, 1);
  double mscale = 0, mscale_all_dim = 0;
  read(object, "mscale", mscale);
  read(object, "mscale_all_dim", mscale_all_dim);
  if (mscale != 0 && mscale_all_dim != 0)
    s.attention_factor = yarn_temperature(s.factor, mscale) / yarn_temperature(s.factor, mscale_all_dim);
}

/// Reads the factors of contexts up to the original one. Those of longer contexts are not modelled.
void read_longrope(const json& object, RopeScaling& s) {
  const json factors = object.value("short_factor", json());
  const auto is_factor = [](const json& factor) { return factor.is_number() && factor > 0; };
  if (!factors.is_array() || !std::all_of(factors.begin(), factors.end(), is_factor))
    refuse("rope_scaling: short_factor: expected a list of positive numbers, got {}", shown(factors));
  s.pair_factors = factors.get<std::vector<double>>();
  s.attention_factor = s.factor <= 1 ? 1 : std::sqrt(1 + std::log(s.factor) / std::log(s.original_context));
}

}  // namespace

double yarn_temperature(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

std::string shown(const json& value) {
  constexpr std::size_t kLongest = 40;
  // NaN or an infinity, which the file contains without quotes (parse_description).
  for (const char* constant : kPythonConstants)
    if (value == constant) return constant;
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

bool given(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && !it->is_null();
}

void read(const json& object, const char* key, std::int64_t& to) {
  if (!given(object, key)) return;
  const json& value = object.at(key);
  if (!value.is_number_integer()) refuse("{}: expected a whole number, got {}", key, shown(value));
  const bool too_large = value.is_number_unsigned() && value.get<std::uint64_t>() > kMaxDimension;
  to = too_large ? kMaxDimension + 1 : value.get<std::int64_t>();
  if (to < 1 || to > kMaxDimension)
    refuse("{}: must be from 1 to {}, got {}", key, kMaxDimension, shown(value));
}

namespace {

template <class Value>
void read_as(const json& object, const char* key, bool (json::*is_one)() const noexcept, const char* what,
             Value& to) {
  if (!given(object, key)) return;
  if (!(object.at(key).*is_one)()) refuse("{}: expected {}, got {}", key, what, shown(object.at(key)));
  to = object.at(key).get<Value>();
}

}  // namespace

void read(const json& object, const char* key, double& to) {
  read_as(object, key, &json::is_number, "a number", to);
}
void read(const json& object, const char* key, bool& to) {
  read_as(object, key, &json::is_boolean, "true or false", to);
}
void read(const json& object, const char* key, std::string& to) {
  read_as(object, key, &json::is_string, "a string", to);
}

ReadRopeScaling rope_scaling_from_json(const json& object, std::int64_t max_positions) {
  if (!object.is_object()) refuse("rope_scaling: expected an object, got {}", shown(object));
  std::string type = "default";
  read(object, "type", type);
  read(object, "rope_type", type);
  const auto found =
      std::find_if(kinds().begin(), kinds().end(), [&](const KindKeys& k) { return k.name == type; });
  if (found == kinds().end()) return {};
  std::vector<std::string> known = {"type", "rope_type", "rope_theta", "partial_rotary_factor"};
  known.insert(known.end(), found->others.begin(), found->others.end());
  for (const Number& number : found->numbers) known.emplace_back(number.key);
  ReadRopeScaling result;
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) refuse("rope_scaling: {}: angles by the type of a layer are not supported", key);
    if (std::find(known.begin(), known.end(), key) == known.end()) result.unknown.push_back(key);
  }
  RopeScaling& s = result.scaling.emplace();
  s.kind = found->kind;
  if (s.kind == Kind::none) return result;
  const std::optional<double> positions =
      max_positions ? std::optional(static_cast<double>(max_positions)) : std::nullopt;
  if (s.kind != Kind::linear)
    s.original_context = positive(object, "original_max_position_embeddings", positions);
  // A file of YaRN may have null as its factor, and one of LongRoPE omits it; the ratio of the two lengths gives it.
  const bool by_lengths = positions && !given(object, "factor") &&
                          (s.kind == Kind::longrope || (s.kind == Kind::yarn && object.contains("factor")));
  s.factor =
      positive(object, "factor", by_lengths ? std::optional(*positions / s.original_context) : std::nullopt);
  if (s.factor < 1) refuse("rope_scaling: factor: must be 1 or more, got {}", s.factor);
  for (const Number& number : found->numbers)
    s.*number.member = positive(object, number.key, number.otherwise);
  if (s.kind == Kind::llama3)
    require_order("high_freq_factor", s.high_freq_factor, "low_freq_factor", s.low_freq_factor);
  if (s.kind == Kind::yarn) read_yarn(object, s);
  if (s.kind == Kind::longrope) read_longrope(object, s);
  if (s.kind == Kind::yarn || s.kind == Kind::longrope)
    s.attention_factor = positive(object, "attention_factor", s.attention_factor);
  return result;
}

json rope_scaling_to_json(const RopeScaling& s) {
  const auto kind =
      std::find_if(kinds().begin(), kinds().end(), [&](const KindKeys& k) { return k.kind == s.kind; });
  json object = {{"rope_type", kind->name}, {"factor", s.factor}};
  if (s.kind != Kind::linear) object["original_max_position_embeddings"] = s.original_context;
  for (const Number& number : kind->numbers) object[number.key] = s.*number.member;
  if (s.kind == Kind::yarn) object["truncate"] = s.truncate;
  if (s.kind == Kind::yarn || s.kind == Kind::longrope) object["attention_factor"] = s.attention_factor;
  if (s.kind == Kind::longrope) object["short_factor"] = s.pair_factors;
  return object;
}

}  // namespace precbench::config_keys
