// Typed reading of JSON keys, and conversion of RoPE scaling. See config_keys.h.
#include "models/config/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;
using Kind = RopeScaling::Kind;

struct KindName {
  Kind kind;
  const char* name;
  std::vector<const char*> keys;  // besides those of all kinds
};

const std::vector<KindName>& kinds() {
  static const std::vector<KindName> all = {
      {Kind::none, "default", {}},
      {Kind::linear, "linear", {"factor"}},
      {Kind::llama3,
       "llama3",
       {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}},
      {Kind::yarn,
       "yarn",
       {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate", "mscale",
        "mscale_all_dim", "attention_factor"}},
      {Kind::longrope,
       "longrope",
       {"factor", "original_max_position_embeddings", "short_factor", "long_factor", "attention_factor"}}};
  return all;
}

constexpr const char* kKeysOfAll[] = {"type", "rope_type", "rope_theta", "partial_rotary_factor"};

[[noreturn]] void refuse_scaling(const char* key, const std::string& why) {
  throw InvalidInput(fmt::format("rope_scaling: {}: {}", key, why));
}

double positive(const json& object, const char* key, std::optional<double> otherwise) {
  double value = otherwise.value_or(0);
  try {
    read(object, key, value);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("rope_scaling: {}", error.what()));
  }
  if (!given(object, key) && !otherwise) refuse_scaling(key, "missing");
  if (!std::isfinite(value) || value <= 0)
    refuse_scaling(key, fmt::format("must be a positive number, got {}", value));
  return value;
}

void read_llama3(const json& object, RopeScaling& s) {
  s.low_freq_factor = positive(object, "low_freq_factor", std::nullopt);
  s.high_freq_factor = positive(object, "high_freq_factor", std::nullopt);
  if (s.high_freq_factor < s.low_freq_factor)
    refuse_scaling("high_freq_factor",
                   fmt::format("{} is below low_freq_factor {}", s.high_freq_factor, s.low_freq_factor));
}

void read_yarn(const json& object, RopeScaling& s) {
  s.beta_fast = positive(object, "beta_fast", 32);
  s.beta_slow = positive(object, "beta_slow", 1);
  if (s.beta_fast < s.beta_slow)
    refuse_scaling("beta_fast", fmt::format("{} is below beta_slow {}", s.beta_fast, s.beta_slow));
  read(object, "truncate", s.truncate);
  s.attention_factor = yarn_temperature(s.factor, 1);
  double mscale = 0, mscale_all_dim = 0;
  read(object, "mscale", mscale);
  read(object, "mscale_all_dim", mscale_all_dim);
  if (mscale != 0 && mscale_all_dim != 0)
    s.attention_factor = yarn_temperature(s.factor, mscale) / yarn_temperature(s.factor, mscale_all_dim);
  s.attention_factor = positive(object, "attention_factor", s.attention_factor);
}

/// Reads the factors of contexts up to the original one. Those of longer contexts are not modelled.
void read_longrope(const json& object, RopeScaling& s) {
  const json factors = object.value("short_factor", json());
  const auto is_factor = [](const json& factor) { return factor.is_number() && factor > 0; };
  if (!factors.is_array() || !std::all_of(factors.begin(), factors.end(), is_factor))
    refuse_scaling("short_factor",
                   fmt::format("expected a list of positive numbers, got {}", shown(factors)));
  s.pair_factors = factors.get<std::vector<double>>();
  s.attention_factor = s.factor <= 1 ? 1 : std::sqrt(1 + std::log(s.factor) / std::log(s.original_context));
  s.attention_factor = positive(object, "attention_factor", s.attention_factor);
}

}  // namespace

