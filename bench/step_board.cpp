// Notes of ranks, and the sentence about the slowest. See step_board.h.
#include "bench/step_board.h"

#include <fmt/format.h>

#include <algorithm>

namespace precbench {
namespace {

constexpr std::int64_t kStages = 3;
constexpr const char* kNames[kStages] = {"begun", "enqueued", "finished"};

}  // namespace

void StepBoard::open(const NodeShare& share) {
  const std::lock_guard lock(mutex_);
  first_ = share.first;
  done_.assign(static_cast<std::size_t>(share.local), 0);
}

void StepBoard::note(int rank, std::int64_t step, Stage stage) {
  const std::lock_guard lock(mutex_);
  done_.at(static_cast<std::size_t>(rank - first_)) = step * kStages + static_cast<std::int64_t>(stage) + 1;
}

void StepBoard::note_failure(int rank, const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = fmt::format("rank {} failed: {}", rank, error);
}

std::string StepBoard::describe() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return failure_;
  if (done_.empty()) return "";
  const std::int64_t least = *std::min_element(done_.begin(), done_.end());
  std::vector<int> behind;
  for (std::size_t i = 0; i < done_.size(); ++i)
    if (done_[i] == least) behind.push_back(first_ + static_cast<int>(i));
  // The next thing that the slowest have to do.
  const std::string missing = fmt::format("{} step {}", kNames[least % kStages], least / kStages + 1);
  const bool all = behind.size() == done_.size();
  if (all && behind.size() > 1)
    return fmt::format("none of the ranks {}-{} has {}", behind.front(), behind.back(), missing);
  return fmt::format("rank{} {} {} not {}{}", behind.size() > 1 ? "s" : "", fmt::join(behind, ", "),
                     behind.size() > 1 ? "have" : "has", missing, all ? "" : "; the others have");
}

}  // namespace precbench
