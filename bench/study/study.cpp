// The study command: settings, warnings and phases. See study.h.
#include "bench/study/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <span>

#include "bench/case/plan.h"
#include "bench/case/trained_text.h"
#include "bench/cli/cli.h"
#include "bench/cli/config_file.h"
#include "bench/cli/recipe_sets.h"
#include "bench/machine/datasheet.h"
#include "bench/machine/environment.h"
#include "bench/process/rendezvous.h"
#include "bench/process/standard_error.h"
#include "bench/process/sweep_status.h"
#include "bench/study/planned_cost.h"
#include "bench/study/steady.h"
#include "bench/study/study_plan.h"
#include "bench/study/study_settings.h"
#include "bench/study/study_time.h"
#include "bench/study/token_count.h"
#include "bench/study/trunk_states.h"
#include "bench/sweep/case_files.h"
#include "bench/sweep/progress.h"
#include "bench/sweep/sweep_folder.h"
#include "bench/sweep/warnings.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "kernels/base/standard_input.h"
#include "kernels/gpu/device_info.h"
#include "models/config/config.h"
#include "models/data/data.h"
#include "results/record/printable.h"
#include "results/record/record_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Returns the embedded settings with the file and the flags applied; the device is chosen.
StudySettings settings_of(const StudyCommand& command) {
  Axes flags = command.axes;
  const auto sensitivity = flags.extract("sensitivity");
  for (const auto& [name, words] : flags) {
    check_study_field(name);
    check_study_words(*find_field(name), words);
  }
  StudySettings given;  // to learn the device, which selects the defaults
  if (!command.config.empty()) read_study_file(command.config, given);
  flags.insert(given.work.begin(), given.work.end());
  Case c;
  if (const auto device = flags.find("device"); device != flags.end())
    set_text(c, *find_field("device"), device->second.front());
  choose_device(c);
  for (const auto& [name, words] : command.axes) given.work[name] = words;
  StudySettings settings = default_study({.on_gpu = is_gpu(c.device), .trained = given.starts_trained()});
  if (!command.config.empty()) read_study_file(command.config, settings);
  for (const auto& [name, words] : flags) settings.work[name] = words;
  settings.work["device"] = {c.device};
  expand_native(settings.work);
  for (const char* name : {"model", "recipe"})
    if (const auto words = settings.work.find(name); words != settings.work.end())
      for (const std::string& value : expand_axis(*find_field(name), words->second))
        if (value == kStandardInput)
          throw InvalidInput(
              fmt::format("--{} -: a study runs in several processes, which cannot read standard input: use "
                          "a file",
                          name));
  if (!sensitivity.empty()) set_sensitivity(settings, sensitivity.mapped());
  if (!command.against.empty()) settings.against = command.against;
  settings.sensitivity_only = command.sensitivity_only;
  if (settings.sensitivity_only && settings.sensitivity.empty())
    throw InvalidInput("--sensitivity-only: needs cells: add --sensitivity standard");
  if (settings.sensitivity_only) settings.trunks = std::min(settings.trunks, settings.ladder_trunks);
  if (!command.trained_tokens.empty()) {
    try {
      settings.trained_tokens = parse_token_count(command.trained_tokens);
    } catch (const InvalidInput& error) {
      throw InvalidInput(fmt::format("--trained-tokens: {}", error.what()));
    }
  }
  if (settings.trained_tokens && !settings.starts_trained())
    throw InvalidInput("--trained-tokens: needs pretrained weights: add --init-from");
  return settings;
}

std::vector<std::string> models_of(const StudySettings& settings) {
  const auto models = settings.work.find("model");
  return models == settings.work.end() ? std::vector<std::string>{Case{}.model}
                                       : expand_axis(*find_field("model"), models->second);
}

/// Returns one plan per model: a study of several models is one study of each.
std::vector<StudyPlan> plans_of(const StudySettings& settings, const std::string& out) {
  std::vector<StudyPlan> plans;
  for (const std::string& model : models_of(settings)) plans.emplace_back(settings, model, out);
  return plans;
}

