// Reads, validates and writes a model as JSON, and finds models by name or path.
#include "models/config/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/description.h"
#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "kernels/base/standard_input.h"
#include "kernels/base/untrusted_input.h"
#include "models/config/block.h"
#include "models/config/config_keys.h"
#include "models/config/hub_names.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using namespace config_keys;
using nlohmann::json;

constexpr double kMaxParameters = 1e14;  // more than this means a wrong file
constexpr std::int64_t kMaxLayers = 65536;  // a step is traced layer by layer
constexpr EnumNames<QkNormOver, 2> kQkNormOverNames{{"head", "heads"}};

struct FlagKey {
  const char* key;
  bool ModelConfig::*member;
};
constexpr FlagKey kFlags[] = {
    {"tied", &ModelConfig::tied}, {"qk_norm", &ModelConfig::qk_norm}, {"qkv_bias", &ModelConfig::qkv_bias}};

struct RealKey {
  const char* key;
  double ModelConfig::*member;
};
/// Optional lengths in tokens; 0 in the config if absent.
struct LengthKey {
  const char* key;
  std::int64_t ModelConfig::*member;
};
constexpr LengthKey kLengths[] = {{"sliding_window", &ModelConfig::sliding_window},
                                  {"max_positions", &ModelConfig::max_positions},
                                  {"learned_positions", &ModelConfig::learned_positions}};

constexpr RealKey kReals[] = {{"rope_theta", &ModelConfig::rope_theta}, {"norm_eps", &ModelConfig::norm_eps}};

void require(const ModelConfig& config, const KeyNames& names) {
  for (const DimensionKey& dimension : kDimensions)
    if (config.*dimension.member == 0)
      throw InvalidInput(fmt::format("{}: missing; a model needs it", names(dimension.key)));
}

/// Both dialects allow kv_heads and head_dim to be absent, and ffn if every block has experts.
void fill_defaults(ModelConfig& config, const KeyNames& names) {
  if (config.moe && config.moe.in_all_layers()) config.ffn = config.moe.expert_ffn;
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.head_dim == 0 && config.heads > 0 && config.width > 0) {
    if (config.width % config.heads != 0)
      throw InvalidInput(fmt::format("{}: missing, and {} {} is not a multiple of {} {}", names("head_dim"),
                                     names("width"), config.width, names("heads"), config.heads));
    config.head_dim = config.width / config.heads;
  }
}

ModelConfig from_own_keys(const json& object) {
  std::vector<std::string> known = {"name", "rope_scaling", "cuts", "qk_norm_over"};
  for (const char* key : moe_key_names()) known.emplace_back(key);
  for (const char* key : block_key_names()) known.emplace_back(key);
  for (const auto& entry : kDimensions) known.push_back(entry.key);
  for (const auto& entry : kFlags) known.push_back(entry.key);
  for (const auto& entry : kReals) known.push_back(entry.key);
  for (const auto& entry : kLengths) known.push_back(entry.key);
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest(key, known);
    throw InvalidInput(
        fmt::format("{}: unknown key{}", key, near.empty() ? "" : "; did you mean " + near + "?"));
  }
  ModelConfig config;
  read(object, "name", config.name);
  read(object, "cuts", config.cuts);
  for (const auto& entry : kDimensions) read(object, entry.key, config.*entry.member);
  for (const auto& entry : kFlags) read(object, entry.key, config.*entry.member);
  read(object, "qk_norm_over", config.qk_norm_over, kQkNormOverNames);
  for (const auto& entry : kReals) read(object, entry.key, config.*entry.member);
  for (const auto& entry : kLengths) read(object, entry.key, config.*entry.member);
  if (given(object, "rope_scaling")) {
    const ReadRopeScaling found = rope_scaling_from_json(object.at("rope_scaling"), config.max_positions);
    if (!found.scaling)
      throw InvalidInput("rope_scaling: rope_type is default, linear, llama3, yarn or longrope");
    if (!found.unknown.empty())
      throw InvalidInput(fmt::format("rope_scaling: {}: unknown key", found.unknown.front()));
    config.rope_scaling = *found.scaling;
  }
  read_moe(object, config);
  read_block(object, config);
  config.original_context_only |= config.rope_scaling.kind == RopeScaling::Kind::longrope;
  return config;
}

