// Notes the ranks' progress and describes the slowest. See step_board.h.
#include "bench/process/step_board.h"

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
  done_.assign(static_cast<std::size_t>(share.local), {});
  works_.clear();
}

void StepBoard::note(int rank, std::int64_t step, Stage stage) {
  const std::lock_guard lock(mutex_);
  done_.at(static_cast<std::size_t>(rank - first_)).stages =
      step * kStages + static_cast<std::int64_t>(stage) + 1;
}

void StepBoard::note_work(int rank, const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (++done_.at(static_cast<std::size_t>(rank - first_)).works > works_.size()) works_.push_back(what);
}

void StepBoard::note_failure(int rank, const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = fmt::format("rank {} failed: {}", rank, error);
}

/// Returns the next thing that the slowest ranks have to do.
std::string StepBoard::missing(const Progress& slowest) const {
  if (slowest.works > 0) return "finished " + works_[slowest.works - 1];
  // Work begins after the last step, so a rank that is ahead after equally many steps has started it.
  const bool no_more_steps = std::any_of(done_.begin(), done_.end(), [&](const Progress& p) {
    return p.stages == slowest.stages && p.works > 0;
  });
  if (no_more_steps) return "begun " + works_.front();
  return fmt::format("{} step {}", kNames[slowest.stages % kStages], slowest.stages / kStages + 1);
}

std::optional<std::string> StepBoard::describe() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return failure_;
  if (done_.empty()) return std::nullopt;
  const Progress least = *std::min_element(done_.begin(), done_.end());
  std::vector<int> behind;
  for (std::size_t i = 0; i < done_.size(); ++i)
    if (done_[i] == least) behind.push_back(first_ + static_cast<int>(i));
  const bool all = behind.size() == done_.size();
  if (all && behind.size() > 1)
    return fmt::format("none of the ranks {}-{} has {}", behind.front(), behind.back(), missing(least));
  return fmt::format("rank{} {} {} not {}{}", behind.size() > 1 ? "s" : "", fmt::join(behind, ", "),
                     behind.size() > 1 ? "have" : "has", missing(least), all ? "" : "; the others have");
}

}  // namespace precbench
