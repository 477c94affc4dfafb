// Compares rows with this machine and with the files that cases leave. See finished_rows.h.
#include "bench/sweep/finished_rows.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "bench/machine/environment.h"
#include "bench/process/coordinator.h"
#include "bench/process/standard_error.h"
#include "bench/step/checkpoint.h"
#include "bench/step/lost_files.h"
#include "bench/sweep/progress.h"
#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"
#include "results/record/field_index.h"
#include "results/record/printable.h"
#include "results/record/record_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Environment of a case that would run now, by kind of device; cached because querying a GPU takes time.
class Here {
 public:
  const Environment& of(const std::string& device) {
    const auto [env, added] = known_.try_emplace(device);
    if (added) env->second = describe_environment(openmp_threads(), is_gpu(device) ? 0 : -1, 1);
    return env->second;
  }

 private:
  std::map<std::string, Environment> known_;
};

/// Returns the first missing output of the case; null if there is none. Includes a trunk's checkpoints,
/// because its study forks from them.
std::optional<std::string> missing_output(const Plan& plan) {
  const Case& c = plan.fields;
  std::vector<std::string> paths = {c.save_init, c.save_final, c.save_grads};
  if (plan.study && plan.study->part == StudyPart::trunk)
    for (const std::int64_t step : checkpoint_steps(c)) paths.push_back(checkpoint_at(plan, step));
  for (const std::string& path : paths)
    if (!path.empty() && !fs::exists(path)) return path;
  return std::nullopt;
}

void rewrite_without(const std::set<std::size_t>& dropped, const std::vector<LocatedRecord>& records,
                     const std::string& path) {
  const std::string next = path + ".next";
  std::error_code error;
  const auto check = [&](const std::string& written) {
    if (error) throw InvalidInput(fmt::format("--out: cannot write {}: {}", written, error_text(error)));
  };
  fs::remove(next, error);
  if (!std::ofstream(next, std::ios::trunc).is_open())
    throw InvalidInput(fmt::format("--out: cannot write {}: {}", next, error_text(errno)));
  try {
    for (std::size_t i = 0; i < records.size(); ++i)
      if (!dropped.count(i)) append_record(next, records[i].record);
  } catch (...) {  // do not leave half of the rows beside all of them
    fs::remove(next, error);
    throw;
  }
  const std::string spare = spare_name(path);
  fs::copy_file(path, spare, error);
  if (error) {
    std::error_code ignored;
    fs::remove(spare, ignored), fs::remove(next, ignored);
  }
  check(spare);
  fs::rename(next, path, error);
  check(path);
}

/// Prints the number of cases that have a row of schema 1 and none of the current schema.
void report_older_rows(const RecordSet& set, const std::vector<Plan>& grid) {
  std::set<std::string> ids;
  for (const LocatedRecord& located : set.records) ids.insert(located.record.id);
  std::vector<LocatedRecord> wanted;
  for (const Plan& plan : grid)
    if (!ids.contains(plan.id)) wanted.push_back({.record = start_record(plan), .origin = {}});
  std::vector<const LocatedRecord*> places;
  for (const LocatedRecord& one : wanted) places.push_back(&one);
  FieldIndex index(std::move(places));
  std::set<const LocatedRecord*> again;
  for (const LocatedRecord& located : set.records)
    if (located.record.schema == 1) {
      const auto& found = index.like(located.record);
      again.insert(found.begin(), found.end());
    }
  if (!again.empty())
    log_line(fmt::format(
        "{} finished by an earlier version of this program, whose records (schema 1) do not say what "
        "models, recipes and data were; run again, and the old rows stay",
        count_cases(again.size())));
}

/// Returns "commit 0123abc", with uncommitted changes if there were any; "an unknown commit".
std::string commit_text(const Environment& env) {
  constexpr std::size_t kShown = 12;
  if (!env.git) return "an unknown commit";
  return fmt::format("commit {}{}", printable(env.git->substr(0, kShown)),
                     env.dirty.value_or(false) ? " with uncommitted changes" : "");
}

/// Returns the time at which this program's file was written, as in Record::created; "" if unknown.
std::string build_time() {
  struct stat file {};
  if (::stat("/proc/self/exe", &file) != 0) return "";
  const std::time_t written = file.st_mtime;
  std::tm utc{};
  std::array<char, 32> text{};
  if (!gmtime_r(&written, &utc) || std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
    return "";
  return text.data();
}

/// Returns true if another build than this one made the row. Builds of one commit with uncommitted changes are told
/// apart by their time.
bool other_build(const Record& row, const Environment& here) {
  if (!row.env.git) return false;
  if (row.env.git != here.git || row.env.dirty != here.dirty) return true;
  return here.dirty.value_or(false) && row.created < build_time();
}

/// Returns the sizes, by study, of the forks that older versions have made without writing down the settings' size.
std::map<std::string, StudySize> unwritten_sizes(const RecordSet& set) {
  std::map<std::string, std::array<std::set<std::int64_t>, 3>> seen;
  for (const LocatedRecord& located : set.records)
    if (const auto& place = located.record.study; place && place->part == StudyPart::fork && !place->sizes) {
      auto& [trunks, seeds, ages] = seen[place->study];
      trunks.insert(place->trunk), seeds.insert(place->seed), ages.insert(place->age);
    }
  std::map<std::string, StudySize> sizes;
  for (const auto& [study, counted] : seen)
    sizes[study] = {std::ssize(counted[0]), std::ssize(counted[1]), std::ssize(counted[2])};
  return sizes;
}

/// Gives rows their current place in the study: a newly requested recipe may already have rows as a control. A fork keeps
/// the sizes that its study had before. Returns true if any has changed.
bool move_places(RecordSet& set, const std::map<std::string, const Plan*>& cases) {
  bool moved = false;
  const std::map<std::string, StudySize> unwritten = unwritten_sizes(set);
  for (LocatedRecord& located : set.records) {
    const auto wanted = cases.find(located.record.id);
    if (wanted == cases.end() || !wanted->second->study) continue;
    StudyPlace place = *wanted->second->study;
    if (const auto& before = located.record.study; before && place.sizes && before->part == StudyPart::fork) {
      std::vector<StudySize> sizes = before->sizes ? *before->sizes : std::vector{unwritten.at(before->study)};
      for (const StudySize& size : *place.sizes)
        if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
      place.sizes = std::move(sizes);
    }
    if (located.record.study == place) continue;
    located.record.study = std::move(place);
    moved = true;
  }
  return moved;
}

}  // namespace

