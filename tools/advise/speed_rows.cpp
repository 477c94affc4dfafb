// Looks up groups of records and predicts what they lack. See speed_rows.h.
#include "tools/advise/speed_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/printable.h"
#include "results/record/step_time.h"
#include "tools/advise/gpu_names.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/equal_loss.h"
#include "tools/analysis/numerics_label.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUsualSeq = "4096";

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

/// Weights that LoRA keeps frozen, from the exact ones to those of fewest bits.
constexpr const char* kFrozen[] = {"bf16", "fp8_weights", "nf4_weights"};
constexpr const char* kLoraRank = "16";

/// Builds the rows of one question.
class TableBuilder {
 public:
  TableBuilder(const AdviseOptions& options, const AdviseHost& host,
               const std::vector<SourceRecords>& sources, const std::vector<std::string>& candidates)
      : options_(options), host_(host), records_(sources), candidates_(candidates) {
    table_.gpu = target_gpu(options, host, sources);
    for (const SourceRecords& one : sources) sources_.push_back(analysed(one, table_.gpu.name));
    for (const SourceRecords& one : sources)
      for (const LocatedRecord& located : one.set->records) all_.push_back(&located.record);
  }

  SpeedTable build() && {
    table_.defaults = host_.case_of({});
    if (host_.native_recipes) native_ = host_.native_recipes(table_.gpu);
    table_.multiplies_bf16_alone = native_ && !is_native("tensorwise") && !is_native("mxfp8");
    const Json given = host_.case_of(options_.given);
    if (host_.case_bytes) table_.limit_bytes = host_.case_bytes(table_.gpu).value_or(0);
    if (!take_recorded_setting(given)) search_settings();
    if (nothing_fits()) table_.would_fit = nearest_that_fits();
    if (nothing_fits() && text_at(given, "lora_rank").empty()) search_adapters();
    keep_best_gathers();
    if (table_.part == TrainedPart::full)
      std::stable_sort(table_.rows.begin(), table_.rows.end(), [](const SpeedRow& a, const SpeedRow& b) {
        return a.tokens_per_s.value_or(-1) > b.tokens_per_s.value_or(-1);
      });
    describe_predictions();
    describe_doubts();
    return std::move(table_);
  }

 private:
  bool is_native(const std::string& recipe) const {
    return std::find(native_->begin(), native_->end(), recipe) != native_->end();
  }

  bool nothing_fits() const {
    return std::none_of(table_.rows.begin(), table_.rows.end(), [](const SpeedRow& row) { return row.fits; });
  }

  /// Takes the setting of matching records, whose rows come first. Returns false if there are none.
  bool take_recorded_setting(const Json& given) {
    std::set<std::string> keys{"model", "gpus", "layers"};
    for (const auto& [field, text] : options_.given)
      if (field != "gather") keys.insert(field);
    // Nobody is to train in the dtypes of states that happened to be measured.
    std::set<std::string> with_states = keys;
    with_states.insert({"master", "moments", "second_moment", "weights", "grads", "optimizer"});
    for (const Source& source : sources_)
      if (const auto match = find_group(source, given, table_.defaults,
                                        source.source == SpeedSource::measured ? keys : with_states)) {
        table_.setting = completed_case(Json(match->bf16->record().case_fields));
        table_.bf16_counts = host_.dry_run(table_.setting);
        const std::set<std::string> all_keys = setting_keys(table_.setting);
        for (const Source& one : sources_)
          if (const auto rows = find_group(one, table_.setting, table_.defaults, all_keys))
            add_rows(one.source, *rows);
        predict_rows();
        return true;
      }
    return false;
  }

  /// Returns the fields that the user fixed and the usual ones for those that matter most.
  AdviseHost::Words usual_words() const {
    AdviseHost::Words words = options_.given;
    if (!words.contains("parallel") && words.contains("gpus") && words.at("gpus") != "1")
      words["parallel"] = "fsdp";
    if (!words.contains("seq")) words["seq"] = kUsualSeq;
    if (!words.contains("device")) words["device"] = "cuda";
    return words;
  }

