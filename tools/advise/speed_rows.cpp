// Looks up groups of records and predicts what they lack. See speed_rows.h.
#include "tools/advise/speed_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/printable.h"
#include "results/record/step_time.h"
#include "tools/advise/gpu_names.h"
#include "tools/analysis/numerics_label.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/equal_loss.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUsualSeq = "4096";
constexpr double kTokensPerGpu = 16384;  ///< of a micro-step, beyond which GEMMs gain little

/// Collects what records and the data sheet know about a GPU.
GpuModel completed(GpuModel gpu, const std::vector<SourceRecords>& sources) {
  for (const SourceRecords& one : sources)
    for (const LocatedRecord& located : one.set->records) {
      const auto& known = located.env().gpu;
      if (!known || known->name != gpu.name) continue;
      if (!gpu.cc) gpu.cc = known->cc;
      if (!gpu.memory) gpu.memory = known->memory;
      const auto& metrics = located.record.metrics;
      if (!metrics || !metrics->peaks) continue;
      if (!gpu.bf16_tflops) gpu.bf16_tflops = metrics->peaks->bf16_tflops;
      if (!gpu.memory_gb_per_s) gpu.memory_gb_per_s = metrics->peaks->memory_gb_per_s;
    }
  return gpu;
}

GpuModel target_gpu(const AdviseOptions& options, const AdviseHost& host,
                    const std::vector<SourceRecords>& sources) {
  std::vector<GpuModel> known;
  std::set<std::string> with_records;
  if (host.gpu_here) known.push_back(*host.gpu_here);
  for (const SourceRecords& one : sources)
    for (const LocatedRecord& located : one.set->records)
      if (const auto& gpu = located.env().gpu; gpu && with_records.insert(gpu->name).second)
        known.push_back(GpuModel{gpu->name});
  known.insert(known.end(), host.known_gpus.begin(), host.known_gpus.end());
  std::vector<std::string> names;
  for (const GpuModel& gpu : known)
    if (std::find(names.begin(), names.end(), gpu.name) == names.end()) names.push_back(gpu.name);
  if (options.gpu.empty() && !host.gpu_here)
    throw InvalidInput(fmt::format("--gpu: this machine has no GPU; name one of {}", fmt::join(names, ", ")));
  const std::string name = options.gpu.empty() ? host.gpu_here->name : find_gpu_name(options.gpu, names);
  // The data sheet's entry, if there is one, has the peaks.
  for (auto gpu = known.rbegin(); gpu != known.rend(); ++gpu)
    if (gpu->name == name) return completed(*gpu, sources);
  return completed(GpuModel{name}, sources);
}

/// Returns the bytes that the driver held beyond what the program allocated, at most over the records.
double bytes_outside(const std::vector<SourceRecords>& sources, bool several) {
  double most = 0;
  for (const SourceRecords& one : sources)
    for (const LocatedRecord& located : one.set->records) {
      const Record& record = located.record;
      if (!record.env.gpu || record.study || !record.memory || !record.memory->measured ||
          !record.memory->driver || (gpus_of(record) > 1) != several)
        continue;
      most = std::max(most, static_cast<double>(*record.memory->driver - record.memory->measured->peak));
    }
  return most;
}

/// A group of records on the target GPU that match the wanted case.
struct Match {
  std::vector<const Row*> rows;
  const Row* bf16 = nullptr;
};

/// Analysed records of one source on the target GPU. The rows point into it.
struct Source {
  SpeedSource source;
  std::unique_ptr<Workloads> workloads;
  Analysis analysis;
};

Source analysed(const SourceRecords& records, const std::string& gpu) {
  RecordRefs refs;
  for (const LocatedRecord& located : records.set->records)
    if (located.env().gpu && located.env().gpu->name == gpu && !located.record.study)
      refs.push_back(&located);
  Source source{records.source, std::make_unique<Workloads>(refs), {}};
  source.analysis = analyze(refs, *source.workloads);
  return source;
}

/// Returns true for the fields in which a record must agree with the setting: those that change the work or its
/// speed, except the recipe and the modifiers of a recipe.
bool belongs_to_setting(const std::string& field) {
  static const std::set<std::string> kNot = {"recipe",     "gather",   "seed",        "steps",  "lr",
                                             "time_limit", "data",     "glob",        "device", "clip",
                                             "warmup",     "schedule", "weight_decay"};
  return changes_work(field) && !kNot.contains(field);
}

/// Returns true if a row has these values; a field that it lacks has its default.
bool equal_fields(const Row& row, const Json& wanted, const Json& defaults,
                  const std::set<std::string>& keys) {
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
    const Json value = row.fields.value(key, Json());
    const std::string own = value.is_null() ? text_at(defaults, key.c_str()) : field_text(value);
    return own == text_at(wanted, key.c_str());
  });
}