json parse_file(const std::string& path) {
  const std::string text = read_input(path, kDescriptionLimits.bytes, "--model");
  try {
    return parse_strictly<json>(text);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("{}: {}", name_of_input(path), error.what()));
  }
}

}  // namespace

bool ModelConfig::has_rope(std::int64_t layer) const {
  const std::vector<std::int64_t>& without = block.layers_without_rope;
  return learned_positions == 0 && !std::binary_search(without.begin(), without.end(), layer);
}

std::vector<std::int64_t> ModelConfig::layers_with_experts() const {
  std::vector<std::int64_t> with;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    if (has_experts(layer)) with.push_back(layer);
  return with;
}

std::vector<std::int64_t> ModelConfig::layer_of_each_kind() const {
  std::vector<std::int64_t> examples;
  if (!has_experts(0)) examples.push_back(0);
  const std::vector<std::int64_t> with = layers_with_experts();
  if (!with.empty()) examples.push_back(with.front());
  return examples;
}

std::int64_t ModelConfig::window(std::int64_t layer) const {
  const std::vector<std::int64_t>& local = block.local_layers;
  return local.empty() || std::binary_search(local.begin(), local.end(), layer) ? sliding_window : 0;
}

namespace {

/// Sums count(block) over the blocks; all of one kind are alike.
template <class Count>
std::int64_t over_blocks(const ModelConfig& c, Count&& count) {
  const auto experts = static_cast<std::int64_t>(c.layers_with_experts().size());
  std::int64_t sum = 0;
  for (const std::int64_t layer : c.layer_of_each_kind())
    sum += (c.has_experts(layer) ? experts : c.layers - experts) * count(block_of(c, layer));
  return sum;
}

/// Returns the weights of a linear layer that process a token.
std::int64_t active_size(const ModelConfig& c, const LinearSpec& linear) {
  return linear.experts > 1 ? linear.size() / linear.experts * c.moe.rule.top_k : linear.size();
}

std::int64_t edges(const ModelConfig& c) {
  return c.width * (1 + (c.block.norm_bias ? 1 : 0) + c.learned_positions) +
         (c.tied ? 1 : 2) * head_linear(c).size() + (c.head_bias ? c.vocab : 0);
}

}  // namespace

std::int64_t active_matrix_parameters(const ModelConfig& c) {
  return over_blocks(c, [&](const BlockSpec& block) {
    std::int64_t sum = 0;
    for (const LinearSpec& linear : block.linears)
      if (linear.role != LinearRole::router) sum += active_size(c, linear);
    return sum;
  });
}

std::int64_t active_parameter_count(const ModelConfig& c) {
  return edges(c) + over_blocks(c, [&](const BlockSpec& block) {
           std::int64_t sum = 0;
           for (const VectorSpec& vector : block.vectors)
             sum +=
                 vector.of_experts() ? vector.size() / c.moe.rule.experts * c.moe.rule.top_k : vector.size();
           for (const LinearSpec& linear : block.linears) sum += active_size(c, linear);
           return sum;
         });
}

std::int64_t parameter_count(const ModelConfig& c) {
  return edges(c) + over_blocks(c, [](const BlockSpec& block) {
           return block.linear_parameters() + block.vector_parameters();
         });
}

ModelConfig cut_to(ModelConfig config, std::int64_t layers) {
  if (layers == 0 || layers == config.layers) return config;
  if (layers > config.layers)
    throw InvalidInput(fmt::format("{} has {}, not {}", config.name, plural(config.layers, "layer"), layers));
  if (config.moe)
    if (const std::int64_t dense = config.layers_with_experts().front(); layers <= dense)
      throw InvalidInput(
          fmt::format("{} begins with {} without experts: take more", config.name, plural(dense, "layer")));
  config.name += fmt::format("-{}-layers", layers);
  config.cuts += fmt::format("{}{} of {} layers", config.cuts.empty() ? "" : "; ", layers, config.layers);
  config.layers = layers;
  const bool had_local_layers = !config.block.local_layers.empty();
  for (std::vector<std::int64_t>* some : {&config.block.layers_without_rope, &config.block.local_layers})
    std::erase_if(*some, [&](std::int64_t layer) { return layer >= layers; });
  if (had_local_layers && config.block.local_layers.empty()) config.sliding_window = 0;
  if (config.block.layers_without_rope.empty())
    config.block.temperature = config.block.temperature_positions = 0;
  if (config.block.local_layers.empty()) config.block.local_rope_theta = 0;
  return config;
}