  /// Lets every recipe have its best setting.
  void search_settings() {
    AdviseHost::Words words = usual_words();
    std::vector<RecipeSetting> settings;
    if (host_.best_settings)
      settings = host_.best_settings(
          {words, recipes_to_predict(), table_.gpu.name,
           table_.limit_bytes > 0 ? table_.limit_bytes : std::numeric_limits<std::int64_t>::max()});
    add_settings(settings);
    const bool has_bf16 = !settings.empty() && !settings.front().fields.is_null();
    if (!words.contains("batch")) words["batch"] = "1";
    table_.setting = has_bf16 ? settings.front().fields : host_.case_of(words);
    table_.bf16_counts = counts_of(table_.setting);
    if (!has_bf16 && table_.bf16_counts.status != Status::ok)
      throw InvalidInput(table_.bf16_counts.error.value_or("the case cannot run"));
    if (!settings.empty()) return;
    // Without rates of such a GPU: whether BF16 fits is all that is known.
    SpeedRow& row = table_.rows.emplace_back(SpeedRow{"bf16"});
    row.fields = table_.setting;
    row.fits = fits(table_.bf16_counts);
    row.no_speed = "no rates of such a GPU";
  }

  void add_settings(const std::vector<RecipeSetting>& settings) {
    for (const RecipeSetting& one : settings) {
      SpeedRow row{one.recipe};
      row.fields = one.fields;
      if (one.peak_bytes > 0) row.peak_bytes = one.peak_bytes;
      row.fits = !one.too_large;
      row.runs = one.runs;
      if (one.too_large && table_.part == TrainedPart::full &&
          (!table_.least_bytes || one.peak_bytes < *table_.least_bytes))
        table_.least_bytes = one.peak_bytes;
      if (one.fields.is_null()) {
        row.no_speed = one.reason;
      } else {
        row.gather = shares_weights(one.fields) ? text_at(one.fields, "gather") : "";
        row.tokens_per_s = one.tokens_per_s;
        if (one.over_bf16.mean > 0) row.speedup = one.over_bf16;
        row.joules_per_token = predicted_joules(one);
      }
      table_.rows.push_back(std::move(row));
    }
  }

  /// Returns the dry run of a setting; of one that precbench only predicts, that of the same model with data parallelism.
  Record counts_of(const Json& setting) const {
    Record counts = host_.dry_run(setting);
    if (counts.status == Status::ok) return counts;
    AdviseHost::Words words;
    for (const char* field : {"model", "layers", "gpus", "seq"})
      if (const std::string value = text_at(setting, field); !value.empty()) words[field] = value;
    words["parallel"] = "fsdp", words["batch"] = "1", words["device"] = "cuda";
    if (words["gpus"] == "1") words.erase("parallel");
    const Record plain = host_.dry_run(host_.case_of(words));
    return plain.status == Status::ok ? plain : counts;
  }

  /// Looks for adapters (LoRA) on weights that are as exact as fit.
  void search_adapters() {
    if (!host_.best_settings || table_.limit_bytes <= 0) return;
    AdviseHost::Words words = usual_words();
    words["lora_rank"] = kLoraRank;
    const std::vector<RecipeSetting> settings = host_.best_settings(
        {words, {std::begin(kFrozen), std::end(kFrozen)}, table_.gpu.name, table_.limit_bytes});
    const auto first = std::find_if(settings.begin(), settings.end(),
                                    [](const RecipeSetting& one) { return !one.fields.is_null(); });
    if (first == settings.end()) return;
    table_.part = TrainedPart::lora;
    table_.rows.clear();
    add_settings(settings);
    table_.setting = first->fields;
    table_.bf16_counts = host_.dry_run(table_.setting);
  }

  /// Keeps of each recipe the fastest row that fits.
  void keep_best_gathers() {
    std::vector<SpeedRow> best;
    for (SpeedRow& row : table_.rows) {
      const auto known = std::find_if(best.begin(), best.end(),
                                      [&](const SpeedRow& one) { return one.recipe == row.recipe; });
      if (known == best.end())
        best.push_back(std::move(row));
      else if (std::tuple(row.fits, row.tokens_per_s.value_or(-1)) >
               std::tuple(known->fits, known->tokens_per_s.value_or(-1)))
        *known = std::move(row);
    }
    table_.rows = std::move(best);
  }

  /// Returns a record's case with the fields that older records lack, without its files and schedule.
  Json completed_case(const Json& fields) const {
    Json whole = host_.case_of({});
    for (const auto& [key, value] : fields.items())
      if (belongs_to_setting(key) && whole.contains(key)) whole[key] = value;
    whole["device"] = "cuda";
    return whole;
  }

