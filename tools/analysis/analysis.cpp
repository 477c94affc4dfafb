// Groups records, aggregates over seeds, compares with BF16. See analysis.h.
#include "tools/analysis/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "results/record/statistics.h"
#include "tools/analysis/best_rates.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Fields that modify how a recipe is applied, with their default values. BF16 ignores them, so they separate
/// rows, not groups.
const std::map<std::string, std::string> kRecipeModifiers = {
    {"head", "bf16"},       {"keep_bf16", ""}, {"switch_recipe", ""}, {"gather", "bf16"},
    {"reduce_amax", "off"}, {"flow", "off"},   {"dispatch", "bf16"},  {"kept", "recipe"}};
/// Leading columns; the others follow in record order.
const std::vector<std::string> kFirstKeys = {"machine",        "power_limit", "cublaslt", "threads",
                                             "method_version", "model",       "seq",      "batch",
                                             "gpus",           "parallel"};

Json fields_of(const LocatedRecord& located, const Workloads& workloads) {
  const Record& record = located.record;
  const Environment& env = located.env();
  // The CPU device's speed depends on its threads; a GPU's does not.
  const Json threads = env.threads && !env.gpu ? Json(*env.threads) : Json();
  // GPUs of one name count as different machines if their power limit or cuBLASLt version differs.
  const Json power_limit =
      env.gpu && env.gpu->power_limit ? Json(fmt::format("{:.0f} W", *env.gpu->power_limit)) : Json();
  Json fields = {{"machine", machine_of(env)},
                 {"power_limit", power_limit},
                 {"cublaslt", env.cublaslt ? Json(*env.cublaslt) : Json()},
                 {"threads", threads},
                 {"method_version", record.method_version}};
  fields.update(Json(workloads.fields(&located)));
  return fields;
}

/// Lets similar rows share the storage of their fields.
class SharedRows {
 public:
  CaseFields share(CaseFields fields) {
    for (const CaseFields& base : bases_)
      if (fields.share_with(base)) return fields;
    if (bases_.size() < kMost) bases_.push_back(fields);
    return fields;
  }

 private:
  static constexpr std::size_t kMost = 16;
  std::vector<CaseFields> bases_;
};

/// One field over all records: its distinct values, and the index of each record's value.
struct Field {
  static constexpr auto kMissing = static_cast<std::uint32_t>(-1);

  std::string name;
  std::vector<Json> values{};              ///< in order of appearance; sorted by size if all are numbers
  std::vector<std::uint32_t> of_record{};  ///< index into `values` by record; empty if all have one value
  std::unordered_map<std::string, std::uint32_t> places{};
  std::size_t same = 0;  ///< length of the leading run of records that have values[0]

  /// Sets the value of record i. `count` is the total number of records; call in record order.
  void add(std::size_t i, std::size_t count, const Json& value) {
    const std::uint32_t place = place_of(value);
    if (of_record.empty() && place == 0 && same == i) return void(++same);
    spread(count);
    of_record[i] = place;
  }
  /// Allocates an index per record.
  void spread(std::size_t count) {
    if (!of_record.empty()) return;
    of_record.assign(count, kMissing);
    std::fill_n(of_record.begin(), same, 0);
  }

  std::uint32_t place_of(const Json& value) {
    const auto [known, is_new] =
        places.try_emplace(text_of(value), static_cast<std::uint32_t>(values.size()));
    if (is_new) values.push_back(value);
    return known->second;
  }

  void sort() {
    if (!std::all_of(values.begin(), values.end(), [](const Json& v) { return v.is_number(); })) return;
    std::vector<std::uint32_t> order(values.size()), rank(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return values[a].get<double>() < values[b].get<double>();
    });
    std::vector<Json> sorted;
    for (std::uint32_t i = 0; i < order.size(); ++i) {
      rank[order[i]] = i;
      sorted.push_back(std::move(values[order[i]]));
    }
    values = std::move(sorted);
    for (std::uint32_t& place : of_record) place = rank[place];
  }

 private:
  /// Returns equal text for equal values: 3 and 3.0 are the same.
  static std::string text_of(const Json& value) {
    if (value.is_number_float())
      if (const double number = value.get<double>();
          std::floor(number) == number && std::abs(number) < 0x1p53)
        return fmt::format("{}", static_cast<std::int64_t>(number));
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
};

