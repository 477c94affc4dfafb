// Reads published points. See published_point.h.
#include "bench/predict/published_point.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <utility>

#include "bench/predict/published_models_text.h"
#include "kernels/base/errors.h"
#include "models/transformer/flops.h"

namespace precbench {
namespace {

constexpr const char* kJudgedNames[] = {"absolute_native", "absolute_stack", "speedup", "scaling", "shown"};

JudgedAs judged_as_named(const std::string& name, const std::string& where) {
  const auto found = std::find(std::begin(kJudgedNames), std::end(kJudgedNames), name);
  if (found == std::end(kJudgedNames))
    throw InvalidInput(fmt::format("{}: judged_as: unknown \"{}\"", where, name));
  return static_cast<JudgedAs>(found - std::begin(kJudgedNames));
}

/// Reads the keys of one point; unread() names those that nothing has asked for.
class PointReader {
 public:
  PointReader(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {}

  template <class T>
  void read(const char* key, T& value) {
    read_.insert(key);
    if (!json_.contains(key) || json_.at(key).is_null()) return;
    try {
      json_.at(key).get_to(value);
    } catch (const nlohmann::json::exception&) {
      throw InvalidInput(fmt::format("{}: {}: unexpected {}", where_, key, json_.at(key).dump()));
    }
  }
  template <class T>
  void read(const char* key, std::optional<T>& value) {
    T present{};
    read(key, present);
    if (!json_.contains(key) || json_.at(key).is_null()) return;
    if (!json_.at(key).is_number() || present <= T{} ||
        static_cast<double>(present) != json_.at(key).get<double>())
      throw InvalidInput(fmt::format("{}: {}: unexpected {}", where_, key, json_.at(key).dump()));
    value = present;
  }
  void refuse_unread() const {
    for (const auto& [key, value] : json_.items())
      if (!read_.contains(key)) throw InvalidInput(fmt::format("{}: unknown key \"{}\"", where_, key));
  }

 private:
  const nlohmann::json& json_;
  std::string where_;
  std::set<std::string> read_;
};

PublishedPoint point_from_json(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object() || !json.contains("id") || !json.at("id").is_string())
    throw InvalidInput(fmt::format("{}: a point without an id", where));
  PublishedPoint p;
  const std::string here = fmt::format("{}: {}", where, json.at("id").get<std::string>());
  PointReader reader(json, here);
  for (const auto& [key, text] : {std::pair("id", &p.id),
                                  {"source", &p.source},
                                  {"where", &p.where},
                                  {"date", &p.date},
                                  {"framework", &p.framework},
                                  {"model", &p.model},
                                  {"gpu", &p.gpu},
                                  {"precision", &p.precision},
                                  {"recompute", &p.recompute},
                                  {"flop_convention", &p.flop_convention},
                                  {"confidence", &p.confidence},
                                  {"caveat", &p.caveat},
                                  {"machine_notes", &p.machine_notes},
                                  {"speedup_over_id", &p.speedup_over_id},
                                  {"scaling_from_id", &p.scaling_from_id}})
    reader.read(key, *text);
  for (const auto& [key, number] : {std::pair("gpus", &p.gpus),
                                    {"nodes", &p.nodes},
                                    {"dp", &p.dp},
                                    {"fsdp", &p.fsdp},
                                    {"tp", &p.tp},
                                    {"pp", &p.pp},
                                    {"vp", &p.vp},
                                    {"cp", &p.cp},
                                    {"ep", &p.ep},
                                    {"micro_batch", &p.micro_batch},
                                    {"global_batch", &p.global_batch},
                                    {"seq", &p.seq}})
    reader.read(key, *number);
  for (const auto& [key, number] : {std::pair("params", &p.params),
                                    {"tokens_per_s_per_gpu", &p.tokens_per_s_per_gpu},
                                    {"tflops_per_gpu", &p.tflops_per_gpu},
                                    {"step_s", &p.step_s},
                                    {"speedup_over_bf16", &p.speedup_over_bf16},
                                    {"peak_gb", &p.peak_gb}})
    reader.read(key, *number);
  reader.read("hsdp", p.hsdp);
  std::vector<std::string> judged;
  reader.read("judged_as", judged);
  for (const std::string& name : judged) p.judged_as.push_back(judged_as_named(name, here));
  reader.refuse_unread();
  return p;
}

void check_axes(const PublishedPoint& p, const std::string& where) {
  if (!p.dp || !p.gpus) return;
  const std::int64_t ranks = *p.dp * p.tp.value_or(1) * p.pp.value_or(1) * p.cp.value_or(1);
  if (ranks != *p.gpus)
    throw InvalidInput(
        fmt::format("{}: {}: its axes make {} ranks, not {} GPUs", where, p.id, ranks, *p.gpus));
}

/// Checks tokens/s of a dense Llama whose FLOPs count causal attention once.
void check_rate(const PublishedPoint& p, const std::string& where) {
  const bool causal = p.flop_convention.find("causal attention halved") != std::string::npos;
  if (!causal || !p.model.starts_with("llama3") || !p.tokens_per_s_per_gpu || !p.tflops_per_gpu || !p.seq)
    return;
  const auto flops = static_cast<double>(flops_per_token(published_model(p.model), *p.seq).total());
  const double ratio = *p.tokens_per_s_per_gpu * flops / (*p.tflops_per_gpu * 1e12);
  if (std::abs(ratio - 1) > kRateTolerance)
    throw InvalidInput(fmt::format("{}: {}: {:.0f} tokens/s per GPU are {:.0f} TFLOP/s, not {:.0f}", where,
                                   p.id, *p.tokens_per_s_per_gpu, *p.tokens_per_s_per_gpu * flops / 1e12,
                                   *p.tflops_per_gpu));
}

void check_partner(const std::vector<PublishedPoint>& points, const PublishedPoint& p, const char* key,
                   const std::string& partner, const std::string& where) {
  if (!partner.empty() && !find_point(points, partner))
    throw InvalidInput(fmt::format("{}: {}: {}: no point \"{}\"", where, p.id, key, partner));
}

const std::map<std::string, ModelConfig>& published_models() {
  static const std::map<std::string, ModelConfig> models = [] {
    std::map<std::string, ModelConfig> found;
    const nlohmann::json file = nlohmann::json::parse(kPublishedModels);
    for (const auto& [name, json] : file.at("models").items()) {
      ModelConfig config = model_from_json(json);
      config.name = name;
      found[name] = std::move(config);
    }
    return found;
  }();
  return models;
}

/// Parses "C5120 L40 H40/8 F17920 V128256"; null if the name has no such shape.
std::optional<ModelConfig> shape_in(const std::string& name) {
  static const std::regex shape(R"(.*\bC(\d+) L(\d+) H(\d+)/(\d+) F(\d+) V(\d+)$)");
  std::smatch match;
  if (!std::regex_match(name, match, shape)) return std::nullopt;
  const auto number = [&](int i) { return std::stoll(match[static_cast<std::size_t>(i)].str()); };
  ModelConfig config;
  config.name = name;
  config.width = number(1);
  config.layers = number(2);
  config.heads = number(3);
  config.kv_heads = number(4);
  config.head_dim = config.width / config.heads;
  config.ffn = number(5);
  config.vocab = number(6);
  validate(config);
  return config;
}

/// Returns the Gb/s of a node's network that a note states ("400 Gb/s a node", "3.2 Tb/s EFA a node").
std::optional<double> gigabits_per_node(const std::string& notes) {
  static const std::regex form(R"(.*?([0-9.]+) ([GT])b/s( \w+)? a node.*)");
  std::smatch match;
  if (!std::regex_match(notes, match, form)) return std::nullopt;
  return std::stod(match[1].str()) * (match[2].str() == "T" ? 1000 : 1);
}

}  // namespace

const char* name_of(JudgedAs judged) { return kJudgedNames[static_cast<int>(judged)]; }

bool PublishedPoint::is_judged(JudgedAs as) const {
  return std::find(judged_as.begin(), judged_as.end(), as) != judged_as.end();
}

const PublishedPoint* find_point(const std::vector<PublishedPoint>& points, const std::string& id) {
  const auto found = std::find_if(points.begin(), points.end(), [&](const auto& p) { return p.id == id; });
  return found == points.end() ? nullptr : &*found;
}

std::vector<PublishedPoint> points_from_json(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object() || !json.contains("points") || !json.at("points").is_array())
    throw InvalidInput(fmt::format("{}: no list \"points\"", where));
  std::vector<PublishedPoint> points;
  std::set<std::string> ids;
  for (const nlohmann::json& row : json.at("points")) {
    points.push_back(point_from_json(row, where));
    if (!ids.insert(points.back().id).second)
      throw InvalidInput(fmt::format("{}: {}: the id occurs twice", where, points.back().id));
    check_axes(points.back(), where);
    check_rate(points.back(), where);
  }
  for (const PublishedPoint& p : points) {
    check_partner(points, p, "speedup_over_id", p.speedup_over_id, where);
    check_partner(points, p, "scaling_from_id", p.scaling_from_id, where);
  }
  return points;
}

