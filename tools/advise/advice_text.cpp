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

/// Returns "less than 0.0097 nats at 1T tokens".
std::string break_even_words(const AdviceRow& row) {
  std::vector<std::string> gaps;
  for (const BreakEven& one : row.break_even)
    gaps.push_back(fmt::format("{:.4f} nats at {} tokens", one.gap.mean, token_words(one.tokens)));
  return fmt::format("less than {}", fmt::join(gaps, " and "));
}

/// Returns "18% fewer" or "166 times fewer" for a number that is smaller by a factor above 1.
std::string fewer_words(double factor) {
  return factor < 2 ? fmt::format("{:.0f}% fewer", 100 * (1 - 1 / factor))
                    : fmt::format("{:.0f} times fewer", factor);
}

std::string run_words(const PlannedRun& run) {
  std::string words = token_words(run.parameters) + " parameters";
  if (const auto age = run.tokens_per_parameter()) words += fmt::format(" at {}", ratio_words(*age));
  return words;
}

const char* which_study(const Advice& advice) { return advice.run.tokens ? "nearest" : "oldest"; }

/// Returns the condition under which a row pays, and what was found.
std::string price_sentence(const AdviceRow& row, const Advice& advice) {
  return fmt::format("It pays while it costs {}. The {} study found {}: {}; your run: {}.",
                     break_even_words(row), which_study(advice), nats(row.price->gap_at(advice.run.loss)),
                     study_words(*row.price), run_words(advice.run));
}

/// Returns the speed-up to equal loss at another price than the row's own.
std::string at_price(const AdviceRow& row, const MeanWithInterval& gap, const HorizonSlope& slope) {
  return factor(equal_loss_speedup(*row.speed.speedup, gap, slope.slope));
}

std::string other_side_sentence(const AdviceRow& row, const Advice& advice) {
  const bool older = row.other_side->tokens_per_parameter > row.price->tokens_per_parameter;
  std::string words = fmt::format(
      "{} study found {}: {}; at that price {} is {} to equal loss.", older ? "An older" : "A younger",
      nats(row.other_side->gap_at(advice.run.loss)), study_words(*row.other_side), row.speed.recipe,
      at_price(row, row.other_side->gap_at(advice.run.loss), *advice.slope));
  if (const auto price = between(*row.price, *row.other_side, advice.run))
    words +=
        fmt::format(" A power law in tokens per parameter through both gives {:.4f} nats for your run: {}.",
                    *price, at_price(row, exactly(*price), *advice.slope));
  return words;
}

/// Returns the recipes whose studies are far younger than the nearest one.
std::vector<std::string> only_young(const Advice& advice) {
  std::vector<std::string> recipes;
  for (const AdviceRow& row : advice.rows)
    if (row.only_young) add_once(recipes, row.speed.recipe);
  return recipes;
}

std::string missing_words(const Advice& advice) {
  std::vector<std::string> unproven, unknown;
  for (const AdviceRow& row : advice.rows) {
    if (row.speed.is_bf16()) continue;
    if (!row.speed.tokens_per_s)
      add_once(unknown, row.speed.recipe);
    else if (!row.price || row.diverged)
      add_once(unproven, row.speed.recipe);
  }
  std::string words = "No recommendation: no recipe has both a speed on such a GPU and a study of its loss.";
  if (!unproven.empty()) words += fmt::format(" Unproven: {}.", list_of(unproven));
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
  table.columns = {name_column("recipe"), number_column("price in loss, nats [95%]", kKeyRank)};
  std::vector<double> horizons(std::begin(kHorizons), std::end(kHorizons));
  if (advice.run.tokens) horizons = {*advice.run.tokens};
  for (const double tokens : horizons)
    table.columns.push_back({advice.run.tokens ? "pays below" : "below at " + token_words(tokens)});
  if (advice.slope) table.columns.push_back({"to equal loss"});
  std::set<std::string> shown;
  for (const AdviceRow& row : advice.rows) {
    if (row.speed.is_bf16() || !row.speed.speedup || !shown.insert(row.speed.recipe).second) continue;
    const std::string price = row.diverged ? "diverged"
                              : row.price  ? nats(row.price->gap_at(advice.run.loss))
                                           : "unproven";
    std::vector<std::string> cells = {shorten(row.speed.recipe, kLongestRecipe),
                                      (row.only_young ? "*" : "") + price};
    for (std::size_t i = 0; i < horizons.size(); ++i)
      cells.push_back(i < row.break_even.size() ? fmt::format("{:.4f}", row.break_even[i].gap.mean) : "-");
    if (advice.slope) cells.push_back(row.equal_loss ? factor(*row.equal_loss) : "-");
    table.rows.push_back(std::move(cells));
  }
  return table.rows.empty() ? "" : "\n" + render_term(table, screen);
}