  static bool shares_weights(const Json& fields) {
    return text_at(fields, "gpus") != "1" && text_at(fields, "parallel") != "ddp";
  }

  bool fits(const Record& counts) const {
    if (table_.limit_bytes <= 0 || !counts.memory || !counts.memory->predicted) return true;
    return counts.memory->predicted->peak <= table_.limit_bytes;
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

  void add_rows(SpeedSource source, const Match& match) {
    const bool shares = shares_weights(table_.setting);
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
      row.fields = table_.setting;
      row.fields["recipe"] = row.recipe;
      if (shares) row.fields["gather"] = row.gather;
      table_.rows.push_back(row);
      for (const LocatedRecord* member : from->members) used_.push_back(&member->record);
    }
  }

  /// Returns BF16 and the recipes in question that the GPU multiplies natively. The others are noted as emulated.
  std::vector<std::string> recipes_to_predict() {
    std::vector<std::string> asked = options_.recipes.empty() ? candidates_ : options_.recipes;
    if (options_.recipes.empty())
      for (const SourceRecords& source : records_)
        if (source.source == SpeedSource::measured)
          for (const LocatedRecord& located : source.set->records)
            if (const std::string label = numerics_label(located.record.case_fields); is_plain_name(label))
              asked.push_back(label);
    std::vector<std::string> recipes = {"bf16"};
    for (const std::string& recipe : asked) {
      if (std::find(recipes.begin(), recipes.end(), recipe) != recipes.end()) continue;
      if (!native_ || is_native(recipe) || is_file_name(recipe))
        recipes.push_back(recipe);
      else if (std::find(table_.emulated.begin(), table_.emulated.end(), recipe) == table_.emulated.end())
        table_.emulated.push_back(recipe);
    }
    return recipes;
  }

  /// Adds the recipes that records of the setting lack.
  void predict_rows() {
    const bool shares = shares_weights(table_.setting);
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

  /// Returns the median power of a GPU in W over timed native records of the recipe on one such GPU; null without
  /// any.
  std::optional<double> usual_power_w(const std::string& recipe) const {
    std::vector<double> powers;
    for (const Record* record : all_)
      if (record->status == Status::ok && !record->study && record->support && record->env.gpu &&
          record->env.gpu->name == table_.gpu.name && gpus_of(*record) == 1 &&
          record->support->path() == ExecutionPath::native && record->telemetry &&
          record->telemetry->power_w && numerics_label(record->case_fields) == recipe)
        powers.push_back(*record->telemetry->power_w);
    const auto statistics = sample_statistics(std::move(powers));
    return statistics ? std::optional(statistics->median) : std::nullopt;
  }

  std::optional<double> predicted_joules(const RecipeSetting& setting) const {
    const auto power = usual_power_w(setting.recipe);
    return power ? std::optional(*power * setting.fields.at("gpus").get<double>() / setting.tokens_per_s)
                 : std::nullopt;
  }

  SpeedRow predicted_row(const Record& counts, const Json& fields, const std::string& recipe,
                         const std::string& gather) const {
    SpeedRow row{recipe, gather};
    row.fits = fits(counts);
    row.fields = fields;
    if (counts.memory && counts.memory->predicted)
      row.peak_bytes = static_cast<double>(counts.memory->predicted->peak);
    const auto own = host_.predict ? host_.predict(fields, table_.setting, table_.gpu.name) : std::nullopt;
    if (!own || !counts.training || !counts.training->tokens_per_step) {
      row.no_speed = "no native formats or rates on such a GPU";
      return row;
    }
    row.tokens_per_s = static_cast<double>(*counts.training->tokens_per_step) / own->step_ms * 1e3;
    if (own->over_bf16.mean > 0) row.speedup = own->over_bf16;
    // A ratio is predicted more exactly than a speed.
    const auto bf16 = std::find_if(table_.rows.begin(), table_.rows.end(),
                                   [](const SpeedRow& one) { return one.is_bf16() && one.tokens_per_s; });
    if (bf16 != table_.rows.end() && row.speedup) row.tokens_per_s = *bf16->tokens_per_s * row.speedup->mean;
    if (const auto power = usual_power_w(numerics_label(counts.case_fields)))
      row.joules_per_token = *power * gpus_of(counts) / *row.tokens_per_s;
    return row;
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
    if (std::any_of(table_.rows.begin(), table_.rows.end(), [](const SpeedRow& row) { return !row.runs; }))
      table_.notes.push_back(
          "Some of these layouts are predicted for programs that have them: precbench runs no pipeline, and tensor ranks of some "
          "models only. Each recipe has the fastest of a few layouts, so part of a speed-up may come from the layout. precbench plan "
          "searches more.");
    if (host_.rates_borrowed_from) table_.rates_borrowed_from = host_.rates_borrowed_from(table_.gpu);
    table_.notes.push_back(fmt::format(
        "Predicted by the cost model for {} from its peaks, its network and measured rates of ops{}, "
        "as with sweep --dry-run --on. Intervals hold in 80% of cases.",
        table_.gpu.name, table_.rates_borrowed_from ? " on " + *table_.rates_borrowed_from : ""));
  }

  std::optional<std::string> nearest_that_fits() const {
    if (!host_.nearest_change || table_.limit_bytes <= 0) return std::nullopt;
    return host_.nearest_change(table_.setting, table_.limit_bytes);
  }

  const AdviseOptions& options_;
  const AdviseHost& host_;
  const std::vector<SourceRecords>& records_;
  const std::vector<std::string>& candidates_;
  std::vector<Source> sources_;
  std::vector<const Record*> all_;
  std::vector<const Record*> used_;                 // whose speeds are in rows
  std::optional<std::vector<std::string>> native_;  // recipes; null: unknown
  SpeedTable table_;
};

}  // namespace

