// Columns of a table as fields of a sample. See mapped_log.h.
#include "tools/import/mapped_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/base/untrusted_input.h"
#include "tools/import/line_scan.h"

namespace precbench {
namespace {

/// A column, and the factor from its unit to the sample's.
struct MappedColumn {
  std::string name;
  double factor = 1;
};

using Units = std::vector<std::pair<const char*, double>>;

struct LogMap {
  MappedColumn step, loss, step_time, tokens_per_s, samples_per_s, tflops, mfu, memory, global_batch;
  bool per_gpu = false;
  MemoryKind kind = MemoryKind::allocated;
};

class MappedReader : public LogReader {
 public:
  explicit MappedReader(LogMap map) : map_(std::move(map)) {}

  LineKind read(std::string_view line, RunCollector& runs) override {
    const std::string_view text = trimmed(line);
    if (text.empty()) return LineKind::other;
    Values values;
    if (text.front() == '{') {
      if (!read_object(text, values)) return LineKind::other;
    } else if (header_.empty()) {
      return read_header(text) ? LineKind::header : LineKind::other;
    } else {
      read_row(text, values);
    }
    return add(values, runs) ? LineKind::step : LineKind::other;
  }

 private:
  using Values = std::map<std::string, std::string, std::less<>>;

  std::vector<std::string> cells(std::string_view text) const {
    constexpr std::size_t kMostCells = 1000;
    std::vector<std::string> found(1);
    bool quoted = false;
    for (const char c : text) {
      if (c == '"')
        quoted = !quoted;
      else if (c == separator_ && !quoted && found.size() < kMostCells)
        found.emplace_back();
      else
        found.back() += c;
    }
    return found;
  }

  /// Takes the first line that names the column of the step.
  bool read_header(std::string_view text) {
    for (const char separator : {',', '\t', ';'}) {
      separator_ = separator;
      std::vector<std::string> names = cells(text);
      for (std::string& name : names) name = std::string(trimmed(name));
      if (std::find(names.begin(), names.end(), map_.step.name) == names.end()) continue;
      header_ = std::move(names);
      return true;
    }
    return false;
  }

  void read_row(std::string_view text, Values& values) const {
    const std::vector<std::string> row = cells(text);
    for (std::size_t i = 0; i < std::min(row.size(), header_.size()); ++i) values.emplace(header_[i], row[i]);
  }

  static bool read_object(std::string_view text, Values& values) {
    constexpr JsonLimits kLimits{.bytes = std::size_t{1} << 20, .depth = 8, .members = 1000};
    const std::string quoted = with_quoted_constants(text);
    if (beyond(quoted, kLimits)) return false;
    const auto json = nlohmann::ordered_json::parse(quoted, nullptr, false);
    if (!json.is_object()) return false;
    for (const auto& item : json.items())
      if (item.value().is_number())
        values.emplace(item.key(), item.value().dump());
      else if (item.value().is_string())
        values.emplace(item.key(), item.value().get<std::string>());
    return true;
  }

  /// Returns a column's value; null without one. What follows a number is not read, so it must be all of the cell.
  static std::optional<double> value(const Values& values, const MappedColumn& column) {
    const auto found = column.name.empty() ? values.end() : values.find(column.name);
    if (found == values.end()) return std::nullopt;
    std::string_view text = found->second;
    const auto number = take_number(text);
    if (!number || !trimmed(text).empty()) return std::nullopt;
    return *number * column.factor;
  }

  bool add(const Values& values, RunCollector& runs) const {
    const auto step = value(values, map_.step);
    if (!step || !(*step >= 0 && *step <= 0x1p53)) return false;
    LogSample sample;
    sample.step = static_cast<std::int64_t>(*step);
    sample.loss = value(values, map_.loss);
    sample.step_s = value(values, map_.step_time);
    (map_.per_gpu ? sample.tokens_per_s_per_gpu : sample.tokens_per_s) = value(values, map_.tokens_per_s);
    sample.samples_per_s = value(values, map_.samples_per_s);
    sample.tflops = value(values, map_.tflops);
    sample.mfu = value(values, map_.mfu);
    sample.global_batch = value(values, map_.global_batch);
    runs.add(sample);
    if (const auto bytes = value(values, map_.memory)) runs.memory(map_.kind, *bytes);
    return true;
  }

  LogMap map_;
  std::vector<std::string> header_;  ///< of CSV; empty until it is read
  char separator_ = ',';
};

/// Reads the items of a file.
class MapFile {
 public:
  MapFile(const std::vector<MapItem>& items, std::string name) : name_(std::move(name)) {
    for (const MapItem& item : items) items_[item.key] = &item;
  }