template <class Cases>
void append(Cases& cases, Cases more) {
  cases.insert(cases.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// Returns a warning if a trunk reads its text several times, because verdicts would then concern
/// memorization; else null.
std::optional<std::string> repeated_text_warning(const Plan& trunk) {
  const auto text = open_training_data(trunk.fields, trunk.model);
  const std::int64_t read = trunk.fields.steps * trunk.tokens_per_step() / trunk.T,
                     there = text->sequences(trunk.T);
  if (read <= there) return std::nullopt;
  return fmt::format("--data has {} of {} tokens, but a trunk reads {}: {:.1f} epochs; give more text",
                     plural(there, "sequence"), trunk.T, read,
                     static_cast<double>(read) / static_cast<double>(there));
}

/// Returns why the forks cannot begin: a trunk did not finish. Null if all did.
std::optional<std::string> unfinished_trunk_reason(const std::string& records,
                                                   const std::vector<Plan>& trunks) {
  std::map<std::string, const Record*> rows;
  const RecordSet set = read_records({records});
  for (const LocatedRecord& located : set.records) rows[located.record.id] = &located.record;
  for (const Plan& trunk : trunks) {
    const auto row = rows.find(trunk.id);
    if (row == rows.end() || row->second->status != Status::ok)
      return fmt::format("trunk {} of {} has no states to fork: {}", trunk.study->trunk, trunk.fields.model,
                         row == rows.end() ? "its row is gone" : describe_outcome(*row->second));
  }
  return std::nullopt;
}

/// Returns when the forks of one model begin: the ages of the settings, or the one from which the losses of
/// its finished trunks are steady, which it prints.
ForkAges fork_ages(const StudySettings& settings, const std::string& records,
                   const std::vector<Plan>& trunks) {
  const std::vector<std::int64_t> kept = settings.kept_ages();
  if (!settings.steady) return {kept, {}};
  std::map<std::string, std::vector<double>> losses;
  for (const LocatedRecord& located : read_records({records}).records)
    if (located.record.status == Status::ok && located.record.training)
      losses[located.record.id] = located.record.training->loss;
  std::vector<std::vector<double>> curves;
  for (const Plan& trunk : trunks) {
    curves.push_back(losses[trunk.id]);
    if (curves.back().size() != static_cast<std::size_t>(kept.back()))
      throw InvalidInput(fmt::format("{}: trunk {} has losses of {}, not of {}", records, trunk.study->trunk,
                                     plural(curves.back().size(), "step"), kept.back()));
  }
  const SteadyAge found = find_steady_age(curves, kept, settings.level);
  log_line(fmt::format("precbench: {}: {}", trunks.front().fields.model, describe(found, kept.back())));
  return {{found.age}, found.steady};
}

/// Refuses impossible forks before the trunks run; their states do not exist yet. `rungs`: includes those
/// whose recipes the study writes itself.
void check_forks(std::vector<StudyCase> cases, bool rungs) {
  for (StudyCase& one : cases) {
    if (!rungs && one.place.base) continue;
    one.fields.fork_from.clear();
    validate(one.fields);
  }
}

/// Returns the pace of a plan's cases, from a few timed steps; null, and says why, if it cannot be known.
std::optional<StudyPace> estimate_pace(const std::vector<std::string>& child, const StudyPlan& plan) {
  const Case like = plan.trunks().front().fields;
  // A plan is useful without a GPU too, for example on a login node.
  if (is_gpu(like.device) && find_gpus().count == 0) {
    log_line(fmt::format("precbench: {}; the plan has no estimate of the study's time", find_gpus().reason));
    return std::nullopt;
  }
  const std::optional<StudyPace> pace = measure_pace(child, like, plan.first_recipe());
  if (!pace)
    log_line(fmt::format(
        "precbench: a few steps take longer than {:g} s here: the plan has no estimate of the study's time",
        kPacePatienceS));
  return pace;
}

/// Returns a warning if there are too few trunks for a verdict, which is fine for a study made for its
/// curves; else null.
std::optional<std::string> too_few_trunks_warning(const StudySettings& settings) {
  if (settings.trunks >= kFewestTrunks || settings.sensitivity_only) return std::nullopt;
  return fmt::format("{}: every verdict will be inconclusive; a verdict needs at least {}",
                     plural(settings.trunks, "trunk"), kFewestTrunks);
}

/// Returns a warning if the trunks train adapters beside a model that nobody has trained; else null.
std::optional<std::string> random_frozen_model_warning(const Plan& trunk) {
  if (!trunk.parameters.lora || !trunk.fields.init_from.empty()) return std::nullopt;
  return "--lora without --init-from: the frozen model is random, so the verdicts do not hold for the fine-tuning of a "
         "trained one; --init-from gives its weights";
}

void check_data(const StudySettings& settings) {
  const std::string& path = settings.work.at("data").front();
  if (path == "synthetic")
    throw InvalidInput("--data: a study needs text; synthetic data differs in language between seeds");
  if (std::error_code error; !fs::exists(path, error))
    throw InvalidInput(fmt::format("--data: {} does not exist; give a folder of text or a token file", path));
}

}  // namespace

CLI::App* add_study_command(CLI::App& app, StudyCommand& command) {
  CLI::App* sub = app.add_subcommand(
      "study", "convergence study: forks of BF16 runs, one card with a verdict for each recipe");
  sub->footer(
      "Defaults and all further settings: bench/study/cpu.toml and gpu.toml, overridden by --config FILE.\n"
      "With --init-from, trunks are re-warmed until their loss is steady (init_cpu.toml, init_gpu.toml).\n"
      "The same command resumes an interrupted study.\n"
      "\n"
      "Exit status: 0 the study has finished\n"
      "             1 as 0, but a case crashed or timed out, none is ok, or an output file is lost\n"
      "             2 bad input\n"
      "             130 cases are left\n"
      "\n"
      "Examples:\n"
      "  # does a recipe train? the smallest study\n"
      "  precbench study --model tiny --recipe blockwise,mxfp8_floor\n"
      "  # is a recipe of your own better than nvfp4?\n"
      "  precbench study --model tiny --recipe bench/sweeps/example-recipe.json --against nvfp4\n"
      "  # plan and estimated duration\n"
      "  precbench study --model tiny --recipe tensorwise,mxfp8 --dry-run\n"
      "  # layers and GEMMs that the loss comes from\n"
      "  precbench study --model tiny --recipe mxfp8 --sensitivity standard --sensitivity-only --out out/cells");
  sub->add_option(
         "--against", command.against,
         "incumbent: recipe that the others are compared with, besides BF16; takes part if not in --recipe")
      ->type_name("RECIPE")
      ->group("Study");
  sub->add_option("--trained-tokens", command.trained_tokens,
                  "tokens seen by the weights of --init-from: 2T, 300B, 1.5e9 (for tokens per parameter)")
      ->type_name("N")
      ->group("Study");
  add_sweep_flags(*sub, command,
                  {.group = "Study",
                   .config = "study file (TOML), - for standard input; flags override it",
                   .out = "output folder for records.jsonl, cards.json and checkpoints (default out/study)",
                   .dry_run = "plan with an estimated duration, from a few timed steps; no case runs",
                   .at_once = "concurrent cases (default as many as fit)",
                   .default_of = default_of_study});
  sub->add_flag("--json", command.json, "plan of --dry-run as JSON")->group("Study");
  sub->add_flag("--sensitivity-only", command.sensitivity_only,
                "trunks and sensitivity cells without forks (with --sensitivity)")
      ->group("Study");
  return sub;
}

namespace {

/// A study's plans and the way in which they run.
struct StudyRun {
  const StudySettings& settings;
  const std::vector<StudyPlan>& models;
  const std::vector<Plan>& trunks;  ///< of all models, each's one after the other
  std::string out;
  SweepOptions options;

  std::string records() const { return out + "/records.jsonl"; }
  /// Number of trunks of each model.
  std::size_t each() const { return trunks.size() / models.size(); }
  std::vector<Plan> trunks_of(std::size_t model) const {
    const auto begin = trunks.begin() + static_cast<std::ptrdiff_t>(model * each());
    return {begin, begin + static_cast<std::ptrdiff_t>(each())};
  }
};

/// A trunk with its forks. Those of a settled trunk all have rows, so it needs no state any more.
struct TrunkWork {
  Plan trunk;
  std::vector<Plan> forks;  ///< only of a settled trunk; others are resolved once the states exist
  bool settled = false;
};

/// Returns the unresolved forks of each trunk of a model, in the trunks' order.
std::vector<std::vector<StudyCase>> forks_by_trunk(const StudyPlan& model, const std::vector<Plan>& trunks,
                                                   const ForkAges& ages) {
  std::vector<std::vector<StudyCase>> forks(trunks.size());
  for (StudyCase& one : model.forks(trunks, ages))
    forks[static_cast<std::size_t>(one.place.trunk) - 1].push_back(std::move(one));
  return forks;
}

/// Returns the trunks of all models. A trunk whose states are gone is settled if all its forks are finished: they
/// have been removed after the forks, by this program or by the user.
std::vector<TrunkWork> work_of(const StudyRun& run) {
  std::vector<TrunkWork> work;
  for (const Plan& trunk : run.trunks) work.push_back({trunk, {}, false});
  if (run.options.fresh || std::all_of(run.trunks.begin(), run.trunks.end(), has_states)) return work;
  const std::map<std::string, std::uint64_t> known = fingerprints_in_rows(run.records());
  if (known.empty()) return work;
  for (std::size_t m = 0; m < run.models.size(); ++m) {
    const std::vector<Plan> own = run.trunks_of(m);
    // Without the rows of all trunks the forks' age may not be known.
    if (run.settings.steady && unfinished_trunk_reason(run.records(), own)) continue;
    const auto forks = forks_by_trunk(run.models[m], own, fork_ages(run.settings, run.records(), own));
    for (std::size_t i = 0; i < own.size(); ++i) {
      TrunkWork& one = work[m * run.each() + i];
      if (has_states(own[i]) || unfinished_trunk_reason(run.records(), {own[i]})) continue;
      one.forks = resolve_forks(forks[i], known);
      one.settled = all_finished(one.forks, run.options);
      if (!one.settled) one.forks.clear();
    }
  }
  return work;
}

/// Returns the indices of trunks that are not settled. Those with states come first: one trunk at a time, their removal
/// makes room for the others.
std::vector<std::size_t> unsettled_order(const std::vector<TrunkWork>& work) {
  std::vector<std::size_t> order;
  for (std::size_t k = 0; k < work.size(); ++k)
    if (!work[k].settled) order.push_back(k);
  std::stable_partition(order.begin(), order.end(), [&](std::size_t k) { return has_states(work[k].trunk); });
  return order;
}

std::vector<Plan> unsettled(const std::vector<TrunkWork>& work) {
  std::vector<Plan> trunks;
  for (const std::size_t k : unsettled_order(work)) trunks.push_back(work[k].trunk);
  return trunks;
}

TrunkSpace space_for(const StudyRun& run, const std::vector<Plan>& trunks) {
  return plan_trunk_space(trunks, run.out, run.options.fresh ? Earlier::moved_aside : Earlier::used,
                          run.settings.steady, run.options.free_bytes);
}

/// Runs trunks and checks that their states are there. Returns the exit status if the study ends here, else null;
/// `worst` becomes the worst status of the sweeps.
std::optional<int> run_trunks(const StudyRun& run, const std::vector<Plan>& trunks, int& worst) {
  if (trunks.empty()) return std::nullopt;
  check_files(trunks);
  const int status = run_sweep(trunks, run.options);
  if (status == kSweepInterrupted) return status;
  worst = std::max(worst, status);
  if (const auto why = unfinished_trunk_reason(run.records(), trunks)) {
    log_line("precbench: " + *why);
    return kSweepFailures;
  }
  return std::nullopt;
}

/// Runs all trunks, then all forks.
int run_all_trunks(const StudyRun& run, const std::vector<TrunkWork>& work) {
  int worst = kSweepDone;
  if (const auto end = run_trunks(run, unsettled(work), worst)) return *end;
  std::vector<Plan> forks, to_check;
  for (std::size_t m = 0; m < run.models.size(); ++m) {
    const std::span<const TrunkWork> of_model(work.data() + m * run.each(), run.each());
    std::vector<std::vector<StudyCase>> cases;
    if (!std::all_of(of_model.begin(), of_model.end(), [](const TrunkWork& one) { return one.settled; })) {
      const std::vector<Plan> own = run.trunks_of(m);
      cases = forks_by_trunk(run.models[m], own, fork_ages(run.settings, run.records(), own));
    }
    for (std::size_t i = 0; i < of_model.size(); ++i) {
      const TrunkWork& one = of_model[i];
      const std::vector<Plan> plans = one.settled ? one.forks : validate(cases[i]);
      if (!one.settled) append(to_check, plans);
      append(forks, plans);
    }
  }
  check_files(to_check);
  return std::max(worst, run_sweep(forks, run.options));  // the worst of done, failures and interrupted
}

/// Runs a trunk and its forks, removes its states, and goes on with the next one.
int run_one_by_one(const StudyRun& run, const std::vector<TrunkWork>& work) {
  int worst = kSweepDone;
  const ForkAges ages = {run.settings.kept_ages(), {}};
  for (const std::size_t k : unsettled_order(work)) {
    const std::size_t m = k / run.each();
    if (const auto end = run_trunks(run, {work[k].trunk}, worst)) return *end;
    const std::vector<Plan> forks =
        validate(forks_by_trunk(run.models[m], run.trunks_of(m), ages)[k % run.each()]);
    check_files(forks);
    const int status = run_sweep(forks, run.options);
    if (status == kSweepInterrupted) return status;
    worst = std::max(worst, status);
    remove_states(work[k].trunk);
  }
  return worst;
}

}  // namespace

int study(const StudyCommand& command) {
  if (command.json && !command.dry_run)
    throw InvalidInput("--json: needs --dry-run; precbench report --format json has the results");
  const std::string out = *command.out;
  const StudySettings settings = settings_of(command);
  check_data(settings);
  check_peaks_variable();
  const std::vector<StudyPlan> models = plans_of(settings, out);
  std::vector<StudyCase> all;
  std::vector<Plan> trunks;
  for (const StudyPlan& model : models) {
    const std::vector<Plan> own = validate(model.trunks());
    append(all, model.trunks());
    append(all, model.forks(own));
    append(trunks, own);
  }
  refuse_unfit(trunks, command.axes, settings.work, true);
  SweepOptions options = command.options;
  options.out = out;
  options.timeout_s = command.timeout ? parse_timeout(*command.timeout) : options.timeout_s;
  options.summary = false;
  const Concurrency concurrency = concurrency_for(trunks, command.options.at_once);
  options.at_once = concurrency.at_once, options.gpus = concurrency.gpus;
  if (!trunks.front().on_gpu) share_threads(concurrency.at_once);

  check_inputs(trunks);
  if (const auto warning = repeated_text_warning(trunks.front())) log_line("precbench: " + *warning);
  if (const auto warning = too_few_trunks_warning(settings)) log_line("precbench: " + *warning);
  if (const auto warning = random_frozen_model_warning(trunks.front())) log_line("precbench: " + *warning);
  if (command.dry_run)
    check_out(out);
  else
    for (const StudyPlan& model : models) model.write_recipes();
  check_forks(all, !command.dry_run);
  print_model_warnings(trunks);
  const std::optional<StudyPace> pace =
      command.dry_run ? estimate_pace(options.child, models.front()) : std::nullopt;
  const std::vector<PlannedPart> parts = planned_parts(all, pace, concurrency);
  const std::string heading = plan_heading(settings, models_of(settings), trunks, concurrency, out);
  command.json ? print_plan_json(parts, concurrency, heading) : print_plan(all, parts, heading);
  StudyRun run{settings, models, trunks, out, options};
  if (command.dry_run) {
    if (const TrunkSpace space = space_for(run, trunks); !space.note.empty())
      log_line("precbench: " + space.note);
    return kSweepDone;
  }

  std::for_each(trunks.begin(), trunks.end(), finish_removal);
  const std::vector<TrunkWork> work = work_of(run);
  const TrunkSpace space = space_for(run, unsettled(work));
  if (!space.fits) throw InvalidInput(space.note);
  if (!space.note.empty()) log_line("precbench: " + space.note);
  if (run.options.fresh) start_afresh(trunks, out);
  run.options.fresh = false;
  return space.order == TrunkOrder::one_trunk ? run_one_by_one(run, work) : run_all_trunks(run, work);
}

}  // namespace precbench
