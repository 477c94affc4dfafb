// Cases of equal id, and what parts two records although their ids are equal.
#include "tools/gate/gate_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/base/errors.h"
#include "results/contradiction.h"
#include "tools/analysis/analysis.h"
#include "tools/text/text.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Looks for the first difference between two records of one id.
class WorkComparison {
 public:
  WorkComparison(const LocatedRecord& baseline, const LocatedRecord& current)
      : baseline_(baseline), current_(current) {}

  void texts(const std::string& name, const std::string& was, const std::string& is) {
    if (!found && was != is)
      found = fmt::format("{} is {} at {}, but {} at {}", name, was.empty() ? "none" : was, baseline_.origin,
                          is.empty() ? "none" : is, current_.origin);
  }
  /// Numbers that every build computes alike, but for the order of its sums.
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

/// What the model, the data and the layers in the recipe's formats make of the fields.
void compare_training(WorkComparison& comparison, const Training& was, const Training& is) {
  comparison.numbers("training.tokens_per_step", number(was.tokens_per_step), number(is.tokens_per_step));
  comparison.numbers("training.params_total", number(was.params_total), number(is.params_total));
  comparison.numbers("training.uniform_loss", was.uniform_loss, is.uniform_loss);
  comparison.numbers("training.entropy_floor", was.entropy_floor, is.entropy_floor);
  const auto &before = was.converted_layers, &now = is.converted_layers;
  const auto [a, b] = std::mismatch(before.begin(), before.end(), now.begin(), now.end());
  comparison.texts("training.converted_layers", a == before.end() ? "" : *a, b == now.end() ? "" : *b);
}

/// A case that left no measurement. Out of memory is as big as can be, and diverged as bad.
MetricResult without_measurement(const Record& record) {
  const std::string reason =
      fmt::format("the run ended {}: {}", name_of(record.status), record.error.value_or("no reason known"));
  if (record.status == Status::oom)
    return {"peak memory", "bytes", GateVerdict::bigger, {}, {}, {}, {}, reason};
  if (record.status == Status::diverged)
    return {"final loss", "nats", GateVerdict::worse, {}, {}, {}, {}, reason};
  return Match::whole(GateVerdict::missing, reason);
}

void refuse_other_path(const Match& match) {
  const auto was = path_of(match.baseline->record), is = path_of(match.current->record);
  if (!was || !is || *was == *is || match.current->record.status != Status::ok) return;
  throw InvalidInput(fmt::format("case {} is {} at {}, but {} at {}: they are not compared",
                                 match.baseline->record.id, name_of(*was), match.baseline->origin,
                                 name_of(*is), match.current->origin));
}

using Ids = std::set<std::string>;

std::optional<MetricResult> what_is_unfit(const Match& match, const Ids& undecided) {
  if (!match.current) return Match::whole(GateVerdict::missing, "no record of this case");
  if (undecided.contains(match.baseline->record.id))
    return Match::whole(GateVerdict::noisy,
                        fmt::format("{} is one of several records of this case, and their times do not tell "
                                    "which is the newest: leave one",
                                    match.current->origin));
  if (match.current->record.status != Status::ok) return without_measurement(match.current->record);
  if (const auto difference = difference_in_work(*match.baseline, *match.current))
    return Match::whole(GateVerdict::missing, "other work under the same id: " + *difference);
  for (const LocatedRecord* located : {match.baseline, match.current})
    if (const auto why = contradiction(located->record))
      return Match::whole(GateVerdict::noisy,
                          fmt::format("{} contradicts itself: {}", located->origin, *why));
  return std::nullopt;
}

}  // namespace

MetricResult Match::whole(GateVerdict verdict, std::string reason) {
  return {"run", "", verdict, {}, {}, {}, {}, std::move(reason)};
}

std::optional<ExecutionPath> path_of(const Record& record) {
  return record.support ? std::optional(record.support->path()) : std::nullopt;
}

std::optional<std::string> difference_in_work(const LocatedRecord& baseline, const LocatedRecord& current) {
  const Record &was = baseline.record, &is = current.record;
  WorkComparison comparison(baseline, current);
  // A field that only the run knows is a younger one: the id has it where it is not at its default.
  for (const auto& field : was.case_fields.items())
    if (const Json now = is.case_fields.value(field.key(), Json());
        changes_work(field.key()) && now != field.value())
      comparison.texts("case." + field.key(), field_text(field.value()), field_text(now));
  if (path_of(was) && !path_of(is)) comparison.texts("support", name_of(*path_of(was)), "");
  if (was.flops)
    comparison.numbers("flops.per_token", was.flops->per_token,
                       is.flops ? std::optional(is.flops->per_token) : std::nullopt);
  static const Training kUnknown;
  if (was.training) compare_training(comparison, *was.training, is.training ? *is.training : kUnknown);
  return comparison.found;
}

ById by_id(const RecordSet& set) {
  ById records;
  for (const LocatedRecord& located : set.records) {
    const auto [known, is_new] = records.emplace(located.record.id, &located);
    if (!is_new)  // of one id and GPU model the reader keeps one; this is the CPU device on two kinds of CPU
      throw InvalidInput(fmt::format("{} and {} are one case on two machines: check them one after the other",
                                     known->second->origin, located.origin));
  }
  return records;
}

std::vector<Match> match_cases(const RecordSet& baseline, const RecordSet& current, Distinct& notes) {
  by_id(baseline);
  ById left = by_id(current);
  Ids undecided(baseline.undecided.begin(), baseline.undecided.end());
  undecided.insert(current.undecided.begin(), current.undecided.end());
  std::vector<Match> matches;
  for (const LocatedRecord& located : baseline.records) {
    const auto found = left.find(located.record.id);
    const LocatedRecord* answer = found == left.end() ? nullptr : found->second;
    if (answer) left.erase(found);
    if (located.record.status != Status::ok) {
      notes.add(fmt::format("{}: case {} was {} in the baseline, so there is nothing to compare with",
                            located.origin, located.record.id, name_of(located.record.status)));
      continue;
    }
    Match match{&located, answer, std::nullopt};
    if (answer) refuse_other_path(match);
    match.unfit = what_is_unfit(match, undecided);
    matches.push_back(std::move(match));
  }
  if (!left.empty())
    notes.add(fmt::format("{} of this run {} no baseline", plural(left.size(), "case"),
                          left.size() == 1 ? "has" : "have"));
  return matches;
}

}  // namespace precbench
