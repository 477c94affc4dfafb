// Builds the objects of `list --json`. See list_json.h.
#include "bench/cli/list_json.h"

#include "bench/cli/local_devices.h"
#include "bench/cli/recipe_sets.h"
#include "bench/machine/verification.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"
#include "models/config/config.h"
#include "models/config/hub_names.h"
#include "models/transformer/flops.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kSeq = 8192;  // of the FLOPs, as in the table

Json support_json(const GemmSupport& support) {
  return {{"execution", name_of(support.execution)},
          {"reason", support.reason.empty() ? Json() : Json(support.reason)}};
}

Json recipe_json(const Recipe& recipe, const std::vector<LocalDevice>& devices) {
  Json json(recipe_to_json(recipe));
  json["devices"] = Json::array();
  for (const LocalDevice& local : devices) {
    Json device = {{"device", local.name}};
    device.update(support_json(gemm_support_of(recipe, *local.device)));
    for (const GemmRole role : kGemmRoles)
      device["gemms"][name_of(role)] = support_json(local.device->support(recipe.gemm(role), role));
    json["devices"].push_back(std::move(device));
  }
  return json;
}

Json model_json(const ModelConfig& model) {
  Json names = Json::array();
  for (const HubName& hub : hub_names())
    if (hub.preset == model.name && model.cuts.empty()) names.push_back(hub.repository);
  return {{"name", model.name},
          {"parameters", parameter_count(model)},
          {"active_parameters", active_parameter_count(model)},
          {"flops_per_token", flops_per_token(model, kSeq).total()},
          {"seq", kSeq},
          {"hub_names", std::move(names)},
          {"warnings", model.not_modelled},
          {"config", Json(model_to_json(model))}};
}

Json device_json(const std::string& device, const Device& opened) {
  Json json = {{"device", device}};
  Json& recipes = json["recipes"] = {
      {"native", Json::array()}, {"emulated", Json::array()}, {"unsupported", Json::array()}};
  for (const Recipe& recipe : listed_recipes())
    recipes[name_of(gemm_support_of(recipe, opened).execution)].push_back(recipe.name);
  return json;
}

}  // namespace

Json recipes_json(const std::string& name) {
  const std::vector<LocalDevice> devices = local_devices();
  Json json = {{"recipes", Json::array()}};
  if (!name.empty()) {
    json["recipes"].push_back(recipe_json(find_recipe(name), devices));
    return json;
  }
  for (const Recipe& recipe : listed_recipes()) json["recipes"].push_back(recipe_json(recipe, devices));
  for (const Recipe& recipe : control_recipes()) json["recipes"].push_back(recipe_json(recipe, devices));
  for (const RecipeSet& set : recipe_sets())
    json["sets"][set.name] = set.has ? recipes_in(set.name).value() : native_recipes(*devices.back().device);
  return json;
}

Json models_json(const std::string& name) {
  Json json = {{"models", Json::array()}};
  if (!name.empty()) {
    json["models"].push_back(model_json(find_model(name)));
    return json;
  }
  for (const ModelConfig& preset : model_presets()) json["models"].push_back(model_json(preset));
  return json;
}

Json devices_json() {
  Json json = {{"devices", Json::array({device_json("cpu", *make_cpu_device(1))})}};
  const VisibleGpus gpus = find_gpus();
  for (int ordinal = 0; ordinal < gpus.count; ++ordinal) {
    const GpuProperties properties = gpu_properties(ordinal);
    Json gpu = device_json(gpus.device, *open_gpu(ordinal));
    gpu["ordinal"] = ordinal;
    gpu["name"] = properties.name;
    gpu["description"] = properties.description;
    gpu["memory_bytes"] = properties.memory_bytes;
    json["devices"].push_back(std::move(gpu));
  }
  json["no_gpu"] = gpus.count > 0 ? Json() : Json(gpus.reason);
  return json;
}

}  // namespace precbench
