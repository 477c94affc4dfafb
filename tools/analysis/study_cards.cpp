// Rows of a study to evidence, evidence to cards. See study_cards.h.
#include "tools/analysis/study_cards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// An outlier breaks a recipe whose gradient error grows beyond this many times that without one.
constexpr double kErrorGrowth = 2;

/// "name" of a part of the definition.
std::string name_in(const DefinitionPart& part) {
  const auto name = part ? part->find("name") : Json::const_iterator{};
  return part && name != part->end() && name->is_string() ? name->get<std::string>() : "";
}

/// A record may come from anybody.
bool is_sound(const StudyPlace& place) {
  return std::isfinite(place.rung) && place.margin > 0 && place.margin <= 1 && place.level > 0 &&
         place.level < 1;
}

bool is_perturbed(const Record& record) {
  return record.definition && record.definition->init && record.definition->init->contains("perturb");
}

/// The mean over the last half of the first `steps` losses; null where one is not finite, or there are fewer.
std::optional<double> trailing_loss(const Record& record, std::size_t steps) {
  if (!record.training || record.training->loss.size() < steps || steps < 2) return std::nullopt;
  const std::size_t first = steps - steps / 2;
  double sum = 0;
  for (std::size_t i = first; i < steps; ++i) sum += record.training->loss[i];
  return std::isfinite(sum) ? std::optional<double>(sum / static_cast<double>(steps - first)) : std::nullopt;
}

std::optional<double> trailing_loss(const Record& record) {
  if (record.status != Status::ok || !record.training) return std::nullopt;
  return trailing_loss(record, record.training->loss.size());
}

/// Which rows are paired, and which recipe each is of.
struct Cell {
  std::int64_t trunk = 0, age = 0, seed = 0;
  double rung = 0;
  auto operator<=>(const Cell&) const = default;
};
using Cells = std::map<Cell, const Record*>;

double average_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The rows of one study of one model.
class StudyRows {
 public:
  void add(const Record& record, const std::string& machine);
  std::vector<StudyCard> cards() const;

 private:
  /// A recipe's rows of a part; of part bits those of the recipe that lost them.
  const Cells& of(StudyPart part, const std::string& recipe) const;
  ForkEvidence evidence(const std::string& name, const Cells& cells) const;
  std::vector<ControlResult> controls(const ForkRules& rules, std::vector<std::string>& missed,
                                      int& run) const;
  std::vector<CardFidelity> fidelity(const std::string& recipe) const;
  std::vector<CardLayer> layers(const std::string& recipe) const;
  std::vector<StepDifference> curve(const std::string& recipe) const;
  Ladder outliers(const std::string& recipe, const std::string& kind) const;
  Ladder beside_bf16(StudyPart part, const std::string& recipe, double margin) const;
  Ladder lost_bits(const std::string& recipe, double margin) const;
  std::optional<double> bf16_learning_rate() const;
  bool bf16_trains(const Cell& cell) const;

  std::string model_, machine_, study_;
  std::set<std::string> recipes_;  // asked for
  std::map<std::string, std::string> apart_;
  std::set<std::string> breaks_;
  std::map<std::pair<StudyPart, std::string>, Cells> cells_;
  Cells neutral_;
  double margin_ = 0, level_ = 0.05;
};

void StudyRows::add(const Record& record, const std::string& machine) {
  const StudyPlace& place = *record.study;
  machine_ = machine, study_ = place.study;
  model_ = name_in(record.definition->model);
  margin_ = place.margin, level_ = place.level;
  const std::string recipe = name_in(record.definition->recipe);
  const Cell cell = {place.trunk, place.age, place.seed, place.rung};
  if (place.part == StudyPart::trunk) return;
  if (place.asked && place.part == StudyPart::fork) recipes_.insert(recipe);
  if (place.apart_from) apart_[recipe] = *place.apart_from;
  if (place.breaks) breaks_.insert(recipe);
  if (is_perturbed(record))
    neutral_.try_emplace(cell, &record);
  else
    cells_[{place.part, place.base.value_or(recipe)}].try_emplace(cell, &record);
}

const Cells& StudyRows::of(StudyPart part, const std::string& recipe) const {
  static const Cells kNone;
  const auto found = cells_.find({part, recipe});
  return found == cells_.end() ? kNone : found->second;
}

