// Keys of a Hugging Face config.json that are not read: those that ask for another model, in one error, and those that are left
// out, as warnings. See hugging_face.h.
#include <algorithm>
#include <cmath>

#include "models/config/hugging_face.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

/// A key that asks for another model. `what`: the unsupported feature, singular; `remedy`: the value that disables it.
struct Refusal {
  std::string key, what, remedy;
};
using Refusals = std::vector<Refusal>;

/// Throws InvalidInput that names all keys, if there are any.
void throw_if_any(const Refusals& all) {
  if (all.empty()) return;
  std::vector<std::string> what, remedies;
  for (const Refusal& refusal : all) {
    what.push_back(fmt::format("{}: {}", refusal.key, refusal.what));
    remedies.push_back(fmt::format("{} to {}", refusal.key, refusal.remedy));
  }
  const bool one = all.size() == 1;
  refuse("{}{} supported; set {} to measure the model without", fmt::join(what, "; "),
         one ? " is not" : ": none of these is",
         one ? "it to " + all[0].remedy : fmt::format("{}", fmt::join(remedies, ", ")));
}

double head_width(const ModelConfig& c) {
  return static_cast<double>(c.head_dim > 0 ? c.head_dim : c.width / std::max<std::int64_t>(c.heads, 1));
}

/// Returns the value, named in a row, with which a key does not ask for another model.
double neutral_value(const std::string& name, const ModelConfig& c) {
  if (name == "width") return static_cast<double>(c.width);
  if (name == "sqrt(layers)") return std::sqrt(static_cast<double>(c.layers));
  return name == "head" ? head_width(c) : 1 / std::sqrt(head_width(c));
}

const json& shared(const char* table) { return family_file().at("every_family").at(table); }

/// Refuses keys of the model_type that are neither null nor have an allowed value. An absent key means the default.
void refuse_own_keys(const json& object, const Family& family, Refusals& refused) {
  for (const json& rule : rule_of(family.row, "refuse")) {
    const std::string key = rule.at(0), what = rule.at(2);
    const json& allowed = rule.at(1);
    if (given(object, key.c_str()) &&
        std::find(allowed.begin(), allowed.end(), object.at(key)) == allowed.end())
      refused.push_back({key, what, allowed.front().dump()});
  }
  // Attention of Qwen's layers is full or in a window.
  if (family.row.value("only_windows", false))
    if (const json types = object.value("layer_types", json()); types.is_array())
      for (const json& type : types)
        if (type != kFullAttention && type != kSlidingAttention)
          return void(refused.push_back({"layer_types", shown(type), "null"}));
}

/// Refuses keys that the model_type does not read and that ask for another model.
void refuse_foreign_keys(const json& object, const ModelConfig& config, const Family& family,
                         Refusals& refused) {
  std::string activation = "silu";
  read(object, "hidden_act", activation);
  if (activation != "silu" && !family.reads("hidden_activation") && !family.reads("hidden_act"))
    refused.push_back({"hidden_act", shown(activation), "\"silu\""});
  for (const json& rule : shared("refuse_unless_read")) {
    const std::string key = rule.at(0), what = rule.at(2);
    const json& neutral = rule.at(1);
    if (!given(object, key.c_str()) || object.at(key) == neutral || family.reads(key) ||
        (asks_nothing(neutral) && asks_nothing(object.at(key))))
      continue;
    refused.push_back({key, what, neutral.dump()});
  }
  for (const json& rule : shared("refuse_unless_read_or_neutral")) {
    const std::string key = rule.at(0), what = rule.at(2);
    if (!given(object, key.c_str()) || family.reads(key)) continue;
    const double neutral = neutral_value(rule.at(1), config);
    if (!object.at(key).is_number() || std::abs(object.at(key).get<double>() - neutral) > 1e-6 * neutral)
      refused.push_back({key, what, "null"});
  }
}

void refuse_rope(const json& object, const RopeKeys& rope, const Family& family, std::int64_t max_positions,
                 Refusals& refused) {
  const double share = rope.share(object, 1);
  if (share != 1 && !family.row.contains("rotary"))
    refused.push_back({"partial_rotary_factor", fmt::format("{}", share), "1"});
  if (!rope.key || rope.dynamic()) return;
  const char* type = rope.type_key();
  if (!rope_scaling_from_json(rope.values, max_positions).scaling)
    refused.push_back({type, fmt::format("RoPE of type {}", shown(rope.values.at(type))), "\"default\""});
}

/// Returns true for keys that ask for another model in a file of any model_type that does not read them.
bool asks_for_another_model(const std::string& key) {
  const auto has_key = [&](const json& rule) { return rule.at(0) == key; };
  const json &rules = shared("refuse_unless_read"), &by_shape = shared("refuse_unless_read_or_neutral");
  return std::any_of(rules.begin(), rules.end(), has_key) ||
         std::any_of(by_shape.begin(), by_shape.end(), has_key);
}