/// Returns the fields of all records, kFirstKeys first. A missing field counts as null, added as the last
/// value.
std::vector<Field> fields_of(const RecordRefs& records, const Workloads& workloads) {
  std::vector<Field> fields;
  std::unordered_map<std::string, std::size_t> by_name;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Json own = fields_of(*records[i], workloads);
    for (const auto& item : own.items()) {
      const auto [known, is_new] = by_name.try_emplace(item.key(), fields.size());
      if (is_new) fields.push_back({item.key()});
      fields[known->second].add(i, records.size(), item.value());
    }
  }
  for (Field& field : fields) {
    if (field.same < records.size()) field.spread(records.size());
    for (std::uint32_t& place : field.of_record)
      if (place == Field::kMissing) place = field.place_of(nullptr);
    field.places.clear();
    field.sort();
  }
  const auto place = [](const Field& field) {
    return std::find(kFirstKeys.begin(), kFirstKeys.end(), field.name) - kFirstKeys.begin();
  };
  std::stable_sort(fields.begin(), fields.end(),
                   [&](const Field& a, const Field& b) { return place(a) < place(b); });
  return fields;
}

std::optional<double> median(const std::vector<double>& values) {
  const auto statistics = sample_statistics(values);
  return statistics ? std::optional(statistics->median) : std::nullopt;
}

