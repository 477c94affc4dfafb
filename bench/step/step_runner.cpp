// Runs eagerly first, captures second, replays from then on. See step_runner.h.
#include "bench/step/step_runner.h"

namespace precbench {

StepRunner::StepRunner(Rank& rank, const DataSource& data, GraphMode graph, StepBoard* board)
    : rank_(rank),
      data_(data),
      graph_(has_graphs(rank.device()) ? graph : GraphMode::off),
      board_(board),
      clock_(make_device_clock(rank.device())) {}

void StepRunner::note(std::int64_t step, StepBoard::Stage stage) {
  if (board_) board_->note(rank_.comm().rank(), step, stage);
}

bool StepRunner::captures() const { return graph_ != GraphMode::off && rank_.device().capturable(); }

StepRunner::Timed StepRunner::run(std::int64_t step, double signal) {
  note(step, StepBoard::Stage::begun);
  if (rank_.use_layers_of(step)) {  // other kernels: their plans need an eager step, too
    captured_.reset();
    warm_ = false;
  }
  if (captures() && warm_ && !captured_)
    captured_ = capture_step(
        rank_.device(), [&] { rank_.enqueue(); },
        graph_ == GraphMode::early ? KernelStart::early : KernelStart::in_turn);
  rank_.prepare(data_, step, signal);
  clock_->reset();
  const std::size_t start = clock_->mark();
  if (captured_)
    rank_.comm().replay([&] { captured_->replay(); });
  else
    rank_.enqueue();
  const std::size_t stop = clock_->mark();
  warm_ = true;
  note(step, StepBoard::Stage::enqueued);
  Timed timed{rank_.finish(), 0};
  note(step, StepBoard::Stage::finished);
  timed.ms = clock_->milliseconds(start, stop);
  return timed;
}

StepProfiler::Result StepRunner::profile(std::int64_t step) {
  captured_.reset();
  rank_.prepare(data_, step, 0);
  StepProfiler profiler(rank_.device());
  const auto profiled = [&] {
    profiler.start();
    rank_.comm().set_observer(&profiler);
    rank_.enqueue();
    profiler.stop();
    rank_.comm().set_observer(nullptr);
  };
  if (captures()) {
    const std::unique_ptr<StepGraph> graph = capture_step(rank_.device(), profiled);
    rank_.comm().replay([&] { graph->replay(); });
    rank_.finish();
    return profiler.result();
  }
  profiled();
  rank_.finish();
  return profiler.result();
}

}  // namespace precbench
