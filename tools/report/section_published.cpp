// Section with published figures next to the nearest case of these records.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "kernels/base/plural.h"
#include "tools/analysis/columns.h"
#include "tools/report/judged_runs.h"
#include "tools/report/published_claims.h"
#include "tools/text/distinct.h"
#include "tools/text/embedded_text.h"

namespace precbench {
namespace {

/// Similarity that a figure requires between the claim's model and ours.
enum class Alike : std::uint8_t { order, size, size_and_gpus, size_or_blocks };

/// A quantity that both claims and rows have.
struct ComparedFigure {
  const char* list;   ///< list of claims
  const char* topic;  ///< topic of the statements to show with it
  const char* key;    ///< key in the claim
  const char* title;
  const char* unit;
  int digits;  ///< decimals; 0: thousands separators
  Alike alike;
  const char* none_here;  ///< why a recipe that ran natively has no counterpart
  std::optional<double> (*ours)(const Row& row);
};

constexpr const char* kNoBf16 = "no bf16 case beside it, or none of that order of size";
constexpr const char* kNoSuchSize = "no model of about that size";
constexpr double kGigabyte = 1e9;

std::optional<double> native_tokens_per_s(const Row& row) {
  return row.comparable() ? row.tokens_per_s : std::nullopt;
}

const ComparedFigure kFigures[] = {
    {"speedups", "speed", "speedup", "speed-up over BF16", "x", 2, Alike::order, kNoBf16,
     [](const Row& row) { return row.speedup; }},
    {"throughput", "speed", "tflops_per_gpu", "TFLOP/s per GPU", "", 0, Alike::size_or_blocks, kNoSuchSize,
     [](const Row& row) { return row.comparable() ? row.tflops_per_gpu : std::nullopt; }},
    {"throughput", "speed", "tokens_per_s", "tokens/s, all GPUs", "", 0, Alike::size_and_gpus,
     "no model of about that size on as many GPUs", native_tokens_per_s},
    {"throughput", "speed", "tokens_per_s_per_gpu", "tokens/s per GPU", "", 0, Alike::size, kNoSuchSize,
     [](const Row& row) {
       const auto all = native_tokens_per_s(row);
       return all ? std::optional(*all / number_of(row, "gpus").value_or(1)) : std::nullopt;
     }},
    {"utilization", "speed", "mfu_percent", "MFU", "%", 1, Alike::size_or_blocks, kNoSuchSize,
     [](const Row& row) {
       return row.comparable() && row.mfu_bf16 ? std::optional(*row.mfu_bf16 * 100) : std::nullopt;
     }},
    // Shown next to the tokens/s of the same run.
    {"throughput", "memory", "peak_gb", "peak memory per GPU", " GB", 1, Alike::size, kNoSuchSize,
     [](const Row& row) {
       return row.comparable() && row.peak_memory ? std::optional(*row.peak_memory / kGigabyte)
                                                  : std::nullopt;
     }},
    {"memory", "memory", "memory_ratio", "memory over BF16's", "x", 2, Alike::order, kNoBf16,
     [](const Row& row) { return row.memory_ratio; }},
};

bool alike(const ComparedFigure& figure, const Claim& claim, const Counterpart& ours) {
  switch (figure.alike) {
    case Alike::order:
      return within_ten_times(claim, ours);
    case Alike::size:
      return about_as_large(claim, ours);
    case Alike::size_and_gpus:
      return about_as_large(claim, ours) && as_many_gpus(claim, ours);
    case Alike::size_or_blocks:
      return about_as_large(claim, ours) || same_blocks(claim, ours);
  }
  return false;
}

/// A study's card as a candidate for a claim about the loss.
struct JudgedForks {
  const StudyCard* card;
  Row row;  ///< case fields of its forks, with the card's model and recipe names
};

/// Returns the cards of recipes that ran; the others have no result about the loss.
std::vector<JudgedForks> judged_forks(const ReportInput& input) {
  std::vector<JudgedForks> all;
  for (const StudyCard& card : input.cards) {
    if (!card.verdict.difference && card.verdict.outcome != ForkOutcome::diverged) continue;
    all.push_back({&card, {}});
    CaseFields& fields = all.back().row.fields;
    fields = card.fork->case_fields;
    fields["model"] = card.model, fields["recipe"] = card.verdict.recipe;
  }
  return all;
}

Counterpart counterpart(const JudgedRun& one) {
  return {one.machine, &one.row, &one.record(), billions_of(one.row, one.record())};
}

Counterpart counterpart(const JudgedForks& one) {
  return {nullptr, &one.row, one.card->fork, billions_of(one.row, *one.card->fork), one.card};
}

/// Returns the rank of a candidate; lower is nearer. GPU results precede CPU results, whose models are small.
/// Among equally near cards the one with the largest harm comes first, to avoid selecting favorable results.
auto rank(const Claim& claim, const Counterpart& ours) {
  double harm = 0;
  if (ours.card)
    harm = ours.card->verdict.difference ? ours.card->verdict.difference->mean
                                         : std::numeric_limits<double>::infinity();
  return std::tuple(text_of(*ours.row, "device") != "cuda", nearness(claim, ours), -harm);
}

/// Returns the nearest candidate of the claim's recipe and model kind; null if there is none.
template <class Judged>
const Judged* nearest_of(const std::vector<Judged>& all, const Claim& claim) {
  const Judged* nearest = nullptr;
  for (const Judged& one : all)
    if (recipes_in(claim) == std::vector{claimed_recipe_of(one.row)} && same_kind(claim, counterpart(one)) &&
        (!nearest || rank(claim, counterpart(one)) < rank(claim, counterpart(*nearest))))
      nearest = &one;
  return nearest;
}

/// Adds what our model lacks of its namesake: "6 of 48 layers". Layers that the claim's model lacks as well
/// are no difference.
void add_cuts(const Claim& claim, const Record& record, Distinct& texts) {
  if (!record.definition || !record.definition->model) return;
  const Claim& model = *record.definition->model;
  const std::string layers = text_in(claim, "layers"), cuts = text_in(model, "cuts");
  const bool as_many = !layers.empty() && layers == text_in(model, "layers");
  constexpr std::string_view kSeparator = "; ";
  for (std::size_t begin = 0; begin < cuts.size();) {
    const std::size_t end = std::min(cuts.find(kSeparator, begin), cuts.size());
    const std::string cut = cuts.substr(begin, end - begin);
    if (!as_many || !cut.ends_with(" layers")) texts.add("here " + cut);
    begin = end + kSeparator.size();
  }
}

/// Returns the differences between the claim's setting and ours.
std::string differences(const Claim& source, const Claim& claim, const Counterpart& ours) {
  Distinct texts;
  const Row& row = *ours.row;
  const auto add = [&](const char* what, const std::string& theirs, const std::string& mine) {
    if (!theirs.empty() && !mine.empty() && theirs != mine)
      texts.add(fmt::format("{} {}, here {}", what, theirs, mine));
  };
  add("hardware", claim.contains("hardware") ? text_in(claim, "hardware") : text_in(source, "hardware"),
      ours.machine_name());
  for (const auto& [key, title] :
       {std::pair{"model", "model"}, {"gpus", "GPUs"}, {"seq", "seq"}, {"batch", "batch"}})
    add(title, text_in(claim, key), text_of(row, key));
  add_cuts(claim, *ours.record, texts);
  add("parallel", text_in(claim, "parallel"),
      number_of(row, "gpus") == 1.0 ? "one GPU" : text_of(row, "parallel"));
  if (const MoeRecord* moe = ours.moe()) {
    add("expert parallel", text_in(claim, "ep"), fmt::format("{}", moe->ep.value_or(1)));
    add("routing", text_in(claim, "routing"), moe->routing);
  }
  add("weights kept in", text_in(claim, "master"), text_of(row, "master"));
  add("recompute", text_in(claim, "recompute"), text_of(row, "recompute"));
  if (ours.card)
    texts.add(fmt::format(
        "{}, here forks of {} from trained BF16 states",
        text_in(claim, "steps").empty() ? "a whole run" : text_in(claim, "steps") + " steps of training",
        ours.card->fork_steps));
  if (!text_in(claim, "metric").empty()) texts.add("measured there: " + text_in(claim, "metric"));
  texts.add(text_in(claim, "caveat"));
  return fmt::format("{}", fmt::join(texts.texts, "; "));
}

/// Returns "6.10 over bf16's 6.10: equivalent, +0.0014 nats [-0.0081, +0.0108] (3 seeds, 300 steps, 12
/// tokens per parameter)".
std::string verdict_text(const JudgedRun& one) {
  const auto &ours = one.recipe->final_loss, &bf16 = one.bf16->final_loss;
  const bool both = one.recipe->delta && ours && bf16;
  return (both ? fmt::format("{:.2f} over bf16's {:.2f}: ", *ours, *bf16) : "") + outcome_text(one);
}

/// Returns "equivalent for 36m at 0.73 tokens per parameter, +0.00104 nats [+0.00076,
/// +0.00132]; margin 0.00597".
std::string verdict_text(const JudgedForks& one) {
  const ForkVerdict& verdict = one.card->verdict;
  if (!verdict.difference) return fmt::format("{}: {}", verdict_words(*one.card), verdict.reason);
  return fmt::format("{}, {:+.5f} nats [{:+.5f}, {:+.5f}]; margin {:.5f}", verdict_words(*one.card),
                     verdict.difference->mean, verdict.difference->low, verdict.difference->high,
                     one.card->margin);
}

/// Returns "36m, forks of 150 steps from 3 BF16 trunks after 200 to 800 steps".
std::string setting_of(const StudyCard& card) {
  const std::vector<AgeInterval>& ages = card.verdict.by_age;
  std::string text = fmt::format("{}, forks of {} steps from {}", card.model, card.fork_steps,
                                 plural(card.verdict.trunks, "BF16 trunk"));
  if (!ages.empty())
    text += ages.size() == 1 ? fmt::format(" after {}", plural(ages[0].age, "step"))
                             : fmt::format(" after {} to {} steps", ages.front().age, ages.back().age);
  return text;
}

/// Returns "FP8 does not learn: 11.5 over bf16's 5.0 nats (900 steps)".
std::string loss_text(const Claim& claim) {
  std::string text = text_in(claim, "claim");
  const auto theirs = number_in(claim, "final_loss"), bf16 = number_in(claim, "bf16_final_loss");
  if (theirs && bf16)
    text += fmt::format("{}{:.1f} over bf16's {:.1f} nats", text.empty() ? "" : ": ", *theirs, *bf16);
  const std::string steps = text_in(claim, "steps");
  return steps.empty() ? text : text + fmt::format(" ({} steps)", steps);
}

class PublishedTable {
 public:
  PublishedTable(const ReportInput& input, const std::string& published)
      : cases_(input),
        runs_(judged_runs(input)),
        forks_(judged_forks(input)),
        json_(Claim::parse(published)) {
    for (const char* title : {"published by", "figure", "recipe"}) table.columns.push_back({title, true});
    for (const char* title : {"published", "measured here"}) table.columns.push_back({title, true, true});
    for (const char* title : {"our nearest case", "what differs"})
      table.columns.push_back({title, true, true, kDetailRank});
  }