/// Returns the best group whose rows have these values of these fields: most recipes, then most tokens per GPU.
std::optional<Match> find_group(const Source& source, const Json& wanted, const Json& defaults,
                                const std::set<std::string>& keys) {
  std::optional<Match> best;
  std::tuple<std::size_t, double> merit;
  for (const Group& group : source.analysis.groups) {
    Match match;
    for (const Row& row : group.rows) {
      const bool plain = numerics_label(row.fields) == text_at(Json(row.fields), "recipe");
      if (!row.comparable() || !row.tokens_per_s || !plain || !equal_fields(row, wanted, defaults, keys))
        continue;
      match.rows.push_back(&row);
      if (row.is_bf16() && !match.bf16) match.bf16 = &row;
    }
    if (!match.bf16) continue;
    const Json fields(match.bf16->fields);
    const std::tuple own(match.rows.size(), fields.value("seq", 0.0) * fields.value("batch", 0.0));
    if (best && own <= merit) continue;
    best = std::move(match);
    merit = own;
  }
  return best;
}

/// Returns false for a recipe with modifiers or from a file.
bool is_plain_name(const std::string& label) {
  return label.find(' ') == std::string::npos && !is_file_name(label);
}

std::set<std::string> setting_keys(const Json& setting) {
  std::set<std::string> keys;
  for (const auto& [key, value] : setting.items())
    if (belongs_to_setting(key)) keys.insert(key);
  return keys;
}

std::optional<double> joules_of(const Row& row) {
  for (const LocatedRecord* member : row.members)
    if (member->record.metrics && member->record.metrics->energy_j_per_token)
      return *member->record.metrics->energy_j_per_token;
  return std::nullopt;
}

/// Builds the rows of one question.
class TableBuilder {
 public:
  TableBuilder(const AdviseOptions& options, const AdviseHost& host,
               const std::vector<SourceRecords>& sources)
      : options_(options), host_(host), records_(sources) {
    table_.gpu = target_gpu(options, host, sources);
    for (const SourceRecords& one : sources) sources_.push_back(analysed(one, table_.gpu.name));
    for (const SourceRecords& one : sources)
      for (const LocatedRecord& located : one.set->records) all_.push_back(&located.record);
  }

  SpeedTable build() && {
    table_.defaults = host_.case_of({});
    choose_setting();
    const bool shares = shares_weights();
    const std::set<std::string> keys = setting_keys(table_.setting);
    for (const Source& source : sources_)
      if (const auto match = find_group(source, table_.setting, table_.defaults, keys))
        add_rows(source.source, *match, shares);
    predict_rows(shares);
    std::stable_sort(table_.rows.begin(), table_.rows.end(), [](const SpeedRow& a, const SpeedRow& b) {
      return a.tokens_per_s.value_or(-1) > b.tokens_per_s.value_or(-1);
    });
    find_emulated();
    describe_predictions();
    describe_doubts();
    if (std::none_of(table_.rows.begin(), table_.rows.end(), [](const SpeedRow& row) { return row.fits; }))
      table_.would_fit = nearest_that_fits();
    return std::move(table_);
  }

 private:
  /// Takes the setting of matching records, else the defaults with the largest batch that fits.
  void choose_setting() {
    AdviseHost::Words words = options_.given;
    const Json given = host_.case_of(words);
    outside_ = bytes_outside(records_, given.at("gpus").get<double>() > 1);
    std::set<std::string> keys{"model", "gpus", "layers"};
    for (const auto& [field, text] : words)
      if (field != "gather") keys.insert(field);
    for (const Source& source : sources_)
      if (const auto match = find_group(source, given, table_.defaults, keys)) {
        table_.setting = completed_case(Json(match->bf16->record().case_fields));
        table_.bf16_counts = host_.dry_run(table_.setting);
        return;
      }
    if (!words.contains("parallel") && text_at(given, "gpus") != "1") words["parallel"] = "fsdp";
    if (!words.contains("seq")) words["seq"] = kUsualSeq;
    if (!words.contains("device")) words["device"] = "cuda";
    if (words.contains("batch")) return set_case(words);
    const Json usual = host_.case_of(words);
    const double own = usual.at("seq").get<double>() / usual.at("context").get<double>();  // of a sequence
    auto batch =
        static_cast<std::int64_t>(std::exp2(std::floor(std::log2(std::max(1.0, kTokensPerGpu / own)))));
    for (;; batch /= 2) {
      words["batch"] = std::to_string(batch);
      set_case(words);
      if (batch == 1 || fits(table_.bf16_counts)) return;
    }
  }

