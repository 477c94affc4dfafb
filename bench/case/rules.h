// Rules of cases, a row each: the field, what a case that breaks the rule is told, and which cases break it. validate() and
// the functions beside it in plan.h ask them in the order of the tables, and the first one that is broken counts. A rule
// about a new field is a row here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/case/plan.h"

namespace precbench {

/// Consequence of a broken rule.
enum class Verdict : std::uint8_t {
  invalid,  ///< bad input: the command ends. Judged when only fields, model and recipe of the plan are known
  refused,  ///< the recipe conflicts with the other fields (Refusals). Judged when the layers are known, too
  unsupported,  ///< the case becomes a row "unsupported"
  unpredicted,  ///< the ranks of a layout that is predicted only do not fit each other
  unused,       ///< the field has no effect
};

/// The field of a rule that concerns all cases.
inline constexpr std::nullopt_t kEveryCase = std::nullopt;

struct Rule {
  using Broken = bool (*)(const Plan&);
  using Reason = std::optional<std::string> (*)(const Plan&);
  using Names = std::array<const char*, 4>;

  /// The rule is judged if a case sets another value of this field than the default.
  std::optional<CaseMember> field;
  /// Text for a case that breaks the rule. "{name}" stands for the text of a field of the case, and {model}, {recipe},
  /// {head_dim}, {v_dim}, {ranks}, {data_ranks}, {blocks}, {experts} and {tokens} for the plan's model and recipe,
  /// widths of its heads, and numbers of ranks, of those beside tensor ranks, blocks, experts, and tokens of a rank's
  /// micro-step, with the noun.
  const char* why = nullptr;
  Broken broken = nullptr;
  Reason reason = nullptr;  ///< in place of both, for texts with other numbers: null if the rule holds
  Names beside = {};        ///< of `unused`: fields that decide, too, whether this one has an effect

  constexpr Rule(std::optional<CaseMember> member, const char* text, Broken is_broken)
      : field(member), why(text), broken(is_broken) {}
  constexpr Rule(std::optional<CaseMember> member, const char* text, Names others, Broken is_broken)
      : field(member), why(text), broken(is_broken), beside(others) {}
  constexpr Rule(std::optional<CaseMember> member, Reason why_broken) : field(member), reason(why_broken) {}
};

/// Return why ranks of --context do not divide a sequence, those of --tensor the model, or all of a replica --gpus;
/// null if they do. `repeats_keys`: several tensor ranks may have the same key head, as in predictions.
std::optional<std::string> undivided_chunks(const Plan& plan);
std::optional<std::string> undivided_model(const Plan& plan, bool repeats_keys);
std::optional<std::string> undivided_ranks(const Plan& plan);

/// Returns why tensor ranks of a case would be on several hosts; null if each group is on one. `hosts`: name of the host of
/// each process; processes have equal shares of the ranks, in order.
std::optional<std::string> tensor_hosts_reason(const Case& c, const std::vector<std::string>& hosts);

/// Returns the rules with this consequence.
std::span<const Rule> case_rules(Verdict verdict);

/// Returns what a case is told that breaks a rule; null if it does not.
std::optional<std::string> reason_of(const Rule& rule, const Plan& plan);

/// Returns the reason of the first rule with this consequence that a case breaks; null if it breaks none.
std::optional<std::string> broken_rule(Verdict verdict, const Plan& plan);

// The tables, by what they are about.
std::span<const Rule> input_rules();
std::span<const Rule> refusal_rules();
std::span<const Rule> unused_rules();
std::span<const Rule> support_rules();
std::span<const Rule> layout_rules();

}  // namespace precbench
