// Grouping, aggregation over seeds, and the comparison with bf16.
#include "tools/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "results/statistics.h"
#include "tools/ceilings.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Fields that say how a recipe is applied, and their values where nothing is changed. bf16 knows none of
/// them, so they part rows, not groups.
const std::map<std::string, std::string> kRecipeModifiers = {
    {"head", "bf16"}, {"keep_bf16", ""}, {"gather", "bf16"}, {"reduce_amax", "off"}};
/// Columns that come first; others follow in the order of the record.
const std::vector<std::string> kFirstKeys = {"machine",        "power_limit", "cublaslt", "threads",
                                             "method_version", "model",       "seq",      "batch",
                                             "gpus",           "parallel"};

Json fields_of(const LocatedRecord& located, const Works& works) {
  const auto& [record, origin, env] = located;
  // The CPU device's speed depends on its threads; a GPU's does not.
  const Json threads = env.threads && !env.gpu ? Json(*env.threads) : Json();
  // Two GPUs of one name are two machines where they may draw different power or run another library's GEMMs.
  const Json power_limit =
      env.gpu && env.gpu->power_limit ? Json(fmt::format("{:.0f} W", *env.gpu->power_limit)) : Json();
  Json fields = {{"machine", machine_of(env)},
                 {"power_limit", power_limit},
                 {"cublaslt", env.cublaslt ? Json(*env.cublaslt) : Json()},
                 {"threads", threads},
                 {"method_version", record.method_version}};
  fields.update(works.fields(&located));
  return fields;
}

/// Keys of all records, kFirstKeys first; `rank` of a value is the order in which it was met, or its size.
struct Keys {
  std::vector<std::string> names;
  std::map<std::string, std::vector<Json>> values;

  void add(const Json& fields) {
    for (const auto& item : fields.items()) {
      if (!values.count(item.key())) names.push_back(item.key());
      auto& known = values[item.key()];
      if (std::find(known.begin(), known.end(), item.value()) == known.end()) known.push_back(item.value());
    }
  }

  void sort() {
    const auto place = [](const std::string& name) {
      return std::find(kFirstKeys.begin(), kFirstKeys.end(), name) - kFirstKeys.begin();
    };
    std::stable_sort(names.begin(), names.end(),
                     [&](const auto& a, const auto& b) { return place(a) < place(b); });
    for (auto& [name, known] : values)
      if (std::all_of(known.begin(), known.end(), [](const Json& v) { return v.is_number(); }))
        std::sort(known.begin(), known.end(),
                  [](const Json& a, const Json& b) { return a.get<double>() < b.get<double>(); });
  }

  std::size_t rank(const std::string& name, const Json& value) const {
    const auto& known = values.at(name);
    return static_cast<std::size_t>(std::find(known.begin(), known.end(), value) - known.begin());
  }
};

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

/// The values that `get` finds in the members.
template <class Get>
std::vector<double> gather(const Row& row, Get&& get) {
  std::vector<double> values;
  for (const LocatedRecord* member : row.members)
    if (const std::optional<double> value = get(member->record)) values.push_back(*value);
  return values;
}

std::vector<double> gather_metric(const Row& row, std::optional<double> Metrics::*metric) {
  if (row.path == ExecutionPath::emulated)
    return {};  // whatever a record says: an emulated recipe has no speed
  return gather(row, [&](const Record& r) { return r.metrics ? (*r.metrics).*metric : std::nullopt; });
}

std::optional<double> final_loss(const Record& record) {
  return record.training ? trailing_mean(record.training->loss) : std::nullopt;
}

/// Relative to the median of its own run, so that seeds can be pooled. One sample has no spread.
std::optional<double> pooled_relative_iqr(const Row& row) {
  std::vector<double> relative;
  for (const LocatedRecord* member : row.members) {
    if (!member->record.timing) continue;
    const auto& samples = member->record.timing->samples_ms;
    const auto own = median(samples);
    if (samples.size() > 1 && own && *own > 0)
      for (double sample : samples) relative.push_back(sample / *own);
  }
  const auto statistics = sample_statistics(relative);
  return statistics ? std::optional(statistics->iqr()) : std::nullopt;
}