/// Returns the first words and the number of the remaining ones.
std::string listed(std::vector<std::string> words, std::size_t shown_words) {
  const std::size_t all = words.size();
  words.resize(std::min(all, shown_words));
  return fmt::format("{}{}", fmt::join(words, ", "),
                     all > shown_words ? fmt::format(" and {} more", all - shown_words) : "");
}

/// Adds keys that are not read: those of other model_types, unknown ones and those replaced by an option.
void note_unread_keys(const json& object, const Family& family, ModelConfig& config) {
  std::vector<std::string> of_others, unknown;
  for (const auto& [key, value] : object.items()) {
    if (asks_nothing(value)) continue;
    const auto reader =
        std::find_if(families().begin(), families().end(),
                     [name = std::string_view(key)](const Family& f) { return f.reads(name); });
    const bool own = family.reads(key), known = reader != families().end();
    if (const json note = shared("notes").value(key, json()); note.is_string() && (own || !known)) {
      const std::string what = note;
      config.not_modelled.push_back(value.is_structured() ? fmt::format("{} {}", key, what)
                                                          : fmt::format("{} {} {}", key, shown(value), what));
      continue;
    }
    if (own || every_family_reads(key) || asks_for_another_model(key)) continue;
    // Disabled windows and lists of full-attention layers have no effect.
    if ((key == "sliding_window" || key == "max_window_layers") &&
        object.value("use_sliding_window", json()) == false)
      continue;
    if (key == "layer_types" && value.is_array() &&
        std::all_of(value.begin(), value.end(), [](const json& type) { return type == kFullAttention; }))
      continue;
    known ? of_others.push_back(fmt::format("{} (of {})", key, reader->model_type)) : unknown.push_back(key);
  }
  constexpr std::size_t kShown = 8;
  if (!of_others.empty())
    config.not_modelled.push_back(fmt::format("keys that a {} does not read were left out: {}",
                                              family.model_type, listed(of_others, kShown)));
  if (!unknown.empty())
    config.not_modelled.push_back(
        fmt::format("keys that are not known here were left out: {}", listed(unknown, kShown)));
}

}  // namespace

bool asks_nothing(const json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         (value.is_structured() && value.empty());
}

void check_aliases(const json& object, const Family& family) {
  for (const auto& [key, other] : family.aliases)
    if (given(object, key.c_str()) && given(object, other.c_str()) && object.at(key) != object.at(other))
      refuse("{} {} and {} {}: a {} has both names for one number; leave one out", key, shown(object.at(key)),
             other, shown(object.at(other)), family.model_type);
}

void refuse_other_models(const json& object, const Family& family, const RopeKeys& rope,
                         const ModelConfig& config) {
  Refusals refused;
  refuse_own_keys(object, family, refused);
  refuse_foreign_keys(object, config, family, refused);
  refuse_rope(object, rope, family, config.max_positions, refused);
  throw_if_any(refused);
}

void note_what_is_left_out(const json& object, const Family& family, ModelConfig& config) {
  for (const char* key : {"attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout",
                          "embedding_dropout", "residual_dropout"}) {
    double dropout = 0;
    if (every_family_reads(key) || family.reads(key)) read(object, key, dropout);
    if (dropout != 0) config.not_modelled.push_back(fmt::format("{} {} is left out", key, dropout));
  }
  double deviation = kInitializerRange;
  read(object, "initializer_range", deviation);
  if (deviation != kInitializerRange)
    config.not_modelled.push_back(
        fmt::format("initializer_range {}: fresh weights are made with {}", deviation, kInitializerRange));
  note_unread_keys(object, family, config);
}

/// Names what is missing, or else the supported model_type that reads most of the file's keys, and the keys that it does not
/// read.
std::string unsupported_type(const json& object, const std::string& model_type) {
  const std::string what = fmt::format("model_type: \"{}\" is not supported", model_type);
  if (const json* known = missing_family_of_type(model_type)) {
    const std::string near = known->value("nearest", "");
    return fmt::format("{}: it needs {}{}", what, known->at("needs").get<std::string>(),
                       near.empty() ? "" : fmt::format("; the nearest that is supported is \"{}\"", near));
  }
  const Family* nearest_family = &families().front();
  std::ptrdiff_t most = 0;
  for (const Family& family : families()) {
    std::ptrdiff_t read = 0;
    for (const auto& [key, value] : object.items())  // keys of every model_type say nothing
      read += family.reads(key) && !every_family_reads(key);
    if (read > most) most = read, nearest_family = &family;
  }
  std::vector<std::string> others;
  for (const auto& [key, value] : object.items())
    if (!every_family_reads(key) && !nearest_family->reads(key) && !asks_nothing(value))
      others.push_back(key);
  constexpr std::size_t kShown = 6;
  return fmt::format("{}; the nearest by its keys is \"{}\"{}", what, nearest_family->model_type,
                     others.empty() ? "" : ", which does not read " + listed(others, kShown));
}

}  // namespace precbench::config_keys
