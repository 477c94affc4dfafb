// Progress of the ranks of a process. Each notes what it has done, so that the error of a case that is ended
// from outside can name the rank that holds up the others, and the record can say where the time went.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/process/rendezvous.h"
#include "results/record/record.h"

namespace precbench {

class StepBoard {
 public:
  /// Stages of a step, in this order. On a GPU, enqueued ops still have to run.
  enum class Stage : std::uint8_t { begun, enqueued, finished };

  /// Call before any rank notes something.
  void open(const NodeShare& share);
  /// Notes that rank `rank` (of all) has just completed this stage. Steps count from 0.
  void note(int rank, std::int64_t step, Stage stage);
  /// Notes what a rank does between its steps, such as "the profiled step". All ranks note the same work in
  /// the same order.
  void note_work(int rank, const std::string& what);
  void note_failure(int rank, const std::string& error);

  /// Returns, for example, "rank 3 has not finished step 7; the others have", with steps counted from 1;
  /// after the steps "rank 3 has not finished the profiled step"; the first failure, if the other ranks did
  /// not end after it; null before open().
  std::optional<std::string> describe() const;
  /// Returns why no step has finished yet, as describe() does, or before open(); null once one has.
  std::optional<std::string> missing_first_step() const;
  /// Returns how long the first rank of this process has been at each kind of work until now, in the order in
  /// which they began: the start, which counts from the board's creation, what note_work named, without its
  /// article, and the steps.
  std::vector<WorkTime> durations() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Progress {
    std::int64_t stages = 0;         // of steps, completed since the start
    std::vector<std::string> works;  // started since the last step
    auto place() const { return std::pair(stages, works.size()); }
  };
  std::string missing(const Progress& slowest) const;
  void at_work(int rank, const std::string& what);

  mutable std::mutex mutex_;
  int first_ = 0;
  std::vector<Progress> done_;  // per rank
  std::string failure_;
  std::vector<WorkTime> times_{{"start", 0}};  // without the current work since `since_`
  std::size_t now_ = 0;                        // index of the current work
  Clock::time_point since_ = Clock::now();
};

}  // namespace precbench