  void add_figure(const ComparedFigure& figure) {
    std::vector<const Claim*> without;
    const std::size_t before = table.rows.size();
    for (const Claim& claim : json_.at(figure.list)) {
      const std::string text = claimed(claim, figure.key, figure.unit, figure.digits);
      if (text.empty()) continue;
      const bool part = of_part_of_step(claim);
      const Counterpart ours = cases_.nearest(claim, [&](const Counterpart& one) {
        return !part && figure.ours(*one.row).has_value() && alike(figure, claim, one);
      });
      if (ours.row)
        add(claim, figure.topic, figure.title, text,
            figure_text(*figure.ours(*ours.row), figure.digits) + figure.unit, ours);
      else
        without.push_back(&claim);
    }
    const bool any = table.rows.size() > before;
    for (const Claim* claim : without) {
      const bool emulated = cases_.only_emulated_on_gpu(*claim);
      // Few MoE figures are published, so those of other sizes are shown as well.
      const bool rare = number_in(*claim, "experts") && cases_.ran_natively_on_gpu(*claim);
      if (emulated || rare || (any && cases_.ran(*claim)))
        add_without_counterpart(*claim, figure,
                                of_part_of_step(*claim) ? "of less than a step"
                                : emulated              ? "emulated here: it has a loss, but no speed"
                                                        : figure.none_here);
      else
        leave_out(*claim);
    }
  }

