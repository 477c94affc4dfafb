// Reads, validates and writes a model as JSON, and finds models by name or path.
#include "models/config/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/description.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "kernels/base/standard_input.h"
#include "kernels/base/untrusted_input.h"
#include "models/config/block.h"
#include "models/config/config_keys.h"
#include "models/config/hub_names.h"
#include "models/config/model_keys.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using namespace config_keys;
using nlohmann::json;

/// Both dialects allow kv_heads and head_dim to be absent, and ffn if every block has experts.
void fill_defaults(ModelConfig& config, const KeyNames& names) {
  if (config.moe && config.moe.in_all_layers()) config.ffn = config.moe.expert_ffn;
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.head_dim == 0 && config.heads > 0 && config.width > 0) {
    if (config.width % config.heads != 0)
      refuse("{}: missing, and {} {} is not a multiple of {} {}", names("head_dim"), names("width"),
             config.width, names("heads"), config.heads);
    config.head_dim = config.width / config.heads;
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
    refuse("{} has {}, not {}", config.name, plural(config.layers, "layer"), layers);
  if (config.moe)
    if (const std::int64_t dense = config.layers_with_experts().front(); layers <= dense)
      refuse("{} begins with {} without experts: take more", config.name, plural(dense, "layer"));
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

ModelConfig model_from_json(const json& object) {
  if (!object.is_object()) refuse("a model is a JSON object, got {}", shown(object));
  const auto contains = [&](const char* key) { return object.contains(key); };
  const bool hugging_face = contains("model_type") || contains("architectures") || contains("hidden_size") ||
                            std::any_of(std::begin(kTextConfigs), std::end(kTextConfigs), contains);
  const TextConfig text = hugging_face ? text_config_of(object) : TextConfig{};
  ModelConfig config = hugging_face ? from_hugging_face(text.object) : from_own_keys(object);
  read_own_keys(text.model, config);
  config.not_modelled.insert(config.not_modelled.end(), text.warnings.begin(), text.warnings.end());
  const KeyNames names = hugging_face ? hugging_face_names(text.object) : KeyNames();
  fill_defaults(config, names);
  validate_moe(config, names);  // first, because a missing ffn may be due to wrong MoE keys
  require_dimensions(config, names);
  validate(config, names);
  return config;
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
  const std::string text = read_input(path, kDescriptionLimits.bytes, "--model");
  try {
    ModelConfig config = model_from_json(parse_strictly<json>(text));
    if (config.name.empty()) config.name = name_of_file(path);
    return config;
  } catch (const InvalidInput& error) {
    refuse("{}: {}", name_of_input(path), error.what());
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
    refuse("{}: the name of a model's file ends in .json{}", name_or_path,
           configs.empty() ? "" : fmt::format("; did you mean {}?", configs.front()));
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
