// Chooses a setting that fits and writes its flags. See measuring.h.
#include "tools/advise/measuring.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "results/record/shell.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSettingFields[] = {
    "layers",      "seq",      "batch",     "accumulation", "gpus",      "parallel",
    "shard_group", "context",  "reshard",   "grad_sync",    "recompute", "routing",
    "ep",          "exchange", "gather",    "master",       "moments",   "second_moment",
    "weights",     "grads",    "optimizer", "lora_rank"};

/// Returns " --seq 4096 ..." for the fields that differ from the defaults.
std::string flags_of(const Json& fields, const Json& defaults, bool gathers_both) {
  std::string flags;
  for (const std::string field : kSettingFields) {
    const std::string value = text_at(fields, field.c_str());
    if (value.empty() || (value == text_at(defaults, field.c_str()) && field != "gather")) continue;
    if (field == "gather" && value != "fp8") continue;
    std::string flag = field;
    std::replace(flag.begin(), flag.end(), '_', '-');
    flags +=
        fmt::format(" --{} {}", flag, field == "gather" && gathers_both ? "bf16,fp8" : shell_quoted(value));
  }
  return flags;
}

bool fits(const AdviseHost& host, const Json& fields, std::int64_t limit) {
  const Record counts = host.dry_run(fields);
  return counts.status == Status::ok && (limit <= 0 || !counts.memory || !counts.memory->predicted ||
                                         counts.memory->predicted->peak <= limit);
}

/// Returns the first of the settings in which both recipes fit, with that recipe; null if there is none.
Json common_setting(const AdviseHost& host, const std::vector<Json>& settings, const std::string& recipe,
                    std::int64_t limit) {
  for (const Json& fields : settings) {
    if (fields.is_null()) continue;
    Json own = fields, base = fields;
    own["recipe"] = recipe;
    base["recipe"] = "bf16", base["gather"] = "bf16";
    if (!fits(host, base, limit)) continue;
    for (const char* gather : {"fp8", "bf16"}) {
      if (text_at(fields, "gather") != gather && std::string(gather) == "fp8") continue;
      own["gather"] = gather;
      if (fits(host, own, limit)) return own;
    }
  }
  return Json();
}

/// Returns a setting on at most kMeasuredGpus, of fewer layers if the model does not fit there.
Json smaller_setting(const Advice& advice, const AdviseHost& host, AdviseHost::Words words,
                     const std::string& recipe) {
  const Json& setting = advice.speeds.setting;
  for (const std::string field :
       {"model", "seq", "master", "moments", "second_moment", "weights", "grads", "optimizer", "lora_rank"})
    if (const std::string value = text_at(setting, field.c_str()); !value.empty()) words[field] = value;
  for (const char* field : {"tensor", "pipeline", "virtual_stages", "micro_batches", "shard_optimizer",
                            "overlap", "ep", "shard_group", "slots", "exchange"})
    words.erase(field);
  if (words.contains("parallel") && words["parallel"] == "hsdp") words["parallel"] = "fsdp";
  const double gpus = std::min(kMeasuredGpus, advice.gpus());
  words["gpus"] = fmt::format("{:.0f}", gpus);
  if (words.contains("context") && parse_number<double>(words["context"]).value_or(gpus) > gpus)
    words["context"] = words["gpus"];
  const std::int64_t limit =
      advice.speeds.limit_bytes > 0 ? advice.speeds.limit_bytes : std::numeric_limits<std::int64_t>::max();
  for (const char* layers : {"", "64", "32", "16", "8", "4", "2", "1"}) {
    if (*layers) words["layers"] = layers;
    try {
      std::vector<Json> settings;
      for (const RecipeSetting& one :
           host.best_settings({words, {"bf16", recipe}, advice.speeds.gpu.name, limit, true, false}))
        settings.push_back(one.fields);
      std::reverse(settings.begin(), settings.end());
      if (const Json found = common_setting(host, settings, recipe, limit); !found.is_null()) return found;
    } catch (const InvalidInput&) {
      continue;  // the model has fewer layers
    }
  }
  return Json();
}

}  // namespace

std::vector<std::string> measuring_commands(const Advice& advice, const AdviseHost& host,
                                            const AdviseHost::Words& given) {
  if (!advice.pick) return {};
  const AdviceRow& row =
      advice.rows[advice.best && advice.speeds.part == TrainedPart::full ? *advice.best : *advice.pick];
  const std::string recipe = row.speed.recipe;
  Json setting;
  if (advice.gpus() <= kMeasuredGpus) {
    std::vector<Json> settings = {row.speed.fields, advice.speeds.setting};
    setting = common_setting(host, settings, recipe, advice.speeds.limit_bytes);
    // Adapters on quantized weights are chosen because those on BF16 do not fit.
    if (setting.is_null() && advice.speeds.part == TrainedPart::lora) setting = row.speed.fields;
  }
  if (setting.is_null() && host.best_settings) setting = smaller_setting(advice, host, given, recipe);
  if (setting.is_null()) return {};
  const std::string model = shell_quoted(text_at(setting, "model"));
  const bool alone = recipe == "bf16" || (advice.speeds.part == TrainedPart::lora);
  const bool gathers = text_at(setting, "gather") == "fp8";
  std::vector<std::string> commands = {fmt::format(
      "precbench sweep --model {} --recipe {}{} --out out/advise", model,
      shell_quoted(alone ? recipe : "bf16," + recipe), flags_of(setting, advice.speeds.defaults, gathers))};
  // With fewer layers the step time per layer stays the same, but the loss does not.
  if (recipe != "bf16" && text_at(setting, "layers") == text_at(advice.speeds.setting, "layers"))
    commands.push_back(fmt::format(
        "precbench study --model {} --recipe {} --init-from CHECKPOINT --data TEXT{} --out out/study", model,
        shell_quoted(recipe), flags_of(setting, advice.speeds.defaults, false)));
  return commands;
}

}  // namespace precbench
