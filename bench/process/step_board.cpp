// Notes the ranks' progress and describes the slowest. See step_board.h.
#include "bench/process/step_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace precbench {
namespace {

constexpr std::int64_t kStages = 3;
constexpr const char* kNames[kStages] = {"begun", "enqueued", "finished"};

}  // namespace

void StepBoard::open(const NodeShare& share) {
  const std::lock_guard lock(mutex_);
  first_ = share.first;
  done_.assign(static_cast<std::size_t>(share.local), {});
}

void StepBoard::note(int rank, std::int64_t step, Stage stage) {
  const std::lock_guard lock(mutex_);
  Progress& progress = done_.at(static_cast<std::size_t>(rank - first_));
  progress.stages = step * kStages + static_cast<std::int64_t>(stage) + 1;
  progress.works.clear();
  at_work(rank, "steps");
}

void StepBoard::note_work(int rank, const std::string& what) {
  const std::lock_guard lock(mutex_);
  done_.at(static_cast<std::size_t>(rank - first_)).works.push_back(what);
  at_work(rank, what);
}

/// Counts the time from now on as this work's, if the rank is the first.
void StepBoard::at_work(int rank, const std::string& what) {
  if (rank != first_) return;
  std::string name = what;
  for (const char* article : {"the ", "a "})
    if (name.starts_with(article)) name.erase(0, std::strlen(article));
  if (times_[now_].work == name) return;
  const Clock::time_point now = Clock::now();
  times_[now_].s += std::chrono::duration<double>(now - std::exchange(since_, now)).count();
  const auto found =
      std::find_if(times_.begin(), times_.end(), [&](const WorkTime& t) { return t.work == name; });
  now_ = static_cast<std::size_t>(found - times_.begin());
  if (found == times_.end()) times_.push_back({name, 0});
}

std::vector<WorkTime> StepBoard::durations() const {
  const std::lock_guard lock(mutex_);
  std::vector<WorkTime> result = times_;
  result[now_].s += std::chrono::duration<double>(Clock::now() - since_).count();
  return result;
}

void StepBoard::note_failure(int rank, const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = fmt::format("rank {} failed: {}", rank, error);
}

/// Returns the next thing that the slowest ranks have to do.
std::string StepBoard::missing(const Progress& slowest) const {
  if (!slowest.works.empty()) return "finished " + slowest.works.back();
  // Work begins between two steps, so a rank that is ahead after equally many steps has started it.
  const auto at_work = std::find_if(done_.begin(), done_.end(), [&](const Progress& p) {
    return p.stages == slowest.stages && !p.works.empty();
  });
  if (at_work != done_.end()) return "begun " + at_work->works.front();
  return fmt::format("{} step {}", kNames[slowest.stages % kStages], slowest.stages / kStages + 1);
}

std::optional<std::string> StepBoard::missing_first_step() const {
  {
    const std::lock_guard lock(mutex_);
    if (done_.empty()) return "its ranks have not started";
    if (std::any_of(done_.begin(), done_.end(), [](const Progress& p) { return p.stages >= kStages; }))
      return std::nullopt;
  }
  return describe();
}

std::optional<std::string> StepBoard::describe() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return failure_;
  if (done_.empty()) return std::nullopt;
  const Progress& least = *std::min_element(
      done_.begin(), done_.end(), [](const Progress& a, const Progress& b) { return a.place() < b.place(); });
  std::vector<int> behind;
  for (std::size_t i = 0; i < done_.size(); ++i)
    if (done_[i].place() == least.place()) behind.push_back(first_ + static_cast<int>(i));
  const bool all = behind.size() == done_.size();
  if (all && behind.size() > 1)
    return fmt::format("none of the ranks {}-{} has {}", behind.front(), behind.back(), missing(least));
  return fmt::format("rank{} {} {} not {}{}", behind.size() > 1 ? "s" : "", fmt::join(behind, ", "),
                     behind.size() > 1 ? "have" : "has", missing(least), all ? "" : "; the others have");
}

}  // namespace precbench
