// Where the ranks of a process stand: each notes what it has done, so that a case that is ended from outside
// can say which rank holds up the others.
#pragma once

#include <compare>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "bench/process/rendezvous.h"

namespace precbench {

class StepBoard {
 public:
  /// What a rank does with a step, in this order. On a GPU, enqueued ops still have to run.
  enum class Stage : std::uint8_t { begun, enqueued, finished };

  /// Before any rank notes something.
  void open(const NodeShare& share);
  /// Rank `rank` (of all) has just done this. Steps count from 0.
  void note(int rank, std::int64_t step, Stage stage);
  /// After its last step the rank turns to something else, "the profiled step"; all ranks to the same things
  /// in the same order.
  void note_work(int rank, const std::string& what);
  void note_failure(int rank, const std::string& error);

  /// "rank 3 has not finished step 7; the others have", steps counted from 1; or the first failure, if the
  /// other ranks did not end after it; empty before open(). After the steps: "rank 3 has not finished the
  /// profiled step".
  std::string describe() const;

 private:
  mutable std::mutex mutex_;
  int first_ = 0;
  struct Progress {
    std::int64_t stages = 0;  // of steps, done since the start
    std::size_t works = 0;    // begun since the last step
    auto operator<=>(const Progress&) const = default;
  };
  std::string missing(const Progress& slowest) const;

  std::vector<Progress> done_;      // per rank
  std::vector<std::string> works_;  // what the first of them has begun since the last step
  std::string failure_;
};

}  // namespace precbench