  void set_case(const AdviseHost::Words& words) {
    table_.setting = host_.case_of(words);
    table_.bf16_counts = host_.dry_run(table_.setting);
    if (table_.bf16_counts.status != Status::ok)
      throw InvalidInput(table_.bf16_counts.error.value_or("the case cannot run"));
  }

  /// Returns a record's case with the fields that older records lack, without its files and schedule.
  Json completed_case(const Json& fields) const {
    Json whole = host_.case_of({});
    for (const auto& [key, value] : fields.items())
      if (belongs_to_setting(key) && whole.contains(key)) whole[key] = value;
    whole["device"] = "cuda";
    return whole;
  }

  bool shares_weights() const {
    return text_at(table_.setting, "gpus") != "1" && text_at(table_.setting, "parallel") != "ddp";
  }

  bool fits(const Record& counts) const {
    if (!table_.gpu.memory || !counts.memory || !counts.memory->predicted) return true;
    return static_cast<double>(counts.memory->predicted->peak) + outside_ <=
           static_cast<double>(*table_.gpu.memory);
  }

  bool wanted(const std::string& recipe) const {
    return options_.recipes.empty() || recipe == "bf16" ||
           std::find(options_.recipes.begin(), options_.recipes.end(), recipe) != options_.recipes.end();
  }

  SpeedRow* find(const std::string& recipe, const std::string& gather) {
    for (SpeedRow& row : table_.rows)
      if (row.recipe == recipe && row.gather == gather) return &row;
    return nullptr;
  }

  void add_rows(SpeedSource source, const Match& match, bool shares) {
    for (const Row* from : match.rows) {
      const Json fields(from->fields);
      SpeedRow row{text_at(fields, "recipe"), shares ? text_at(fields, "gather") : ""};
      if (!wanted(row.recipe) || find(row.recipe, row.gather) || !from->speedup) continue;
      if (options_.given.contains("gather") && !row.is_bf16() && row.gather != options_.given.at("gather"))
        continue;
      row.source = source;
      row.tokens_per_s = from->tokens_per_s;
      row.speedup = exactly(*from->speedup);
      row.joules_per_token = joules_of(*from);
      row.peak_bytes = from->peak_memory;
      table_.rows.push_back(row);
      for (const LocatedRecord* member : from->members) used_.push_back(&member->record);
    }
  }

  std::vector<std::string> recipes_to_predict() const {
    std::vector<std::string> recipes = options_.recipes;
    std::set<std::string> known;
    for (const Record* record : all_)
      if (record->support && record->support->path() == ExecutionPath::native && !record->study)
        known.insert(numerics_label(record->case_fields));
    if (recipes.empty())
      for (const std::string& label : known)
        if (is_plain_name(label)) recipes.push_back(label);
    if (std::find(recipes.begin(), recipes.end(), "bf16") == recipes.end())
      recipes.insert(recipes.begin(), "bf16");
    return recipes;
  }

  void predict_rows(bool shares) {
    for (const std::string& recipe : recipes_to_predict()) {
      std::vector<std::string> gathers{shares ? "bf16" : ""};
      if (shares && recipe != "bf16") gathers.emplace_back("fp8");
      if (options_.given.contains("gather") && recipe != "bf16")
        gathers = {shares ? options_.given.at("gather") : ""};
      for (const std::string& gather : gathers) {
        if (find(recipe, gather)) continue;
        Json fields = table_.setting;
        fields["recipe"] = recipe;
        fields["gather"] = gather.empty() ? "bf16" : gather;
        const Record counts = host_.dry_run(fields);
        if (counts.status != Status::ok) {
          // An FP8 gather that the recipe does not support is no row of its own.
          if (gather == "fp8" && !options_.given.contains("gather")) continue;
          SpeedRow& row = table_.rows.emplace_back(SpeedRow{recipe, gather});
          row.no_speed = counts.error.value_or("cannot run");
          continue;
        }
        table_.rows.push_back(predicted_row(counts, fields, recipe, gather));
      }
    }
  }

  /// Returns the median power of a GPU in W over timed native records of the case's recipe on one such GPU; null
  /// without any.
  std::optional<double> usual_power_w(const Record& counts) const {
    std::vector<double> powers;
    for (const Record* record : all_)
      if (record->status == Status::ok && !record->study && record->support && record->env.gpu &&
          record->env.gpu->name == table_.gpu.name && gpus_of(*record) == 1 &&
          record->support->path() == ExecutionPath::native && record->telemetry &&
          record->telemetry->power_w &&
          numerics_label(record->case_fields) == numerics_label(counts.case_fields))
        powers.push_back(*record->telemetry->power_w);
    const auto statistics = sample_statistics(std::move(powers));
    return statistics ? std::optional(statistics->median) : std::nullopt;
  }