namespace {

void validate(const ModelConfig& config, const KeyNames& names) {
  for (const auto& entry : kDimensions) {
    const std::int64_t value = config.*entry.member;
    if (value < 1 || value > kMaxDimension)
      throw InvalidInput(
          fmt::format("{}: must be from 1 to {}, got {}", names(entry.key), kMaxDimension, value));
  }
  if (config.layers > kMaxLayers)
    throw InvalidInput(
        fmt::format("{}: must be from 1 to {}, got {}", names("layers"), kMaxLayers, config.layers));
  if (config.heads % config.kv_heads != 0)
    throw InvalidInput(fmt::format("{}: {} is not a multiple of {} {}", names("heads"), config.heads,
                                   names("kv_heads"), config.kv_heads));
  if (config.qkv_bias && config.norms_all_heads())
    throw InvalidInput("qkv_bias: not supported together with a qk_norm over all heads");
  if (config.qk_norm_over != QkNormOver::head && !config.qk_norm)
    throw InvalidInput("qk_norm_over: the model has no qk_norm");
  if (config.head_dim % 2 != 0 && !config.latent)
    throw InvalidInput(fmt::format("{}: {} is odd; RoPE rotates pairs", names("head_dim"), config.head_dim));
  for (const auto& entry : kReals) {
    const double value = config.*entry.member;
    if (!std::isfinite(value) || value <= 0)
      throw InvalidInput(fmt::format("{}: must be a positive number, got {}", names(entry.key), value));
  }
  validate_moe(config, names);
  validate_block(config, names);
  // In floating point, because the integer product could overflow.
  const double width = static_cast<double>(config.width),
               experts = static_cast<double>(config.moe.rule.experts);
  const LatentAttention& latent = config.latent;
  const double heads =
      static_cast<double>(config.heads) * static_cast<double>(config.head_dim + latent.v_dim);
  const double of_latents =
      static_cast<double>(latent.q_rank + latent.kv_rank) * (1 + heads / static_cast<double>(config.width));
  const double linears = 2.0 * static_cast<double>(config.q_width() + config.kv_width()) + of_latents +
                         3.0 * static_cast<double>(config.ffn) +
                         experts * (1 + 3.0 * static_cast<double>(config.moe.expert_ffn)) +
                         3.0 * static_cast<double>(config.moe.shared_ffn);
  const double parameters =
      width * (static_cast<double>(config.layers) * linears + 2.0 * static_cast<double>(config.vocab) +
               static_cast<double>(config.learned_positions));
  if (parameters > kMaxParameters) {
    std::string keys = fmt::format("{}, {}, {}", names("layers"), names("width"), names("ffn"));
    if (config.moe) keys += ", " + names("experts");
    throw InvalidInput(fmt::format("{}: {:.1e} parameters are more than any model has", keys, parameters));
  }
}

}  // namespace

void validate(const ModelConfig& config) { validate(config, KeyNames()); }

ModelConfig model_from_json(const json& object) {
  if (!object.is_object()) throw InvalidInput(fmt::format("a model is a JSON object, got {}", shown(object)));
  const auto contains = [&](const char* key) { return object.contains(key); };
  const bool hugging_face = contains("model_type") || contains("architectures") || contains("hidden_size") ||
                            std::any_of(std::begin(kTextConfigs), std::end(kTextConfigs), contains);
  const TextConfig text = hugging_face ? text_config_of(object) : TextConfig{};
  ModelConfig config = hugging_face ? from_hugging_face(text.object) : from_own_keys(object);
  if (text.tensors != TensorFusion::none) config.block.fusion = text.tensors;
  config.block.qk_norm_after_rope |= text.qk_norm_after_rope;
  config.not_modelled.insert(config.not_modelled.end(), text.warnings.begin(), text.warnings.end());
  const KeyNames names = hugging_face ? KeyNames::of_hugging_face(text.object) : KeyNames();
  fill_defaults(config, names);
  validate_moe(config, names);  // first, because a missing ffn may be due to wrong MoE keys
  require(config, names);
  validate(config, names);
  return config;
}

