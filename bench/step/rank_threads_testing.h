// For tests: rank threads on the CPU, with real collectives between them.
#pragma once

#include <memory>

#include "bench/step/rank_threads.h"
#include "kernels/comm/comm.h"
#include "kernels/device/devices.h"

namespace precbench {

/// Runs body(rank, device, comm) for every rank of the share with run_rank_threads, each with a CPU device of
/// one thread. `comm` connects the share's ranks and is aborted when one of them throws.
template <class Body>
void run_cpu_rank_threads(const NodeShare& share, Body&& body, StepBoard* board = nullptr) {
  const std::unique_ptr<CommGroup> group = make_local_group(share.local);
  run_rank_threads(
      share,
      [&](int rank) {
        const std::unique_ptr<Device> device = make_cpu_device(1);
        const std::unique_ptr<Comm> comm = group->join(rank - share.first, *device);
        body(rank, *device, *comm);
      },
      [&] { group->abort(); }, board);
}

/// Runs ranks that meet in a collective once a step and note their progress on the board.
/// before_meeting(rank, step) may delay a rank.
template <class BeforeMeeting>
void run_meetings(const NodeShare& share, int steps, StepBoard& board, BeforeMeeting&& before_meeting) {
  const auto body = [&](int rank, Device&, Comm& comm) {
    float value = 1;
    for (int step = 0; step < steps; ++step) {
      board.note(rank, step, StepBoard::Stage::begun);
      before_meeting(rank, step);
      board.note(rank, step, StepBoard::Stage::enqueued);
      comm.all_reduce(Tensor{&value, DType::f32, 1, 1});
      board.note(rank, step, StepBoard::Stage::finished);
    }
  };
  run_cpu_rank_threads(share, body, &board);
}

}  // namespace precbench
