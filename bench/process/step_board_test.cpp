// Descriptions of ranks that do not progress, including real ones that wait for each other.
#include "bench/process/step_board.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/step/rank_threads_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"

using namespace precbench;
using Stage = StepBoard::Stage;

TEST_CASE("StepBoard: describe names the ranks that are behind", "[board]") {
  StepBoard board;
  CHECK(!board.describe());
  CHECK(board.missing_first_step() == "its ranks have not started");
  board.open({4, 2, 2, 0});
  CHECK(board.missing_first_step() == board.describe());
  CHECK(board.describe() == "none of the ranks 2-3 has begun step 1");
  board.note(2, 0, Stage::begun);
  CHECK(board.describe() == "rank 3 has not begun step 1; the others have");
  for (const int rank : {2, 3})
    for (const Stage stage : {Stage::begun, Stage::enqueued, Stage::finished}) board.note(rank, 6, stage);
  CHECK(!board.missing_first_step());
  CHECK(board.describe() == "none of the ranks 2-3 has begun step 8");
  board.note(3, 7, Stage::begun);
  board.note(3, 7, Stage::enqueued);
  board.note(2, 7, Stage::begun);
  CHECK(board.describe() == "rank 2 has not enqueued step 8; the others have");
  board.open({4, 0, 4, 0});
  board.note(1, 0, Stage::begun);
  board.note(2, 0, Stage::begun);
  CHECK(board.describe() == "ranks 0, 3 have not begun step 1; the others have");
  board.open(all_ranks(1));
  board.note(0, 0, Stage::enqueued);
  CHECK(board.describe() == "rank 0 has not finished step 1");
}

TEST_CASE("StepBoard: describe knows the work after the steps", "[board]") {
  StepBoard board;
  board.open(all_ranks(2));
  for (const int rank : {0, 1}) board.note(rank, 4, Stage::enqueued);
  board.note(0, 4, Stage::finished);
  board.note_work(0, "the profiled step");
  CHECK(board.describe() == "rank 1 has not finished step 5; the others have");
  board.note(1, 4, Stage::finished);
  CHECK(board.describe() == "rank 1 has not begun the profiled step; the others have");
  board.note_work(1, "the profiled step");
  CHECK(board.describe() == "none of the ranks 0-1 has finished the profiled step");
  board.note_work(1, "the collectives alone");
  CHECK(board.describe() == "rank 0 has not finished the profiled step; the others have");
  board.note_work(0, "the collectives alone");
  CHECK(board.describe() == "none of the ranks 0-1 has finished the collectives alone");
}

TEST_CASE("StepBoard: describe forgets the work between earlier steps", "[board]") {
  StepBoard board;
  board.open(all_ranks(2));
  for (const int rank : {0, 1}) board.note_work(rank, "the fidelity probe");
  CHECK(board.describe() == "none of the ranks 0-1 has finished the fidelity probe");
  for (const int rank : {0, 1}) board.note(rank, 0, Stage::finished);
  CHECK(board.describe() == "none of the ranks 0-1 has begun step 2");
  for (const int rank : {0, 1}) board.note_work(rank, "the held-out loss");
  CHECK(board.describe() == "none of the ranks 0-1 has finished the held-out loss");
  board.note(1, 1, Stage::begun);
  CHECK(board.describe() == "rank 0 has not finished the held-out loss; the others have");
  board.note(0, 1, Stage::begun);
  CHECK(board.describe() == "none of the ranks 0-1 has enqueued step 2");
}

TEST_CASE("StepBoard: durations add up to the time since its creation, by kind of work of the first rank",
          "[board]") {
  const auto begun = std::chrono::steady_clock::now();
  StepBoard board;
  board.open({4, 2, 2, 0});
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  wait();
  board.note_work(2, "the fidelity probe");
  wait();
  board.note_work(3, "the fidelity probe");  // another rank's, not counted
  for (const std::int64_t step : {0, 1}) {
    board.note(2, step, Stage::begun);
    wait();
    board.note(2, step, Stage::finished);
    board.note_work(2, "a checkpoint");
    wait();
  }
  const std::vector<WorkTime> times = board.durations();
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begun;
  REQUIRE(times.size() == 4);
  double sum = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    CHECK(times[i].work == std::vector<std::string>{"start", "fidelity probe", "steps", "checkpoint"}[i]);
    CHECK(times[i].s >= (i < 2 ? 0.02 : 0.04));
    sum += times[i].s;
  }
  CHECK(sum <= all.count());
}

TEST_CASE("StepBoard: describe names a sleeping rank while the others wait for it", "[board]") {
  constexpr int kRanks = 4, kSleeper = 2, kStep = 3;
  StepBoard board;
  std::atomic<bool> awake = false;
  std::thread ranks([&] {
    run_meetings(all_ranks(kRanks), 5, board, [&](int rank, int step) {
      if (rank == kSleeper && step == kStep) awake.wait(false);
    });
  });
  const bool named =
      eventually([&] { return board.describe() == "rank 2 has not enqueued step 4; the others have"; });
  awake = true;
  awake.notify_all();
  ranks.join();
  CHECK(named);
  CHECK(board.describe() == "none of the ranks 0-3 has begun step 6");
}

TEST_CASE("StepBoard: describe names a failed rank while another does not return", "[board]") {
  StepBoard board;
  std::atomic<bool> awake = false;
  std::string failure;
  std::thread ranks([&] {
    try {
      run_rank_threads(
          all_ranks(3),
          [&](int rank) {
            if (rank == 1) throw std::runtime_error("the cable is out");
            if (rank == 2) awake.wait(false);
          },
          [] {}, &board);
    } catch (const std::runtime_error& error) {
      failure = error.what();
    }
  });
  const bool named = eventually([&] { return board.describe() == "rank 1 failed: the cable is out"; });
  awake = true;
  awake.notify_all();
  ranks.join();
  CHECK(named);
  CHECK(failure == "rank 1: the cable is out");
}
