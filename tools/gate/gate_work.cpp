// Matches records and compares their work. See gate_work.h.
#include "tools/gate/gate_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "results/record/field_index.h"
#include "tools/analysis/analysis.h"
#include "tools/gate/schema_1.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Finds the first difference between two records of one id.
class WorkComparison {
 public:
  WorkComparison(const LocatedRecord& baseline, const LocatedRecord& current)
      : baseline_(baseline), current_(current) {}

  void texts(const std::string& name, const std::string& was, const std::string& is) {
    if (!found && was != is)
      found = fmt::format("{} is {} at {}, but {} at {}", name, was.empty() ? "missing" : was,
                          baseline_.origin.text(), is.empty() ? "missing" : is, current_.origin.text());
  }
  /// Compares numbers that are equal in every build up to the order of summation.
  void numbers(const std::string& name, const std::optional<double>& was, const std::optional<double>& is) {
    constexpr double kRounding = 1e-9;
    if (!was || (is && std::abs(*is - *was) <= kRounding * std::abs(*was))) return;
    texts(name, fmt::format("{:.10g}", *was), is ? fmt::format("{:.10g}", *is) : "unknown");
  }

  std::optional<std::string> found;

 private:
  const LocatedRecord &baseline_, &current_;
};

std::optional<double> number(const std::optional<std::int64_t>& value) {
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

/// Compares the learning rates of the steps that both have done. A schedule is the same in every build.
void compare_rates(WorkComparison& comparison, const std::vector<double>& was,
                   const std::vector<double>& is) {
  constexpr double kSame = 1e-6;
  for (std::size_t step = 0; step < std::min(was.size(), is.size()); ++step)
    if (!(std::abs(is[step] - was[step]) <= kSame * std::abs(was[step]))) {
      comparison.texts(fmt::format("training.lr of step {}", step + 1), fmt::format("{:.7g}", was[step]),
                       fmt::format("{:.7g}", is[step]));
      return;
    }
}

/// Compares what follows from model, data and converted layers.
void compare_training(WorkComparison& comparison, const Training& was, const Training& is) {
  comparison.numbers("training.tokens_per_step", number(was.tokens_per_step), number(is.tokens_per_step));
  comparison.numbers("training.params_total", number(was.params_total), number(is.params_total));
  comparison.numbers("training.uniform_loss", was.uniform_loss, is.uniform_loss);
  comparison.numbers("training.entropy_floor", was.entropy_floor, is.entropy_floor);
  const auto &before = was.converted_layers, &now = is.converted_layers;
  const auto [a, b] = std::mismatch(before.begin(), before.end(), now.begin(), now.end());
  compare_rates(comparison, was.lr, is.lr);
  comparison.texts("training.converted_layers", a == before.end() ? "" : *a, b == now.end() ? "" : *b);
}

/// Returns true for fields whose meaning is in the definition: equal work may have another name, and
/// equal names other work.
bool is_defined(const std::string& field) {
  static const std::set<std::string> kDefined = {"model",   "recipe", "keep_bf16", "switch_recipe",
                                                 "data",    "glob",   "init_from", "fork_from",
                                                 "perturb", "stress", "flow",      "kept"};
  return kDefined.contains(field);
}

/// Returns a field's value, with quotes if it could be read as a missing one.
std::string quoted_field(const Json& value) {
  const std::string text = field_text(value);
  return text == "none" || text == "missing" ? value.dump() : text;
}

/// Compares ids if one of the two has no definition.
void compare_schema_1(WorkComparison& comparison, const LocatedRecord& baseline,
                      const LocatedRecord& current) {
  for (const auto& [old, other] : {std::pair{&baseline, &current}, std::pair{&current, &baseline}})
    if (!comparison.found && !old->record.definition && other->record.definition)
      if (const auto why = other_model_reason(old->record, *other->record.definition->model))
        comparison.found = fmt::format("{} has {} at {}", old->origin.text(), *why, other->origin.text());
}

}  // namespace

std::optional<ExecutionPath> path_of(const Record& record) {
  if (record.source) return ExecutionPath::native;  // whatever ran has a speed
  return record.support ? std::optional(record.support->path()) : std::nullopt;
}

std::optional<std::string> difference_in_work(const LocatedRecord& baseline, const LocatedRecord& current) {
  const Record &was = baseline.record, &is = current.record;
  const bool defined = was.definition && is.definition;
  if (defined)
    if (const auto difference = first_difference(*was.definition, *is.definition))
      return fmt::format("definition.{}: {} here, {} in the baseline", difference->field, difference->current,
                         difference->baseline);
  WorkComparison comparison(baseline, current);
  // A field that only the run has is newer than the baseline: it is part of the id unless it has
  // its default value.
  for (const auto& field : was.case_fields.items())
    if (const Json* now = is.case_fields.find(field.key());
        changes_work(field.key()) && !(defined && is_defined(field.key())) &&
        (now ? *now != field.value() : !field.value().is_null()))
      comparison.texts("case." + field.key(), quoted_field(field.value()),
                       now ? quoted_field(*now) : "missing");
  if (path_of(was) && !path_of(is)) comparison.texts("support", name_of(*path_of(was)), "");
  if (was.flops)
    comparison.numbers("flops.per_token", was.flops->per_token,
                       is.flops ? std::optional(is.flops->per_token) : std::nullopt);
  static const Training kUnknown;
  if (was.training) compare_training(comparison, *was.training, is.training ? *is.training : kUnknown);
  if (was.source && is.source) {
    // Losses are compared line by line.
    const auto &before = was.source->steps, &now = is.source->steps;
    const auto [a, b] = std::mismatch(before.begin(), before.begin() + std::min(before.size(), now.size()), now.begin());
    if (a != before.end() && b != now.end())
      comparison.texts(fmt::format("source.steps of line {}", a - before.begin() + 1), std::to_string(*a), std::to_string(*b));
    comparison.texts("source.loss", was.source->loss, is.source->loss);
  }
  if (was.id != is.id) compare_schema_1(comparison, baseline, current);
  return comparison.found;
}

ById by_id(const RecordSet& set) {
  ById records;
  for (const LocatedRecord& located : set.records) {
    const auto [known, is_new] = records.emplace(located.record.id, &located);
    if (!is_new)  // the reader keeps one record per id and GPU model; this is the CPU
                  // device on two CPU models
      throw InvalidInput(fmt::format("{} and {} are one case on two machines: check them one after the other",
                                     known->second->origin.text(), located.origin.text()));
  }
  return records;
}

Answers answers(const RecordSet& baseline, const RecordSet& current) {
  by_id(baseline);
  ById left = by_id(current);
  Answers found;
  std::vector<const LocatedRecord*> unanswered, without_place;
  for (const LocatedRecord& located : baseline.records) {
    const auto same = left.find(located.record.id);
    if (same == left.end()) {
      unanswered.push_back(&located);
      continue;
    }
    found[&located] = same->second;
    left.erase(same);
  }
  for (const auto& [id, located] : left) without_place.push_back(located);
  FieldIndex run(without_place), rivals(unanswered);
  for (const LocatedRecord* located : unanswered) {
    const auto& like = run.like(located->record);
    if (like.size() == 1 && rivals.like(located->record).size() == 1) found[located] = like.front();
  }
  return found;
}

}  // namespace precbench