  void add_convergence() {
    for (const Claim& claim : json_.at("convergence")) {
      const JudgedRun* run = nearest_of(runs_, claim);
      const JudgedForks* forks = nearest_of(forks_, claim);
      // They answer different questions, so both are shown.
      if (run) add(claim, "loss", "final loss", loss_text(claim), verdict_text(*run), counterpart(*run));
      if (forks)
        add(claim, "loss", kLossOfForks, loss_text(claim), verdict_text(*forks), counterpart(*forks));
      if (!run && !forks) leave_out(claim);
    }
  }

  /// Adds further statements of the sources on topics that were compared.
  void add_statements() {
    for (const Claim& claim : json_.at("statements")) {
      if (!compared_.contains({text_in(claim, "source"), text_in(claim, "topic")}) || !ran(claim)) continue;
      Distinct remarks;
      remarks.add(text_in(claim, "setting"));
      remarks.add(text_in(claim, "check"));
      add_without(claim, text_in(claim, "figure"), text_in(claim, "published"), "not compared",
                  fmt::format("{}", fmt::join(remarks.texts, "; ")));
    }
  }

  bool any_forks() const {
    return std::any_of(table.rows.begin(), table.rows.end(),
                       [](const std::vector<std::string>& row) { return row[1] == kLossOfForks; });
  }

