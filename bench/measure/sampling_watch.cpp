// Watches from the first sample to the last. See sampling_watch.h.
#include "bench/measure/sampling_watch.h"

#include <algorithm>

#include "bench/machine/environment.h"

namespace precbench {

SamplingWatch::SamplingWatch(const Plan& plan, const NodeShare& share) : plan_(plan), share_(share) {
  if (plan.on_gpu) gpus_.emplace(share.first_gpu, share.local);
}

std::vector<std::string> SamplingWatch::warnings() const {
  return gpus_ ? gpus_->warnings() : std::vector<std::string>();
}

std::optional<std::int64_t> SamplingWatch::used_bytes() const {
  return gpus_ ? gpus_->used_bytes() : peak_resident_bytes();
}

void SamplingWatch::after_step(const StepState& state) {
  if (!watching_ && state.next_is_sample) {
    if (gpus_) gpus_->start();
    watching_ = true;
    from_ = state.steps;
    cpu_since_ = read_cpu_time();
    cpu_left_out_ = {};
    since_ = Clock::now();
    return;
  }
  if (!watching_ || !state.last) return;
  const std::chrono::duration<double> watched_s = Clock::now() - since_;
  const double count = static_cast<double>(state.steps - from_);
  result_.wall_ms = watched_s.count() * 1e3 / count;
  if (share_.local == share_.world) {  // other processes have CPU time of their own
    const CpuTimeSpent spent = cpu_time_between(cpu_since_, read_cpu_time());
    result_.cpu_ms = std::max(0.0, spent.used_s - cpu_left_out_.used_s) * 1e3 / count;
    if (spent.waited_s)
      result_.cpu_wait_ms = std::max(0.0, *spent.waited_s - cpu_left_out_.waited_s.value_or(0)) * 1e3 / count;
  }
  if (!gpus_) return;
  const GpuWatch::Result watched = gpus_->stop();
  result_.telemetry = watched.telemetry;
  // The energy counter's resolution is too coarse for shorter times. GPUs of other processes are not
  // measured.
  constexpr double kShortestForEnergy_s = 2;
  if (watched.energy_j && !left_out_ && watched_s.count() >= kShortestForEnergy_s &&
      share_.local == share_.world)
    result_.energy_j_per_token = *watched.energy_j / (count * static_cast<double>(plan_.tokens_per_step()));
}

void SamplingWatch::leave_out(const std::function<void()>& work) {
  const Clock::time_point begin = Clock::now();
  const CpuTime cpu_begin = read_cpu_time();
  work();
  const CpuTimeSpent spent = cpu_time_between(cpu_begin, read_cpu_time());
  cpu_left_out_.used_s += spent.used_s;
  if (spent.waited_s) cpu_left_out_.waited_s = cpu_left_out_.waited_s.value_or(0) + *spent.waited_s;
  since_ += Clock::now() - begin;
  left_out_ = left_out_ || watching_;
}

}  // namespace precbench