ForkEvidence StudyRows::evidence(const std::string& name, const Cells& cells) const {
  ForkEvidence evidence{name, {}, {}, 0};
  const Cells& reference = of(StudyPart::fork, "bf16");
  std::map<std::int64_t, std::map<std::int64_t, std::vector<double>>> by_age;  // age, trunk
  std::map<std::int64_t, std::map<std::size_t, std::vector<double>>>
      by_trunk;  // trunk, quarters of the length
  for (const auto& [cell, record] : cells) {
    const auto other = reference.find(cell);
    const std::optional<double> bf16 =
        other == reference.end() ? std::nullopt : trailing_loss(*other->second);
    if (!bf16) continue;
    if (record->status == Status::diverged) ++evidence.diverged;
    const std::optional<double> loss = trailing_loss(*record);
    if (!loss) continue;
    by_age[cell.age][cell.trunk].push_back(*loss - *bf16);
    const std::size_t steps = record->training->loss.size();
    for (const std::size_t quarters : {1u, 2u, 4u}) {
      const std::optional<double> ours = trailing_loss(*record, steps * quarters / 4),
                                  theirs = trailing_loss(*other->second, steps * quarters / 4);
      if (ours && theirs) by_trunk[cell.trunk][quarters].push_back(*ours - *theirs);
    }
  }
  for (const auto& [age, trunks] : by_age) {
    evidence.ages.push_back({age, {}});
    for (const auto& [trunk, differences] : trunks) evidence.ages.back().by_trunk.push_back(differences);
  }
  for (const auto& [trunk, lengths] : by_trunk) {
    evidence.by_length.emplace_back();
    for (const auto& [quarters, differences] : lengths)
      evidence.by_length.back().push_back(average_of(differences));
  }
  return evidence;
}

std::vector<ControlResult> StudyRows::controls(const ForkRules& rules, std::vector<std::string>& missed,
                                               int& run) const {
  std::vector<ControlResult> results;
  const auto did_run = [&](const std::string& recipe) {
    const Cells& cells = of(StudyPart::fork, recipe);
    return std::any_of(cells.begin(), cells.end(),
                       [](const auto& cell) { return cell.second->status != Status::unsupported; });
  };
  const auto add = [&](const std::string& name, bool ran, const auto& found) {
    ControlResult result{name, std::nullopt};
    if (ran) result.found = found(), ++run;
    if (ran && !*result.found) missed.push_back(name);
    results.push_back(std::move(result));
  };
  for (const auto& [control, other] : apart_)
    add(control + " apart from " + other, did_run(control) && did_run(other), [&, c = control, o = other] {
      return told_apart(evidence(c, of(StudyPart::fork, c)), evidence(o, of(StudyPart::fork, o)),
                        rules.level);
    });
  const bool any_apart = run > 0;
  for (const std::string& control : breaks_)
    add(control + " beyond the margin", did_run(control),
        [&] { return breaks_margin(evidence(control, of(StudyPart::fork, control)), rules); });
  const bool any_beyond = std::any_of(breaks_.begin(), breaks_.end(), did_run);
  if (!any_apart) missed.push_back("that must be told apart (none could run)");
  if (!any_beyond) missed.push_back("that must be beyond the margin (none could run)");
  return results;
}

std::vector<CardFidelity> StudyRows::fidelity(const std::string& recipe) const {
  std::map<std::int64_t, std::vector<const WholeFidelity*>> by_age;
  for (const auto& [cell, record] : of(StudyPart::fork, recipe))
    for (const Fidelity& one : record->fidelity)
      if (one.stress == "none" && one.whole.error.mean && one.whole.cosine.mean && one.whole.bias.mean)
        by_age[cell.age].push_back(&one.whole);
  std::vector<CardFidelity> fidelity;
  for (const auto& [age, trunks] : by_age) {
    CardFidelity mean{age, 0, 0, 0};
    const auto count = static_cast<double>(trunks.size());
    for (const WholeFidelity* one : trunks) {
      mean.error += *one->error.mean / count;
      mean.cosine += *one->cosine.mean / count;
      mean.bias += *one->bias.mean / count;
    }
    fidelity.push_back(mean);
  }
  return fidelity;
}