std::optional<double> mean(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Collects the values that `get` finds in the row's members.
template <class Get>
std::vector<double> gather(const Row& row, Get&& get) {
  std::vector<double> values;
  for (const LocatedRecord* member : row.members)
    if (const std::optional<double> value = get(member->record)) values.push_back(*value);
  return values;
}

std::vector<double> gather_metric(const Row& row, OptionalNumber Metrics::*metric) {
  if (row.path == ExecutionPath::emulated)
    return {};  // an emulated recipe has no speed, whatever its record claims
  return gather(row, [&](const Record& r) { return r.metrics ? (*r.metrics).*metric : OptionalNumber(); });
}

std::optional<double> final_loss(const Record& record) {
  return record.training ? trailing_mean(record.training->loss) : std::nullopt;
}

/// Returns the IQR of step times, each relative to its run's median so that seeds can be pooled. Runs of one
/// sample have no spread and are left out.
std::optional<double> pooled_relative_iqr(const Row& row) {
  std::vector<double> relative;
  std::size_t count = 0;
  for (const LocatedRecord* member : row.members)
    if (member->record.timing) count += member->record.timing->samples_ms.size();
  relative.reserve(count);  // avoids doubling the memory of a million runs while the list grows
  for (const LocatedRecord* member : row.members) {
    if (!member->record.timing) continue;
    const auto& samples = member->record.timing->samples_ms;
    const auto own = median(samples);
    if (samples.size() > 1 && own && *own > 0)
      for (double sample : samples) relative.push_back(sample / *own);
  }
  const auto statistics = sample_statistics(std::move(relative));
  return statistics ? std::optional(statistics->iqr()) : std::nullopt;
}

void aggregate(Row& row, const BestRates& best) {
  if (row.status != Status::ok) return;
  row.tokens_per_s = median(gather_metric(row, &Metrics::tokens_per_s));
  // Lines of a log that average over several steps say nothing about the spread of steps.
  const auto& source = row.record().source;
  if (row.tokens_per_s && !(source && source->window_steps > 1)) row.relative_iqr = pooled_relative_iqr(row);
  row.tflops_per_gpu = median(gather_metric(row, &Metrics::tflops_per_gpu));
  row.mfu_bf16 = median(gather_metric(row, &Metrics::mfu_bf16));
  row.sol = median(gather_metric(row, &Metrics::sol));
  if (row.path == ExecutionPath::native)
    row.sol_measured = median(gather(row, [&](const Record& r) { return sol_at(best, r); }));
  const auto peaks = gather(row, [](const Record& r) -> std::optional<double> {
    if (!r.memory || !r.memory->measured) return std::nullopt;
    return static_cast<double>(r.memory->measured->peak);
  });
  if (!peaks.empty()) row.peak_memory = *std::max_element(peaks.begin(), peaks.end());
  row.final_loss = mean(gather(row, final_loss));
  row.last_grad_norm = mean(gather(row, [](const Record& r) -> std::optional<double> {
    if (!r.training || r.training->grad_norm.empty() || !std::isfinite(r.training->grad_norm.back()))
      return std::nullopt;
    return r.training->grad_norm.back();
  }));
}

void compare(Row& row, const Row& baseline, const SeedPairs& pairs) {
  const auto ratio = [](const std::optional<double>& a,
                        const std::optional<double>& b) -> std::optional<double> {
    return a && b && *b > 0 ? std::optional(*a / *b) : std::nullopt;
  };
  if (row.comparable() && baseline.comparable()) {
    row.speedup = ratio(row.tokens_per_s, baseline.tokens_per_s);
    row.memory_ratio = ratio(row.peak_memory, baseline.peak_memory);
  }
  if (row.status != Status::ok || baseline.status != Status::ok) return;
  std::vector<double> deltas;
  for (const LocatedRecord* mine : row.members) {
    const LocatedRecord* theirs = pairs.of(*mine);
    // Losses of imported runs are by lines of a log, and import judges them.
    if (!theirs || !mine->record.training || mine->record.source) continue;
    const std::vector<double>&a = mine->record.training->loss, &b = theirs->record.training->loss;
    const auto ends = trailing_means_at_equal_steps(a, b);
    if (!ends) continue;
    deltas.push_back(ends->first - ends->second);
    const std::size_t steps = std::min(a.size(), b.size());
    row.paired_steps = row.paired_steps ? std::min(row.paired_steps, steps) : steps;
  }
  row.loss_delta = mean(deltas);
  row.paired_seeds = static_cast<int>(deltas.size());
}

void compare_with_bf16(Group& group) {
  std::stable_partition(group.rows.begin(), group.rows.end(), [](const Row& row) { return row.is_bf16(); });
  Bf16Rows bf16;
  std::map<std::size_t, SeedPairs> seeds;
  for (std::size_t i = 0; i < group.rows.size() && group.rows[i].is_bf16(); ++i) {
    if (group.rows[i].status != Status::ok) continue;
    bf16.add(i, group.rows[i].fields);
    seeds.emplace(i, group.rows[i].members);
  }
  for (Row& row : group.rows)
    if (const auto baseline = bf16.of(row.fields)) compare(row, group.rows[*baseline], seeds.at(*baseline));
}

}  // namespace