double gpus_of(const Record& record) {
  const auto gpus = record.case_fields.value("gpus", nullptr);
  return gpus.is_number() ? gpus.get<double>() : 1;
}

std::string text_at(const Json& object, const char* key) { return field_text(object.value(key, Json())); }

const char* name_of(SpeedSource source) {
  static constexpr EnumNames<SpeedSource, 3> kNames{{"measured", "committed", "predicted"}};
  return kNames.of(source);
}

const char* name_of(TrainedPart part) { return part == TrainedPart::lora ? "lora" : "full"; }

SpeedTable speed_table(const AdviseOptions& options, const AdviseHost& host,
                       const std::vector<SourceRecords>& sources,
                       const std::vector<std::string>& candidates) {
  return TableBuilder(options, host, sources, candidates).build();
}

std::string short_setting(const Json& fields) {
  std::string words = text_at(fields, "batch");
  if (const std::string more = text_at(fields, "accumulation"); !more.empty() && more != "1")
    words += " x " + more;
  for (const auto& [key, name] : {std::pair("tensor", "tp"), std::pair("pipeline", "pp"),
                                  std::pair("context", "cp"), std::pair("ep", "ep")})
    if (const std::string value = text_at(fields, key); !value.empty() && value != "1")
      words += fmt::format(" {}{}", name, value);
  if (const std::string value = text_at(fields, "recompute"); !value.empty() && value != "none")
    words += " " + value;
  if (text_at(fields, "moments") == "bf16") words += " moments bf16";
  if (text_at(fields, "grads") == "bf16") words += " grads bf16";
  return words;
}

std::string setting_words(const Json& setting) {
  std::string words = fmt::format("seq {}, batch {}", text_at(setting, "seq"), text_at(setting, "batch"));
  if (const std::string more = text_at(setting, "accumulation"); !more.empty() && more != "1")
    words += " x " + more;
  if (text_at(setting, "gpus") != "1") words += ", " + text_at(setting, "parallel");
  for (const auto& [key, usual] :
       {std::pair("recompute", "none"), std::pair("layers", "all"), std::pair("tensor", "1"),
        std::pair("pipeline", "1"), std::pair("virtual_stages", "1"), std::pair("ep", "1"),
        std::pair("context", "1")})
    if (const std::string value = text_at(setting, key); !value.empty() && value != usual && value != "0")
      words += fmt::format(", {} {}", key == std::string("virtual_stages") ? "virtual stages" : key, value);
  return words + fmt::format(", master {}, moments {}, gradients {}", text_at(setting, "master"),
                             text_at(setting, "moments"), text_at(setting, "grads"));
}

}  // namespace precbench
