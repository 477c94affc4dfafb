// Runs pipeline schedules on a clock. See pipeline.h.
#include "bench/predict/pipeline.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <stdexcept>

namespace precbench {
namespace {

struct Task {
  std::int64_t micro_batch = 0;
  int group = 0;
  bool backward = false;
};

/// Returns the n-th forward (or backward) task of a stage: micro-batches come in rounds of as many as there are
/// stages, and a round visits the groups one after the other.
Task task_of(std::int64_t n, int stages, int groups, bool backward) {
  const std::int64_t per_round = static_cast<std::int64_t>(stages) * groups;
  const std::int64_t round = n / per_round, within = n % per_round;
  const auto group = static_cast<int>(within / stages);
  return {round * stages + within % stages, backward ? groups - 1 - group : group, backward};
}

/// Returns the tasks of one stage in order: forward passes that fill the pipeline, then one forward and one
/// backward pass in turn, then the backward passes that are left.
std::vector<Task> tasks_of_stage(int stage, int stages, int groups, std::int64_t micro_batches) {
  const std::int64_t all = micro_batches * groups;
  const std::int64_t ahead =
      groups == 1 ? stages - 1 - stage : 2 * (stages - 1 - stage) + (groups - 1) * stages;
  const std::int64_t warm_up = std::min(all, ahead);
  std::vector<Task> tasks;
  tasks.reserve(static_cast<std::size_t>(2 * all));
  for (std::int64_t n = 0; n < warm_up; ++n) tasks.push_back(task_of(n, stages, groups, false));
  for (std::int64_t n = warm_up; n < all; ++n) {
    tasks.push_back(task_of(n, stages, groups, false));
    tasks.push_back(task_of(n - warm_up, stages, groups, true));
  }
  for (std::int64_t n = all - warm_up; n < all; ++n) tasks.push_back(task_of(n, stages, groups, true));
  return tasks;
}

/// The clock of all stages, which learns when each pass has ended.
class PipelineSchedule {
 public:
  PipelineSchedule(const PipelineTimes& times, std::int64_t micro_batches)
      : times_(times),
        stages_(static_cast<int>(times.chunks.size())),
        groups_(static_cast<int>(times.chunks.front().size())),
        micro_batches_(micro_batches),
        ends_(static_cast<std::size_t>(2 * micro_batches * stages_ * groups_), kNever),
        free_(static_cast<std::size_t>(stages_)),
        next_(static_cast<std::size_t>(stages_)) {
    for (int s = 0; s < stages_; ++s) tasks_.push_back(tasks_of_stage(s, stages_, groups_, micro_batches));
  }

  double run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s < stages_; ++s)
        while (advance(s)) moved = true;
    }
    for (int s = 0; s < stages_; ++s)
      if (next_[static_cast<std::size_t>(s)] < tasks_[static_cast<std::size_t>(s)].size())
        throw std::logic_error("a pipeline schedule waits for itself");
    return *std::max_element(free_.begin(), free_.end());
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  double& end_of(const Task& task, int stage) {
    const std::int64_t place =
        ((task.micro_batch * groups_ + task.group) * stages_ + stage) * 2 + task.backward;
    return ends_[static_cast<std::size_t>(place)];
  }

  /// Returns when a task's input has arrived; kNever if that is not known yet.
  double ready(const Task& task, int stage) {
    Task before = task;
    int from = stage;
    if (!task.backward) {
      if (stage == 0 && task.group == 0) return 0;
      from = stage == 0 ? stages_ - 1 : stage - 1;
      if (stage == 0) --before.group;
    } else if (stage == stages_ - 1 && task.group == groups_ - 1) {
      before.backward = false;  // the loss follows its own forward pass
      return end_of(before, stage);
    } else {
      from = stage == stages_ - 1 ? 0 : stage + 1;
      if (stage == stages_ - 1) ++before.group;
    }
    return end_of(before, from) + (from == stage ? 0 : times_.transfer);
  }

  bool advance(int stage) {
    const auto at = static_cast<std::size_t>(stage);
    if (next_[at] == tasks_[at].size()) return false;
    const Task& task = tasks_[at][next_[at]];
    const double arrival = ready(task, stage);
    if (arrival == kNever) return false;
    const ChunkSeconds& chunk = times_.chunks[at][static_cast<std::size_t>(task.group)];
    free_[at] = std::max(free_[at], arrival) + (task.backward ? chunk.backward : chunk.forward);
    end_of(task, stage) = free_[at];
    ++next_[at];
    return true;
  }

  const PipelineTimes& times_;
  int stages_, groups_;
  std::int64_t micro_batches_;
  std::vector<std::vector<Task>> tasks_;
  std::vector<double> ends_, free_;
  std::vector<std::size_t> next_;
};

/// Returns `micro_batches`, rounded up to what an interleaved schedule can run.
std::int64_t full_rounds(const PipelineTimes& times, std::int64_t micro_batches) {
  const auto stages = static_cast<std::int64_t>(times.chunks.size());
  return times.chunks.front().size() == 1 ? micro_batches : (micro_batches + stages - 1) / stages * stages;
}

}  // namespace

double pipeline_seconds(const PipelineTimes& times, std::int64_t micro_batches) {
  return PipelineSchedule(times, full_rounds(times, micro_batches)).run();
}

double busiest_stage_seconds(const PipelineTimes& times, std::int64_t micro_batches) {
  double most = 0;
  for (const std::vector<ChunkSeconds>& stage : times.chunks) {
    double seconds = 0;
    for (const ChunkSeconds& chunk : stage) seconds += chunk.forward + chunk.backward;
    most = std::max(most, seconds);
  }
  return most * static_cast<double>(micro_batches);
}

double micro_batches_in_flight(int stages, int interleave, int stage, std::int64_t micro_batches) {
  const std::int64_t ahead =
      interleave == 1 ? stages - stage : 2 * (stages - 1 - stage) + (interleave - 1) * stages + 1;
  return static_cast<double>(std::min(ahead, micro_batches * interleave)) / interleave;
}

std::vector<std::vector<std::int64_t>> layers_by_group(std::int64_t layers, int stages, int interleave) {
  const std::int64_t groups = static_cast<std::int64_t>(stages) * interleave;
  const bool counts_ends = groups > 1 && layers % groups != 0 && (layers + 2) % groups == 0;
  const std::int64_t counted = counts_ends ? layers + 2 : layers;
  std::vector<std::vector<std::int64_t>> found(static_cast<std::size_t>(stages));
  for (std::int64_t g = 0; g < groups; ++g) {
    std::int64_t own = counted * (g + 1) / groups - counted * g / groups;
    if (counts_ends && (g == 0 || g == groups - 1)) --own;
    found[static_cast<std::size_t>(g % stages)].push_back(own);
  }
  return found;
}

}  // namespace precbench
