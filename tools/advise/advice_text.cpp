// Words and tables of an advice. See advice.h.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "results/record/printable.h"
#include "results/record/shell.h"
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
  return fmt::format("{} as fast as BF16 ({})", factor(*row.speedup), name_of(row.source));
}

std::string run_words(const Advice& advice) {
  return fmt::format("{} parameters at {} tokens per parameter", token_words(advice.run.parameters),
                     ratio_words(advice.horizon / advice.run.parameters));
}

/// Returns what a row costs, by which evidence, and up to what gap it pays.
std::string price_sentence(const AdviceRow& row, const Advice& advice) {
  const LossPrice& price = *row.price;
  const std::string gap = nats(price.gap);
  const std::string cost =
      price.measured
          ? fmt::format("it cost {} nats in a study of this model at {} tokens per parameter ({})", gap,
                        ratio_words(price.measured->tokens_per_parameter), price.measured->records)
          : fmt::format("it is expected to cost {} nats (law of the loss gap, 80%)", gap);
  return fmt::format("Served in {}, {}. It pays below {:.4f} nats at {} tokens.",
                     served_words(advice.run.serving), cost, row.break_even->mean,
                     token_words(advice.horizon));
}

std::string missing_words(const Advice& advice) {
  std::vector<std::string> unproven, failing, unknown;
  for (const AdviceRow& row : advice.rows) {
    if (row.speed.is_bf16()) continue;
    if (!row.speed.tokens_per_s)
      add_once(unknown, row.speed.recipe);
    else if (row.failure || row.diverged)
      add_once(failing, row.speed.recipe);
    else if (!row.price)
      add_once(unproven, row.speed.recipe);
  }
  std::string words = "No recommendation: no recipe has both a speed on such a GPU and evidence of its loss.";
  if (!unproven.empty()) words += fmt::format(" Unproven: {}.", list_of(unproven));
  if (!failing.empty()) words += fmt::format(" Known to fail: {}.", list_of(failing));
  if (!unknown.empty()) words += fmt::format(" Of unknown speed: {}.", list_of(unknown));
  if (!advice.speeds.emulated.empty())
    words += fmt::format(" Emulated: {}.", list_of(advice.speeds.emulated));
  return words;
}

std::string nothing_fits_words(const Advice& advice) {
  const auto& memory = advice.speeds.bf16_counts.memory;
  const auto& board = advice.speeds.gpu.memory;
  return fmt::format("Nothing fits: BF16 needs {} GiB per GPU beside the driver's own; {} has {}. {}",
                     memory && memory->predicted ? gib(static_cast<double>(memory->predicted->peak)) : "more",
                     advice.speeds.gpu.name, board ? gib(static_cast<double>(*board)) : "less",
                     advice.speeds.would_fit ? fmt::format("It fits with {}.", *advice.speeds.would_fit)
                                             : "Neither recomputation nor more GPUs would do.");
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
  for (const char* title : {"tokens/s", "speed-up", "GiB"}) table.columns.push_back({title});
  if (advice.price) table.columns.push_back({"$/B"});
  if (energy) table.columns.push_back(number_column("kWh/B", kDetailRank));
  table.columns.push_back(text_column("source", kKeyRank));
  const auto number = [](const std::optional<double>& value, int digits) {
    return value ? fmt::format("{:.{}f}", *value, digits) : std::string("-");
  };
  for (const AdviceRow& row : advice.rows) {
    const SpeedRow& speed = row.speed;
    std::vector<std::string> cells = {shorten(speed.recipe, kLongestRecipe)};
    if (gathers) cells.push_back(speed.gather);
    cells.push_back(speed.tokens_per_s ? rate_text(*speed.tokens_per_s) : "-");
    cells.push_back(speed.speedup ? fmt::format("{:.2f}x", speed.speedup->mean) : "-");
    cells.push_back(speed.peak_bytes ? gib(*speed.peak_bytes) : "-");
    if (advice.price) cells.push_back(number(advice.dollars(speed), 0));
    if (energy) cells.push_back(number(Advice::kilowatt_hours(speed), 1));
    cells.push_back(!speed.fits ? "too large" : speed.tokens_per_s ? name_of(speed.source) : "unknown");
    table.rows.push_back(std::move(cells));
  }
  return render_term(table, screen);
}