std::vector<CardLayer> StudyRows::layers(const std::string& recipe) const {
  const Cells& cells = of(StudyPart::fork, recipe);
  std::int64_t oldest = 0;
  for (const auto& [cell, record] : cells) oldest = std::max(oldest, cell.age);
  std::map<std::size_t, std::pair<std::vector<double>, std::vector<double>>> values;  // errors and biases
  for (const auto& [cell, record] : cells) {
    if (cell.age != oldest || record->fidelity.empty() || record->fidelity.front().stress != "none") continue;
    const std::vector<GradientFidelity>& layers = record->fidelity.front().layers;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (!layers[i].error || !layers[i].bias) continue;
      values[i].first.push_back(*layers[i].error);
      values[i].second.push_back(*layers[i].bias);
    }
  }
  std::vector<CardLayer> result;
  for (const auto& [layer, pair] : values)
    result.push_back({static_cast<std::int64_t>(layer), average_of(pair.first), average_of(pair.second)});
  return result;
}

std::vector<StepDifference> StudyRows::curve(const std::string& recipe) const {
  constexpr std::size_t kPoints = 10;
  const Cells& reference = of(StudyPart::fork, "bf16");
  std::map<std::size_t, std::map<std::int64_t, std::vector<double>>> differences;  // by last step and trunk
  for (const auto& [cell, record] : of(StudyPart::fork, recipe)) {
    const auto other = reference.find(cell);
    if (other == reference.end() || !trailing_loss(*record) || !trailing_loss(*other->second)) continue;
    const std::vector<double>&ours = record->training->loss, &theirs = other->second->training->loss;
    const std::size_t steps = std::min(ours.size(), theirs.size());
    for (std::size_t k = 0; k < kPoints; ++k) {
      const std::size_t begin = steps * k / kPoints, end = steps * (k + 1) / kPoints;
      double sum = 0;
      for (std::size_t i = begin; i < end; ++i) sum += ours[i] - theirs[i];
      if (end > begin) differences[end][cell.trunk].push_back(sum / static_cast<double>(end - begin));
    }
  }
  std::vector<StepDifference> curve;
  for (const auto& [step, trunks] : differences) {
    std::vector<double> means;
    for (const auto& [trunk, values] : trunks) means.push_back(average_of(values));
    if (const auto interval = interval_over_trunks(means))
      curve.push_back({static_cast<double>(step), *interval});
  }
  return curve;
}

/// "ffn:8:4" to 8 where the kind is ffn.
std::optional<double> exponent_of(const std::string& stress, const std::string& kind) {
  if (!stress.starts_with(kind + ":")) return std::nullopt;
  return std::strtod(stress.c_str() + kind.size() + 1, nullptr);
}

Ladder StudyRows::outliers(const std::string& recipe, const std::string& kind) const {
  std::map<double, std::vector<std::optional<double>>> errors, unstressed;  // by exponent
  for (const auto& [cell, record] : of(StudyPart::fork, recipe)) {
    const auto plain = std::find_if(record->fidelity.begin(), record->fidelity.end(),
                                    [](const Fidelity& one) { return one.stress == "none"; });
    for (const Fidelity& one : record->fidelity)
      if (const std::optional<double> exponent = exponent_of(one.stress, kind);
          exponent && plain != record->fidelity.end()) {
        errors[*exponent].push_back(one.whole.error.mean);
        unstressed[*exponent].push_back(plain->whole.error.mean);
      }
  }
  const auto mean = [](const std::vector<std::optional<double>>& values) {
    double sum = 0;
    for (const std::optional<double>& value : values) sum += value.value_or(NAN);
    return std::isfinite(sum) ? std::optional<double>(sum / static_cast<double>(values.size()))
                              : std::nullopt;
  };
  Ladder ladder;
  for (const auto& [exponent, values] : errors) {
    const std::optional<double> error = mean(values), plain = mean(unstressed[exponent]);
    ladder.rungs.push_back({exponent, error, error && plain && *error <= kErrorGrowth * *plain});
  }
  return ladder;
}

/// Its loss at the end of such a fork is not above that at the beginning.
bool StudyRows::bf16_trains(const Cell& cell) const {
  for (const StudyPart part : {StudyPart::learning_rate, StudyPart::batch}) {
    const Cells& cells = of(part, "bf16");
    const auto found = cells.find(cell);
    if (found == cells.end()) continue;
    const std::optional<double> end = trailing_loss(*found->second);
    const auto& loss = found->second->training->loss;
    const auto tenth = static_cast<std::ptrdiff_t>(std::max<std::size_t>(1, loss.size() / 10));
    return end &&
           *end <= std::accumulate(loss.begin(), loss.begin() + tenth, 0.0) / static_cast<double>(tenth);
  }
  return false;
}

