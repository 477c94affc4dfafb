// The loop over cases, the folder it writes to, and what becomes a row.
#include "bench/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "bench/child.h"
#include "bench/environment.h"
#include "bench/progress.h"
#include "kernels/errors.h"
#include "results/record_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using End = ChildResult::End;

constexpr std::chrono::milliseconds kLockPatience(500);

/// The folder of one sweep, locked against a second one for as long as this lives.
class Folder {
 public:
  explicit Folder(const std::string& path) : path_(path) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) throw InvalidInput(fmt::format("--out: cannot make {}: {}", path, error.message()));
    const std::string lock = (path_ / ".lock").string();
    lock_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock_ < 0)
      throw InvalidInput(fmt::format("--out: cannot write to {}: {}", path, std::strerror(errno)));
    // A sweep that was killed while it started a child leaves the lock with the child for a moment.
    using namespace std::chrono;
    for (const auto end = steady_clock::now() + kLockPatience;
         flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && steady_clock::now() < end;)
      std::this_thread::sleep_for(milliseconds(10));
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      close(lock_);
      throw InvalidInput(
          reason == EWOULDBLOCK
              ? fmt::format("--out: another sweep is writing to {}; wait for it or choose another folder",
                            path)
              : fmt::format("--out: cannot lock {}: {}", lock, std::strerror(reason)));
    }
  }
  ~Folder() { close(lock_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string records() const { return (path_ / "records.jsonl").string(); }

  /// The first of records.jsonl.1, .2, ... that is not taken.
  std::string spare() const {
    for (int i = 1;; ++i) {
      const std::string name = fmt::format("{}.{}", records(), i);
      if (!fs::exists(name)) return name;
    }
  }

 private:
  fs::path path_;
  int lock_;
};

/// A row without measurements, for a case that did not get as far as making its own. It ran where we are.
Record failed_record(const Case& c, Status status, const std::string& error) {
  Record record = start_record(c);
  record.env = describe_environment(openmp_threads(), c.device == "cuda" ? 0 : -1);
  record.status = status;
  record.error = error;
  return record;
}

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

/// The last lines of what a child printed, as the end of an error message.
std::string said(const ChildResult& result) {
  constexpr std::size_t kShown = 400;
  std::string text = one_line(result.last_lines);
  if (text.size() > kShown) text = "..." + text.substr(text.size() - kShown);
  return text.empty() ? "" : "; its last words: " + text;
}

bool killed_from_outside(const ChildResult& result) {
  return result.end == End::signalled && result.code == SIGKILL && !result.out_of_memory;
}

/// The row of a case whose process has ended. Throws InvalidInput if it refused its input.
Record row_of(const Case& c, const ChildResult& result, double timeout_s) {
  if (result.end == End::timed_out)
    return failed_record(c, Status::timeout,
                         fmt::format("still running after {} s (--timeout){}", timeout_s, said(result)));
  if (result.end == End::signalled) {
    if (result.code == SIGKILL && result.out_of_memory)
      return failed_record(c, Status::oom,
                           "host memory ran out: the kernel killed the process" + said(result));
    const std::string twice = killed_from_outside(result) ? ", twice; out of host memory?" : "";
    return failed_record(c, Status::crashed,
                         fmt::format("killed by signal {} ({}){}{}", result.code, strsignal(result.code),
                                     twice, said(result)));
  }
  if (result.code == kBadInputExit) throw InvalidInput(one_line(result.last_lines));
  if (result.code != 0)
    return failed_record(c, Status::crashed,
                         fmt::format("ended with exit status {}{}", result.code, said(result)));
  try {
    Record record = nlohmann::ordered_json::parse(result.record).get<Record>();
    if (record.id != case_id(c)) throw std::runtime_error("it is of another case, " + record.id);
    return record;
  } catch (const std::exception& error) {
    return failed_record(c, Status::crashed,
                         fmt::format("left no usable record: {}{}", error.what(), said(result)));
  }
}

bool is_failure(Status status) { return status == Status::crashed || status == Status::timeout; }

/// Takes rows that say crashed or timeout out of the file; the file as it was stays beside it.
void drop_failures(const Folder& folder, std::vector<LocatedRecord>& records) {
  const auto failed = [](const LocatedRecord& located) { return is_failure(located.record.status); };
  if (std::none_of(records.begin(), records.end(), failed)) return;
  std::erase_if(records, failed);
  const std::string next = folder.records() + ".next";
  std::ofstream(next, std::ios::trunc);
  for (const LocatedRecord& located : records) append_record(next, located.record);
  fs::copy_file(folder.records(), folder.spare());
  fs::rename(next, folder.records());
}

/// Status by id of the rows that count as finished.
std::map<std::string, Status> finished_rows(const Folder& folder, const SweepOptions& options) {
  std::map<std::string, Status> finished;
  const std::string path = folder.records();
  if (options.fresh && fs::exists(path)) fs::rename(path, folder.spare());
  if (!fs::exists(path)) return finished;
  if (const auto repaired = repair_tail(path)) fmt::print(stderr, "{}\n", *repaired);
  RecordSet set = read_records({path});
  for (const std::string& problem : set.problems) fmt::print(stderr, "{}\n", problem);
  if (options.retry_failed) drop_failures(folder, set.records);
  for (const LocatedRecord& located : set.records) finished[located.record.id] = located.record.status;
  return finished;
}

std::size_t count_finished(const std::vector<Case>& grid, const std::map<std::string, Status>& rows) {
  return static_cast<std::size_t>(
      std::count_if(grid.begin(), grid.end(), [&](const Case& c) { return rows.count(case_id(c)) > 0; }));
}

/// "30 ok, 1 oom, 1 crashed"
std::string tally(const std::vector<Case>& grid, const std::map<std::string, Status>& rows) {
  std::map<Status, int> counts;
  for (const Case& c : grid) ++counts[rows.at(case_id(c))];
  std::string text;
  for (const auto& [status, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name_of(status));
  return text;
}

int summarize(const std::vector<Case>& grid, const std::map<std::string, Status>& rows,
              const SweepOptions& options) {
  const bool failures =
      std::any_of(grid.begin(), grid.end(), [&](const Case& c) { return is_failure(rows.at(case_id(c))); });
  const int status = failures ? kSweepFailures : kSweepDone;
  if (options.quiet) return status;
  fmt::print("{}: {}{}\n", count_cases(grid.size()), tally(grid, rows),
             failures ? "; --retry-failed runs crashed and timed out ones again" : "");
  fmt::print("records: {}/records.jsonl; compare them with: precbench report {}\n", options.out, options.out);
  return status;
}

}  // namespace

int run_sweep(const std::vector<Case>& grid, const SweepOptions& options) {
  const Folder folder(options.out);
  std::map<std::string, Status> rows = finished_rows(folder, options);
  const std::size_t finished = count_finished(grid, rows);
  const InterruptGuard guard;
  Progress progress(grid, finished, options.quiet);
  if (finished) progress.note(fmt::format("{} of {} cases are finished already", finished, grid.size()));

  for (const Case& c : grid) {
    const std::string id = case_id(c);
    if (rows.count(id)) continue;
    if (interrupted()) break;
    progress.start(c);
    ChildResult result = run_child(options.child, c, options.timeout_s);
    if (killed_from_outside(result)) result = run_child(options.child, c, options.timeout_s);
    if (result.end == End::interrupted) break;
    const Record record = row_of(c, result, options.timeout_s);
    append_record(folder.records(), record);
    rows[id] = record.status;
    progress.finish(c, record);
  }
  const std::size_t done = count_finished(grid, rows);
  if (done == grid.size()) return summarize(grid, rows, options);
  progress.clear_status();
  fmt::print(stderr, "interrupted: {} of {} cases are in {}; the same command goes on from there\n", done,
             grid.size(), folder.records());
  return kSweepInterrupted;
}

void append_to_folder(const std::string& folder, const Record& record) {
  const Folder locked(folder);
  repair_tail(locked.records());
  append_record(locked.records(), record);
}

}  // namespace precbench