bool lost_a_process(const Record& record) {
  return record.status == Status::crashed && record.error && Coordinator::says_lost(*record.error);
}

bool lacked_memory_beside_others(const Record& record) {
  constexpr double kOwnShare = 0.9;  // the driver and libraries take some of an empty GPU's memory, too
  return record.status == Status::oom && record.memory && record.memory->predicted && record.env.gpu &&
         record.env.gpu->memory &&
         static_cast<double>(record.memory->predicted->peak) <=
             kOwnShare * static_cast<double>(*record.env.gpu->memory);
}

Rows read_finished_rows(const std::string& path, const std::vector<Plan>& grid, bool retry_failed) {
  RecordSet set = read_records({path});
  for (const std::string& problem : set.problems) log_line(problem);
  report_older_rows(set, grid);
  std::map<std::string, const Plan*> cases;
  for (const Plan& plan : grid) cases[plan.id] = &plan;
  const bool moved = move_places(set, cases);
  Here here;
  Rows rows;
  std::set<std::size_t> dropped;
  std::map<std::string, std::string> machines;  // by id, for rows made on another machine
  std::size_t left_alone = 0;                   // rows of cases that lost a process
  std::size_t crowded = 0;                      // rows of cases that lacked memory beside others
  std::map<std::string, std::size_t> hosts;  // number of rows that count although made on another host
  std::map<std::string, std::size_t>
      commits;  // and of those that count although another build may have made them
  std::string commit_here;
  for (std::size_t i = 0; i < set.records.size(); ++i) {
    const Record& record = set.records[i].record;
    const Environment& env = set.records[i].env();
    const auto wanted = cases.find(record.id);
    if (wanted == cases.end()) {
      rows[record.id] = record.status;
      continue;
    }
    const Environment& now = here.of(wanted->second->fields.device);
    const bool knows_machine = env.gpu || env.cpu;
    if (knows_machine && machine_of(env) != machine_of(now)) {
      machines[record.id] = machine_of(env);
      continue;
    }
    const auto missing = record.status == Status::ok ? missing_output(*wanted->second) : std::nullopt;
    if (missing) log_line(*missing + " is missing: its finished case is run again");
    // A file with the name of one that could not be written is from an older run. A case that could not write a
    // checkpoint is a failed one.
    const bool lost = !lost_files(record).empty() &&
                      (record.status == Status::ok ? !wanted->second->fields.save_final.empty()
                                                   : is_failure(record.status));
    if (lost && !missing) log_line("a case could not write its files, and is run again");
    const bool alone = lost_a_process(record);
    left_alone += alone ? 1 : 0;
    const bool crowded_out = lacked_memory_beside_others(record);
    crowded += crowded_out ? 1 : 0;
    if (lost || missing || alone || crowded_out || (retry_failed && is_failure(record.status))) {
      dropped.insert(i);
      continue;
    }
    rows[record.id] = record.status;
    if (env.host && env.host != now.host) ++hosts[*env.host];
    if (record.status == Status::ok && other_build(record, now))
      ++commits[commit_text(env)], commit_here = commit_text(now);
  }
  if (moved || !dropped.empty()) rewrite_without(dropped, set.records, path);
  if (left_alone > 0)
    log_line(fmt::format("{} lost a process of the sweep, and {} run again", count_cases(left_alone),
                         left_alone == 1 ? "is" : "are"));

  if (crowded > 0)
    log_line(fmt::format("{} found the GPU's memory taken by other processes, and {} run again",
                         count_cases(crowded), crowded == 1 ? "is" : "are"));

  std::map<std::string, std::size_t> elsewhere;  // cases by machine
  for (const auto& [id, machine] : machines)
    if (!rows.count(id)) ++elsewhere[machine];
  for (const auto& [machine, count] : elsewhere)
    log_line(fmt::format("{} finished on another machine, {}; run again here; both rows are kept",
                         count_cases(count), machine));
  for (const auto& [host, count] : hosts)
    log_line(fmt::format("{} finished on {}, another host of the same kind; --fresh runs it here",
                         count_cases(count), host));
  for (const auto& [commit, count] : commits)
    log_line(fmt::format("{} finished by a build of {}, and this is a build of {}; --fresh measures anew",
                         count_cases(count), commit, commit_here));
  return rows;
}

}  // namespace precbench
