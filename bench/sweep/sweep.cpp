// The loop over cases, and the conversion of their results into rows.
#include "bench/sweep/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "bench/machine/environment.h"
#include "bench/process/case_process.h"
#include "bench/process/coordinator.h"
#include "bench/process/standard_error.h"
#include "bench/step/checkpoint.h"
#include "bench/step/lost_files.h"
#include "bench/sweep/finish_row.h"
#include "bench/sweep/finished_rows.h"
#include "bench/sweep/interleave.h"
#include "bench/sweep/progress.h"
#include "bench/sweep/sweep_folder.h"
#include "bench/sweep/warnings.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/printable.h"
#include "results/record/record_file.h"
#include "results/record/shell.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using End = CaseProcessResult::End;

std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const bool space = c == '\n' || c == '\r' || c == '\t' || c == ' ';
    if (!space)
      line += c;
    else if (!line.empty() && line.back() != ' ')
      line += ' ';
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

/// Returns the end of a child's output, as the end of an error message.
std::string said(const CaseProcessResult& result) {
  constexpr std::size_t kShown = 400;
  std::string text = one_line(result.last_lines);
  if (text.size() > kShown) text = "..." + text.substr(text.size() - kShown);
  return text.empty() ? "" : "; its last words: " + text;
}

/// Returns the name of the process concerned, as the start of an error message.
std::string at(const CaseProcessResult& result) { return result.where.empty() ? "" : result.where + ": "; }

bool killed_from_outside(const CaseProcessResult& result) {
  return result.end == End::signalled && result.code == SIGKILL && !result.out_of_memory;
}

/// Returns the number of hosts that the ranks of a case run on.
int nodes_of(const SweepOptions& options) { return options.coordinator ? options.coordinator->nodes() : 1; }

/// `place`: index among the cases that run at a time.
CaseProcessResult run_everywhere(const Plan& plan, const SweepOptions& options, int place,
                                 const std::function<bool()>& stop, const Say& say) {
  if (options.coordinator) return options.coordinator->run(options.child, plan, options.timeout_s, say);
  NodeShare share = all_ranks(plan.ranks);
  share.first_gpu = place % options.gpus;
  share.beside_others = options.at_once > 1;
  return run_case_process(options.child, plan.fields, share, options.timeout_s, stop, say);
}

/// Returns the row of a case whose process has ended. Throws InvalidInput if the process refused its input.
Record row_of_one(const Plan& plan, const CaseProcessResult& result, double timeout_s) {
  if (result.end == End::timed_out)
    return failed_record(plan, Status::timeout,
                         fmt::format("still running after {} s (--timeout){}", timeout_s, said(result)));
  if (result.end == End::lost) return failed_record(plan, Status::crashed, Coordinator::kLost + said(result));
  if (result.end == End::signalled) {
    if (result.code == SIGKILL && result.out_of_memory)
      return failed_record(plan, Status::oom,
                           "host memory ran out: the kernel killed the process" + said(result));
    const std::string twice = killed_from_outside(result) ? ", twice; out of host memory?" : "";
    return failed_record(plan, Status::crashed,
                         fmt::format("killed by signal {} ({}){}{}", result.code, strsignal(result.code),
                                     twice, said(result)));
  }
  if (result.code == kBadInputExit) throw InvalidInput(at(result) + one_line(result.last_lines));
  if (result.code != 0)
    return failed_record(plan, Status::crashed,
                         fmt::format("ended with exit status {}{}", result.code, said(result)));
  try {
    Record record = nlohmann::ordered_json::parse(result.record).get<Record>();
    if (record.id != plan.id) throw std::runtime_error("it is of another case, " + record.id);
    return record;
  } catch (const std::exception& error) {
    return failed_record(plan, Status::crashed,
                         fmt::format("left no usable record: {}{}", error.what(), said(result)));
  }
}

/// The same, with the name of the process concerned, if there are several, and the case's place in a study.
Record row_of(const Plan& plan, const CaseProcessResult& result, const SweepOptions& options) {
  Record record = row_of_one(plan, result, options.timeout_s);
  record.study = plan.study;
  record.env.nodes = nodes_of(options);
  if (record.error) record.error = at(result) + *record.error;
  if (options.at_once > 1 && record.metrics) {
    record.metrics = Metrics{};
    record.warnings.push_back(fmt::format(
        "up to {} cases ran concurrently: step times do not show the recipe's speed", options.at_once));
  }
  if (result.stopped_s > 0)
    record.warnings.push_back(fmt::format(
        "the case was stopped and continued (Ctrl-Z): it was suspended for {:.1f} s, which its times may "
        "include",
        result.stopped_s));
  return record;
}

