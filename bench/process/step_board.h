// Progress of the ranks of a process. Each notes what it has done, so that the error of a case that is ended
// from outside can name the rank that holds up the others.
#pragma once

#include <compare>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bench/process/rendezvous.h"

namespace precbench {

class StepBoard {
 public:
  /// Stages of a step, in this order. On a GPU, enqueued ops still have to run.
  enum class Stage : std::uint8_t { begun, enqueued, finished };

  /// Call before any rank notes something.
  void open(const NodeShare& share);
  /// Notes that rank `rank` (of all) has just completed this stage. Steps count from 0.
  void note(int rank, std::int64_t step, Stage stage);
  /// Notes what a rank does after its last step, such as "the profiled step". All ranks note the same work in
  /// the same order.
  void note_work(int rank, const std::string& what);
  void note_failure(int rank, const std::string& error);

  /// Returns, for example, "rank 3 has not finished step 7; the others have", with steps counted from 1;
  /// after the steps "rank 3 has not finished the profiled step"; the first failure, if the other ranks did
  /// not end after it; null before open().
  std::optional<std::string> describe() const;

 private:
  mutable std::mutex mutex_;
  int first_ = 0;
  struct Progress {
    std::int64_t stages = 0;  // of steps, completed since the start
    std::size_t works = 0;    // started since the last step
    auto operator<=>(const Progress&) const = default;
  };
  std::string missing(const Progress& slowest) const;

  std::vector<Progress> done_;      // per rank
  std::vector<std::string> works_;  // work started since the last step, by the rank that is furthest ahead
  std::string failure_;
};

}  // namespace precbench