/// Returns the price of each recipe, with the speed-up of its fastest row.
std::string price_columns(const Advice& advice, const Screen& screen) {
  Table table;
  table.columns = {name_column("recipe"), number_column("loss gap, nats [80%]", kKeyRank),
                   text_column("evidence"), number_column("pays below"),
                   number_column("to equal loss", kKeyRank)};
  std::set<std::string> shown;
  for (const AdviceRow& row : advice.rows) {
    if (row.speed.is_bf16() || !row.speed.speedup || !shown.insert(row.speed.recipe).second) continue;
    table.rows.push_back({shorten(row.speed.recipe, kLongestRecipe),
                          row.price ? nats(row.price->gap) : "unproven",
                          row.failure    ? "known to fail"
                          : row.diverged ? "diverged"
                          : row.price    ? row.price->evidence()
                                         : "none",
                          row.break_even ? fmt::format("{:.4f}", row.break_even->mean) : "-",
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
                          fmt::format("{:.4f}", one.break_even), factor(one.equal_loss)});
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

std::vector<std::string> notes(const Advice& advice) {
  std::vector<std::string> texts;
  texts.push_back(fmt::format(
      "Loss gaps: weights trained in the recipe minus weights trained in BF16, both served in {}, for {}. law: fitted to {} gaps of "
      "{} models (precbench law), times {:.2f} nats, the loss of your run by {}. young models: the recipe was studied on models below 1 "
      "token per parameter alone.",
      served_words(advice.run.serving), run_words(advice), advice.law_gaps, advice.law_models, advice.loss,
      kBesiroglu2024.name));
  texts.push_back(
      "/B: per billion tokens; energy of GPU boards only. pays below: the break-even gap S (1 - speed-up^-beta) / beta, S = -dL/d "
      "ln(tokens).");
  const MeanWithInterval& s = advice.slope.slope;
  const std::string interval = is_exact(s) ? "" : fmt::format(" [{:.4f}, {:.4f}]", s.low, s.high);
  texts.push_back(fmt::format("S at {} tokens: {:.4f} nats{}, from {}.", token_words(advice.horizon), s.mean,
                              interval, advice.slope.source));
  const std::vector<std::string> failures = known_failures(advice);
  texts.insert(texts.end(), failures.begin(), failures.end());
  texts.insert(texts.end(), advice.speeds.notes.begin(), advice.speeds.notes.end());
  if (!advice.speeds.emulated.empty())
    texts.push_back(
        fmt::format("Emulated on such a GPU, without a speed: {}.", list_of(advice.speeds.emulated)));
  std::map<std::string, std::vector<std::string>> without_speed;
  for (const AdviceRow& row : advice.rows)
    if (!row.speed.no_speed.empty()) add_once(without_speed[row.speed.no_speed], name_of_row(row.speed));
  for (const auto& [why, names] : without_speed) texts.push_back(fmt::format("{}: {}.", list_of(names), why));
  return texts;
}

}  // namespace

std::vector<std::string> headline(const Advice& advice) {
  if (advice.status == kNothingFits) return {nothing_fits_words(advice)};
  if (advice.status == kNothingProven) return {missing_words(advice)};
  const AdviceRow &pick = advice.rows[*advice.pick], &best = advice.rows[*advice.best];
  const std::string horizon = token_words(advice.horizon);
  const std::string name = name_of_row(best.speed), speed = speed_words(best.speed);
  std::vector<std::string> lines;
  if (!pick.speed.is_bf16()) {
    lines = {
        fmt::format("{}: {}, {} to equal loss at {} tokens.", name, speed, factor(*pick.equal_loss), horizon),
        price_sentence(pick, advice)};
  } else if (best.speed.speedup->mean <= 1) {
    return {fmt::format("bf16: no recipe with evidence is faster. The best, {}, is {}.", name, speed)};
  } else {
    lines = {fmt::format("bf16: no recipe is expected to pay at {} tokens.", horizon),
             fmt::format("{} is {}, but {} to equal loss.", name, speed, factor(*best.equal_loss)),
             price_sentence(best, advice)};
  }
  if (!advice.run.tokens)
    lines.push_back("Without --tokens, the choice is for " + horizon + "; others are below.");
  return lines;
}

std::vector<std::string> risks(const Advice& advice) {
  /// Ratio of sizes from which a forecast is called an extrapolation.
  constexpr double kFar = 2;
  std::vector<std::string> texts;
  if (!advice.best) return texts;
  const AdviceRow& row = advice.rows[*advice.best];
  const LossPrice& price = *row.price;
  if (pays(*row.equal_loss) == Pays::open)
    texts.push_back(
        fmt::format("Whether {} pays is open: its interval to equal loss contains 1.", row.speed.recipe));
  if (!price.measured) {
    if (advice.run.parameters > kFar * advice.largest_model)
      texts.push_back(
          fmt::format("The law is extrapolated: the largest model studied has {} parameters, yours {}.",
                      token_words(advice.largest_model), token_words(advice.run.parameters)));
    if (price.younger)
      texts.push_back(fmt::format(
          "Your run has fewer tokens per parameter than the models of the law; the gap is that of {} tokens per parameter.",
          kYoungestLawAge));
    texts.push_back(
        "From scratch, gaps were measured on one small model: the interval is wide for that reason. A study of your own "
        "model and text decides: precbench study --init-from CHECKPOINT.");
  }
  texts.insert(texts.end(), advice.slope.warnings.begin(), advice.slope.warnings.end());
  return texts;
}

std::string measuring_command(const Advice& advice) {
  constexpr std::size_t kMostRecipes = 4;
  const nlohmann::ordered_json& setting = advice.speeds.setting;
  std::vector<std::string> recipes = {"bf16"};
  bool gather = false;
  for (const AdviceRow& row : advice.rows)
    if (!row.speed.is_bf16() && row.speed.fits && !row.failure && recipes.size() < kMostRecipes) {
      add_once(recipes, row.speed.recipe);
      gather = gather || row.speed.gather == "fp8";
    }
  std::string command =
      fmt::format("precbench sweep --model {} --recipe {}", shell_quoted(text_at(setting, "model")),
                  shell_quoted(fmt::format("{}", fmt::join(recipes, ","))));
  for (const char* field :
       {"layers",  "seq",     "batch",         "accumulation", "gpus",    "parallel", "shard_group",
        "context", "reshard", "grad_sync",     "recompute",    "routing", "ep",       "exchange",
        "master",  "moments", "second_moment", "weights",      "grads",   "optimizer"}) {
    const std::string value = text_at(setting, field);
    std::string flag = field;
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (!value.empty() && value != text_at(advice.speeds.defaults, field))
      command += fmt::format(" --{} {}", flag, shell_quoted(value));
  }
  if (gather) command += " --gather bf16,fp8";
  return command + " --out out/advise";
}

std::string advice_text(const Advice& advice, const Screen& screen) {
  std::string text = wrapped(headline(advice), "", screen);
  text +=
      '\n' + wrapped({fmt::format("{}, {} x {}: {}", text_at(advice.speeds.setting, "model"), advice.gpus(),
                                  advice.speeds.gpu.name, setting_words(advice.speeds.setting))},
                     "  ", screen);
  text += speed_columns(advice, screen) + price_columns(advice, screen) + choice_columns(advice, screen) +
          '\n' + wrapped(notes(advice), "  ", screen);
  if (const std::vector<std::string> dangers = risks(advice); !dangers.empty())
    text += "\nRisk\n" + wrapped(dangers, "  ", screen);
  return text + "\nMeasure\n" + command_lines(printable(measuring_command(advice)), screen, "") +
         "precbench advise ... --records out/advise\n";
}

}  // namespace precbench