Ladder StudyRows::beside_bf16(StudyPart part, const std::string& recipe, double margin) const {
  std::map<double, std::vector<std::optional<double>>> differences;
  const Cells& reference = of(part, "bf16");
  for (const auto& [cell, record] : of(part, recipe)) {
    const auto other = reference.find(cell);
    if (other == reference.end() || !bf16_trains(cell)) continue;
    const std::optional<double> loss = trailing_loss(*record);
    differences[cell.rung].push_back(loss ? std::optional<double>(*loss - *trailing_loss(*other->second))
                                          : std::nullopt);
  }
  Ladder ladder;
  for (const auto& [rung, values] : differences) {
    double sum = 0;
    for (const std::optional<double>& value : values) sum += value.value_or(NAN);
    const double mean = sum / static_cast<double>(values.size());
    ladder.rungs.push_back(
        {rung, std::isfinite(mean) ? std::optional<double>(mean) : std::nullopt, mean <= margin});
  }
  return ladder;
}

Ladder StudyRows::lost_bits(const std::string& recipe, double margin) const {
  const Cells& reference = of(StudyPart::fork, "bf16");
  std::map<double, std::vector<double>> differences;
  for (const auto& [cell, record] : of(StudyPart::bits, recipe)) {
    const auto other = reference.find({cell.trunk, cell.age, cell.seed, 0});
    const std::optional<double> bf16 =
        other == reference.end() ? std::nullopt : trailing_loss(*other->second);
    if (!bf16 || record->status == Status::unsupported) continue;
    differences[cell.rung].push_back(trailing_loss(*record).value_or(NAN) - *bf16);
  }
  Ladder ladder;
  for (const auto& [rung, values] : differences) {
    const double mean = average_of(values);
    ladder.rungs.push_back(
        {rung, std::isfinite(mean) ? std::optional<double>(mean) : std::nullopt, mean <= margin});
  }
  return ladder;
}

std::optional<double> StudyRows::bf16_learning_rate() const {
  std::map<double, bool> trains;
  for (const auto& [cell, record] : of(StudyPart::learning_rate, "bf16")) {
    const bool here = record->training && bf16_trains(cell);
    const auto [rung, first] = trains.try_emplace(cell.rung, here);
    if (!first) rung->second = rung->second && here;
  }
  std::optional<double> highest;
  for (const auto& [factor, good] : trains) {
    if (!good) break;
    highest = factor;
  }
  return highest;
}

std::vector<StudyCard> StudyRows::cards() const {
  std::vector<double> losses;
  std::size_t steps = 0;
  for (const auto& [cell, record] : of(StudyPart::fork, "bf16"))
    if (const std::optional<double> loss = trailing_loss(*record)) {
      losses.push_back(*loss);
      steps = std::max(steps, record->training->loss.size());
    }
  if (losses.empty() || recipes_.empty()) return {};
  const double bf16 = average_of(losses);
  const ForkRules rules{.margin = margin_ * bf16, .level = level_};
  const std::optional<double> floor = noise_floor(evidence("bf16", neutral_));
  std::vector<std::string> missed;
  int run = 0;
  const std::vector<ControlResult> controls_found = controls(rules, missed, run);
  std::vector<ForkEvidence> asked;
  for (const std::string& recipe : recipes_) asked.push_back(evidence(recipe, of(StudyPart::fork, recipe)));
  std::vector<StudyCard> cards;
  for (const ForkVerdict& verdict : judge_forks(asked, floor, run, missed, rules)) {
    const std::string& recipe = verdict.recipe;
    StudyCard& card = cards.emplace_back();
    card.model = model_, card.machine = machine_, card.study = study_, card.verdict = verdict,
    card.floor = floor, card.margin = rules.margin;
    card.bf16_loss = bf16, card.fork_steps = static_cast<std::int64_t>(steps);
    card.fidelity = fidelity(recipe), card.layers = layers(recipe), card.curve = curve(recipe);
    card.outlier_ffn = outliers(recipe, "ffn"), card.outlier_norm = outliers(recipe, "norm");
    card.learning_rate = beside_bf16(StudyPart::learning_rate, recipe, rules.margin);
    card.batch = beside_bf16(StudyPart::batch, recipe, rules.margin);
    card.bits = lost_bits(recipe, rules.margin);
    card.bf16_learning_rate = bf16_learning_rate();
    card.controls = controls_found;
  }
  return cards;
}

