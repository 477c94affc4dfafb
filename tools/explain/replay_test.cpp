// Replayed steps: who waits for whom.
#include "tools/explain/replay.h"

#include "kernels/testing/catch.h"
#include "tools/explain/trace_testing.h"

namespace precbench {
namespace {

ReplayItem launch(double host, double duration, std::int32_t stream = 7) {
  ReplayItem item;
  item.host = host;
  item.duration = duration;
  item.stream = stream;
  return item;
}

ReplayItem wait() {
  ReplayItem item;
  item.waits = true;
  return item;
}

}  // namespace

TEST_CASE("replay: a step takes as long as the slower of host and GPU", "[explain]") {
  const std::vector<ReplayItem> busy(10, launch(10'000, 100'000)), slow(10, launch(100'000, 10'000));
  CHECK(replay(busy, 1) == Approx(1e6).epsilon(0.001));
  CHECK(replay(slow, 1) == Approx(1e6).epsilon(0.001));
  CHECK(replay(slow, 0.5) == Approx(0.5e6).epsilon(0.001));  // half of the host's time was the profiler's
  CHECK(replay(busy, 0.5) == Approx(1e6).epsilon(0.001));
}

TEST_CASE("replay: a wait makes the GPU wait for the next launches", "[explain]") {
  std::vector<ReplayItem> items(4, launch(50'000, 100'000));
  const double ahead = replay(items, 1);
  items.insert(items.begin() + 2, wait());
  const double waiting = replay(items, 1);
  CHECK(ahead == Approx(400'000).epsilon(0.001));
  CHECK(waiting == Approx(400'000 + 50'000 + 9'000).epsilon(0.01));
  items[2].removed = true;
  items[2].waits = false;
  CHECK(replay(items, 1) == Approx(ahead).epsilon(0.001));
}

TEST_CASE("replay: a removed launch takes no time", "[explain]") {
  std::vector<ReplayItem> items(3, launch(1'000, 100'000));
  items[1].removed = true;
  CHECK(replay(items, 1) == Approx(200'000).epsilon(0.001));
}

TEST_CASE("replay: a kernel starts after the one on another stream that released it", "[explain]") {
  std::vector<ReplayItem> items = {launch(1'000, 100'000, 20), launch(1'000, 50'000, 7)};
  CHECK(replay(items, 1) == Approx(100'000).epsilon(0.001));  // side by side
  items[1].after = 0;
  CHECK(replay(items, 1) == Approx(150'000).epsilon(0.001));
}

TEST_CASE("replay: a trace's step is reproduced", "[explain]") {
  for (const testing::Planted planted : {testing::Planted::nothing, testing::Planted::synchronize,
                                         testing::Planted::launch_bound, testing::Planted::collectives}) {
    const std::string json = testing::StepWriter(false, planted).steps();
    const TrainingTrace trace = testing::parsed(json);
    const TraceSteps steps = find_steps(trace);
    const double replayed = replay(replay_items(trace, steps.step, steps.waits_at_end), 1);
    CHECK(replayed == Approx(static_cast<double>(steps.step.duration())).epsilon(0.03));
  }
}

TEST_CASE("replay: slow launches of the trace show that the profiler made the host slow", "[explain]") {
  const auto share = [](double call_us, int kernels) {
    testing::KinetoWriter writer;
    writer.launch_us = 20;
    writer.call_us = call_us;
    writer.begin_step(1);
    for (int i = 0; i < kernels; ++i) writer.kernel("aten::mul", "elementwise_kernel", 10);
    writer.end_step();
    const TrainingTrace trace = testing::parsed(writer.json());
    return host_share_of(trace, find_steps(trace).step);
  };
  CHECK(share(10, 40) == Approx(0.58).epsilon(0.01));
  CHECK(share(8, 40) > share(9, 40));
  CHECK(share(1, 40) == share(2, 40));    // at most a small part is the profiler's
  CHECK(share(19, 40) == share(15, 40));  // nor nearly all of it
  CHECK(share(10, 5) != share(10, 40));   // too few launches to tell
}

}  // namespace precbench
