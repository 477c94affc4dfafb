// Words and tables of an advice. See advice.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "results/record/printable.h"
#include "results/text/lines.h"
#include "tools/advise/advice.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/model_age.h"
#include "tools/analysis/token_cost.h"
#include "tools/text/table.h"

namespace precbench {
namespace {

constexpr std::size_t kLongestRecipe = 22;
constexpr std::size_t kMostListed = 8;

std::string gib(double bytes) { return fmt::format("{:.1f}", bytes / (1 << 30)); }

std::string name_of_row(const SpeedRow& row) {
  return row.recipe + (row.gather == "fp8" ? " --gather fp8" : "");
}

std::string nats(const MeanWithInterval& value) {
  return fmt::format("{:.4f} [{:.4f}, {:.4f}]", value.mean, value.low, value.high);
}

bool is_exact(const MeanWithInterval& value) { return value.low == value.high; }

/// Returns "1.39x" or, for a value with an interval, "1.39x [1.35, 1.43]".
std::string factor(const MeanWithInterval& value) {
  const std::string mean = fmt::format("{:.2f}x", value.mean);
  return is_exact(value) ? mean : fmt::format("{} [{:.2f}, {:.2f}]", mean, value.low, value.high);
}

/// Returns "a, b, c"; beyond kMostListed items "a, b and 12 more".
std::string list_of(const std::vector<std::string>& items) {
  if (items.size() <= kMostListed) return fmt::format("{}", fmt::join(items, ", "));
  return fmt::format("{} and {} more", fmt::join(items.begin(), items.begin() + kMostListed, ", "),
                     items.size() - kMostListed);
}

void add_once(std::vector<std::string>& items, const std::string& item) {
  if (std::find(items.begin(), items.end(), item) == items.end()) items.push_back(item);
}

std::string speed_words(const SpeedRow& row) {
  const std::string stack = row.stack.empty() ? "" : fmt::format(", {}", row.stack);
  return fmt::format("{} as fast as BF16 ({}{})", factor(*row.speedup), name_of(row.source), stack);
}

/// Returns a number with three digits that count: "5.21", "88.4", "16,900".
std::string three_digits(double value) {
  if (value < 10) return fmt::format("{:.2f}", value);
  if (value < 100) return fmt::format("{:.1f}", value);
  if (value < 1000) return fmt::format("{:.0f}", value);
  const double unit = std::pow(10, std::floor(std::log10(value)) - 2);
  return rate_text(std::round(value / unit) * unit);
}

std::string days_words(double days) {
  return days < 1 ? three_digits(24 * days) + " hours" : three_digits(days) + " days";
}

/// Returns "88 days, 16,900 GPU-hours, $42,300, 11,800 kWh".
std::string cost_words(const RunCost& cost) {
  std::string words = fmt::format("{}, {} GPU-hours", days_words(cost.days), three_digits(cost.gpu_hours));
  if (cost.dollars) words += ", $" + three_digits(*cost.dollars);
  if (cost.kilowatt_hours) words += fmt::format(", {} kWh", three_digits(*cost.kilowatt_hours));
  return words;
}

/// Returns the cost of the run in the recommended recipe, and in BF16 beside it.
std::vector<std::string> run_cost(const Advice& advice) {
  const SpeedRow& pick = advice.rows[*advice.pick].speed;
  const auto own = advice.cost(pick);
  if (!own) return {};
  std::string line = fmt::format("{} tokens take {}", token_words(advice.horizon), cost_words(*own));
  const SpeedRow* bf16 = advice.bf16();
  const auto base = bf16 && !pick.is_bf16() ? advice.cost(*bf16) : std::nullopt;
  return {line + (base ? fmt::format("; in BF16 {}.", cost_words(*base)) : ".")};
}

/// Returns the row with the largest `value` of all that are eligible beside BF16. There must be a best one.
template <class Value>
const AdviceRow& largest(const Advice& advice, const Value& value) {
  const AdviceRow* most = &advice.rows[*advice.best];
  for (const AdviceRow& row : advice.rows)
    if (row.eligible && !row.speed.is_bf16() && value(row) > value(*most)) most = &row;
  return *most;
}

/// Returns which recipe has the highest mean, if that is not the one with the highest low end; else an empty text.
std::string highest_mean_words(const Advice& advice) {
  constexpr double kVisible = 0.005;  // with two decimals
  const AdviceRow& best = advice.rows[*advice.best];
  const AdviceRow& other = largest(advice, [](const AdviceRow& row) { return row.equal_loss->mean; });
  if (other.equal_loss->mean <= best.equal_loss->mean + kVisible) return "";
  return fmt::format("Chosen by its low end; {} has the highest mean: {}.", other.speed.recipe,
                     factor(*other.equal_loss));
}

std::string run_words(const Advice& advice) {
  return fmt::format("{} {}parameters at {} tokens per parameter", token_words(advice.run.parameters),
                     advice.speeds.bf16_counts.params ? "active " : "",
                     ratio_words(advice.horizon / advice.run.parameters));
}

/// Returns a break-even gap; that of a recipe that is no faster is not above 0.
std::string break_even_words(double gap) { return gap > 0 ? fmt::format("{:.4f}", gap) : "never"; }

/// Returns what a row costs, by which evidence, and up to what gap it pays.
std::string gap_sentence(const AdviceRow& row, const Advice& advice) {
  const ExpectedGap& expected = *row.expected;
  const std::string gap = nats(expected.gap);
  const std::string cost =
      expected.measured
          ? fmt::format("it should cost {} nats (80%, {} of this model at {} tokens per parameter: {}{})",
                        gap, expected.studies == 1 ? "1 study" : fmt::format("{} studies", expected.studies),
                        ratio_words(expected.measured->tokens_per_parameter), expected.measured->records,
                        expected.studies > 1 ? " and others" : "")
          : fmt::format("it should cost {} nats (80%, law of the loss gap, {})", gap,
                        expected.evidence_words());
  const double break_even = row.break_even->mean;
  return fmt::format("Served in {}, {}. {}", served_words(advice.run.serving), cost,
                     break_even > 0 ? fmt::format("It pays below {} nats.", break_even_words(break_even))
                                    : "It never pays.");
}

/// Returns why rows beside BF16 are no candidates: "Known to fail: a. Emulated: b."
std::string reasons_against(const Advice& advice) {
  std::vector<std::string> unproven, failing, unknown, large;
  for (const AdviceRow& row : advice.rows) {
    if (row.speed.is_bf16()) continue;
    if (!row.speed.fits)
      add_once(large, row.speed.recipe);
    else if (!row.speed.tokens_per_s)
      add_once(unknown, row.speed.recipe);
    else if (row.failure || row.diverged)
      add_once(failing, row.speed.recipe);
    else if (!row.expected)
      add_once(unproven, row.speed.recipe);
  }
  std::string words;
  for (const auto& [title, names] : {std::pair("Unproven", unproven), std::pair("Known to fail", failing),
                                     std::pair("Speed unknown", unknown), std::pair("Too large", large),
                                     std::pair("Emulated", advice.speeds.emulated)})
    if (!names.empty()) words += fmt::format(" {}: {}.", title, list_of(names));
  return words;
}

/// Returns a sentence about a change with which training all weights fits. Changes with tensor or pipeline ranks are not tried.
std::string fits_with(const std::string& change) {
  const bool more_gpus = change.find("--gpus") != std::string::npos;
  return fmt::format("It fits with {}{}.", change,
                     more_gpus ? "; tensor or pipeline ranks may need fewer GPUs (precbench plan)" : "");
}

std::string nothing_fits_words(const Advice& advice) {
  const auto& board = advice.speeds.gpu.memory;
  const auto& least = advice.speeds.least_bytes;
  return fmt::format(
      "Nothing fits: {} has {} GiB, and the smallest setting tried needs {} in addition to the driver's. {}",
      advice.speeds.gpu.name, board ? gib(static_cast<double>(*board)) : "less",
      least ? gib(*least) + " GiB" : "more",
      advice.speeds.would_fit ? fits_with(*advice.speeds.would_fit)
                              : "Neither recomputation nor more GPUs would do.");
}

/// Returns the headline of adapters.
std::vector<std::string> adapter_words(const Advice& advice) {
  const SpeedRow& pick = advice.rows[*advice.pick].speed;
  std::vector<std::string> lines = {
      fmt::format("LoRA with weights frozen in {}: training all weights does not fit.",
                  pick.is_bf16() ? "BF16" : pick.recipe),
      fmt::format("Training all weights takes at least {} GiB per GPU, and {} has {} for it.{}",
                  advice.speeds.least_bytes ? gib(*advice.speeds.least_bytes) : "more",
                  advice.speeds.gpu.name, gib(static_cast<double>(advice.speeds.limit_bytes)),
                  advice.speeds.would_fit ? " " + fits_with(*advice.speeds.would_fit) : "")};
  if (pick.is_bf16())
    lines.emplace_back("GEMMs and frozen weights in BF16 have no loss gap.");
  else
    lines.push_back(fmt::format(
        "Frozen weights in more bits do not fit. results/fine-tuning.md has the loss gap of {} for two small models.",
        pick.recipe));
  return lines;
}

/// Returns the changes of the question that lead to other answers.
std::string sensitivity_words(const Advice& advice) {
  if (advice.speeds.part == TrainedPart::lora) return "";
  std::vector<std::string> changes;
  for (const OtherAnswer& one : advice.sensitivity)
    changes.push_back(fmt::format("{} {}", one.recipe, one.change));
  return changes.empty() ? fmt::format("Changes: none found {}.", fmt::join(advice.tried, ", "))
                         : fmt::format("Changes: {}.", fmt::join(changes, "; "));
}

/// Returns the texts, wrapped, one after the other.
std::string wrapped(const std::vector<std::string>& texts, const std::string& indent, const Screen& screen) {
  std::string all;
  for (const std::string& text : texts) all += paragraph(text, screen, indent);
  return all;
}

std::string speed_columns(const Advice& advice, const Screen& screen) {
  Table table;
  const bool gathers = std::any_of(advice.rows.begin(), advice.rows.end(),
                                   [](const AdviceRow& row) { return !row.speed.gather.empty(); });
  const bool energy = std::any_of(advice.rows.begin(), advice.rows.end(), [](const AdviceRow& row) {
    return Advice::kilowatt_hours(row.speed).has_value();
  });
  table.columns = {name_column("recipe")};
  if (gathers) table.columns.push_back({"gather", true});
  const std::string& stack = advice.speeds.stack;
  for (const char* title : {"tokens/s", "speed-up"})
    table.columns.push_back({stack.empty() ? title : fmt::format("{} {}", stack, title)});
  if (!stack.empty())
    for (const char* title : {"our tokens/s", "our speed-up"}) table.columns.push_back({title});
  table.columns.push_back({"GiB"});
  if (advice.price) table.columns.push_back({"$/B"});
  if (energy) table.columns.push_back(number_column("kWh/B", kDetailRank));
  table.columns.push_back(text_column("source", kKeyRank));
  table.columns.push_back(text_column("setting", kDetailRank));
  const auto number = [](const std::optional<double>& value, int digits) {
    return value ? fmt::format("{:.{}f}", *value, digits) : std::string("-");
  };
  for (const AdviceRow& row : advice.rows) {
    const SpeedRow& speed = row.speed;
    std::vector<std::string> cells = {shorten(speed.recipe, kLongestRecipe)};
    if (gathers) cells.push_back(speed.gather);
    cells.push_back(speed.tokens_per_s ? rate_text(*speed.tokens_per_s) : "-");
    cells.push_back(speed.speedup ? fmt::format("{:.2f}x", speed.speedup->mean) : "-");
    if (!stack.empty()) {
      cells.push_back(speed.own_tokens_per_s ? rate_text(*speed.own_tokens_per_s) : "-");
      cells.push_back(speed.own_speedup ? fmt::format("{:.2f}x", speed.own_speedup->mean) : "-");
    }
    cells.push_back(speed.peak_bytes ? gib(*speed.peak_bytes) : "-");
    if (advice.price) cells.push_back(number(advice.dollars(speed), 0));
    if (energy) cells.push_back(number(Advice::kilowatt_hours(speed), 1));
    cells.push_back(!speed.fits ? "too large" : speed.tokens_per_s ? name_of(speed.source) : "unknown");
    cells.push_back(speed.fields.is_null() ? "-" : short_setting(speed.fields));
    table.rows.push_back(std::move(cells));
  }
  return render_term(table, screen);
}

/// Returns the loss gap of each recipe, with the speed-up of its fastest row.
std::string gap_columns(const Advice& advice, const Screen& screen) {
  Table table;
  table.columns = {name_column("recipe"), number_column("loss gap, nats [80%]", kKeyRank),
                   text_column("evidence"), number_column("pays below"),
                   number_column("to equal loss", kKeyRank)};
  std::set<std::string> shown;
  for (const AdviceRow& row : advice.rows) {
    if (row.speed.is_bf16() || !row.speed.speedup || !shown.insert(row.speed.recipe).second) continue;
    table.rows.push_back({shorten(row.speed.recipe, kLongestRecipe),
                          row.expected ? nats(row.expected->gap) : "unproven",
                          row.failure    ? "known to fail"
                          : row.diverged ? "diverged"
                          : row.expected ? row.expected->evidence_words()
                                         : "none",
                          row.break_even ? break_even_words(row.break_even->mean) : "-",
                          row.equal_loss ? factor(*row.equal_loss) : "-"});
  }
  return table.rows.empty() ? "" : "\n" + render_term(table, screen);
}

/// Returns the choice by number of tokens, where the run's is unknown.
std::string choice_columns(const Advice& advice, const Screen& screen) {
  if (advice.choices.empty()) return "";
  Table table;
  TableColumn best = name_column("best recipe");
  best.rank = kDetailRank;
  table.columns = {number_column("tokens", kKeyRank),
                   name_column("recommended"),
                   best,
                   number_column("loss gap, nats [80%]", kKeyRank),
                   number_column("pays below"),
                   number_column("to equal loss", kKeyRank)};
  for (const HorizonChoice& one : advice.choices)
    table.rows.push_back({token_words(one.tokens), one.recipe, one.best, nats(one.gap),
                          break_even_words(one.break_even), factor(one.equal_loss)});
  return "\n" + render_term(table, screen);
}

/// Returns one line for each recipe that is known to fail.
std::vector<std::string> known_failures(const Advice& advice) {
  std::vector<std::string> lines;
  for (const AdviceRow& row : advice.rows)
    if (row.failure)
      add_once(lines,
               fmt::format("{}: {}, {}: {}.{}", row.speed.recipe, known_failure_words(*row.failure),
                           row.failure->where, row.failure->published,
                           row.failure->differs.empty() ? "" : " There: " + row.failure->differs + "."));
  return lines;
}

/// Returns one line for each published run of about this size and length in a recipe of the table.
std::vector<std::string> published_runs(const Advice& advice) {
  constexpr double kAbout = 2;
  const auto about = [](const std::optional<double>& theirs, double own) {
    return theirs && own > 0 && *theirs >= own / kAbout && *theirs <= own * kAbout;
  };
  std::vector<std::string> lines;
  for (const PublishedLoss& one : published_losses()) {
    const bool shown = std::any_of(advice.rows.begin(), advice.rows.end(), [&](const AdviceRow& row) {
      return row.speed.recipe == one.nearest && !row.failure;
    });
    if (shown && one.from_scratch && about(one.parameters, advice.run.parameters) &&
        about(one.tokens, advice.horizon))
      lines.push_back(fmt::format("Published run in {} ({}, {} tokens{}): {} ({}).", one.nearest, one.model,
                                  token_words(*one.tokens), one.differs.empty() ? "" : "; " + one.differs,
                                  one.published, one.where));
  }
  return lines;
}

std::vector<std::string> notes(const Advice& advice) {
  std::vector<std::string> texts;
  const bool adapters = advice.speeds.part == TrainedPart::lora;
  const auto any = [&](auto is) { return std::any_of(advice.rows.begin(), advice.rows.end(), is); };
  texts.push_back(fmt::format(
      "Loss gaps: weights trained in the recipe minus weights trained in BF16, both served in {}, for {}.{}{}",
      served_words(advice.run.serving), run_words(advice),
      adapters
          ? ""
          : fmt::format(
                " law: a fraction of the loss, fitted to {} gaps of {} models (precbench law), times {:.2f} nats, the "
                "loss of your run according to {}.",
                advice.law_gaps, advice.law_models, advice.loss, kBesiroglu2024.name),
      any([](const AdviceRow& row) {
        return row.expected && !row.expected->measured && row.expected->models == 0;
      })
          ? " young models: the recipe was studied on models below 1 token per parameter alone."
          : ""));
  if (any([](const AdviceRow& row) { return Advice::kilowatt_hours(row.speed).has_value(); }) || advice.price)
    texts.emplace_back("/B: per billion tokens; energy of GPU boards only.");
  if (!adapters)
    texts.emplace_back(
        "to equal loss: speed-up over BF16 with as many additional tokens as close the loss gap. pays below: the break-even gap in "
        "nats, S (1 - speed-up^-beta) / beta, where S = -dL/d ln(tokens) and beta is an exponent of the scaling law.");
  const MeanWithInterval& s = advice.slope.slope;
  const std::string interval = is_exact(s) ? "" : fmt::format(" [{:.4f}, {:.4f}]", s.low, s.high);
  if (!adapters)
    texts.push_back(fmt::format("S at {} tokens: {:.4f} nats{}, from {}.", token_words(advice.horizon),
                                s.mean, interval, advice.slope.source));
  const std::vector<std::string> failures = known_failures(advice);
  texts.insert(texts.end(), failures.begin(), failures.end());
  const std::vector<std::string> published = published_runs(advice);
  texts.insert(texts.end(), published.begin(), published.end());
  texts.insert(texts.end(), advice.speeds.notes.begin(), advice.speeds.notes.end());
  if (advice.speeds.stack.empty())
    texts.emplace_back("Speeds are those of precbench's own step; --stack predicts PyTorch's or Megatron's.");
  if (!advice.speeds.emulated.empty())
    texts.push_back(
        fmt::format("Emulated on such a GPU, without a speed: {}.", list_of(advice.speeds.emulated)));
  if (!advice.run.tokens && advice.speeds.part == TrainedPart::full)
    texts.push_back(fmt::format("Without --tokens the choice is for {}.", token_words(advice.horizon)));
  std::set<SpeedSource> kinds;
  for (const AdviceRow& row : advice.rows)
    if (row.speed.tokens_per_s) kinds.insert(row.speed.source);
  if (kinds.size() > 1)
    texts.emplace_back(
        "Speed-ups compare with BF16 of the same source: a predicted speed with BF16's predicted one.");
  std::map<std::string, std::vector<std::string>> without_speed;
  for (const AdviceRow& row : advice.rows)
    if (!row.speed.no_speed.empty()) add_once(without_speed[row.speed.no_speed], name_of_row(row.speed));
  for (const auto& [why, names] : without_speed) texts.push_back(fmt::format("{}: {}.", list_of(names), why));
  return texts;
}

}  // namespace

std::vector<std::string> headline(const Advice& advice) {
  if (advice.status == kNothingFits) return {nothing_fits_words(advice)};
  if (advice.status == kNothingProven)
    return {"No recommendation: no recipe has both a speed on such a GPU and evidence of its loss." +
            reasons_against(advice)};
  if (advice.speeds.part == TrainedPart::lora) return adapter_words(advice);
  if (!advice.best)
    return {advice.speeds.multiplies_bf16_alone
                ? fmt::format("bf16: {} multiplies neither FP8 nor FP4.", advice.speeds.gpu.name)
                : "bf16: no other recipe in question is a candidate." + reasons_against(advice)};
  const AdviceRow &pick = advice.rows[*advice.pick], &best = advice.rows[*advice.best];
  const std::string horizon = token_words(advice.horizon);
  const std::string name = name_of_row(best.speed), speed = speed_words(best.speed);
  if (!pick.speed.is_bf16()) {
    std::vector<std::string> lines = {
        fmt::format("{}: {}, {} to equal loss at {} tokens.", name, speed, factor(*pick.equal_loss), horizon),
        gap_sentence(pick, advice)};
    if (const std::string other = highest_mean_words(advice); !other.empty()) lines.push_back(other);
    return lines;
  }
  const SpeedRow& fastest =
      largest(advice, [](const AdviceRow& row) { return row.speed.speedup->mean; }).speed;
  if (fastest.speedup->mean <= 1)
    return {fmt::format("bf16: no recipe with evidence is faster. The fastest, {}, is {}.",
                        name_of_row(fastest), speed_words(fastest))};
  return {
      best.equal_loss->mean <= 1 ? fmt::format("bf16: no recipe is expected to pay at {} tokens.", horizon)
      : best.equal_loss->mean < kWorthwhile
          ? fmt::format("bf16: at {} tokens no recipe is expected to gain {:.0f}%, the least worth a change.",
                        horizon, 100 * (kWorthwhile - 1))
          : fmt::format("bf16: a run of {} tokens is so short that another recipe saves less than an hour.",
                        horizon),
      fmt::format("{} is {}, {}{} to equal loss.", name, speed, best.equal_loss->mean < 1 ? "but " : "",
                  factor(*best.equal_loss)),
      gap_sentence(best, advice)};
}

std::vector<std::string> risks(const Advice& advice) {
  /// Ratio of sizes from which a forecast is called an extrapolation.
  constexpr double kFar = 2;
  constexpr double kTooManyDays = 365;
  std::vector<std::string> texts;
  if (const auto cost = advice.pick ? advice.cost(advice.rows[*advice.pick].speed) : std::nullopt;
      cost && cost->days > kTooManyDays)
    texts.emplace_back("The run takes more than a year.");
  if (advice.speeds.rates_borrowed_from)
    texts.push_back(fmt::format("Nothing was measured on {}: speeds are those of {}, scaled by peaks.",
                                advice.speeds.gpu.name, *advice.speeds.rates_borrowed_from));
  if (advice.best && advice.speeds.part == TrainedPart::full) {
    const AdviceRow& row = advice.rows[*advice.best];
    const ExpectedGap& expected = *row.expected;
    if (pays(*row.equal_loss) == Pays::open)
      texts.push_back(
          fmt::format("{} may not pay: its interval to equal loss contains 1.", row.speed.recipe));
    if (expected.continued())
      texts.emplace_back(
          "The study continued a BF16 model; the factor to a run from scratch comes from one small model.");
    if (!expected.measured) {
      const bool far = advice.run.parameters > kFar * advice.largest_model;
      texts.push_back(
          far ? fmt::format(
                    "The law has no model above {} and only one trained from scratch; it cannot predict late "
                    "divergence.",
                    token_words(advice.largest_model))
              : "The law has only one model trained from scratch; it cannot predict late divergence.");
      if (expected.models == 0)
        texts.push_back(
            fmt::format("{} was studied on models below 1 token per parameter alone.", row.speed.recipe));
      if (expected.younger)
        texts.push_back(
            fmt::format("A run this short has the gap of {} tokens per parameter, the youngest of the law.",
                        kYoungestLawAge));
    }
  }
  std::vector<std::string> unknown;
  for (const AdviceRow& row : advice.rows)
    if (row.speed.fits && !row.speed.tokens_per_s && !row.failure) add_once(unknown, row.speed.recipe);
  if (advice.best && !unknown.empty()) texts.push_back(fmt::format("Speed unknown: {}.", list_of(unknown)));
  texts.insert(texts.end(), advice.slope.warnings.begin(), advice.slope.warnings.end());
  return texts;
}

std::string advice_text(const Advice& advice, const std::vector<std::string>& measure, const Screen& screen) {
  std::string text = wrapped(headline(advice), "", screen);
  if (advice.pick) {
    text += wrapped(run_cost(advice), "", screen);
    if (const std::vector<std::string> dangers = risks(advice); !dangers.empty())
      text += wrapped({fmt::format("Risk: {}", fmt::join(dangers, " "))}, "", screen);
    if (const std::string changes = sensitivity_words(advice); !changes.empty())
      text += wrapped({changes}, "", screen);
  }
  text +=
      '\n' + wrapped({fmt::format("{}, {} x {}: {}", text_at(advice.speeds.setting, "model"), advice.gpus(),
                                  advice.speeds.gpu.name, setting_words(advice.speeds.setting))},
                     "  ", screen);
  text += speed_columns(advice, screen) + gap_columns(advice, screen) + choice_columns(advice, screen) +
          '\n' + wrapped(notes(advice), "  ", screen);
  if (measure.empty() && !advice.pick) return text;
  text += "\nMeasure\n";
  if (measure.empty())
    text +=
        wrapped({"No setting that was tried both runs and fits on one to four of these GPUs."}, "", screen);
  for (const std::string& command : measure) text += command_lines(printable(command), screen, "");
  return text;
}

}  // namespace precbench
