// Compares rows with this machine and with the files that cases leave. See finished_rows.h.
#include "bench/sweep/finished_rows.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
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
#include "results/record/provenance.h"
#include "results/record/record_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Keeps the local environment of each kind of device, because querying a GPU takes time.
class KnownEnvironments {
 public:
  explicit KnownEnvironments(const LocalEnvironment& local) : local_(local) {}
  const Environment& of(const std::string& device) {
    const auto [env, added] = known_.try_emplace(device);
    if (added) env->second = local_(device);
    return env->second;
  }

 private:
  const LocalEnvironment& local_;
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

/// Returns the time at which this program's file was written, as in Record::created; "" if unknown.
std::string build_time() {
  struct stat file {};
  return ::stat("/proc/self/exe", &file) == 0 ? utc_text(file.st_mtime) : "";
}

/// Returns true if another build than this one made the row. Builds of one commit with uncommitted changes are told
/// apart by their time.
bool other_build(const Record& row, const Environment& here) {
  if (!row.env.git) return false;
  if (row.env.git != here.git || row.env.dirty != here.dirty) return true;
  static const std::string built = build_time();
  return here.dirty.value_or(false) && row.created < built;
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

/// Gives rows their current place in the study: a newly requested recipe may already have rows as a control. A fork
/// keeps the sizes that its study had before. Returns true if any has changed.
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

/// Reasons for which a case runs again although it has a row.
enum class Rerun : std::uint8_t { missing_output, unwritten_file, lost_process, lacked_memory, retried };

std::optional<Rerun> rerun_reason(const Record& record, const Plan& plan, bool retry_failed) {
  const bool ok = record.status == Status::ok;
  if (ok && missing_output(plan)) return Rerun::missing_output;
  // A file with the name of one that could not be written is from an older run. A case that could not write a
  // checkpoint is a failed one.
  if ((ok ? !plan.fields.save_final.empty() : is_failure(record.status)) && !lost_files(record).empty())
    return Rerun::unwritten_file;
  if (lost_a_process(record)) return Rerun::lost_process;
  if (lacked_memory_beside_others(record)) return Rerun::lacked_memory;
  if (retry_failed && is_failure(record.status)) return Rerun::retried;
  return std::nullopt;
}

/// Facts on the rows of earlier starts that the user should know.
struct RowNotes {
  std::map<Rerun, std::size_t> reruns;          ///< number of rows to be replaced
  std::map<std::string, std::string> machines;  ///< by id, of rows that were made on another machine
  std::map<std::string, std::size_t> hosts;     ///< number of rows that count although made on another host
  std::map<std::string, std::size_t> commits;   ///< number of rows that count although of another build
  std::string commit_here;                      ///< this build's, if there are rows of another one
};

/// Prints the notes, a line for each kind. `rows`: those that count.
void print_notes(const RowNotes& notes, const Rows& rows) {
  static const std::map<Rerun, const char*> kReruns = {
      {Rerun::unwritten_file, "could not write all files"},
      {Rerun::lost_process, "lost a process of the sweep"},
      {Rerun::lacked_memory,
       "ran out of GPU memory although the predicted peak fits (other processes may have held the rest)"}};
  for (const auto& [reason, text] : kReruns)
    if (const auto found = notes.reruns.find(reason); found != notes.reruns.end())
      log_line(fmt::format("{} {}, and {} run again", count_cases(found->second), text,
                           found->second == 1 ? "is" : "are"));
  std::map<std::string, std::size_t> elsewhere;  // cases by machine
  for (const auto& [id, machine] : notes.machines)
    if (!rows.count(id)) ++elsewhere[machine];
  for (const auto& [machine, count] : elsewhere)
    log_line(fmt::format("{} finished on another machine, {}; run again here; both rows are kept",
                         count_cases(count), machine));
  for (const auto& [host, count] : notes.hosts)
    log_line(fmt::format("{} finished on {}, another host of the same kind; --fresh runs it here",
                         count_cases(count), host));
  for (const auto& [commit, count] : notes.commits)
    log_line(
        fmt::format("{} finished by a build of commit {}, and this is a build of {}; --fresh measures anew",
                    count_cases(count), commit, notes.commit_here));
}

}  // namespace

bool lost_a_process(const Record& record) {
  return is_failure(record.status) && record.error && Coordinator::says_lost(*record.error);
}

bool lacked_memory_beside_others(const Record& record) {
  constexpr double kOwnShare = 0.9;  // the driver and libraries take some of an empty GPU's memory, too
  return record.status == Status::oom && record.memory && record.memory->predicted && record.env.gpu &&
         record.env.gpu->memory &&
         static_cast<double>(record.memory->predicted->peak) <=
             kOwnShare * static_cast<double>(*record.env.gpu->memory);
}

Environment local_environment(const std::string& device) {
  return describe_environment(openmp_threads(), is_gpu(device) ? 0 : -1, 1);
}

Rows read_finished_rows(const std::string& path, const std::vector<Plan>& grid, bool retry_failed,
                        const LocalEnvironment& local) {
  RecordSet set = read_records({path});
  for (const std::string& problem : set.problems) log_line(problem);
  report_older_rows(set, grid);
  std::map<std::string, const Plan*> cases;
  for (const Plan& plan : grid) cases[plan.id] = &plan;
  const bool moved = move_places(set, cases);
  KnownEnvironments here(local);
  Rows rows;
  RowNotes notes;
  std::set<std::size_t> dropped;
  for (std::size_t i = 0; i < set.records.size(); ++i) {
    const Record& record = set.records[i].record;
    const Environment& env = set.records[i].env();
    const auto wanted = cases.find(record.id);
    if (wanted == cases.end()) {
      rows[record.id] = record.status;
      continue;
    }
    const Plan& plan = *wanted->second;
    const Environment& now = here.of(plan.fields.device);
    const bool knows_machine = env.gpu || env.cpu;
    if (knows_machine && machine_of(env) != machine_of(now)) {
      notes.machines[record.id] = machine_of(env);
      continue;
    }
    if (const auto reason = rerun_reason(record, plan, retry_failed)) {
      if (*reason == Rerun::missing_output)
        log_line(missing_output(plan).value_or("") + " is missing: its finished case is run again");
      ++notes.reruns[*reason];
      dropped.insert(i);
      continue;
    }
    rows[record.id] = record.status;
    if (env.host && env.host != now.host) ++notes.hosts[*env.host];
    if (record.status == Status::ok && other_build(record, now)) {
      ++notes.commits[commit_of(env)];
      notes.commit_here = (now.git ? "commit " : "") + commit_of(now);
    }
  }
  if (moved || !dropped.empty()) rewrite_without(dropped, set.records, path);
  print_notes(notes, rows);
  return rows;
}

}  // namespace precbench
