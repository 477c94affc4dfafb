// Reads machine files. See machine.h.
#include "bench/machine/machine.h"
#include "bench/machine/machine_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "bench/machine/machine_files_text.h"
#include "kernels/base/description.h"
#include "kernels/base/errors.h"
#include "kernels/base/number_range.h"
#include "kernels/base/parse_number.h"
#include "kernels/base/untrusted_input.h"

namespace precbench {
namespace {

// Ranges of the numbers of a machine, a thousand times beyond any of today's on either side.
constexpr NumberRange kTflops{1e-3, 1e6}, kMemoryRate{1e-2, 1e7}, kMemory{1e-2, 1e6}, kLinkRate{1e-3, 1e6},
    kLatency{1e-3, 1e6}, kFraction{1e-4, 1}, kGpus{1, 1 << 20};
constexpr std::size_t kMostLevels = 8;

/// An object of a machine file, its place in the file for messages, and the keys that it may have.
class Keys {
 public:
  Keys(const nlohmann::json& json, std::string where, std::initializer_list<const char*> known)
      : json_(json), where_(std::move(where)) {
    if (!json.is_object()) throw InvalidInput(fmt::format("{}: not an object", where_));
    for (const auto& item : json.items())
      if (std::none_of(known.begin(), known.end(), [&](const char* name) { return item.key() == name; }))
        throw InvalidInput(
            fmt::format("{}: unknown key \"{}\"; known: {}", where_, item.key(), fmt::join(known, ", ")));
  }

  bool has(const char* key) const { return json_.contains(key); }
  const nlohmann::json& at(const char* key) const { return json_.at(key); }
  std::string place(const char* key) const { return fmt::format("{}: {}", where_, key); }

  /// Returns a number; null if the key is absent.
  std::optional<double> number(const char* key, const NumberRange& range) const {
    if (!has(key)) return std::nullopt;
    return number_within(at(key), range, place(key));
  }
  double required(const char* key, const NumberRange& range) const {
    if (const auto value = number(key, range)) return *value;
    throw InvalidInput(missing(key));
  }
  /// Returns the message that a key is missing.
  std::string missing(const char* key, const char* reason = "") const {
    return fmt::format("{}: \"{}\" is missing{}", where_, key, reason);
  }
  std::string text(const char* key) const {
    if (!has(key)) return {};
    if (!at(key).is_string())
      throw InvalidInput(fmt::format("{}: {} is not a string", place(key), at(key).dump()));
    return at(key).get<std::string>();
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> values;
    if (!has(key)) return values;
    for (const nlohmann::json& value : array(key)) {
      if (!value.is_string())
        throw InvalidInput(fmt::format("{}: {} is not a string", place(key), value.dump()));
      values.push_back(value.get<std::string>());
    }
    return values;
  }
  const nlohmann::json& array(const char* key) const {
    if (!at(key).is_array()) throw InvalidInput(fmt::format("{}: not a list", place(key)));
    return at(key);
  }

