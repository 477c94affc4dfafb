// Content of cards.json. See study_cards.h.
#include <cmath>

#include "tools/analysis/study_cards.h"
#include "tools/analysis/token_cost.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

Json json_of(const Ladder& ladder) {
  Json rungs = Json::array();
  for (const LadderRung& rung : ladder.rungs)
    rungs.push_back({{"at", rung.at}, {"value", json_of(rung.value)}, {"holds", rung.holds}});
  return {{"holds", json_of(ladder.holds())}, {"breaks", json_of(ladder.breaks())}, {"rungs", rungs}};
}

Json json_of(const std::optional<MeanWithInterval>& value, const char* name) {
  const auto part = [&](double MeanWithInterval::*member) {
    return value ? json_of(std::optional((*value).*member)) : Json();
  };
  return {{name, part(&MeanWithInterval::mean)},
          {"low", part(&MeanWithInterval::low)},
          {"high", part(&MeanWithInterval::high)}};
}

Json json_of(const std::optional<SwitchGap>& gap) {
  if (!gap) return Json();
  return {{"loss_gap", json_of(gap->mean)},
          {"low", json_of(gap->low)},
          {"high", json_of(gap->high)},
          {"over", name_of(gap->source)}};
}

Json json_of(const std::optional<ForkCourse>& course) {
  if (!course) return Json();
  Json plateau = json_of(course->plateau, "loss_gap");
  plateau["above_zero"] = course->plateau ? Json(course->above_zero()) : Json();
  return {{"shape", name_of(course->shape)},
          {"change", json_of(std::optional(course->change), "loss_gap")},
          {"tau", course->tau},
          {"plateau", plateau}};
}

/// Returns the factor of tokens that makes up for the card's loss gap, at each horizon.
Json tokens_json(const std::optional<MeanWithInterval>& gap) {
  const ScalingLaw& law = kBesiroglu2024;
  Json horizons = Json::array();
  for (const double tokens : kHorizons) {
    const double slope = law.slope(tokens);
    const auto factor = [&](double MeanWithInterval::*member) {
      return gap ? json_of(std::optional(token_factor((*gap).*member, slope))) : Json();
    };
    Json break_even = Json::array();
    for (const double speedup : kStatedSpeedups)
      break_even.push_back({{"speedup", speedup}, {"gap", break_even_gap(slope, speedup)}});
    horizons.push_back({{"tokens", tokens},
                        {"slope", slope},
                        {"factor", factor(&MeanWithInterval::mean)},
                        {"low", factor(&MeanWithInterval::low)},
                        {"high", factor(&MeanWithInterval::high)},
                        {"break_even", break_even},
                        {"exact_factor", factor(&MeanWithInterval::mean)}});
  }
  return {{"law", law.name}, {"source", law.source}, {"horizons", horizons}};
}

Json gaps_json(const StudyCard& card) {
  Json gaps = Json::array();
  for (const CardGaps& at_age : card.gaps)
    gaps.push_back({{"age", at_age.age},
                    {"tokens_per_parameter", json_of(at_age.tokens_per_parameter)},
                    {"bf16_loss", at_age.bf16_loss},
                    {"at_switch", json_of(at_age.at_switch)},
                    {"over_forks", json_of(loss_gap_at(card, at_age.age), "loss_gap")},
                    {"course", json_of(at_age.course)},
                    {"held_out", json_of(at_age.held_out, "loss_gap")},
                    {"held_out_in_bf16", json_of(at_age.held_out_in_bf16, "loss_gap")}});
  return gaps;
}

Json ages_json(const ForkVerdict& verdict) {
  Json ages = Json::array();
  for (const auto& [age, mean, difference] : verdict.by_age) {
    ages.push_back({{"age", age}});
    ages.back().update(json_of(difference, "loss_gap"));
    if (mean) ages.back()["loss_gap"] = *mean;
  }
  return ages;
}

Json json_of(const std::optional<DeploymentAnswer>& answer) {
  if (!answer) return Json();
  const ForkVerdict& verdict = answer->verdict;
  Json json = {{"verdict", name_of(verdict.outcome)}, {"reason", verdict.reason}};
  json.update(json_of(verdict.difference, "loss_gap"));
  json.update({{"text", json_of(answer->text)},
               {"bf16_loss", answer->bf16_loss},
               {"share", json_of(answer->share, "mean")},
               {"per_byte", json_of(answer->per_byte, "mean")},
               {"age", verdict.age},
               {"ages", ages_json(verdict)},
               {"trunks", verdict.trunks}});
  return json;
}

Json json_of(const std::optional<OutputMeans>& distance) {
  if (!distance) return Json();
  return {{"log_probability", distance->log_probability},
          {"largest_log_probability", distance->largest_log_probability},
          {"kl", distance->kl},
          {"largest_kl", distance->largest_kl}};
}

Json json_of(const std::optional<Deployment>& deployment) {
  if (!deployment) return Json();
  Json across = Json::array();
  for (const ReadingDifference& one : deployment->across) {
    across.push_back({{"recipe", one.recipe}});
    across.back().update(json_of(std::optional(one.difference), "loss_gap"));
  }
  return {{"tokens", deployment->tokens},
          {"bf16_loss", deployment->bf16_loss},
          {"bytes_per_token", json_of(deployment->bytes_per_token)},
          {"in_bf16", json_of(deployment->in_bf16)},
          {"in_recipe", json_of(deployment->in_recipe)},
          {"raw", json_of(deployment->raw)},
          {"across", across},
          {"same_weights",
           {{"trained_in_bf16", json_of(deployment->of_bf16_weights)},
            {"trained_in_recipe", json_of(deployment->of_recipe_weights)}}}};
}

