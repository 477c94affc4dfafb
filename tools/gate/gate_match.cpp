// Matches cases and excludes those that cannot be judged. See gate_match.h.
#include "tools/gate/gate_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/contradiction.h"
#include "tools/text/text.h"

namespace precbench {
namespace {

/// Returns the verdict on a failed case. Out of memory counts as BIGGER, diverged as WORSE.
MetricResult without_measurement(const Record& record) {
  const std::string reason =
      fmt::format("the run ended {}: {}", name_of(record.status), record.error.value_or("no reason known"));
  if (record.status == Status::oom)
    return {"peak memory", "bytes", GateVerdict::bigger, {}, {}, {}, {}, reason};
  if (record.status == Status::diverged)
    return {"final loss", "nats", GateVerdict::worse, {}, {}, {}, {}, reason};
  return Match::whole(GateVerdict::missing, reason);
}

/// Returns the implementation of the experts' GEMMs: grouped or one by one.
std::string grouped_of(const Record& record) {
  return record.moe && record.moe->grouped ? "grouped by " + *record.moe->grouped : "";
}

void refuse_other_path(const Match& match) {
  const Record &baseline = match.baseline->record, &current = match.current->record;
  if (current.status != Status::ok) return;
  const auto refuse = [&](const std::string& was, const std::string& is) {
    if (was.empty() || is.empty() || was == is) return;
    throw InvalidInput(fmt::format("case {} is {} at {}, but {} at {}: they are not compared", baseline.id,
                                   was, match.baseline->origin.text(), is, match.current->origin.text()));
  };
  const auto was = path_of(baseline), is = path_of(current);
  refuse(was ? name_of(*was) : "", is ? name_of(*is) : "");
  refuse(grouped_of(baseline), grouped_of(current));
}

/// Explains a missing case by an unmatched record of the run that differs in a single field.
/// Skipped for large runs.
std::string missing_reason(const LocatedRecord& baseline, const RecordSet& current, const Answers& found) {
  constexpr std::size_t kMost = 1000;
  const std::string reason = "no record of this case";
  if (current.records.size() > kMost) return reason;
  std::set<const LocatedRecord*> taken;
  for (const auto& [asked, answer] : found) taken.insert(answer);
  for (const LocatedRecord& other : current.records) {
    if (taken.contains(&other)) continue;
    const CaseFields &asked = baseline.record.case_fields, &ran = other.record.case_fields;
    int differences = 0;
    std::string what;
    const auto compare = [&](const std::string& key, const CaseFields::Json* was,
                             const CaseFields::Json* is) {
      if ((was && is && *was == *is) || ++differences > 1) return;
      const auto text = [](const CaseFields::Json* value) { return value ? value->dump() : "the default"; };
      what = fmt::format("{}; {} has {} {} for {}", reason, other.origin.text(), key, text(is), text(was));
    };
    for (const CaseFields::Item& item : asked.items())
      compare(item.key(), &item.value(), ran.find(item.key()));
    for (const CaseFields::Item& item : ran.items())
      if (!asked.find(item.key())) compare(item.key(), nullptr, &item.value());
    if (differences == 1) return what;
  }
  return reason;
}

std::string case_on_machine(const LocatedRecord& located) {
  return located.record.id + '\n' + machine_of(located.env());
}

using Ids = std::set<std::string>;

std::optional<MetricResult> what_is_unfit(const Match& match, const Ids& undecided) {
  if (undecided.contains(match.baseline->record.id) || undecided.contains(match.current->record.id))
    return Match::whole(GateVerdict::missing,
                        fmt::format("{} is one of several records of this case, and their times do not tell "
                                    "which is the newest: leave one",
                                    match.current->origin.text()));
  if (match.current->record.status != Status::ok) return without_measurement(match.current->record);
  if (const auto difference = difference_in_work(*match.baseline, *match.current))
    return Match::whole(
        GateVerdict::missing,
        fmt::format("other work under the same {}: {}",
                    match.baseline->record.id == match.current->record.id ? "id" : "names", *difference));
  for (const LocatedRecord* repeat : match.repeats)
    if (repeat != match.baseline)
      if (const auto difference = difference_in_work(*match.baseline, *repeat))
        return Match::whole(
            GateVerdict::missing,
            fmt::format("the baseline's records of this case did other work: {}", *difference));
  std::vector<const LocatedRecord*> judged = match.repeats;
  judged.push_back(match.current);
  for (const LocatedRecord* located : judged)
    if (const auto why = contradiction(located->record))
      return Match::whole(GateVerdict::missing,
                          fmt::format("{} contradicts itself: {}", located->origin.text(), *why));
  return std::nullopt;
}

}  // namespace

MetricResult Match::whole(GateVerdict verdict, std::string reason) {
  return {"run", "", verdict, {}, {}, {}, {}, std::move(reason)};
}

BaselineRepeats::BaselineRepeats(const RecordSet& all) : all_(all) {
  for (const LocatedRecord& located : all.records)
    if (located.record.status == Status::ok) by_case_[case_on_machine(located)].push_back(&located);
  std::erase_if(by_case_, [](const auto& one) { return one.second.size() < 2; });
  if (by_case_.empty()) return;
  for (auto& [key, records] : by_case_)
    std::stable_sort(records.begin(), records.end(), [](const LocatedRecord* a, const LocatedRecord* b) {
      return a->record.created < b->record.created;  // ISO 8601
    });
  newest_.emplace();
  newest_->undecided = all.undecided;
  for (const LocatedRecord& located : all.records) {
    const auto repeats = by_case_.find(case_on_machine(located));
    if (repeats == by_case_.end() || repeats->second.back() == &located) newest_->records.push_back(located);
  }
}

std::vector<const LocatedRecord*> BaselineRepeats::of(const LocatedRecord& newest) const {
  const auto found = by_case_.find(case_on_machine(newest));
  return found == by_case_.end() ? std::vector{&newest} : found->second;
}

std::vector<Match> match_cases(const BaselineRepeats& repeats, const RecordSet& current, Distinct& notes) {
  const RecordSet& baseline = repeats.newest();
  const Answers found = answers(baseline, current);
  Ids undecided(baseline.undecided.begin(), baseline.undecided.end());
  undecided.insert(current.undecided.begin(), current.undecided.end());
  std::vector<Match> matches;
  for (const LocatedRecord& located : baseline.records) {
    const auto answer = found.find(&located);
    const LocatedRecord* const current_one = answer == found.end() ? nullptr : answer->second;
    if (located.record.status != Status::ok) {
      notes.add(fmt::format("{}: case {} was {} in the baseline, so there is nothing to compare with",
                            located.origin.text(), located.record.id, name_of(located.record.status)));
      continue;
    }
    Match match{&located, current_one, repeats.of(located), std::nullopt};
    match.unfit = current_one ? what_is_unfit(match, undecided)
                              : Match::whole(GateVerdict::missing, missing_reason(located, current, found));
    const bool only_by_name = current_one && current_one->record.id != located.record.id;
    if (current_one && !(only_by_name && match.unfit)) refuse_other_path(match);
    matches.push_back(std::move(match));
  }
  if (const std::size_t left = current.records.size() - found.size(); left > 0)
    notes.add(fmt::format("{} of this run {} no baseline", plural(left, "case"), left == 1 ? "has" : "have"));
  return matches;
}

}  // namespace precbench