json model_to_json(const ModelConfig& config) {
  json object = {{"name", config.name}};
  for (const auto& entry : kDimensions) object[entry.key] = config.*entry.member;
  for (const auto& entry : kFlags) object[entry.key] = config.*entry.member;
  if (config.norms_all_heads()) object["qk_norm_over"] = kQkNormOverNames.of(config.qk_norm_over);
  for (const auto& entry : kReals) object[entry.key] = config.*entry.member;
  for (const auto& entry : kLengths)
    if (config.*entry.member != 0) object[entry.key] = config.*entry.member;
  if (config.rope_scaling.kind != RopeScaling::Kind::none)
    object["rope_scaling"] = rope_scaling_to_json(config.rope_scaling);
  if (config.moe) object.update(moe_to_json(config.moe));
  object.update(block_to_json(config));
  if (!config.cuts.empty()) object["cuts"] = config.cuts;
  return object;
}

namespace {

/// Returns a model's name from its path. Every checkpoint calls its file config.json, so the folder names the
/// model. A Hugging Face cache stores it in models--OWNER--NAME/snapshots/COMMIT.
std::string name_of_file(const std::string& file) {
  if (file == kStandardInput) return "standard-input";
  const fs::path path = fs::absolute(file).lexically_normal();
  if (path.stem() != "config") return path.stem().string();
  const fs::path folder = path.parent_path(), snapshots = folder.parent_path();
  const std::string repository = snapshots.parent_path().filename().string();
  if (snapshots.filename() == "snapshots" && repository.starts_with("models--"))
    return repository.substr(repository.rfind("--") + 2);
  return folder.filename().string();
}

/// Returns the path of the folder's config.json, or of each snapshot's if it is a repository in a Hugging Face cache.
std::vector<std::string> configs_in(const fs::path& folder) {
  std::error_code error;
  if (const fs::path config = folder / "config.json"; fs::exists(config, error)) return {config.string()};
  std::vector<std::string> found;
  for (const fs::directory_entry& snapshot : fs::directory_iterator(folder / "snapshots", error))
    if (const fs::path config = snapshot.path() / "config.json"; fs::exists(config, error))
      found.push_back(config.string());
  std::sort(found.begin(), found.end());
  return found;
}

ModelConfig model_of_file(const std::string& path) {
  const json object = parse_file(path);
  try {
    ModelConfig config = model_from_json(object);
    if (config.name.empty()) config.name = name_of_file(path);
    return config;
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("{}: {}", name_of_input(path), error.what()));
  }
}

ModelConfig model_of_folder(const std::string& folder) {
  const std::vector<std::string> configs = configs_in(folder);
  if (configs.size() == 1) return model_of_file(configs.front());
  throw InvalidInput(
      configs.empty()
          ? fmt::format("{}: a folder without a config.json; a model is a preset or a .json file", folder)
          : fmt::format("{}: has several snapshots; give one of {}", folder, fmt::join(configs, ", ")));
}

[[noreturn]] void refuse_unknown(const std::string& name_or_path) {
  std::error_code error;
  if (fs::is_regular_file(name_or_path, error)) {
    const std::vector<std::string> configs = configs_in(fs::path(name_or_path).parent_path());
    throw InvalidInput(
        fmt::format("{}: the name of a model's file ends in .json{}", name_or_path,
                    configs.empty() ? "" : fmt::format("; did you mean {}?", configs.front())));
  }
  throw InvalidInput(unknown_model(name_or_path));
}

}  // namespace

ModelConfig find_model(const std::string& name_or_path) {
  if (name_or_path.ends_with(".json") || name_or_path == kStandardInput) return model_of_file(name_or_path);
  // A bare word is a preset even if a folder has this name. A hub name is a folder if there is one, as in transformers.
  std::error_code error;
  const bool folder = fs::is_directory(name_or_path, error),
             word = name_or_path.find('/') == std::string::npos;
  if (folder && !word) return model_of_folder(name_or_path);
  const std::string name = preset_name(name_or_path);
  for (const ModelConfig& preset : model_presets())
    if (preset.name == name) return preset;
  if (folder) return model_of_folder(name_or_path);
  refuse_unknown(name_or_path);
}

}  // namespace precbench
