// The advice for programs. See advice.h.
#include <cmath>

#include "tools/advise/advice.h"
#include "tools/analysis/token_cost.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

Json number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

Json interval(const std::optional<MeanWithInterval>& value) {
  if (!value) return Json();
  return {{"mean", number(value->mean)}, {"low", number(value->low)}, {"high", number(value->high)}};
}

Json study(const StudyPrice* price, const PlannedRun& run) {
  if (!price) return Json();
  return {{"gap_nats", interval(price->gap)},
          {"bf16_loss_nats", price->bf16_loss},
          {"price_nats", interval(price->gap_at(run.loss))},
          {"model", price->card->model},
          {"parameters", price->parameters},
          {"tokens_per_parameter", price->tokens_per_parameter},
          {"verdict", name_of(price->card->verdict.outcome)},
          {"margin_nats", price->margin_at(price->bf16_loss)},
          {"study", price->card->study}};
}

Json row_json(const AdviceRow& row, const Advice& advice) {
  Json gaps = Json::array();
  for (const BreakEven& one : row.break_even)
    gaps.push_back({{"tokens", one.tokens}, {"gap_nats", interval(one.gap)}});
  return {{"recipe", row.speed.recipe},
          {"gather", row.speed.gather.empty() ? Json() : Json(row.speed.gather)},
          {"source", row.speed.tokens_per_s ? Json(name_of(row.speed.source)) : Json()},
          {"tokens_per_s", number(row.speed.tokens_per_s)},
          {"speedup", interval(row.speed.speedup)},
          {"peak_bytes", number(row.speed.peak_bytes)},
          {"fits", row.speed.fits},
          {"dollars_per_billion_tokens", number(advice.dollars(row.speed))},
          {"kwh_per_billion_tokens", number(Advice::kilowatt_hours(row.speed))},
          {"price", study(row.price, advice.run)},
          {"price_on_the_other_side_of_the_age", study(row.other_side, advice.run)},
          {"diverged", row.diverged},
          {"studied_only_on_far_younger_models", row.only_young},
          {"eligible", row.eligible},
          {"break_even", gaps},
          {"equal_loss_speedup", interval(row.equal_loss)},
          {"reason", row.speed.no_speed.empty() ? Json() : Json(row.speed.no_speed)}};
}

}  // namespace

Json advice_json(const Advice& advice) {
  Json rows = Json::array();
  for (const AdviceRow& row : advice.rows) rows.push_back(row_json(row, advice));
  Json slope;
  if (advice.slope)
    slope = {{"nats_per_factor_e", interval(advice.slope->slope)},
             {"source", advice.slope->source},
             {"warnings", advice.slope->warnings}};
  return {{"status", advice.status},
          {"recommended", advice.pick ? Json(*advice.pick) : Json()},
          {"headline", headline(advice)},
          {"gpu", advice.speeds.gpu.name},
          {"gpu_memory", advice.speeds.gpu.memory ? Json(*advice.speeds.gpu.memory) : Json()},
          {"setting", advice.speeds.setting},
          {"parameters", advice.run.parameters},
          {"tokens", number(advice.run.tokens)},
          {"bf16_loss_nats", advice.run.loss},
          {"slope", slope},
          {"rows", rows},
          {"emulated", advice.speeds.emulated},
          {"would_fit", advice.speeds.would_fit ? Json(*advice.speeds.would_fit) : Json()},
          {"risks", risks(advice)},
          {"notes", advice.speeds.notes},
          {"measure", measuring_command(advice)}};
}

}  // namespace precbench