 private:
  const nlohmann::json& json_;
  std::string where_;
};

int parse_capability(const Keys& keys) {
  const std::string text = keys.text("compute_capability");
  if (text.empty()) return 0;
  const auto value = parse_number<double>(text);
  if (!value || !(*value >= 1 && *value <= 99))  // "nan" is a number, too
    throw InvalidInput(
        fmt::format("{}: \"{}\" is not of the form \"9.0\"", keys.place("compute_capability"), text));
  return static_cast<int>(std::lround(*value * 10));
}

NativeFormats parse_native(const Keys& keys, int capability) {
  if (!keys.has("native")) {
    const NativeFormats formats = native_formats(capability);
    if (formats.none())
      throw InvalidInput(keys.missing(
          "native", capability == 0 ? ", and there is no \"compute_capability\""
                                    : ", and this compute_capability is unknown: its formats must be named"));
    return formats;
  }
  NativeFormats formats;
  for (const std::string& name : keys.texts("native")) {
    std::vector<std::string> known;
    for (int i = 0; i < kNativeFormats; ++i) known.emplace_back(name_of(static_cast<NativeFormat>(i)));
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end())
      throw InvalidInput(fmt::format("{}: unknown format \"{}\"; known: {}", keys.place("native"), name,
                                     fmt::join(known, ", ")));
    formats.set(static_cast<std::size_t>(found - known.begin()));
  }
  return formats;
}

/// Parses a fraction, or an object of fractions by number of ranks.
AchievedByRanks parse_by_ranks(const nlohmann::json& json, const std::string& where) {
  if (json.is_number()) return {{1, number_within(json, kFraction, where)}};
  AchievedByRanks achieved;
  if (json.is_object())
    for (const auto& [key, value] : json.items()) {
      const auto ranks = parse_number<int>(key);
      if (!ranks || !kGpus.contains(*ranks))
        throw InvalidInput(
            fmt::format("{}: \"{}\" is no number of ranks from 1 to {:.0f}", where, key, kGpus.high));
      achieved[*ranks] = number_within(value, kFraction, fmt::format("{}: {}", where, key));
    }
  if (achieved.empty())
    throw InvalidInput(fmt::format("{}: neither a fraction nor fractions by number of ranks", where));
  return achieved;
}

std::map<std::string, AchievedByRanks> parse_achieved(const Keys& keys) {
  if (!keys.has("achieved")) return {{"", {{1, 1.0}}}};
  const nlohmann::json& json = keys.at("achieved");
  const bool by_ranks =
      json.is_object() && !json.empty() && parse_number<int>(json.begin().key()).has_value();
  if (!json.is_object() || by_ranks) return {{"", parse_by_ranks(json, keys.place("achieved"))}};
  const Keys collectives(json, keys.place("achieved"),
                         {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv", "other"});
  std::map<std::string, AchievedByRanks> achieved;
  for (const auto& [key, value] : json.items())
    achieved[key == "other" ? "" : key] = parse_by_ranks(value, collectives.place(key.c_str()));
  if (!achieved.contains("")) throw InvalidInput(collectives.missing("other"));
  return achieved;
}

NetworkLevel parse_level(const nlohmann::json& json, const std::string& where) {
  const Keys keys(json, where, {"name", "gpus", "gb_per_s", "achieved", "alpha_us", "source"});
  NetworkLevel level;
  level.name = keys.text("name");
  if (level.name.empty()) throw InvalidInput(keys.missing("name"));
  if (!keys.has("gpus")) throw InvalidInput(keys.missing("gpus"));
  const nlohmann::json& gpus = keys.at("gpus");
  if (gpus.is_string() && gpus != "all")
    throw InvalidInput(
        fmt::format("{}: a text, and neither a number of GPUs nor \"all\"", keys.place("gpus")));
  if (!gpus.is_string()) level.gpus = integer_within(gpus, kGpus, keys.place("gpus"));
  level.gb_per_s = keys.required("gb_per_s", kLinkRate);
  level.alpha_us = keys.required("alpha_us", kLatency);
  level.achieved = parse_achieved(keys);
  level.source = keys.text("source");
  return level;
}

std::vector<NetworkLevel> parse_levels(const Keys& keys) {
  std::vector<NetworkLevel> levels;
  if (!keys.has("levels")) return levels;
  if (keys.array("levels").size() > kMostLevels)
    throw InvalidInput(fmt::format("{}: {} levels, and at most {} are read", keys.place("levels"),
                                   keys.array("levels").size(), kMostLevels));
  for (const nlohmann::json& json : keys.array("levels")) {
    const std::string where = fmt::format("{}[{}]", keys.place("levels"), levels.size());
    NetworkLevel level = parse_level(json, where);
    if (!levels.empty()) {
      const std::int64_t inner = levels.back().gpus;
      if (inner == 0 || (level.gpus != 0 && (level.gpus <= inner || level.gpus % inner != 0)))
        throw InvalidInput(fmt::format("{}: \"gpus\" is no multiple of the inner level's {}", where,
                                       inner == 0 ? "\"all\"" : std::to_string(inner)));
    }
    levels.push_back(std::move(level));
  }
  return levels;
}

ClassRates parse_sustained(const Keys& keys) {
  if (!keys.has("sustained")) return {};
  const Keys rates(keys.at("sustained"), keys.place("sustained"), {"bf16", "fp8", "fp4", "source"});
  return {rates.number("bf16", kTflops), rates.number("fp8", kTflops), rates.number("fp4", kTflops)};
}

std::string parse_rates_from(const Keys& keys) {
  if (!keys.has("rates")) return {};
  const Keys rates(keys.at("rates"), keys.place("rates"), {"from", "source"});
  std::string from = rates.text("from");
  if (from.empty()) throw InvalidInput(rates.missing("from"));
  return from;
}

/// Refuses a machine that multiplies a format natively at an unknown rate.
void check_peaks(const Machine& machine, const std::string& where) {
  const NativeFormats fp4 = NativeFormats().set(static_cast<std::size_t>(NativeFormat::fp4));
  const NativeFormats bf16 = NativeFormats().set(static_cast<std::size_t>(NativeFormat::bf16));
  if ((machine.native & fp4).any() && !machine.fp4_tflops)
    throw InvalidInput(fmt::format("{}: \"fp4_tflops\" is missing, and fp4 is native", where));
  if ((machine.native & ~(fp4 | bf16)).any() && !machine.fp8_tflops)
    throw InvalidInput(fmt::format("{}: \"fp8_tflops\" is missing, and FP8 is native", where));
}

/// Returns the words of a name in lower case: letters and digits between anything else.
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) == 0) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    words.back() += static_cast<char>(std::tolower(u));
    inside = true;
  }
  return words;
}

bool is_called(const Machine& machine, const std::string& name) {
  return machine.name == name ||
         std::find(machine.also.begin(), machine.also.end(), name) != machine.also.end();
}