double yarn_temperature(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

KeyNames KeyNames::of_hugging_face(const json& object) {
  KeyNames names;
  names.theirs_ = hugging_face_moe_names(object, object.at("model_type").get<std::string>());
  const std::string model_type = object.at("model_type").get<std::string>();
  for (const DimensionKey& dimension : kDimensions)
    names.theirs_[dimension.key] = key_in_file(object, model_type, dimension.hugging_face);
  names.theirs_["norm_eps"] = key_in_file(object, model_type, "rms_norm_eps");
  names.theirs_["residual_scale"] = "residual_multiplier";
  names.theirs_["attention_scale"] = "attention_multiplier";
  names.theirs_["embedding_scale"] = "embedding_multiplier";
  names.theirs_["logit_scale"] = "logits_scaling";
  names.theirs_["attention_softcap"] = "attn_logit_softcapping";
  names.theirs_["logit_softcap"] = "final_logit_softcapping";
  names.theirs_["local_rope_theta"] = "rope_local_base_freq";
  names.theirs_["local_layers"] = "layer_types";
  names.theirs_["unit_queries_and_keys"] = "use_qk_norm";
  names.theirs_["temperature"] = "attn_scale";
  names.theirs_["temperature_positions"] = "floor_scale";
  names.theirs_["qkv_bias"] = "attention_bias";
  names.theirs_["rotary_dim"] = "partial_rotary_factor";
  return names;
}

std::string KeyNames::operator()(const char* key) const {
  const auto theirs = theirs_.find(key);
  return theirs == theirs_.end() ? key : theirs->second;
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
  if (!value.is_number_integer())
    throw InvalidInput(fmt::format("{}: expected a whole number, got {}", key, shown(value)));
  const bool too_large = value.is_number_unsigned() && value.get<std::uint64_t>() > kMaxDimension;
  to = too_large ? kMaxDimension + 1 : value.get<std::int64_t>();
  if (to < 1 || to > kMaxDimension)
    throw InvalidInput(fmt::format("{}: must be from 1 to {}, got {}", key, kMaxDimension, shown(value)));
}

void read(const json& object, const char* key, double& to) {
  if (!given(object, key)) return;
  if (!object.at(key).is_number())
    throw InvalidInput(fmt::format("{}: expected a number, got {}", key, shown(object.at(key))));
  to = object.at(key).get<double>();
}

void read(const json& object, const char* key, bool& to) {
  if (!given(object, key)) return;
  if (!object.at(key).is_boolean())
    throw InvalidInput(fmt::format("{}: expected true or false, got {}", key, shown(object.at(key))));
  to = object.at(key).get<bool>();
}

void read(const json& object, const char* key, std::string& to) {
  if (!given(object, key)) return;
  if (!object.at(key).is_string())
    throw InvalidInput(fmt::format("{}: expected a string, got {}", key, shown(object.at(key))));
  to = object.at(key).get<std::string>();
}

ReadRopeScaling rope_scaling_from_json(const json& object, std::int64_t max_positions) {
  if (!object.is_object())
    throw InvalidInput(fmt::format("rope_scaling: expected an object, got {}", shown(object)));
  std::string type = "default";
  read(object, "type", type);
  read(object, "rope_type", type);
  const auto found =
      std::find_if(kinds().begin(), kinds().end(), [&](const KindName& k) { return k.name == type; });
  if (found == kinds().end()) return {};
  ReadRopeScaling result;
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) refuse_scaling(key.c_str(), "angles by the type of a layer are not supported");
    const auto is_key = [name = std::string_view(key)](const char* known) { return name == known; };
    if (std::none_of(std::begin(kKeysOfAll), std::end(kKeysOfAll), is_key) &&
        std::none_of(found->keys.begin(), found->keys.end(), is_key))
      result.unknown.push_back(key);
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
  if (s.factor < 1) refuse_scaling("factor", fmt::format("must be 1 or more, got {}", s.factor));
  if (s.kind == Kind::llama3) read_llama3(object, s);
  if (s.kind == Kind::yarn) read_yarn(object, s);
  if (s.kind == Kind::longrope) read_longrope(object, s);
  return result;
}

json rope_scaling_to_json(const RopeScaling& s) {
  const auto name =
      std::find_if(kinds().begin(), kinds().end(), [&](const KindName& k) { return k.kind == s.kind; });
  json object = {{"rope_type", name->name}, {"factor", s.factor}};
  if (s.kind != Kind::linear) object["original_max_position_embeddings"] = s.original_context;
  if (s.kind == Kind::llama3) {
    object["low_freq_factor"] = s.low_freq_factor;
    object["high_freq_factor"] = s.high_freq_factor;
  }
  if (s.kind == Kind::yarn) {
    object["beta_fast"] = s.beta_fast;
    object["beta_slow"] = s.beta_slow;
    object["truncate"] = s.truncate;
    object["attention_factor"] = s.attention_factor;
  }
  if (s.kind == Kind::longrope) {
    object["short_factor"] = s.pair_factors;
    object["attention_factor"] = s.attention_factor;
  }
  return object;
}

}  // namespace precbench::config_keys