  LogFormat format() {
    LogMap map;
    map.step = column("step", {});
    map.loss = column("loss", {});
    map.step_time = column("step_time", {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}});
    std::string of;
    map.tokens_per_s = column("tokens_per_s", {{"all", 1}, {"gpu", 1}}, &of);
    map.per_gpu = of == "gpu";
    map.samples_per_s = column("samples_per_s", {});
    map.tflops = column("tflops", {});
    map.mfu = column("mfu", {{"fraction", 1}, {"%", 1e-2}});
    map.global_batch = column("global_batch", {});
    read_memory(map);
    LogFormat format;
    format.name = "map";
    format.program = word("program", "");
    format.loss = choice("loss_kind", {"step", "window", "ema"});
    format.window_mean = choice("window", {"step", "mean"}) == "mean";
    format.warmup = warmup();
    for (const char* const required : {"program", "step"})
      if (!items_.contains(required)) throw InvalidInput(fmt::format("{}: {} is missing", name_, required));
    for (const auto& [key, item] : items_)
      if (!known_.contains(key))
        throw InvalidInput(fmt::format("{}: unknown key \"{}\"; it is one of {}", item->place, key,
                                       fmt::join(known_keys(), ", ")));
    format.make = [map] { return std::make_unique<MappedReader>(map); };
    return format;
  }

 private:
  const MapItem* find(const std::string& key) {
    known_[key] = true;
    const auto found = items_.find(key);
    return found == items_.end() ? nullptr : found->second;
  }

  std::vector<std::string> known_keys() const {
    std::vector<std::string> keys;
    for (const auto& [key, known] : known_) keys.push_back(key);
    return keys;
  }

  std::string word(const std::string& key, const std::string& otherwise) {
    const MapItem* const item = find(key);
    if (!item) return otherwise;
    if (item->words.size() != 1 || item->words[0].empty())
      throw InvalidInput(fmt::format("{}: {}: needs one word", item->place, key));
    return item->words[0];
  }

  std::string choice(const std::string& key, const std::vector<std::string>& choices) {
    const std::string chosen = word(key, choices.front());
    if (std::find(choices.begin(), choices.end(), chosen) == choices.end())
      throw InvalidInput(fmt::format("{}: {}: \"{}\" is not one of {}", find(key)->place, key, chosen,
                                     fmt::join(choices, ", ")));
    return chosen;
  }

  /// Reads "column", or [column, unit] with one of `units`; `unit`: gets the unit.
  MappedColumn column(const std::string& key, const Units& units, std::string* unit = nullptr) {
    const MapItem* const item = find(key);
    if (!item) return {};
    const std::size_t words = units.empty() ? 1 : 2;
    if (item->words.size() != words || item->words[0].empty())
      throw InvalidInput(
          fmt::format("{}: {}: needs {}", item->place, key, units.empty() ? "a column" : "[column, unit]"));
    MappedColumn column{item->words[0]};
    if (units.empty()) return column;
    column.factor = factor(*item, units);
    if (unit) *unit = item->words[1];
    return column;
  }

  static double factor(const MapItem& item, const Units& units) {
    std::vector<std::string> names;
    for (const auto& [name, value] : units) {
      if (item.words[1] == name) return value;
      names.emplace_back(name);
    }
    throw InvalidInput(fmt::format("{}: {}: unknown unit \"{}\"; it is one of {}", item.place, item.key,
                                   item.words[1], fmt::join(names, ", ")));
  }

  void read_memory(LogMap& map) {
    const MapItem* const item = find("memory");
    if (!item) return;
    if (item->words.size() != 3)
      throw InvalidInput(fmt::format("{}: memory: needs [column, unit, kind]", item->place));
    map.memory = {item->words[0],
                  factor(*item, {{"B", 1}, {"MiB", 0x1p20}, {"MB", 1e6}, {"GiB", 0x1p30}, {"GB", 1e9}})};
    for (const MemoryKind kind : {MemoryKind::allocated, MemoryKind::reserved, MemoryKind::driver})
      if (item->words[2] == name_of(kind)) {
        map.kind = kind;
        return;
      }
    throw InvalidInput(fmt::format("{}: memory: \"{}\" is not one of allocated, reserved, driver",
                                   item->place, item->words[2]));
  }

  std::int64_t warmup() {
    const std::string text = word("warmup", "5");
    const auto steps = parse_number<std::int64_t>(text);
    constexpr std::int64_t kMost = 1'000'000;
    if (!steps || *steps < 0 || *steps > kMost)
      throw InvalidInput(
          fmt::format("{}: warmup: \"{}\" is not a number of steps", find("warmup")->place, text));
    return *steps;
  }

  std::string name_;
  std::map<std::string, const MapItem*> items_;
  std::map<std::string, bool> known_;
};

}  // namespace

LogFormat mapped_format(const std::vector<MapItem>& items, const std::string& name) {
  return MapFile(items, name).format();
}

}  // namespace precbench
