// Compares needs with free space, and restores ids of forks. See trunk_states.h.
#include "bench/study/trunk_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>

#include "bench/process/standard_error.h"
#include "bench/step/checkpoint.h"
#include "kernels/base/error_text.h"
#include "results/record/record_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Suffix of a trunk's folder while it is being removed.
constexpr const char* kRemoved = ".removed";

/// Returns the least free space with which every trunk finds room, one after the other: states that are there are
/// removed after the forks, too.
std::int64_t least_for_one_trunk(const std::vector<Plan>& trunks, Earlier earlier) {
  std::int64_t least = 0, freed = 0;
  for (const Plan& trunk : trunks) {
    const std::int64_t missing = missing_checkpoint_bytes(trunk, earlier);
    least = std::max(least, missing - freed);
    const std::int64_t all = missing_checkpoint_bytes(trunk, Earlier::moved_aside);
    freed += all - missing;
  }
  return least;
}

/// Parses a fingerprint as records have it: 16 hex digits.
std::optional<std::uint64_t> parse_fingerprint(const std::string& text) {
  constexpr std::size_t kDigits = 16;
  const char* const end = text.data() + text.size();
  std::uint64_t value = 0;
  const bool whole = std::from_chars(text.data(), end, value, 16) == std::from_chars_result{end, std::errc()};
  return whole && text.size() == kDigits ? std::optional(value) : std::nullopt;
}

}  // namespace

TrunkSpace plan_trunk_space(const std::vector<Plan>& trunks, const std::string& out, Earlier earlier,
                            bool steady, const FreeBytes& free) {
  std::int64_t all = 0;
  for (const Plan& trunk : trunks) all += missing_checkpoint_bytes(trunk, earlier);
  const std::optional<std::int64_t> there = free(out);
  if (!there || *there >= all) return {};
  const std::string shortage =
      fmt::format("{} has {} free, and the checkpoints of {} need {}", out, describe_bytes(*there),
                  trunks.size() == 1 ? "the trunk" : "all trunks", describe_bytes(all));
  if (steady)
    return {
        TrunkOrder::all_trunks,
        fmt::format(
            "--out: {}, which must be there together to find the step from which the loss is steady; make "
            "room, choose another folder, or give the steps ([trunk] ages = [60]): then one trunk at a time "
            "may fit",
            shortage),
        false};
  const std::int64_t one = least_for_one_trunk(trunks, earlier);
  if (*there < one)
    return {
        TrunkOrder::all_trunks,
        fmt::format(
            "--out: {}{}; make room, choose another folder, or keep fewer states ([trunk] ages)", shortage,
            trunks.size() == 1 ? "" : fmt::format(", those of one trunk at a time {}", describe_bytes(one))),
        false};
  return {TrunkOrder::one_trunk,
          fmt::format("{}: one trunk at a time ({}); its checkpoints are removed after its forks", shortage,
                      describe_bytes(one)),
          true};
}

bool has_states(const Plan& trunk) {
  const std::vector<std::int64_t> steps = checkpoint_steps(trunk.fields);
  std::error_code error;
  return std::any_of(steps.begin(), steps.end(),
                     [&](std::int64_t step) { return fs::exists(checkpoint_at(trunk, step), error); });
}

std::map<std::string, std::uint64_t> fingerprints_in_rows(const std::string& records) {
  std::map<std::string, std::uint64_t> known;
  if (std::error_code error; !fs::exists(records, error)) return known;
  for (const LocatedRecord& located : read_records({records}).records) {
    const Record& record = located.record;
    if (!record.study || !record.definition || !record.definition->init) continue;
    const auto* path = record.case_fields.find("fork_from");
    const auto fingerprint = record.definition->init->find("fingerprint");
    if (!path || !path->is_string() || fingerprint == record.definition->init->end() ||
        !fingerprint->is_string())
      continue;
    if (const auto number = parse_fingerprint(fingerprint->get<std::string>()))
      known[path->get<std::string>()] = *number;
  }
  return known;
}

std::vector<Plan> resolve_forks(const std::vector<StudyCase>& forks,
                                const std::map<std::string, std::uint64_t>& known) {
  std::vector<Plan> plans = validate(forks);
  for (Plan& plan : plans) {
    const auto found = known.find(plan.fields.fork_from);
    if (plan.init.fingerprint || found == known.end()) continue;
    plan.init.fingerprint = found->second;
    plan.id = case_id(plan.fields, plan);
  }
  return plans;
}

void remove_states(const Plan& trunk) {
  std::error_code error;
  const std::string folder = checkpoint_folder(trunk);
  fs::rename(folder, folder + kRemoved, error);
  if (error) log_line(fmt::format("precbench: cannot remove {}: {}", folder, error_text(error)));
  finish_removal(trunk);
}

void finish_removal(const Plan& trunk) {
  std::error_code error;
  const std::string folder = checkpoint_folder(trunk) + kRemoved;
  fs::remove_all(folder, error);
  if (error) log_line(fmt::format("precbench: cannot remove {}: {}", folder, error_text(error)));
}

}  // namespace precbench