Json json_of(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

Json json_of(const Ladder& ladder) {
  Json rungs = Json::array();
  for (const LadderRung& rung : ladder.rungs)
    rungs.push_back({{"at", rung.at}, {"value", json_of(rung.value)}, {"holds", rung.holds}});
  return {{"holds", json_of(ladder.holds())}, {"breaks", json_of(ladder.breaks())}, {"rungs", rungs}};
}

Json json_of(const StudyCard& card) {
  const ForkVerdict& verdict = card.verdict;
  const auto part = [](const std::optional<DifferenceInterval>& interval,
                       double DifferenceInterval::*member) {
    return interval ? Json((*interval).*member) : Json();
  };
  Json fidelity = Json::array(), controls = Json::array();
  for (const CardFidelity& one : card.fidelity)
    fidelity.push_back({{"age", one.age}, {"error", one.error}, {"cosine", one.cosine}, {"bias", one.bias}});
  for (const ControlResult& one : card.controls)
    controls.push_back({{"name", one.name}, {"found", one.found ? Json(*one.found) : Json()}});
  Json learning_rate = json_of(card.learning_rate);
  learning_rate["bf16_holds"] = json_of(card.bf16_learning_rate);
  return {{"model", card.model},
          {"recipe", verdict.recipe},
          {"verdict", name_of(verdict.outcome)},
          {"reason", verdict.reason},
          {"fork",
           {{"difference", part(verdict.difference, &DifferenceInterval::mean)},
            {"low", part(verdict.difference, &DifferenceInterval::low)},
            {"high", part(verdict.difference, &DifferenceInterval::high)},
            {"age", verdict.age},
            {"floor", json_of(card.floor)},
            {"margin", card.margin},
            {"bf16_loss", card.bf16_loss},
            {"trunks", verdict.trunks},
            {"seeds", verdict.seeds},
            {"steps", card.fork_steps}}},
          {"trend",
           {{"slope", part(verdict.trend, &DifferenceInterval::mean)},
            {"low", part(verdict.trend, &DifferenceInterval::low)},
            {"high", part(verdict.trend, &DifferenceInterval::high)}}},
          {"fidelity", fidelity},
          {"ladders",
           {{"outlier_ffn", json_of(card.outlier_ffn)},
            {"outlier_norm", json_of(card.outlier_norm)},
            {"learning_rate", learning_rate},
            {"bits", json_of(card.bits)},
            {"batch", json_of(card.batch)}}},
          {"controls", controls},
          {"machine", card.machine}};
}

}  // namespace

std::optional<double> Ladder::holds() const {
  std::optional<double> highest;
  for (const LadderRung& rung : rungs) {
    if (!rung.holds) break;
    highest = rung.at;
  }
  return highest;
}

std::optional<double> Ladder::breaks() const {
  const auto first =
      std::find_if(rungs.begin(), rungs.end(), [](const LadderRung& rung) { return !rung.holds; });
  return first == rungs.end() ? std::nullopt : std::optional(first->at);
}

std::vector<StudyCard> study_cards(const RecordRefs& records) {
  // In the order of names: rows of several cases at one time lie in any.
  std::map<std::string, StudyRows> studies;
  for (const LocatedRecord* located : records) {
    const Record& record = located->record;
    if (!record.study || !record.definition || !is_sound(*record.study)) continue;
    const std::string machine = machine_of(located->env);
    studies[name_in(record.definition->model) + " " + record.study->study + " " + machine].add(record,
                                                                                               machine);
  }
  std::vector<StudyCard> cards;
  for (const auto& [key, rows] : studies) {
    std::vector<StudyCard> more = rows.cards();
    cards.insert(cards.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return cards;
}

nlohmann::ordered_json cards_to_json(const std::vector<StudyCard>& cards) {
  Json list = Json::array();
  for (const StudyCard& card : cards) list.push_back(json_of(card));
  return list;
}

}  // namespace precbench
