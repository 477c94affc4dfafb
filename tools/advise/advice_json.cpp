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

Json expected_json(const std::optional<ExpectedGap>& expected) {
  if (!expected) return Json();
  return {
      {"nats", interval(expected->gap)},
      {"evidence", expected->evidence()},
      {"evidence_words", expected->evidence_words()},
      {"trained_models", expected->models},
      {"measured_in", expected->measured ? Json(expected->measured->records) : Json()},
      {"studies", expected->studies},
      {"continued", expected->continued()},
      {"tokens_per_parameter", expected->measured ? Json(expected->measured->tokens_per_parameter) : Json()}};
}

Json failure_json(const PublishedLoss* failure) {
  if (!failure) return Json();
  return {{"source", failure->source},
          {"where", failure->where},
          {"model", failure->model},
          {"published", failure->published}};
}

Json cost_json(const std::optional<RunCost>& cost) {
  if (!cost) return Json();
  return {{"days", number(cost->days)},
          {"gpu_hours", number(cost->gpu_hours)},
          {"dollars", number(cost->dollars)},
          {"kwh", number(cost->kilowatt_hours)}};
}

Json row_json(const AdviceRow& row, const Advice& advice) {
  return {{"recipe", row.speed.recipe},
          {"gather", row.speed.gather.empty() ? Json() : Json(row.speed.gather)},
          {"setting", row.speed.fields},
          {"source", row.speed.tokens_per_s ? Json(name_of(row.speed.source)) : Json()},
          {"tokens_per_s", number(row.speed.tokens_per_s)},
          {"speedup", interval(row.speed.speedup)},
          {"stack", row.speed.stack.empty() ? Json() : Json(row.speed.stack)},
          {"own_tokens_per_s", number(row.speed.own_tokens_per_s)},
          {"own_speedup", interval(row.speed.own_speedup)},
          {"peak_bytes", number(row.speed.peak_bytes)},
          {"fits", row.speed.fits},
          {"runs", row.speed.runs},
          {"dollars_per_billion_tokens", number(advice.dollars(row.speed))},
          {"kwh_per_billion_tokens", number(Advice::kilowatt_hours(row.speed))},
          {"run", cost_json(advice.cost(row.speed))},
          {"loss_gap", expected_json(row.expected)},
          {"known_failure", failure_json(row.failure)},
          {"diverged", row.diverged},
          {"eligible", row.eligible},
          {"break_even_nats", interval(row.break_even)},
          {"equal_loss_speedup", interval(row.equal_loss)},
          {"reason", row.speed.no_speed.empty() ? Json() : Json(row.speed.no_speed)}};
}

}  // namespace

Json advice_json(const Advice& advice, const std::vector<std::string>& measure) {
  Json rows = Json::array();
  for (const AdviceRow& row : advice.rows) rows.push_back(row_json(row, advice));
  const Json slope = {{"nats_per_factor_e", interval(advice.slope.slope)},
                      {"source", advice.slope.source},
                      {"warnings", advice.slope.warnings}};
  Json changes = Json::array();
  for (const OtherAnswer& one : advice.sensitivity)
    changes.push_back({{"change", one.change}, {"recommended", one.recipe}});
  Json choices = Json::array();
  for (const HorizonChoice& one : advice.choices)
    choices.push_back({{"tokens", one.tokens},
                       {"recommended", one.recipe},
                       {"best", one.best},
                       {"loss_gap_nats", interval(one.gap)},
                       {"break_even_nats", one.break_even},
                       {"equal_loss_speedup", interval(one.equal_loss)}});
  return {{"status", advice.status},
          {"recommended", advice.pick ? rows[*advice.pick] : Json()},
          {"best", advice.best ? Json(advice.rows[*advice.best].speed.recipe) : Json()},
          {"training", name_of(advice.speeds.part)},
          {"headline", headline(advice)},
          {"gpu", advice.speeds.gpu.name},
          {"gpu_memory", advice.speeds.gpu.memory ? Json(*advice.speeds.gpu.memory) : Json()},
          {"case_bytes", advice.speeds.limit_bytes > 0 ? Json(advice.speeds.limit_bytes) : Json()},
          {"setting", advice.speeds.setting},
          {"parameters", advice.run.parameters},
          {"tokens", number(advice.run.tokens)},
          {"horizon", advice.horizon},
          {"serve", name_of(advice.run.serving)},
          {"bf16_loss_nats", advice.loss},
          {"slope", slope},
          {"rows", rows},
          {"by_tokens", choices},
          {"changes", changes},
          {"emulated", advice.speeds.emulated},
          {"would_fit", advice.speeds.would_fit ? Json(*advice.speeds.would_fit) : Json()},
          {"risks", risks(advice)},
          {"notes", advice.speeds.notes},
          {"measure", measure}};
}

}  // namespace precbench
