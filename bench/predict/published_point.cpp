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
#include <tuple>
#include <utility>

#include "bench/case/plan.h"
#include "bench/predict/published_models_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/number_range.h"
#include "kernels/base/parse_number.h"
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

/// Longest text of a point: regular expressions recurse over it, and errors repeat it.
constexpr std::size_t kMostLetters = 1000;

// Ranges of the numbers of a point, far beyond any published run.
constexpr NumberRange kRanks{1, 1 << 20}, kModelRanks{1, 1024}, kGroups{1, 256}, kSequences{1, 1 << 24},
    kMicroBatch{1, 1 << 20}, kTokens{1, 1 << 24};
constexpr NumberRange kParameters{1, 1e15}, kTokenRate{1e-3, 1e9}, kTflops{1e-3, 1e6}, kSeconds{1e-6, 1e7},
    kRatio{1e-3, 1e3}, kGigabytes{1e-3, 1e5};
/// Number of points of a file, each of which takes dry runs.
constexpr std::size_t kMostPoints = 4000;

/// Reads the keys of one point; refuse_unread() names those that nothing has asked for.
class PointReader {
 public:
  PointReader(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {}

  template <class T>
  void read(const char* key, T& value) {
    if (!has(key)) return;
    try {
      json_.at(key).get_to(value);
    } catch (const nlohmann::json::exception&) {
      throw InvalidInput(fmt::format("{}: {}: unexpected {}", where_, key, json_.at(key).type_name()));
    }
  }
  void read(const char* key, std::string& value) {
    read<std::string>(key, value);
    if (value.size() > kMostLetters)
      throw InvalidInput(
          fmt::format("{}: {}: {} bytes, and at most {} are read", where_, key, value.size(), kMostLetters));
  }
  void read(const char* key, const NumberRange& range, std::optional<std::int64_t>& value) {
    if (has(key)) value = integer_within(json_.at(key), range, fmt::format("{}: {}", where_, key));
  }
  void read(const char* key, const NumberRange& range, std::optional<double>& value) {
    if (has(key)) value = number_within(json_.at(key), range, fmt::format("{}: {}", where_, key));
  }
  void refuse_unread() const {
    for (const auto& [key, value] : json_.items())
      if (!read_.contains(key)) throw InvalidInput(fmt::format("{}: unknown key \"{}\"", where_, key));
  }

 private:
  /// Notes that the key is known; returns true if the point has it.
  bool has(const char* key) {
    read_.insert(key);
    return json_.contains(key) && !json_.at(key).is_null();
  }

  const nlohmann::json& json_;
  std::string where_;
  std::set<std::string> read_;
};

PublishedPoint point_from_json(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object() || !json.contains("id") || !json.at("id").is_string())
    throw InvalidInput(fmt::format("{}: a point without an id", where));
  if (json.at("id").get_ref<const std::string&>().size() > kMostLetters)
    throw InvalidInput(fmt::format("{}: an id of more than {} bytes", where, kMostLetters));
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
  for (const auto& [key, range, number] : {std::tuple("gpus", kRanks, &p.gpus),
                                           {"nodes", kRanks, &p.nodes},
                                           {"dp", kRanks, &p.dp},
                                           {"fsdp", kRanks, &p.fsdp},
                                           {"tp", kModelRanks, &p.tp},
                                           {"pp", kModelRanks, &p.pp},
                                           {"vp", kGroups, &p.vp},
                                           {"cp", kModelRanks, &p.cp},
                                           {"ep", kRanks, &p.ep},
                                           {"micro_batch", kMicroBatch, &p.micro_batch},
                                           {"global_batch", kSequences, &p.global_batch},
                                           {"seq", kTokens, &p.seq}})
    reader.read(key, range, *number);
  for (const auto& [key, range, number] : {std::tuple("params", kParameters, &p.params),
                                           {"tokens_per_s_per_gpu", kTokenRate, &p.tokens_per_s_per_gpu},
                                           {"tflops_per_gpu", kTflops, &p.tflops_per_gpu},
                                           {"step_s", kSeconds, &p.step_s},
                                           {"speedup_over_bf16", kRatio, &p.speedup_over_bf16},
                                           {"scaling_ratio", kRatio, &p.scaling_ratio},
                                           {"peak_gb", kGigabytes, &p.peak_gb}})
    reader.read(key, range, *number);
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

/// Refuses pipelines of more passes than are simulated; each number alone may be within its range.
void check_passes(const PublishedPoint& p, const std::string& where) {
  if (p.pp.value_or(1) == 1) return;
  const auto of = [](const std::optional<std::int64_t>& value) {
    return static_cast<double>(value.value_or(1));
  };
  const double micro_batches = std::ceil(of(p.global_batch) / of(p.micro_batch) / of(p.dp));
  const double passes = of(p.pp) * of(p.vp) * micro_batches;
  if (passes > static_cast<double>(kMostPipelinePasses))
    throw InvalidInput(fmt::format(
        "{}: {}: pp, vp, global_batch: {} stages of {} groups and {:.0f} micro-batches are {:.0f} passes; the "
        "limit is {}",
        where, p.id, p.pp.value_or(1), p.vp.value_or(1), micro_batches, passes, kMostPipelinePasses));
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

/// Parses "C5120 L40 H40/8 F17920 V128256"; null if the name has no such shape. Throws InvalidInput for a shape that
/// no model has.
std::optional<ModelConfig> shape_in(const std::string& name) {
  static const std::regex shape(R"(.*\bC(\d+) L(\d+) H(\d+)/(\d+) F(\d+) V(\d+)$)");
  std::smatch match;
  if (name.size() > kMostLetters || !std::regex_match(name, match, shape)) return std::nullopt;
  const auto number = [&](int i) {
    const std::string text = match[static_cast<std::size_t>(i)].str();
    const auto value = parse_number<std::int64_t>(text);
    if (!value || *value < 1)
      throw InvalidInput(fmt::format("{}: {} is no dimension of a model", name, text));
    return *value;
  };
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

/// Returns the Gb/s of a node's network that a note states ("400 Gb/s a node", "3.2 Tb/s EFA a node"). Throws
/// InvalidInput for a rate that no network has.
std::optional<double> gigabits_per_node(const std::string& notes) {
  static const std::regex form(R"(.*?([0-9.]+) ([GT])b/s( \w+)? a node.*)");
  std::smatch match;
  if (notes.size() > kMostLetters || !std::regex_match(notes, match, form)) return std::nullopt;
  constexpr NumberRange kGigabits{1e-3, 1e6};
  const double gigabits =
      parse_number<double>(match[1].str()).value_or(0) * (match[2].str() == "T" ? 1000 : 1);
  if (!kGigabits.contains(gigabits))
    throw InvalidInput(fmt::format("machine_notes: {} {}b/s is no rate of a node's network", match[1].str(),
                                   match[2].str()));
  return gigabits;
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
  if (json.at("points").size() > kMostPoints)
    throw InvalidInput(
        fmt::format("{}: {} points, and at most {} are read", where, json.at("points").size(), kMostPoints));
  std::vector<PublishedPoint> points;
  std::set<std::string> ids;
  for (const nlohmann::json& row : json.at("points")) {
    points.push_back(point_from_json(row, where));
    if (!ids.insert(points.back().id).second)
      throw InvalidInput(fmt::format("{}: {}: the id occurs twice", where, points.back().id));
    check_axes(points.back(), where);
    check_passes(points.back(), where);
    check_rate(points.back(), where);
  }
  for (const PublishedPoint& p : points) {
    check_partner(points, p, "speedup_over_id", p.speedup_over_id, where);
    check_partner(points, p, "scaling_from_id", p.scaling_from_id, where);
    if (p.scaling_ratio && p.scaling_from_id.empty())
      throw InvalidInput(fmt::format("{}: {}: scaling_ratio needs scaling_from_id", where, p.id));
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

Stack stack_of(const PublishedPoint& point) {
  if (point.framework.starts_with("megatron")) return Stack::megatron;
  const bool other =
      point.framework == "llm.q" || point.framework == "maxtext" || point.framework == "hai-llm";
  return other ? Stack::precbench : Stack::pytorch;
}

std::string source_of(const PublishedPoint& point) { return point.id.substr(0, point.id.find('-')); }

Machine published_machine(const PublishedPoint& point) {
  Machine machine = [&] {
    if (point.gpu.ends_with(".json"))  // presets alone: a file of points names no other files
      throw InvalidInput(fmt::format("no machine file of the GPU {}", point.gpu));
    try {
      return find_machine(point.gpu);
    } catch (const InvalidInput&) {
      throw InvalidInput(fmt::format("no machine file of the GPU {}", point.gpu));
    }
  }();
  if (!point.nodes || !point.gpus || *point.nodes < 2) return machine;
  auto spread = with_nodes(machine, *point.gpus, *point.nodes);
  if (!spread) return machine;
  if (const auto gigabits = gigabits_per_node(point.machine_notes))
    spread->levels.back().gb_per_s = *gigabits / 8 / static_cast<double>(spread->levels.front().gpus);
  return *spread;
}

}  // namespace precbench
