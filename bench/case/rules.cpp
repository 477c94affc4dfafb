// Judgement by rules. See rules.h.
#include "bench/case/rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

/// Returns the text of a word in braces.
std::string text_of(const std::string& word, const Plan& plan) {
  if (word == "model") return plan.model.name;
  if (word == "recipe") return plan.recipe.name;
  if (word == "head_dim") return fmt::format("{}", plan.model.head_dim);
  if (word == "v_dim") return fmt::format("{}", plan.model.v_dim());
  if (word == "ranks") return plural(plan.ranks, "rank");
  if (word == "data_ranks") return plural(plan.ranks / plan.fields.tensor, "rank");
  if (word == "blocks") return plural(plan.model.layers, "block");
  if (word == "experts") return plural(plan.model.moe.rule.experts, "expert");
  if (word == "tokens") return plural(plan.tokens_per_micro_step(), "token");
  return get_text(plan.fields, *find_field(word));
}

std::string filled_in(std::string text, const Plan& plan) {
  for (std::size_t at = 0; (at = text.find('{', at)) != text.npos;) {
    const std::size_t end = text.find('}', at);
    const std::string word = text_of(text.substr(at + 1, end - at - 1), plan);
    text.replace(at, end + 1 - at, word);
    at += word.size();
  }
  return text;
}

bool is_set(const Rule& rule, const Plan& plan) {
  return !rule.field || precbench::is_set(plan.fields, *rule.field);
}

/// Returns the first field of a layout that no run supports; null if a case has none. Tensor ranks alone do run.
const Field* predicted_field(const Case& c) {
  for (const Field& field : case_fields())
    if (field.identity == Identity::predicted && field.member != CaseMember(&Case::tensor) &&
        precbench::is_set(c, field.member))
      return &field;
  return nullptr;
}

std::optional<std::string> predicted_only_reason(const Plan& plan) {
  const Field* field = predicted_field(plan.fields);
  if (!field) return std::nullopt;
  return fmt::format("{} {}: predicted only, a run does not support it; use sweep --dry-run --on MACHINE",
                     flag_of(*field), get_text(plan.fields, *field));
}

}  // namespace

std::span<const Rule> case_rules(Verdict verdict) {
  switch (verdict) {
    case Verdict::invalid:
      return input_rules();
    case Verdict::refused:
      return refusal_rules();
    case Verdict::unsupported:
      return support_rules();
    case Verdict::unpredicted:
      return layout_rules();
    case Verdict::unused:
      return unused_rules();
  }
  return {};
}

std::optional<std::string> reason_of(const Rule& rule, const Plan& plan) {
  if (!is_set(rule, plan)) return std::nullopt;
  if (rule.reason) return rule.reason(plan);
  return rule.broken(plan) ? std::optional(filled_in(rule.why, plan)) : std::nullopt;
}

std::optional<std::string> broken_rule(Verdict verdict, const Plan& plan) {
  for (const Rule& rule : case_rules(verdict))
    if (auto why = reason_of(rule, plan)) return why;
  return std::nullopt;
}

bool is_predicted_only(const Case& c) { return predicted_field(c) != nullptr; }

bool has_layout(const Case& c) { return is_predicted_only(c) || (c.tensor > 1 && is_gpu(c.device)); }

std::optional<std::string> unsupported_reason(const Plan& plan) {
  if (plan.refusal) return plan.refusal;
  if (auto why = predicted_only_reason(plan)) return why;
  return broken_rule(Verdict::unsupported, plan);
}

std::optional<std::string> layout_unsupported_reason(const Plan& plan) {
  return broken_rule(Verdict::unpredicted, plan);
}

std::optional<std::string> unused_option(const std::vector<Plan>& cases, const Axes& flags,
                                         const Axes& file) {
  for (const Rule& rule : unused_rules()) {
    const auto& fields = case_fields();
    const Field& field = *std::find_if(fields.begin(), fields.end(),
                                       [&](const Field& one) { return one.member == *rule.field; });
    const bool overruled = std::any_of(rule.beside.begin(), rule.beside.end(),
                                       [&](const char* name) { return name && flags.contains(name); });
    if (!flags.contains(field.name) && (overruled || !file.contains(field.name))) continue;
    std::optional<std::string> why;
    bool used = false;
    for (const Plan& plan : cases) {
      if (!is_set(rule, plan)) continue;
      why = reason_of(rule, plan);
      used |= !why;
    }
    if (why && !used) return why;
  }
  return std::nullopt;
}

void refuse_unfit(const std::vector<Plan>& cases, const Axes& flags, const Axes& file, bool to_run) {
  for (const Plan& plan : cases)
    if (to_run)
      if (const auto why = predicted_only_reason(plan)) throw InvalidInput(*why);
  if (const auto why = unused_option(cases, flags, file)) throw InvalidInput(*why);
}

}  // namespace precbench
