// Reads records, asks for dry runs and prints the advice. See advise_command.h.
#include "tools/advise/advise_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "results/record/compressed.h"
#include "results/record/printable.h"
#include "results/record/record_file.h"
#include "tools/advise/advice.h"
#include "tools/advise/base_runs.h"
#include "tools/advise/committed_records.h"
#include "tools/advise/measuring.h"
#include "tools/advise/stack_speeds.h"
#include "tools/analysis/model_age.h"
#include "tools/text/text.h"

namespace precbench {
namespace {

constexpr const char* kOwnStack = "precbench";
constexpr const char* kStackChoices[] = {kOwnStack, "pytorch", "megatron"};

/// Loss gaps and divergence in the reader's own studies.
struct OwnStudies {
  std::vector<GapEvidence> evidence;
  std::vector<std::string> diverged;  ///< recipes whose forks diverged while BF16's did not
};

OwnStudies own_studies(const RecordSet& set) {
  const std::vector<StudyCard> cards = study_cards(all_of(set));
  OwnStudies own{gap_evidence_of(cards, "--records"), {}};
  for (const StudyCard& card : cards)
    if (card.verdict.outcome == ForkOutcome::diverged) own.diverged.push_back(card.verdict.recipe);
  return own;
}

/// Returns the recipes that are compared if the reader names none: those that were studied on trained models and are
/// not known to fail.
std::vector<std::string> usual_recipes(const LossLaw& law) {
  std::vector<std::string> recipes = law.recipes();
  std::erase_if(recipes, [&](const std::string& recipe) {
    return law.models_of(recipe) == 0 || known_failure(recipe);
  });
  return recipes;
}

/// Adds the recipe that is recommended after a change of the question; none if it is empty.
void add_answer(Advice& advice, const std::string& change, const std::string& recipe) {
  if (recipe.empty()) return;
  advice.tried.push_back(change);
  if (recipe != recommended(advice)) advice.sensitivity.push_back({change, recipe});
}

/// Returns a data-center GPU of another generation, for which the question is asked again.
const char* other_gpu(const GpuModel& gpu) { return gpu.cc && gpu.cc->starts_with("9.") ? "B200" : "H100"; }

}  // namespace

int advise(const AdviseOptions& options, const AdviseHost& host) {
  host.case_of(options.given);  // refuses flags before reading records
  for (const std::string& recipe : options.recipes) host.case_of({{"recipe", recipe}, {"steps", "100"}});
  std::optional<HorizonSlope> slope;
  if (!options.base.empty()) {
    if (!options.tokens) throw InvalidInput("--base: needs --tokens, the length of the planned run");
    slope = slope_of_runs(read_base_runs(options.base), *options.tokens);
  }
  refuse_compressed(options.records, "precbench advise --records -");
  const RecordSet measured =
      options.records.empty() ? RecordSet{} : read_records(options.records, reduce_for_evidence);
  if (!measured.without_record.empty()) throw InvalidInput(measured.without_record.front());
  for (const std::string& problem : measured.problems) fmt::print(stderr, "{}\n", printable(problem));
  const std::vector<std::string> files = committed_record_files();
  const RecordSet committed = files.empty() ? RecordSet{} : read_records(files, reduce_for_evidence);
  if (files.empty() && options.records.empty())
    throw InvalidInput("--records: no records lie beside this program (share/precbench/records); name some");
  const std::vector<SourceRecords> sources = {{SpeedSource::measured, &measured},
                                              {SpeedSource::committed, &committed}};
  const std::vector<std::string> candidates = usual_recipes(committed_law());
  const SpeedTable speeds = speed_table(options, host, sources, candidates);
  OwnStudies own = own_studies(measured);
  const ExpectedGaps expected(committed_law(), std::move(own.evidence), committed_evidence(),
                              std::move(own.diverged));
  const PlannedRun run{active_parameters_of(speeds.bf16_counts).value_or(0), options.tokens,
                       options.serve == name_of(Serving::recipe) ? Serving::recipe : Serving::bf16};
  const auto advice_in = [&](const SpeedTable& table, const std::string& stack) {
    return make_advice(stack == kOwnStack ? table : in_stack(table, stack, host), expected, run, slope,
                       options.price);
  };
  Advice advice = advice_in(speeds, options.stack);
  if (options.stack != kOwnStack && advice.pick && speeds.part == TrainedPart::full)
    for (const char* stack : kStackChoices) {
      if (stack == options.stack) continue;
      add_answer(advice, stack == std::string(kOwnStack) ? "in our step" : fmt::format("in {}", stack),
                 recommended(advice_in(speeds, stack)));
    }
  if (advice.pick && speeds.part == TrainedPart::full && host.best_settings) {
    AdviseOptions there = options;
    there.gpu = other_gpu(speeds.gpu);
    AdviseHost elsewhere = host;
    // Nobody asks what would fit there, which takes long to find for a large model.
    elsewhere.nearest_change = {};
    elsewhere.best_settings = [&](AdviseHost::SettingQuestion question) {
      question.wants_least = false;
      return host.best_settings(question);
    };
    const SpeedTable on_other = speed_table(there, elsewhere, sources, candidates);
    if (on_other.part == TrainedPart::full)
      add_answer(advice, fmt::format("on {}", there.gpu), recommended(advice_in(on_other, options.stack)));
  }
  const std::vector<std::string> measure = measuring_commands(advice, host, options.given);
  const std::string text = options.json ? json_text(advice_json(advice, measure))
                                        : advice_text(advice, measure, plain_screen(STDOUT_FILENO));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return advice.status;
}

void add_advise_flags(CLI::App& command, AdviseOptions& options) {
  const auto in_group = [](CLI::Option* option, const char* type) {
    option->type_name(type)->group("Advice");
    return option;
  };
  in_group(
      command.add_option("--gpu", options.gpu, "GPU model, as in h100 (default the GPU of this machine)"),
      "NAME");
  in_group(command.add_option("--serve", options.serve,
                              "how the trained weights will be used: in BF16, or in the recipe"),
           "bf16|recipe")
      ->check(CLI::IsMember({"bf16", "recipe"}).description(""))
      ->capture_default_str();
  in_group(command.add_option("--stack", options.stack,
                              "training software whose predicted speed decides, with ours beside it"),
           "precbench|pytorch|megatron")
      ->check(CLI::IsMember({"precbench", "pytorch", "megatron"}).description(""))
      ->capture_default_str();
  in_group(command.add_option("--price", options.price, "price of a GPU hour [$]"), "X")
      ->check([](const std::string& text) {
        const auto value = parse_number<double>(text);
        return value && std::isfinite(*value) && *value > 0 ? std::string()
                                                            : "needs a number above 0, not " + text;
      });
  in_group(command.add_option(
               "--base", options.base,
               "BF16 runs of yours: record files, or tables with columns tokens, loss and lr; they give "
               "the slope of the loss (default a published law)"),
           "FILE");
  in_group(command.add_option(
               "--records", options.records,
               "record files and folders of your own measurements, preferred to the ones that come with "
               "the program"),
           "PATH");
  command.add_flag("--json", options.json, "output as JSON")->group("Advice");
}

}  // namespace precbench