Machine machine_of_file(const std::string& path, const std::string& flag) {
  const std::size_t slash = path.rfind('/') + 1;  // 0 if there is none
  return machine_from_json(read_description(path, flag),
                           path.substr(slash, path.size() - slash - std::string_view(".json").size()),
                           fmt::format("{}: {}", flag, path));
}

}  // namespace

std::int64_t usable_bytes(const Machine& machine) {
  return static_cast<std::int64_t>(machine.memory_gb * kUsableMemory * (std::int64_t{1} << 30));
}

Machine machine_from_json(const nlohmann::json& json, const std::string& name, const std::string& where) {
  const Keys keys(json, where,
                  {"driver_name", "also", "compute_capability", "native", "bf16_tflops", "fp8_tflops",
                   "fp4_tflops", "memory_gb_per_s", "memory_gb", "sustained", "levels", "rates", "source"});
  Machine machine;
  machine.name = name;
  machine.driver_name = keys.text("driver_name");
  machine.also = keys.texts("also");
  machine.capability = parse_capability(keys);
  machine.native = parse_native(keys, machine.capability);
  machine.bf16_tflops = keys.required("bf16_tflops", kTflops);
  machine.fp8_tflops = keys.number("fp8_tflops", kTflops);
  machine.fp4_tflops = keys.number("fp4_tflops", kTflops);
  machine.memory_gb_per_s = keys.required("memory_gb_per_s", kMemoryRate);
  machine.memory_gb = keys.required("memory_gb", kMemory);
  machine.sustained = parse_sustained(keys);
  machine.levels = parse_levels(keys);
  machine.rates_from = parse_rates_from(keys);
  machine.source = keys.text("source");
  check_peaks(machine, where);
  return machine;
}

const std::vector<Machine>& machine_presets() {
  static const std::vector<Machine> presets = [] {
    std::vector<Machine> machines;
    for (const auto& [name, text] : kMachineFiles)
      machines.push_back(machine_from_json(nlohmann::json::parse(text), name,
                                           fmt::format("results/machines/{}.json", name)));
    return machines;
  }();
  return presets;
}

const Machine* find_preset_machine(const std::string& words) {
  const std::vector<Machine>& presets = machine_presets();
  const auto first = [&](const auto& matches) -> const Machine* {
    const auto found = std::find_if(presets.begin(), presets.end(), matches);
    return found == presets.end() ? nullptr : &*found;
  };
  if (const Machine* machine = first([&](const Machine& one) { return is_called(one, words); }))
    return machine;
  if (const Machine* machine = first([&](const Machine& one) { return has_words(one.driver_name, words); }))
    return machine;
  return first([&](const Machine& one) { return has_words(one.name, words); });
}

Machine find_machine(const std::string& name_or_path, const std::string& flag) {
  if (name_or_path.ends_with(".json")) return machine_of_file(name_or_path, flag);
  if (const Machine* machine = find_preset_machine(name_or_path)) return *machine;
  std::vector<std::string> names;
  for (const Machine& machine : machine_presets()) names.push_back(machine.name);
  throw InvalidInput(fmt::format("{}: no machine \"{}\"; known: {}, or a file.json", flag, name_or_path,
                                 fmt::join(names, ", ")));
}

const std::string& gpu_name_of(const Machine& machine) {
  return machine.driver_name.empty() ? machine.name : machine.driver_name;
}

const Machine* find_machine_of_gpu(const std::string& name) {
  const std::vector<Machine>& presets = machine_presets();
  const auto machine = std::find_if(presets.begin(), presets.end(),
                                    [&](const Machine& one) { return gpu_name_of(one) == name; });
  return machine == presets.end() ? nullptr : &*machine;
}

std::optional<Machine> with_nodes(Machine machine, std::int64_t gpus, std::int64_t nodes) {
  if (nodes < 2) return machine;
  if (machine.levels.size() < 2) return std::nullopt;
  NetworkLevel& domain = machine.levels.front();
  constexpr std::int64_t kMostOfNode = 8;
  const std::int64_t per_node = gpus / nodes;
  if (domain.gpus <= kMostOfNode && per_node > 0 && per_node < domain.gpus) domain.gpus = per_node;
  return machine;
}

nlohmann::json read_description(const std::string& path, const std::string& flag) {
  std::string text;
  try {
    text = read_regular_file(path, kDescriptionLimits.bytes);
  } catch (const InvalidInput& error) {  // names the file
    throw InvalidInput(fmt::format("{}: {}", flag, error.what()));
  }
  try {
    return parse_strictly<nlohmann::json>(text);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("{}: {}: {}", flag, path, error.what()));
  }
}

bool has_words(const std::string& name, const std::string& asked) {
  const std::vector<std::string> words = words_of(name), wanted = words_of(asked);
  const auto found = [&](const std::string& word) {
    for (std::size_t first = 0; first < words.size(); ++first) {
      std::string joined;
      for (std::size_t i = first; i < words.size() && joined.size() < word.size(); ++i) joined += words[i];
      if (joined == word) return true;
    }
    return false;
  };
  return !wanted.empty() && std::all_of(wanted.begin(), wanted.end(), found);
}

}  // namespace precbench
