// Writes the notes of a check. See gate_notes.h.
#include "tools/gate/gate_notes.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/plural.h"
#include "results/record/provenance.h"
#include "results/record/same_run.h"
#include "tools/analysis/analysis.h"
#include "tools/analysis/columns.h"
#include "tools/text/text.h"

namespace precbench {
namespace {

/// Relative growth of an unjudged quantity from which it is noted.
constexpr double kNoted = 0.1;

void note_texts(Distinct& notes, const std::string& name, const std::optional<std::string>& was,
                const std::optional<std::string>& is) {
  if (was && is && *was != *is) notes.add(fmt::format("{} {} in the baseline, {} here", name, *was, *is));
}

void note_growth(Distinct& notes, const std::string& label, const char* name,
                 const std::optional<double>& was, const std::optional<double>& is) {
  if (was && is && *was > 0 && *is > (1 + kNoted) * *was)
    notes.add(fmt::format("{}: {} {:+.0f}%; it is not judged", label, name, 100 * (*is / *was - 1)));
}

std::optional<double> bytes(const std::optional<std::int64_t>& value) {
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

}  // namespace

void note_commits(const std::vector<Match>& matches, Distinct& notes) {
  Distinct was, is;
  std::size_t compared = 0, own = 0, same = 0, older = 0;
  bool imported = false;
  for (const Match& match : matches) {
    if (!match.current || match.current->record.status != Status::ok) continue;
    ++compared;
    const Record& current = match.current->record;
    imported = imported || current.source;
    was.add(commit_of(match.baseline->env()));
    is.add(commit_of(match.current->env()));
    const auto is_own = [&](const LocatedRecord* repeat) {
      return same_run(repeat->record, current) && repeat->env().host == match.current->env().host;
    };
    own += std::any_of(match.repeats.begin(), match.repeats.end(), is_own) ? 1 : 0;
    same += match.baseline->env().git && match.baseline->env().git == match.current->env().git ? 1 : 0;
    older += current.created < match.baseline->record.created ? 1 : 0;  // ISO 8601
  }
  if (compared == 0) return;
  const std::string stale = imported ? "; import the log of a new run"
                                     : "; if another build was to be measured, sweep again with --fresh";
  if (was.texts != is.texts)
    notes.add(fmt::format("the baseline is of commit {}, this run of {}", was.joined(), is.joined()));
  if (own > 0)
    notes.add(fmt::format("{} of {} in this run are the baseline's own records: nothing new was measured{}",
                          own, plural(compared, "case"), stale));
  else if (same > 0)
    notes.add(fmt::format(
        "{} of {}: run and baseline are of the same commit, {}, so they show only run-to-run noise{}", same,
        plural(compared, "case"), was.joined(), stale));
  if (older > 0)
    notes.add(fmt::format("{} of {}: this run is older than the baseline{}", older, plural(compared, "case"),
                          stale));
}

void note_environment(const Match& match, Distinct& notes) {
  const Environment &was = match.baseline->env(), &is = match.current->env();
  if (was.gpu && is.gpu) {
    const GpuRecord &a = *was.gpu, &b = *is.gpu;
    if (a.uuid && b.uuid && *a.uuid != *b.uuid)
      notes.add("another board of the same GPU model than in the baseline");
    if (a.memory && b.memory && *a.memory != *b.memory)
      notes.add(fmt::format("GPU memory of {} in the baseline, {} here",
                            bytes_text(static_cast<double>(*a.memory)),
                            bytes_text(static_cast<double>(*b.memory))));
    if (a.power_limit && b.power_limit && *a.power_limit != *b.power_limit)
      notes.add(fmt::format("GPU power limit of {:g} W in the baseline, {:g} W here", *a.power_limit,
                            *b.power_limit));
    if (a.ecc && b.ecc && *a.ecc != *b.ecc)
      notes.add(fmt::format("GPU memory ECC {} in the baseline, {} here", *a.ecc ? "on" : "off",
                            *b.ecc ? "on" : "off"));
    note_texts(notes, "driver", a.driver, b.driver);
  }
  note_texts(notes, "CUDA", was.cuda, is.cuda);
  note_texts(notes, "cuBLASLt", was.cublaslt, is.cublaslt);
  note_texts(notes, "cuDNN", was.cudnn, is.cudnn);
  note_texts(notes, "NCCL", was.nccl, is.nccl);
  note_texts(notes, "compiler", was.compiler, is.compiler);
}

void note_not_judged(const Match& match, const std::string& label, const GateRules& rules, Distinct& notes) {
  const Record &was = match.baseline->record, &is = match.current->record;
  if (was.support && is.support) {
    note_texts(notes, "kernels of fprop:", was.support->fprop.kernels, is.support->fprop.kernels);
    note_texts(notes, "kernels of dgrad:", was.support->dgrad.kernels, is.support->dgrad.kernels);
    note_texts(notes, "kernels of wgrad:", was.support->wgrad.kernels, is.support->wgrad.kernels);
    note_texts(notes, "attention kernels:", was.support->attention, is.support->attention);
  }
  if (rules.tokens_per_s && was.metrics && is.metrics)
    note_growth(notes, label, "energy per token", was.metrics->energy_j_per_token,
                is.metrics->energy_j_per_token);
  if (rules.memory && was.memory && is.memory) {
    note_growth(notes, label, "memory in use as the driver counts it", bytes(was.memory->driver),
                bytes(is.memory->driver));
    if (was.memory->measured && is.memory->measured)
      note_growth(notes, label, "sum of the memory segments' peaks",
                  static_cast<double>(was.memory->measured->total),
                  static_cast<double>(is.memory->measured->total));
  }
  Distinct unknown;
  for (const auto& field : is.case_fields.items())
    if (!was.case_fields.find(field.key()) && changes_work(field.key()))
      unknown.add(fmt::format("{} ({})", field.key(), field_text(field.value())));
  if (!unknown.texts.empty())
    notes.add("the baseline lacks these case fields, and is taken to have their defaults: " +
              unknown.joined());
}

}  // namespace precbench