  SpeedRow predicted_row(const Record& counts, const Json& fields, const std::string& recipe,
                         const std::string& gather) const {
    SpeedRow row{recipe, gather};
    row.fits = fits(counts);
    if (counts.memory && counts.memory->predicted)
      row.peak_bytes = static_cast<double>(counts.memory->predicted->peak);
    const auto own = host_.predict ? host_.predict(fields, table_.setting, table_.gpu.name) : std::nullopt;
    if (!own || !counts.training || !counts.training->tokens_per_step) {
      row.no_speed = "no native formats or rates on such a GPU";
      return row;
    }
    row.tokens_per_s = static_cast<double>(*counts.training->tokens_per_step) / own->step_ms * 1e3;
    if (own->over_bf16.mean > 0) row.speedup = own->over_bf16;
    if (const auto power = usual_power_w(counts))
      row.joules_per_token = *power * gpus_of(counts) / *row.tokens_per_s;
    return row;
  }

  void find_emulated() {
    std::set<std::string> emulated;
    for (const Record* record : all_)
      if (record->env.gpu && record->env.gpu->cc == table_.gpu.cc && table_.gpu.cc && record->support &&
          record->support->path() == ExecutionPath::emulated && wanted(case_text(*record, "recipe")))
        emulated.insert(case_text(*record, "recipe"));
    for (const SpeedRow& row : table_.rows)
      if (row.tokens_per_s) emulated.erase(row.recipe);
    for (const std::string& recipe : emulated)
      if (is_plain_name(recipe)) table_.emulated.push_back(recipe);
    std::erase_if(table_.rows,
                  [&](const SpeedRow& row) { return !row.tokens_per_s && emulated.contains(row.recipe); });
  }

  /// Notes the reasons to doubt the speeds of the records that were used.
  void describe_doubts() {
    for (const std::string& doubt : doubts_of_all(used_)) table_.notes.push_back("Speeds of " + doubt);
  }

  void describe_predictions() {
    const bool any = std::any_of(table_.rows.begin(), table_.rows.end(), [](const SpeedRow& row) {
      return row.source == SpeedSource::predicted && row.tokens_per_s;
    });
    if (!any) return;
    table_.notes.push_back(fmt::format(
        "Predicted by the cost model for {} from its peaks, its network and measured rates of ops, "
        "as sweep --dry-run --on does; intervals hold in 80% of cases.",
        table_.gpu.name));
  }

  std::optional<std::string> nearest_that_fits() const {
    if (!host_.nearest_change || !table_.gpu.memory) return std::nullopt;
    return host_.nearest_change(table_.setting,
                                *table_.gpu.memory - static_cast<std::int64_t>(std::ceil(outside_)));
  }

  const AdviseOptions& options_;
  const AdviseHost& host_;
  const std::vector<SourceRecords>& records_;
  std::vector<Source> sources_;
  std::vector<const Record*> all_;
  std::vector<const Record*> used_;  // whose speeds are in rows
  double outside_ = 0;
  SpeedTable table_;
};

}  // namespace

double gpus_of(const Record& record) {
  const auto gpus = record.case_fields.value("gpus", nullptr);
  return gpus.is_number() ? gpus.get<double>() : 1;
}

std::string text_at(const Json& object, const char* key) { return field_text(object.value(key, Json())); }

const char* name_of(SpeedSource source) {
  switch (source) {
    case SpeedSource::measured:
      return "measured";
    case SpeedSource::committed:
      return "committed";
    case SpeedSource::predicted:
      break;
  }
  return "predicted";
}

SpeedTable speed_table(const AdviseOptions& options, const AdviseHost& host,
                       const std::vector<SourceRecords>& sources) {
  return TableBuilder(options, host, sources).build();
}

std::string setting_words(const Json& setting) {
  std::string words = fmt::format("seq {}, batch {}", text_at(setting, "seq"), text_at(setting, "batch"));
  if (text_at(setting, "accumulation") != "1") words += " x " + text_at(setting, "accumulation");
  if (text_at(setting, "gpus") != "1") words += ", " + text_at(setting, "parallel");
  for (const auto& [key, usual] : {std::pair("recompute", "none"), std::pair("layers", "all"),
                                   std::pair("ep", "1"), std::pair("context", "1")})
    if (const std::string value = text_at(setting, key); !value.empty() && value != usual && value != "0")
      words += fmt::format(", {} {}", key, value);
  return words + fmt::format(", master {}, moments {}, gradients {}", text_at(setting, "master"),
                             text_at(setting, "moments"), text_at(setting, "grads"));
}

}  // namespace precbench