Json json_of(const std::optional<CardAgeLaw>& card) {
  if (!card) return Json();
  Json trunks = Json::array();
  for (const auto& [scale, exponent] : card->law.trunks())
    trunks.push_back({{"scale", scale}, {"exponent", exponent}});
  return {{"exponent", json_of(std::optional(card->law.exponent()), "mean")},
          {"trunks", trunks},
          {"exponent_of_share", json_of(std::optional(card->share.exponent()), "mean")},
          {"youngest", card->youngest},
          {"oldest", card->oldest},
          {"forecast_of_oldest", json_of(card->forecast, "loss_gap")},
          {"share_forecast_of_oldest", json_of(card->share_forecast, "share")}};
}

Json outputs_json(const CardOutputs& outputs) {
  Json json = {{"tokens", outputs.tokens}, {"held_out", outputs.held_out}};
  json.update(json_of(std::optional(outputs.distance)));
  return json;
}

/// Returns the comparison with the incumbent; null if there is none.
Json contrast_json(const StudyCard& card) {
  if (!card.contrast) return Json();
  const ForkVerdict& verdict = card.contrast->verdict;
  Json fork = json_of(verdict.difference, "loss_gap");
  fork["age"] = verdict.age, fork["ages"] = ages_json(verdict);
  fork["trunks"] = verdict.trunks, fork["seeds"] = verdict.seeds;
  return {{"recipe", card.contrast->incumbent},
          {"verdict", name_of(verdict.outcome)},
          {"statement", contrast_words(card)},
          {"reason", verdict.reason},
          {"fork", fork},
          {"trend", json_of(verdict.trend, "slope")}};
}

Json changes_json(const StudyCard& card) {
  Json changes = Json::array();
  for (const CardChange& one : card.changes)
    changes.push_back({{"after_step", one.after}, {"recipe", one.recipe}});
  return changes;
}

Json json_of(const StudyCard& card) {
  const ForkVerdict& verdict = card.verdict;
  const auto part = [](const std::optional<MeanWithInterval>& interval, double MeanWithInterval::*member) {
    return interval ? Json((*interval).*member) : Json();
  };
  Json fidelity = Json::array(), controls = Json::array();
  for (const CardFidelity& one : card.fidelity) {
    fidelity.push_back({{"age", one.age}, {"error", one.error}, {"cosine", one.cosine}, {"bias", one.bias}});
    if (one.route_flips) fidelity.back()["route_flips"] = *one.route_flips;
    if (one.outputs) fidelity.back()["outputs"] = outputs_json(*one.outputs);
  }
  for (const ControlResult& one : card.controls)
    controls.push_back({{"name", one.name}, {"found", one.found ? Json(*one.found) : Json()}});
  Json learning_rate = json_of(card.learning_rate);
  learning_rate["bf16_holds"] = json_of(card.bf16_learning_rate.holds());
  return {{"model", card.model},
          {"recipe", verdict.recipe},
          {"verdict", name_of(verdict.outcome)},
          {"statement", verdict_words(card)},
          {"reason", verdict.reason},
          {"fork",
           {{"loss_gap", part(verdict.difference, &MeanWithInterval::mean)},
            {"low", part(verdict.difference, &MeanWithInterval::low)},
            {"high", part(verdict.difference, &MeanWithInterval::high)},
            {"age", verdict.age},
            {"ages", ages_json(verdict)},
            {"floor", json_of(card.floor)},
            {"margin", card.margin},
            {"bf16_loss", card.bf16_loss},
            {"trunks", verdict.trunks},
            {"seeds", verdict.seeds},
            {"looks", verdict.looks.trunks},
            {"steps", card.fork_steps},
            {"recipe_changes", changes_json(card)}}},
          {"trend",
           {{"slope", part(verdict.trend, &MeanWithInterval::mean)},
            {"low", part(verdict.trend, &MeanWithInterval::low)},
            {"high", part(verdict.trend, &MeanWithInterval::high)}}},
          {"deployment", json_of(card.deployment)},
          {"against", contrast_json(card)},
          {"loss_gaps", gaps_json(card)},
          {"age_law", json_of(card.age_law)},
          {"tokens", tokens_json(card.gaps.empty() ? std::nullopt : loss_gap_at(card, card.gaps.back().age))},
          {"trained_tokens", card.trained_tokens ? Json(*card.trained_tokens) : Json()},
          {"steady", card.steady ? Json(*card.steady) : Json()},
          {"fidelity", fidelity},
          {"ladders",
           {{"outlier_ffn", json_of(card.outlier_ffn)},
            {"outlier_norm", json_of(card.outlier_norm)},
            {"outlier_vo", json_of(card.outlier_vo)},
            {"learning_rate", learning_rate},
            {"bits", json_of(card.bits)},
            {"exponent_bits", json_of(card.exponent_bits)},
            {"batch", json_of(card.batch)}}},
          {"controls", controls},
          {"machine", card.machine},
          {"study", card.study}};
}

}  // namespace

nlohmann::ordered_json cards_to_json(const std::vector<StudyCard>& cards) {
  Json list = Json::array();
  for (const StudyCard& card : cards) list.push_back(json_of(card));
  return list;
}

}  // namespace precbench