  Table table;
  Distinct missing, sources;
  std::size_t left_out = 0;

 private:
  static constexpr const char* kLossOfForks = "loss of forks";

  /// Returns true if one of the claim's recipes ran here, in a case or in a study.
  bool ran(const Claim& claim) const {
    const std::vector<std::string> recipes = recipes_in(claim);
    return cases_.ran(claim) || std::any_of(forks_.begin(), forks_.end(), [&](const JudgedForks& one) {
             return std::find(recipes.begin(), recipes.end(), claimed_recipe_of(one.row)) != recipes.end() &&
                    same_kind(claim, counterpart(one));
           });
  }

  /// Returns the claim's source, and adds it to the notes below the table.
  const Claim& source_of(const Claim& claim) {
    const Claim& source = json_.at("sources").at(text_in(claim, "source"));
    const std::string caveat = text_in(source, "caveat");
    sources.add(fmt::format("{}: {} ({}){}", text_in(source, "name"), text_in(source, "title"),
                            text_in(source, "url"), caveat.empty() ? "" : ". " + caveat));
    return source;
  }

  void add(const Claim& claim, const char* topic, const char* figure, const std::string& theirs,
           const std::string& mine, const Counterpart& ours) {
    const Claim& source = source_of(claim);
    compared_.insert({text_in(claim, "source"), topic});
    Distinct setting;
    setting.add(ours.card ? setting_of(*ours.card) : setting_of(*ours.machine, *ours.row));
    if (recipes_in(claim).size() > 1) setting.add(recipe_of(*ours.row));
    for (const std::string& modifier : modifiers_of(ours.row->fields)) setting.add(modifier);
    table.rows.push_back({text_in(source, "name"), figure, recipe_text(claim), theirs, mine, setting.joined(),
                          differences(source, claim, ours)});
  }

