// Pipeline schedules against closed forms: the bubble of equal stages is (p - 1) / (v m).
#include "bench/predict/pipeline.h"

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

PipelineTimes equal_stages(int stages, int groups, double forward, double backward, double transfer = 0) {
  const ChunkSeconds chunk{forward / groups, backward / groups};
  return {std::vector(static_cast<std::size_t>(stages), std::vector(static_cast<std::size_t>(groups), chunk)),
          transfer};
}

TEST_CASE("pipeline_seconds: equal stages idle for (p - 1) / (v m) of their work", "[pipeline]") {
  for (const int p : {1, 2, 4, 8})
    for (const int v : {1, 2, 5})
      for (const std::int64_t m : {8, 16, 64}) {
        INFO(p << " stages, " << v << " groups, " << m << " micro-batches");
        const PipelineTimes times = equal_stages(p, v, 1, 2);
        const double work = 3.0 * static_cast<double>(m);
        CHECK(busiest_stage_seconds(times, m) == Approx(work));
        CHECK(pipeline_seconds(times, m) == Approx(work * (1 + (p - 1.0) / (v * static_cast<double>(m)))));
      }
}

TEST_CASE("pipeline_seconds: fewer micro-batches than stages fill and drain once", "[pipeline]") {
  CHECK(pipeline_seconds(equal_stages(8, 1, 1, 2), 1) == Approx(8 * 3));
  CHECK(pipeline_seconds(equal_stages(8, 1, 1, 2), 3) == Approx(8 * 3 + 2 * 3));
}

TEST_CASE("pipeline_seconds: a slow last stage sets the pace", "[pipeline]") {
  PipelineTimes times = equal_stages(4, 1, 1, 2);
  times.chunks.back().front() = {2, 4};
  const std::int64_t m = 100;
  // The last stage is never idle between its first and its last pass.
  CHECK(pipeline_seconds(times, m) == Approx(3 * 1 + 6 * static_cast<double>(m) + 3 * 2));
}

TEST_CASE("pipeline_seconds: transfers lengthen filling and draining and 1F1B's turns", "[pipeline]") {
  const double without = pipeline_seconds(equal_stages(4, 1, 1, 2), 1);
  CHECK(pipeline_seconds(equal_stages(4, 1, 1, 2, 0.25), 1) == Approx(without + 2 * 3 * 0.25));
  double before = 0;
  for (const double transfer : {0.0, 0.1, 0.5, 1.0}) {
    const double now = pipeline_seconds(equal_stages(4, 2, 1, 2, transfer), 16);
    CHECK(now >= before);
    before = now;
  }
}

TEST_CASE(
    "micro_batches_in_flight: the first stage of 1F1B holds p and interleaved 1 + (p - 1) / (p v) times as many",
    "[pipeline]") {
  CHECK(micro_batches_in_flight(4, 1, 0, 64) == 4);
  CHECK(micro_batches_in_flight(4, 1, 3, 64) == 1);
  CHECK(micro_batches_in_flight(4, 1, 0, 2) == 2);
  for (const int p : {2, 4, 8})
    for (const int v : {2, 4}) {
      const double expected = p * (1 + (p - 1.0) / (p * v));
      CHECK(micro_batches_in_flight(p, v, 0, 64) == Approx(expected));
    }
}

TEST_CASE("layers_by_group: divides layers in order and counts embedding and head where that makes them even",
          "[pipeline]") {
  using Groups = std::vector<std::vector<std::int64_t>>;
  CHECK(layers_by_group(8, 2, 2) == Groups{{2, 2}, {2, 2}});
  CHECK(layers_by_group(80, 8, 5).front() == std::vector<std::int64_t>{2, 2, 2, 2, 2});
  const Groups large = layers_by_group(126, 8, 8);
  CHECK(large.front().front() == 1);
  CHECK(large.back().back() == 1);
  CHECK(large[3][4] == 2);
  CHECK(layers_by_group(5, 1, 1) == Groups{{5}});
  std::int64_t sum = 0;
  for (const auto& stage : layers_by_group(10, 4, 1))
    for (const std::int64_t n : stage) sum += n;
  CHECK(sum == 10);
}

}  // namespace
}  // namespace precbench