void move_aside(const SweepFolder& folder, const std::vector<Plan>& grid) {
  const std::string path = folder.records();
  if (fs::exists(path)) fs::rename(path, spare_name(path));
  fs::remove(folder.first_runs());
  for (const Plan& plan : grid)  // a case that starts over must not resume from an old checkpoint
    if (writes_checkpoints(plan.fields))
      if (const std::string old = checkpoint_folder(plan); fs::exists(old)) fs::rename(old, spare_name(old));
}

/// Throws InvalidInput if the checkpoints of the cases without a row do not fit the disk.
void check_space(const std::vector<Plan>& grid, const Rows& rows, Earlier earlier,
                 const SweepOptions& options) {
  std::vector<Plan> left;
  std::copy_if(grid.begin(), grid.end(), std::back_inserter(left),
               [&](const Plan& plan) { return writes_checkpoints(plan.fields) && !rows.contains(plan.id); });
  if (const auto why = space_shortage(left, earlier, options.free_bytes)) throw InvalidInput(*why);
}

/// Returns the statuses, by id, of the rows that count as finished.
Rows finished_rows(const SweepFolder& folder, const std::vector<Plan>& grid, const SweepOptions& options) {
  const std::string path = folder.records();
  if (options.fresh) {
    check_space(grid, {}, Earlier::moved_aside, options);  // before anything is moved
    move_aside(folder, grid);
  }
  if (!fs::exists(path)) return {};
  if (const auto repaired = repair_tail(path)) log_line(*repaired);
  return read_finished_rows(path, grid, options.retry_failed, [&](const std::string& device) {
    Environment env = local_environment(device);
    env.nodes = nodes_of(options);
    return env;
  });
}

/// Returns the first runs, by id, of the cases that lack a row.
std::map<std::string, Record> unpaired_runs(const SweepFolder& folder, const Rows& rows) {
  std::map<std::string, Record> first_runs;
  if (!fs::exists(folder.first_runs())) return first_runs;
  repair_tail(folder.first_runs());
  for (LocatedRecord& located : read_records({folder.first_runs()}).records)
    if (!rows.count(located.record.id)) first_runs[located.record.id] = std::move(located.record);
  return first_runs;
}

/// Removes from `rows` those that are not in the file, or no longer.
void keep_rows_in(const std::string& path, Rows& rows) {
  std::set<std::string> ids;
  if (std::error_code error; fs::is_regular_file(path, error))
    for (const LocatedRecord& located : read_records({path}).records) ids.insert(located.record.id);
  std::erase_if(rows, [&](const auto& row) { return !ids.count(row.first); });
}

std::size_t count_finished(const std::vector<Plan>& grid, const Rows& rows) {
  return static_cast<std::size_t>(
      std::count_if(grid.begin(), grid.end(), [&](const Plan& plan) { return rows.count(plan.id) > 0; }));
}

