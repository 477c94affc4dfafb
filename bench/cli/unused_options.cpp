// Fields that only have an effect together with others. See unused_options.h.
#include "bench/cli/unused_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

struct Rule {
  const char* field;
  std::vector<std::string> beside;  ///< fields that decide whether `field` has an effect
  bool (*read)(const Case&);
  const char* why;
};

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> kRules = {
      {"glob",
       {"data", "eval_data"},
       [](const Case& c) { return is_folder(c.data) || is_folder(c.eval_data); },
       "applies to folders only, and neither --data nor --eval-data is a folder"},
      {"eval_tokens",
       {"eval_data"},
       [](const Case& c) { return !c.eval_data.empty(); },
       "needs held-out text: add --eval-data FILE"},
      {"checkpoint_dir",
       {"checkpoint_every", "checkpoint_at"},
       writes_checkpoints,
       "no checkpoint is written: add --checkpoint-every N"},
      {"checkpoint_keep",
       {"checkpoint_every", "checkpoint_at"},
       writes_checkpoints,
       "no checkpoint is written: add --checkpoint-every N"},
      {"reshard",
       {"parallel", "gpus"},
       [](const Case& c) { return c.parallel != "ddp" && c.gpus > 1; },
       "only sharded ranks gather weights: add --parallel fsdp and --gpus N"},
      {"grad_sync",
       {"parallel", "gpus", "accumulation", "micro_batches"},
       [](const Case& c) { return c.parallel != "ddp" && c.gpus > 1 && c.micro_steps() > 1; },
       "only sharded ranks with several micro-steps have a choice: add --parallel fsdp, --gpus N and "
       "--accumulation M"},
      {"reduce_amax", {"gpus"}, [](const Case& c) { return c.gpus > 1; }, "there is one rank: add --gpus N"},
      {"warmup",
       {"steps"},
       [](const Case& c) { return c.steps == 0 || c.warmup <= c.steps; },
       "no run reaches its --lr; use a warmup of at most --steps"},
      {"time_limit",
       {"steps"},
       [](const Case& c) { return c.steps == 0; },
       "applies to --steps auto only, but --steps is a number"},
  };
  return kRules;
}

}  // namespace

std::string unused_option(const std::vector<Plan>& cases, const Axes& flags, const Axes& file) {
  static const Case defaults;
  for (const Rule& rule : rules()) {
    const bool overruled = std::any_of(rule.beside.begin(), rule.beside.end(),
                                       [&](const std::string& name) { return flags.contains(name); });
    if (!flags.contains(rule.field) && (overruled || !file.contains(rule.field))) continue;
    const Field& field = *find_field(rule.field);
    std::vector<const Case*> set;
    for (const Plan& plan : cases)
      if (get_text(plan.fields, field) != get_text(defaults, field)) set.push_back(&plan.fields);
    if (!set.empty() && std::none_of(set.begin(), set.end(), [&](const Case* c) { return rule.read(*c); }))
      return fmt::format("{}: {}", flag_of(field), rule.why);
  }
  return "";
}

void refuse_unused(const std::vector<Plan>& cases, const Axes& flags, const Axes& file) {
  if (const std::string why = unused_option(cases, flags, file); !why.empty()) throw InvalidInput(why);
}

}  // namespace precbench