  void add_without(const Claim& claim, const std::string& figure, const std::string& theirs, const char* mine,
                   const std::string& why) {
    table.rows.push_back(
        {text_in(source_of(claim), "name"), figure, recipe_text(claim), theirs, mine, "-", why});
  }

  /// Adds one row for all figures of a source with equal model and recipe that differ only in ranks
  /// and recomputation.
  void add_without_counterpart(const Claim& claim, const ComparedFigure& figure, const std::string& why) {
    const std::string text = claimed(claim, figure.key, figure.unit, figure.digits);
    Distinct what;
    what.add(text_in(claim, "model"));
    if (const std::string layers = text_in(claim, "layers"); !layers.empty()) what.add(layers + " layers");
    what.add(text_in(claim, "metric"));
    const std::string reason = what.texts.empty() ? why : what.joined() + ": " + why;
    const auto [place, is_new] = without_.try_emplace(
        {figure.title, text_in(claim, "source"), recipe_text(claim), reason}, table.rows.size());
    if (is_new)
      add_without(claim, figure.title, text, "no counterpart", reason);
    else
      table.rows[place->second][kPublishedColumn] += ", " + text;
  }

  static std::string recipe_text(const Claim& claim) {
    return fmt::format("{}", fmt::join(recipes_in(claim), ", "));
  }

  void leave_out(const Claim& claim) {
    ++left_out;
    for (const std::string& recipe : recipes_in(claim)) missing.add(recipe);
  }

  CasesByRecipe cases_;
  std::vector<JudgedRun> runs_;
  std::vector<JudgedForks> forks_;
  Claim json_;
  static constexpr std::size_t kPublishedColumn = 3;
  /// table row index by the common texts of figures without a counterpart
  std::map<std::vector<std::string>, std::size_t> without_;
  std::set<std::pair<std::string, std::string>> compared_;  ///< sources and topics with a counterpart
};

}  // namespace

Section published_section(const ReportInput& input) { return published_section(input, kPublishedText); }

Section published_section(const ReportInput& input, const std::string& published) {
  Section section{"Published beside measured", {}, {}, {}};
  PublishedTable result(input, published);
  for (const ComparedFigure& figure : kFigures) result.add_figure(figure);
  result.add_convergence();
  result.add_statements();
  if (result.table.rows.empty()) return section;
  std::string rules;
  if (!input.machines.empty())
    rules =
        "The nearest case is that of the same recipe whose model size, then sequence length and what weights are kept in, "
        "then batch and GPU count are nearest; of losses, one from a GPU before one from a CPU. Throughput, MFU and peak "
        "memory are shown only for models of about the same size, tokens/s of all GPUs for as many of them, FLOP/s also for "
        "the same model with fewer layers, speed-ups within ten times the size; our MFU is of the "
        "dense BF16 peak. No counterpart: no case here has the figure. ";
  if (result.any_forks())
    rules +=
        "Loss of forks: a study's card of that recipe, of the model whose size is nearest, from a GPU before one from a CPU, "
        "at the age where its loss gap is largest or that shows its verdict best. Forks begin in a trained BF16 state and are short: "
        "they say nothing of a start from scratch, of thousands of steps, or of a model of another size. ";
  rules +=
      "Not compared: it is of several cases, or of none. A number here neither confirms nor refutes one "
      "from other hardware.";
  section.notes = {std::move(rules)};
  section.table = std::move(result.table);
  section.notes.insert(section.notes.end(), result.sources.texts.begin(), result.sources.texts.end());
  if (result.left_out > 0)
    section.notes.push_back(fmt::format("{} without such a case in these records (recipes: {}).",
                                        plural(result.left_out, "published figure"),
                                        result.missing.joined()));
  return section;
}

}  // namespace precbench