std::string field_text(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string case_text(const Record& record, const char* field) {
  return field_text(record.case_fields.value(field, Json()));
}

bool Row::is_bf16() const { return fields.value("recipe", Json()) == "bf16"; }

std::vector<std::string> modifiers_of(const CaseFields& fields) {
  std::vector<std::string> modifiers;
  for (const auto& [key, unchanged] : kRecipeModifiers)
    if (const std::string value = field_text(fields.value(key, Json())); !value.empty() && value != unchanged)
      modifiers.push_back(key + " " + value);
  return modifiers;
}

void Bf16Rows::add(std::size_t index, const CaseFields& fields) {
  by_modifiers_.try_emplace(modifiers_of(fields), index);
  if (!first_) first_ = index;
}

std::optional<std::size_t> Bf16Rows::of(const CaseFields& fields) const {
  const auto same = by_modifiers_.find(modifiers_of(fields));
  return same == by_modifiers_.end() ? first_ : same->second;
}

std::string seed_of(const Record& record) { return case_text(record, "seed"); }

SeedPairs::SeedPairs(const RecordRefs& baseline) {
  for (const LocatedRecord* theirs : baseline)
    if (theirs->record.training) by_seed_.try_emplace(seed_of(theirs->record), theirs);
}

const LocatedRecord* SeedPairs::of(const LocatedRecord& located) const {
  const auto theirs = by_seed_.find(seed_of(located.record));
  return theirs == by_seed_.end() ? nullptr : theirs->second;
}

RecordRefs all_of(const RecordSet& set) {
  RecordRefs refs;
  for (const LocatedRecord& located : set.records) refs.push_back(&located);
  return refs;
}

std::vector<RecordRefs> by_machine(const RecordRefs& records) {
  std::vector<RecordRefs> parts;
  std::unordered_map<std::string, std::size_t> places;
  for (const LocatedRecord* located : records) {
    const auto [place, is_new] = places.try_emplace(machine_of(located->env()), parts.size());
    if (is_new) parts.emplace_back();
    parts[place->second].push_back(located);
  }
  return parts;
}

Analysis analyze(const RecordRefs& records, const Workloads& workloads, RowsBy by) {
  std::vector<Field> fields = fields_of(records, workloads);
  Analysis analysis;
  std::vector<const Field*> group_by, row_by;
  for (const Field& field : fields) {
    const bool varies = field.values.size() > 1, is_seed = field.name == "seed";
    if (!varies && field.name != "recipe") analysis.constants[field.name] = field.values.front();
    if (!varies || (is_seed && by == RowsBy::recipe)) continue;
    row_by.push_back(&field);
    if (field.name == "recipe") continue;
    if (kRecipeModifiers.count(field.name)) {
      analysis.row_keys.push_back(field.name);
    } else {
      group_by.push_back(&field);
      analysis.group_keys.push_back(field.name);
    }
  }
  const auto places = [](const std::vector<const Field*>& some, std::size_t i) {
    std::vector<std::uint32_t> result;
    for (const Field* field : some) result.push_back(field->of_record[i]);
    return result;
  };

  // Groups are ordered by the values of their fields, rows by record order.
  std::map<std::vector<std::uint32_t>, Group> groups;
  using RowKey = std::tuple<std::vector<std::uint32_t>, Status, std::optional<ExecutionPath>>;
  std::map<RowKey, std::pair<Group*, std::size_t>> rows;
  SharedRows alike;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Record& record = records[i]->record;
    // An imported speed is that of whatever ran.
    const std::optional<ExecutionPath> path = record.source    ? std::optional(ExecutionPath::native)
                                              : record.support ? std::optional(record.support->path())
                                                               : std::nullopt;
    const auto start_row = [&] {
      Group& group = groups[places(group_by, i)];
      Json own = fields_of(*records[i], workloads);
      for (const Field& field : fields)
        if (!own.contains(field.name)) own[field.name] = nullptr;
      group.rows.push_back({{}, alike.share(std::move(own)), record.status, path});
      return std::pair(&group, group.rows.size() - 1);
    };
    std::pair<Group*, std::size_t> row;
    if (by == RowsBy::record) {
      row = start_row();
    } else {
      const auto [known, is_new] = rows.try_emplace({places(row_by, i), record.status, path});
      if (is_new) known->second = start_row();
      row = known->second;
    }
    row.first->rows[row.second].members.push_back(records[i]);
  }
  fields = {};  // large if there are many records
  std::map<std::string, BestRates> best;
  for (const LocatedRecord* located : records) best[machine_of(located->env())].raise_to(located->record);
  for (auto& [place, group] : groups) {
    for (Row& row : group.rows) aggregate(row, best.at(machine_of(row.members.front()->env())));
    compare_with_bf16(group);
    analysis.groups.push_back(std::move(group));
  }
  return analysis;
}

}  // namespace precbench