/// Returns "30 ok, 1 oom, 1 crashed".
std::string tally(const std::vector<Plan>& grid, const Rows& rows) {
  std::map<Status, int> counts;
  for (const Plan& plan : grid) ++counts[rows.at(plan.id)];
  std::string text;
  for (const auto& [status, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name_of(status));
  return text;
}

/// `lost`: number of files that cases of this start could not write.
int summarize(const std::vector<Plan>& grid, const Rows& rows, std::size_t lost,
              const SweepOptions& options) {
  const bool failures =
      std::any_of(grid.begin(), grid.end(), [&](const Plan& plan) { return is_failure(rows.at(plan.id)); });
  const bool none_ok = std::none_of(grid.begin(), grid.end(),
                                    [&](const Plan& plan) { return rows.at(plan.id) == Status::ok; });
  const int status = failures || none_ok || lost > 0 ? kSweepFailures : kSweepDone;
  if (!options.summary) return status;
  if (none_ok) log_line(fmt::format("precbench: no case is ok: {}", tally(grid, rows)));
  if (lost > 0)
    log_line(fmt::format("precbench: {} could not be written; the rows say which (warnings)",
                         plural(lost, "file")));
  if (options.quiet) return status;
  // An unwritable standard output is reported at the end of the program (exit_status_of).
  std::fputs(fmt::format("{}: {}{}\nrecords: {}/records.jsonl; compare them with: precbench report {}\n",
                         count_cases(grid.size()), tally(grid, rows),
                         failures ? "; --retry-failed runs crashed and timed out ones again" : "",
                         printable(options.out), shell_path(options.out))
                 .c_str(),
             stdout);
  return status;
}

/// State of a sweep. When several cases run at a time, all members below `mutex` are accessed under it.
struct Sweep {
  const std::vector<Plan>& grid;
  const SweepOptions& options;
  SweepFolder& folder;
  Rows rows;
  std::map<std::string, Record> first_runs;  ///< by id; only cases without a row
  Progress progress;
  std::size_t lost_files = 0;          ///< number of files that cases could not write
  std::vector<std::string> lost = {};  ///< lost processes that end the sweep; empty after an interrupt
  std::mutex mutex = {};
  std::exception_ptr failure = {};  ///< of one of several parallel cases; ends the others
  std::size_t next = 0;             ///< index of the first case that has not been considered yet

  bool finished(const Plan& plan) const { return rows.count(plan.id) > 0; }

  auto locked(const auto& work) {
    const std::lock_guard lock(mutex);
    return work();
  }

  /// Runs a case once. Null if the sweep was interrupted or cannot continue.
  std::optional<Record> run(const Plan& plan, int place = 0) {
    if (interrupted()) return std::nullopt;
    if (options.coordinator) lost = options.coordinator->lost();
    if (!lost.empty()) return std::nullopt;
    locked([&] { progress.start(plan); });
    const auto stop = [&] { return locked([&] { return failure != nullptr; }); };
    const auto say = [&](const std::string& words) { locked([&] { progress.waiting(plan, words); }); };
    CaseProcessResult result = run_everywhere(plan, options, place, stop, say);
    const bool killed = killed_from_outside(result);
    if (killed) result = run_everywhere(plan, options, place, stop, say);
    if (result.end == End::interrupted || result.end == End::stopped) return std::nullopt;
    Record record = row_of(plan, result, options);
    // The part of a process may die, and be reported, a moment before the process itself. A silent process is lost when the
    // time is over.
    if (options.coordinator && is_failure(record.status) && !lost_a_process(record))
      for (const std::string& process : options.coordinator->lost())
        record.error = fmt::format("{}; {}: {}", record.error.value_or(""), process, Coordinator::kLost);
    if (killed)
      record.warnings.push_back(
          "killed: the first process of this case was killed by signal 9 (SIGKILL); this row is of a second one");
    return record;
  }

  void add_row(const Plan& plan, const Record& measured) {
    const Record record = finish_row(plan, measured);
    folder.append_row(record);
    lost_files += precbench::lost_files(record).size();
    if (!lost_a_process(record))
      rows[record.id] = record.status;
    else if (options.coordinator)
      lost = options.coordinator->lost();
    progress.finish(plan, record);
    for (const std::string& warning : immediate_warnings(record)) {
      progress.clear_status();
      log_line("precbench: " + warning);
    }
  }

  /// Runs a case that needs two runs once: keeps the first run aside; the second run, or a failure, makes the
  /// row. Returns false if it did not run to its end.
  bool run_one_of_two(const Plan& plan) {
    const std::optional<Record> record = run(plan);
    if (!record) return false;
    const auto first = first_runs.find(record->id);
    const bool paired = first != first_runs.end() && same_environment(first->second, *record);
    if (record->status != Status::ok) {
      add_row(plan, *record);
    } else if (paired) {
      add_row(plan, pool_runs(first->second, *record));
    } else {
      folder.append_first_run(*record);
      first_runs[record->id] = *record;
      progress.first_run(plan, *record);
    }
    return true;
  }

  /// Goes back and forth over one setting's recipes until each has its row: twice over all of them suffices,
  /// unless a first run is left from another program or machine. Returns false if the sweep ends here.
  bool run_group(const std::vector<std::size_t>& group) {
    const auto done = [&](std::size_t i) { return finished(grid[i]); };
    for (bool there = true; !std::all_of(group.begin(), group.end(), done); there = !there)
      for (std::size_t k = 0; k < group.size(); ++k) {
        const Plan& plan = grid[there ? group[k] : group[group.size() - 1 - k]];
        if (finished(plan) || (there && first_runs.count(plan.id))) continue;
        if (!run_one_of_two(plan)) return false;
      }
    return true;
  }

  void run_all() {
    if (options.interleave) {
      for (const std::vector<std::size_t>& group : recipe_groups(grid))
        if (!run_group(group)) return;
      // Runs of another interrupted sweep may be among them.
      if (std::all_of(first_runs.begin(), first_runs.end(),
                      [&](const auto& run) { return rows.count(run.first); }))
        fs::remove(folder.first_runs());
      return;
    }
    std::vector<std::thread> others;
    for (int place = 1; place < options.at_once; ++place)
      others.emplace_back([=, this] { run_in_turn(place); });
    run_in_turn(0);
    for (std::thread& other : others) other.join();
    if (failure) std::rethrow_exception(failure);
  }

  /// Takes the next free case until there is none or the sweep ends.
  void run_in_turn(int place) {
    try {
      for (;;) {
        const Plan* plan = locked([&] {
          while (next < grid.size() && finished(grid[next])) ++next;
          return failure || next == grid.size() ? nullptr : &grid[next++];
        });
        if (!plan) return;
        const std::optional<Record> record = run(*plan, place);
        if (!record) return;
        locked([&] { add_row(*plan, *record); });
      }
    } catch (...) {
      locked([&] { failure = failure ? failure : std::current_exception(); });
    }
  }
};

}  // namespace