void aggregate(Row& row, const Ceilings& best) {
  if (row.status != Status::ok) return;
  row.tokens_per_s = median(gather_metric(row, &Metrics::tokens_per_s));
  if (row.tokens_per_s) row.relative_iqr = pooled_relative_iqr(row);
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

Json seed_of(const LocatedRecord* located) { return located->record.case_fields.value("seed", Json()); }

void compare(Row& row, const Row& baseline) {
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
  for (const LocatedRecord* mine : row.members)
    for (const LocatedRecord* theirs : baseline.members) {
      const auto &a = mine->record.training, &b = theirs->record.training;
      if (!a || !b || seed_of(mine) != seed_of(theirs)) continue;
      const auto ends = trailing_means_at_equal_steps(a->loss, b->loss);
      if (!ends) continue;
      deltas.push_back(ends->first - ends->second);
      const std::size_t steps = std::min(a->loss.size(), b->loss.size());
      row.paired_steps = row.paired_steps ? std::min(row.paired_steps, steps) : steps;
    }
  row.loss_delta = mean(deltas);
  row.paired_seeds = static_cast<int>(deltas.size());
}

void compare_with_bf16(Group& group) {
  std::stable_partition(group.rows.begin(), group.rows.end(), [](const Row& row) { return row.is_bf16(); });
  std::vector<const Json*> bf16;
  for (const Row& row : group.rows)
    bf16.push_back(row.is_bf16() && row.status == Status::ok ? &row.fields : nullptr);
  for (Row& row : group.rows)
    if (const auto baseline = bf16_of(bf16, row.fields)) compare(row, group.rows[*baseline]);
}

}  // namespace

std::string field_text(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

bool Row::is_bf16() const { return fields.value("recipe", Json()) == "bf16"; }

std::vector<std::string> modifiers_of(const Json& fields) {
  std::vector<std::string> modifiers;
  for (const auto& [key, unchanged] : kRecipeModifiers)
    if (const std::string value = field_text(fields.value(key, Json())); !value.empty() && value != unchanged)
      modifiers.push_back(key + " " + value);
  return modifiers;
}

std::optional<std::size_t> bf16_of(const std::vector<const Json*>& bf16, const Json& fields) {
  std::optional<std::size_t> chosen;
  for (std::size_t i = bf16.size(); i-- > 0;)
    if (bf16[i]) chosen = i;
  for (std::size_t i = 0; i < bf16.size(); ++i)
    if (bf16[i] && modifiers_of(*bf16[i]) == modifiers_of(fields)) return i;
  return chosen;
}

RecordRefs all_of(const RecordSet& set) {
  RecordRefs refs;
  for (const LocatedRecord& located : set.records) refs.push_back(&located);
  return refs;
}

std::vector<RecordRefs> by_machine(const RecordSet& set) {
  std::vector<RecordRefs> parts;
  for (const LocatedRecord& located : set.records) {
    const auto same = [&](const RecordRefs& part) {
      return machine_of(part.front()->env) == machine_of(located.env);
    };
    auto part = std::find_if(parts.begin(), parts.end(), same);
    if (part == parts.end()) part = parts.insert(parts.end(), RecordRefs{});
    part->push_back(&located);
  }
  return parts;
}

Analysis analyze(const RecordRefs& records, const Works& works, RowsBy by) {
  Keys keys;
  std::vector<Json> all_fields;
  for (const LocatedRecord* located : records) keys.add(all_fields.emplace_back(fields_of(*located, works)));
  for (Json& fields : all_fields)
    for (const std::string& name : keys.names)
      if (!fields.contains(name)) fields[name] = nullptr;
  for (const Json& fields : all_fields) keys.add(fields);
  keys.sort();

  Analysis analysis;
  std::vector<std::string> group_by;
  for (const std::string& name : keys.names) {
    const bool varies = keys.values.at(name).size() > 1;
    const bool is_seed = name == "seed";
    if (!varies && name != "recipe") analysis.constants[name] = keys.values.at(name).front();
    if (!varies || name == "recipe" || (is_seed && by == RowsBy::recipe)) continue;
    if (kRecipeModifiers.count(name)) {
      analysis.row_keys.push_back(name);
    } else {
      group_by.push_back(name);
      analysis.group_keys.push_back(name);
    }
  }

  // Ordered by the ranks of the fields that part the groups, then rows in the order of the records.
  std::map<std::vector<std::size_t>, Group> groups;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Json& fields = all_fields[i];
    const Record& record = records[i]->record;
    std::vector<std::size_t> place;
    for (const std::string& name : group_by) place.push_back(keys.rank(name, fields.at(name)));
    Group& group = groups[place];
    const std::optional<ExecutionPath> path =
        record.support ? std::optional(record.support->path()) : std::nullopt;
    const auto same_row = [&](const Row& row) {
      if (by == RowsBy::record || row.status != record.status || row.path != path) return false;
      return std::all_of(keys.names.begin(), keys.names.end(), [&](const std::string& name) {
        return name == "seed" || row.fields.at(name) == fields.at(name);
      });
    };
    auto row = std::find_if(group.rows.begin(), group.rows.end(), same_row);
    if (row == group.rows.end()) {
      group.rows.push_back({{}, fields, record.status, path});
      row = group.rows.end() - 1;
    }
    row->members.push_back(records[i]);
  }
  std::map<std::string, Ceilings> best;
  for (const LocatedRecord* located : records) best[machine_of(located->env)].raise_to(located->record);
  for (auto& [place, group] : groups) {
    for (Row& row : group.rows) aggregate(row, best.at(machine_of(row.members.front()->env)));
    compare_with_bf16(group);
    analysis.groups.push_back(std::move(group));
  }
  return analysis;
}

}  // namespace precbench