/// Returns the studies behind the price column, one line each.
std::vector<std::string> studies(const Advice& advice) {
  std::vector<std::string> order;  // of first appearance
  std::map<std::string, std::vector<std::string>> recipes;
  for (const AdviceRow& row : advice.rows) {
    if (!row.price) continue;
    const std::string study = study_words(*row.price);
    add_once(order, study);
    add_once(recipes[study], row.speed.recipe);
  }
  std::vector<std::string> lines;
  for (const std::string& study : order)
    lines.push_back(fmt::format("Study of {}: {}.", study, fmt::join(recipes.at(study), ", ")));
  return lines;
}

std::vector<std::string> notes(const Advice& advice) {
  std::vector<std::string> texts = studies(advice);
  const std::vector<std::string> young = only_young(advice);
  if (!young.empty())
    texts.push_back(fmt::format("*: studied only on far younger models, so not compared with the others: {}.",
                                fmt::join(young, ", ")));
  texts.push_back(
      "/B: per billion tokens; energy of GPU boards only. pays below: the break-even gap S (1 - speed-up^-beta) / beta, S = -dL/d "
      "ln(tokens).");
  texts.push_back(fmt::format(
      "Prices are the studies' gaps over their BF16 losses, times {:.2f} nats, the loss of your run by "
      "{}: texts and tokenizers differ.",
      advice.run.loss, kBesiroglu2024.name));
  if (advice.slope) {
    const MeanWithInterval& s = advice.slope->slope;
    const std::string interval = is_exact(s) ? "" : fmt::format(" [{:.4f}, {:.4f}]", s.low, s.high);
    texts.push_back(fmt::format("S at {} tokens: {:.4f} nats{}, from {}.", token_words(*advice.run.tokens),
                                s.mean, interval, advice.slope->source));
  }
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

/// Returns the exponent of the smallest outlier that breaks the recipe in its study.
std::optional<double> first_break(const StudyCard& card) {
  std::optional<double> least;
  for (const Ladder* ladder : {&card.outlier_ffn, &card.outlier_norm, &card.outlier_vo})
    if (const auto at = ladder->breaks(); at && (!least || *at < *least)) least = at;
  return least;
}

}  // namespace

std::vector<std::string> headline(const Advice& advice) {
  if (advice.status == kNothingFits) return {nothing_fits_words(advice)};
  if (advice.status == kNothingProven) return {missing_words(advice)};
  const AdviceRow &pick = advice.rows[*advice.pick], &best = advice.rows[*advice.best];
  const std::string horizon = token_words(advice.run.tokens.value_or(kHorizons[0]));
  const std::string name = name_of_row(best.speed), speed = speed_words(best.speed);
  std::vector<std::string> lines;
  if (!pick.speed.is_bf16()) {
    const std::string left =
        pick.equal_loss ? fmt::format(", {} to equal loss at {} tokens", factor(*pick.equal_loss), horizon)
                        : "";
    lines = {fmt::format("{}: {}{}.", name, speed, left), price_sentence(pick, advice)};
  } else if (best.speed.speedup->mean <= 1) {
    return {fmt::format("bf16: no recipe with a study is faster. The best, {}, is {}.", name, speed)};
  } else {
    const std::string left =
        best.equal_loss ? fmt::format(", but {} to equal loss", factor(*best.equal_loss)) : "";
    lines = {fmt::format("bf16: by the {} study, no recipe pays at {} tokens.", which_study(advice), horizon),
             fmt::format("{} is {}{}.", name, speed, left), price_sentence(best, advice)};
  }
  if (best.other_side && advice.slope) lines.push_back(other_side_sentence(best, advice));
  if (!advice.run.tokens) lines.push_back("Say --tokens for the speed-up to equal loss.");
  return lines;
}

