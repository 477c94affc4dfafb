// Runs a trace on a clock. See timeline.h.
#include "bench/predict/timeline.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace precbench {
namespace {

/// A collective that occupies its lane.
struct Active {
  double begin = 0, end = 0, contention = 0;
};

class Clock {
 public:
  Clock(const Trace& trace, const TimelineRates& rates) : trace_(trace), rates_(rates) {
    time_.exposed.resize(trace.comms.size());
    ends_.resize(trace.comms.size());
  }

  void run(const TraceEvent& event) {
    const auto index = static_cast<std::size_t>(event.index);
    if (event.kind == TraceEvent::Kind::op)
      run_op(trace_.ops[index].op_class, rates_.op_seconds[index]);
    else if (event.kind == TraceEvent::Kind::start)
      start(trace_.collectives[index], rates_.collective_seconds[index], rates_.contention[index]);
    else
      wait(index, static_cast<std::size_t>(event.later));
  }
  void run(std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) run(trace_.events[i]);
  }

  double now() const { return now_; }
  const StepTime& time() const { return time_; }

  /// Ends the step: what still runs must be done.
  StepTime finish() {
    for (std::size_t comm = 0; comm < ends_.size(); ++comm) wait(comm, 0);
    time_.seconds = now_;
    return time_;
  }

  /// Adds `count` times what has happened since `before`, and moves everything by as much.
  void repeat(const StepTime& before, double then, double count) {
    const double moved = count * (now_ - then);
    for (std::size_t c = 0; c < time_.class_seconds.size(); ++c)
      time_.class_seconds[c] += count * (time_.class_seconds[c] - before.class_seconds[c]);
    for (std::size_t c = 0; c < time_.exposed.size(); ++c)
      time_.exposed[c] += count * (time_.exposed[c] - before.exposed[c]);
    time_.contention += count * (time_.contention - before.contention);
    now_ += moved;
    for (std::vector<double>& ends : ends_)
      for (double& end : ends) end += moved;
    for (Active& one : active_) one.begin += moved, one.end += moved;
    for (double& end : lane_ends_) end += moved;
  }

 private:
  void run_op(OpClass op_class, double seconds) {
    time_.class_seconds[static_cast<std::size_t>(op_class)] += seconds;
    std::erase_if(active_, [&](const Active& one) { return one.end <= now_; });
    for (double left = seconds; left > 0;) {
      // Contention is constant until the next collective begins or ends.
      double share = 0, change = std::numeric_limits<double>::infinity();
      for (const Active& one : active_) {
        if (one.end <= now_) continue;
        if (one.begin <= now_) share += one.contention;
        change = std::min(change, one.begin > now_ ? one.begin : one.end);
      }
      const double rate = 1 - std::min(share, kMostContention), done = now_ + left / rate;
      if (done <= change) {
        time_.contention += done - now_ - left;
        now_ = done;
        return;
      }
      const double work = (change - now_) * rate;
      time_.contention += change - now_ - work;
      left -= work;
      now_ = change;
    }
  }

  void start(const TraceCollective& collective, double seconds, double contention) {
    const auto lane = static_cast<std::size_t>(collective.lane);
    if (lane_ends_.size() <= lane) lane_ends_.resize(lane + 1);
    const double begin = std::max(now_, lane_ends_[lane]), end = begin + seconds;
    lane_ends_[lane] = end;
    ends_[static_cast<std::size_t>(collective.comm)].push_back(end);
    active_.push_back({begin, end, contention});
  }

  void wait(std::size_t comm, std::size_t later) {
    std::vector<double>& ends = ends_[comm];
    if (ends.size() <= later) return;
    const double end = ends[ends.size() - 1 - later];
    if (end <= now_) return;
    time_.exposed[comm] += end - now_;
    now_ = end;
  }

  static constexpr double kMostContention = 0.9;

  const Trace& trace_;
  const TimelineRates& rates_;
  StepTime time_;
  double now_ = 0;
  std::vector<std::vector<double>> ends_;  // of the collectives of each communicator, in order
  std::vector<double> lane_ends_;
  std::vector<Active> active_;
};

}  // namespace

double StepTime::exposed_seconds() const { return std::accumulate(exposed.begin(), exposed.end(), 0.0); }

void StepTime::add(const StepTime& time, double count) {
  seconds += count * time.seconds;
  for (std::size_t c = 0; c < class_seconds.size(); ++c) class_seconds[c] += count * time.class_seconds[c];
  contention += count * time.contention;
  exposed.resize(std::max(exposed.size(), time.exposed.size()));
  for (std::size_t i = 0; i < time.exposed.size(); ++i) exposed[i] += count * time.exposed[i];
}

StepTime weighted(const StepTime& a, double count_of_a, const StepTime& b, double count_of_b) {
  StepTime sum;
  sum.add(a, count_of_a);
  sum.add(b, count_of_b);
  return sum;
}

StepTime time_of_events(const Trace& trace, const TimelineRates& rates, std::size_t begin, std::size_t end) {
  Clock clock(trace, rates);
  clock.run(begin, end);
  return clock.finish();
}

StepTime step_time(const Trace& trace, const TimelineRates& rates) {
  Clock clock(trace, rates);
  clock.run(0, trace.repeat_begin);
  // Collectives that overlap a boundary make the first repetition different; later ones are equal.
  constexpr std::int64_t kRun = 2;
  for (std::int64_t n = 0; n < std::min(trace.repeats, kRun); ++n) {
    const StepTime before = clock.time();
    const double then = clock.now();
    clock.run(trace.repeat_begin, trace.repeat_end);
    if (n == kRun - 1) clock.repeat(before, then, static_cast<double>(trace.repeats - kRun));
  }
  clock.run(trace.repeat_end, trace.events.size());
  return clock.finish();
}

}  // namespace precbench