std::vector<PublishedPoint> read_points(const std::string& path) {
  constexpr const char* kFlag = "--published";
  return points_from_json(read_description(path, kFlag), fmt::format("{}: {}", kFlag, path));
}

ModelConfig published_model(const std::string& name) {
  if (const auto known = published_models().find(name); known != published_models().end())
    return known->second;
  if (const auto shape = shape_in(name)) return *shape;
  if (name.ends_with(".json") || name == "-")
    throw InvalidInput(fmt::format("no published model \"{}\"", name));
  try {
    return find_model(name);
  } catch (const InvalidInput& error) {  // without the list of known models
    throw InvalidInput(std::string(error.what(), std::strcspn(error.what(), ";")));
  }
}

Machine published_machine(const PublishedPoint& point) {
  Machine machine = [&] {
    try {
      return find_machine(point.gpu);
    } catch (const InvalidInput&) {
      throw InvalidInput(fmt::format("no machine file of the GPU {}", point.gpu));
    }
  }();
  if (!point.nodes || !point.gpus || *point.nodes < 2 || machine.levels.size() < 2) return machine;
  // GPUs of one node are an NVLink domain, unless the domain is a rack.
  const std::int64_t per_node = *point.gpus / *point.nodes;
  NetworkLevel& domain = machine.levels.front();
  constexpr std::int64_t kMostOfNode = 8;
  if (domain.gpus <= kMostOfNode && per_node > 0 && per_node < domain.gpus) domain.gpus = per_node;
  if (const auto gigabits = gigabits_per_node(point.machine_notes))
    machine.levels.back().gb_per_s = *gigabits / 8 / static_cast<double>(domain.gpus);
  return machine;
}

}  // namespace precbench