std::vector<std::string> risks(const Advice& advice) {
  std::vector<std::string> texts;
  if (!advice.best) return texts;
  const AdviceRow& row = advice.rows[*advice.best];
  const StudyPrice& price = *row.price;
  const double limit = row.break_even[0].gap.mean, loss = advice.run.loss;
  if (row.equal_loss && pays(*row.equal_loss) == Pays::open)
    texts.push_back(
        fmt::format("Whether {} pays is open: its interval to equal loss contains 1.", row.speed.recipe));
  if (row.other_side && (price.gap_at(loss).mean < limit) != (row.other_side->gap_at(loss).mean < limit))
    texts.push_back(fmt::format(
        "The studies on both sides of your run's age disagree on whether {} pays. A study of your own model decides: "
        "precbench study --init-from CHECKPOINT.",
        row.speed.recipe));
  if (const auto age = advice.run.tokens_per_parameter();
      age && price.tokens_per_parameter < *age && !row.other_side)
    texts.push_back(fmt::format(
        "No study is as old as your run will be: the nearest has {} tokens per parameter, and gaps grew with age where "
        "that was studied.",
        fewer_words(*age / price.tokens_per_parameter)));
  if (advice.run.parameters > 2 * price.parameters)
    texts.push_back(fmt::format("The study's model is {:.0f} times smaller than yours.",
                                advice.run.parameters / price.parameters));
  for (const BreakEven& one : row.break_even)
    if (price.margin_at(loss) > one.gap.mean) {
      texts.push_back(fmt::format(
          "The margin of that study, {:.4f} nats, exceeds the break-even gap at {} tokens: there, \"equivalent\" does not "
          "mean that a recipe pays.",
          price.margin_at(loss), token_words(one.tokens)));
      break;
    }
  if (const auto at = first_break(*price.card))
    texts.push_back(fmt::format("Outliers of 2^{:g} break {} in that study.", *at, row.speed.recipe));
  if (advice.slope) texts.insert(texts.end(), advice.slope->warnings.begin(), advice.slope->warnings.end());
  return texts;
}

std::string measuring_command(const Advice& advice) {
  constexpr std::size_t kMostRecipes = 4;
  const nlohmann::ordered_json& setting = advice.speeds.setting;
  std::vector<std::string> recipes = {"bf16"};
  bool gather = false;
  for (const AdviceRow& row : advice.rows)
    if (!row.speed.is_bf16() && row.speed.fits && recipes.size() < kMostRecipes) {
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
  text += '\n' + wrapped({fmt::format("{}, {} x {}: {}", text_at(advice.speeds.setting, "model"),
                                      advice.gpus(), advice.speeds.gpu.name,
                                      setting_words(advice.speeds.setting))},
                         "  ", screen);
  text += speed_columns(advice, screen) + price_columns(advice, screen) + '\n' +
          wrapped(notes(advice), "  ", screen);
  if (const std::vector<std::string> dangers = risks(advice); !dangers.empty())
    text += "\nRisk\n" + wrapped(dangers, "  ", screen);
  return text + "\nMeasure\n" + command_lines(printable(measuring_command(advice)), screen, "") +
         "precbench advise ... --records out/advise\n";
}

}  // namespace precbench