int run_sweep(const std::vector<Plan>& grid, const SweepOptions& options) {
  SweepFolder folder(options.out);
  Rows rows = finished_rows(folder, grid, options);
  if (!options.fresh) check_space(grid, rows, Earlier::used, options);
  folder.rows_are_known();
  std::map<std::string, Record> first_runs;
  if (options.interleave) first_runs = unpaired_runs(folder, rows);
  const std::size_t finished = count_finished(grid, rows);
  const auto half_finished = static_cast<std::size_t>(std::count_if(
      grid.begin(), grid.end(), [&](const Plan& plan) { return first_runs.count(plan.id) > 0; }));
  const InterruptGuard guard;
  Sweep sweep{grid,
              options,
              folder,
              std::move(rows),
              std::move(first_runs),
              Progress(grid, {.finished = finished, .half_finished = half_finished, .quiet = options.quiet})};
  if (finished)
    sweep.progress.note(fmt::format("{} of {} {} finished already", finished, count_cases(grid.size()),
                                    finished == 1 ? "is" : "are"));
  std::string why = "interrupted";
  try {
    sweep.run_all();
    if (!sweep.lost.empty()) why = fmt::format("no connection to {}", fmt::join(sweep.lost, ", "));
  } catch (const CannotKeepRow& error) {
    why = error.what();
  }
  if (folder.rows_were_taken()) {
    why = fmt::format("another program changed {} during the sweep", folder.records());
    keep_rows_in(folder.records(), sweep.rows);
  }

  const std::size_t done = count_finished(grid, sweep.rows);
  if (done == grid.size()) return summarize(grid, sweep.rows, sweep.lost_files, options);
  sweep.progress.clear_status();
  log_line(fmt::format("{}: {} of {} cases are in {}; {}the same command resumes from there", why, done,
                       grid.size(), folder.records(),
                       sweep.lost.empty() ? "" : "start the processes again, and "));
  return kSweepInterrupted;
}

bool all_finished(const std::vector<Plan>& grid, const SweepOptions& options) {
  if (options.fresh) return false;
  const SweepFolder folder(options.out);
  return count_finished(grid, finished_rows(folder, grid, options)) == grid.size();
}

void start_afresh(const std::vector<Plan>& grid, const std::string& out) {
  move_aside(SweepFolder(out), grid);
}

void share_threads(int at_once) {
  setenv("OMP_NUM_THREADS", std::to_string(std::max(1, openmp_threads() / at_once)).c_str(), 1);
}

void append_to_folder(const std::string& folder, const Record& record) {
  SweepFolder locked(folder);
  repair_tail(locked.records());
  locked.append_row(record);
}

}  // namespace precbench
