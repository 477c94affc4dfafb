// Step times of traces with known answers: collectives beside ops, lanes, waits and repeated micro-steps.
#include "bench/predict/timeline.h"

#include <initializer_list>
#include <numeric>

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

/// Builds a trace of one op of a second, and collectives that last as long as their wire bytes say.
class Story {
 public:
  explicit Story(double contention = 0) : contention_(contention) {
    trace_.ops.push_back({.name = "work", .op_class = OpClass::gemm, .flops = 1});
    rates_.op_seconds = {1};
    trace_.comms = {{0, 1}, {0, 1}};
  }
  Story& work(int seconds) {
    for (int i = 0; i < seconds; ++i) trace_.events.push_back({TraceEvent::Kind::op, 0, 0});
    return *this;
  }
  Story& start(double seconds, int lane = 0) {
    const auto index = static_cast<std::int32_t>(trace_.collectives.size());
    trace_.collectives.push_back({"all_gather", 0, seconds, lane, lane});
    rates_.collective_seconds.push_back(seconds);
    rates_.contention.push_back(contention_);
    trace_.events.push_back({TraceEvent::Kind::start, index, 0});
    return *this;
  }
  Story& wait(int later = 0, int comm = 0) {
    trace_.events.push_back({TraceEvent::Kind::wait, comm, later});
    return *this;
  }
  Story& repeat_last(std::size_t events, std::int64_t times) {
    trace_.repeat_end = trace_.events.size();
    trace_.repeat_begin = trace_.repeat_end - events;
    trace_.repeats = times;
    return *this;
  }
  StepTime time() const {
    const StepTime time = step_time(trace_, rates_);
    const double sum = std::accumulate(time.class_seconds.begin(), time.class_seconds.end(), 0.0);
    CHECK(sum + time.contention + time.exposed_seconds() == Approx(time.seconds));
    return time;
  }

  Trace trace_;
  TimelineRates rates_;

 private:
  double contention_;
};

TEST_CASE("step_time: ops run one after the other", "[timeline]") {
  const StepTime time = Story().work(3).time();
  CHECK(time.seconds == 3);
  CHECK(time.class_seconds[static_cast<int>(OpClass::gemm)] == 3);
  CHECK(time.contention == 0);
}

TEST_CASE("step_time: a wait exposes what ops do not hide", "[timeline]") {
  CHECK(Story().start(5).work(2).wait().time().seconds == 5);
  CHECK(Story().start(5).work(2).wait().time().exposed_seconds() == 3);
  CHECK(Story().start(2).work(5).wait().time().seconds == 5);
  CHECK(Story().start(2).wait().work(5).time().seconds == 7);
  // Nothing waits for the collective, but a step ends when all is done.
  CHECK(Story().work(1).start(4).time().seconds == 5);
}

TEST_CASE("step_time: ops lose their share of the rate while a collective runs", "[timeline]") {
  // In two seconds beside the collective half of an op's two seconds is done.
  const StepTime partly = Story(0.5).start(2).work(3).time();
  CHECK(partly.seconds == 4);
  CHECK(partly.contention == 1);
  CHECK(partly.exposed_seconds() == 0);
  const StepTime wholly = Story(0.5).start(10).work(3).wait().time();
  CHECK(wholly.seconds == 10);
  CHECK(wholly.contention == 3);
  CHECK(wholly.exposed_seconds() == 4);
}

TEST_CASE("step_time: collectives of a lane queue, those of two lanes run at the same time", "[timeline]") {
  CHECK(Story().start(2).start(3).work(1).wait().time().seconds == 5);
  CHECK(Story().start(2).start(3).work(1).wait(1).time().exposed_seconds() == 4);
  CHECK(Story().start(2).start(3).work(1).wait(1).work(1).time().seconds == 5);
  CHECK(Story().start(2, 0).start(3, 1).wait(0, 0).wait(0, 1).time().seconds == 3);
  // Both take a quarter: the op does half of its work in the two seconds that both run.
  CHECK(Story(0.25).start(2, 0).start(2, 1).work(1).time().seconds == 2);
}

TEST_CASE("step_time: a wait names a collective by how many started after it", "[timeline]") {
  Story story;
  story.start(1).start(1).start(1).wait(2).work(1).wait(1).work(1).wait(0);
  CHECK(story.time().seconds == 3);
  CHECK(story.time().exposed_seconds() == 1);
}

TEST_CASE("step_time: repeated micro-steps take as long as all of them in a row", "[timeline]") {
  // A collective of each micro-step is waited for in the next one.
  const auto story = [](int times, bool unrolled) {
    Story one(0.3);
    one.start(4).work(2);
    if (unrolled)
      for (int i = 0; i < times; ++i) one.wait().start(4).work(3);
    else
      one.wait().start(4).work(3).repeat_last(5, times);
    one.work(1).wait();
    return one;
  };
  for (const int times : {1, 2, 3, 40}) {
    INFO(times);
    const Story repeated = story(times, false), unrolled = story(times, true);
    CHECK(repeated.time().seconds == Approx(unrolled.time().seconds));
    CHECK(repeated.time().contention == Approx(unrolled.time().contention));
    CHECK(repeated.time().exposed_seconds() == Approx(unrolled.time().exposed_seconds()));
  }
}

TEST_CASE("step_time: slower collectives never make a step faster", "[timeline]") {
  Story story(0.45);
  story.start(1).work(2).start(3).wait(1).work(1).start(2).work(1).wait(1).work(2).wait();
  double last = 0;
  for (const double slower : {0.5, 0.9, 1.0, 1.3, 2.0, 4.0, 10.0}) {
    Story scaled = story;
    for (double& seconds : scaled.rates_.collective_seconds) seconds *= slower;
    const double seconds = scaled.time().seconds;
    CHECK(seconds >= last);
    last = seconds;
  }
}

TEST_CASE("time_of_events: a part of a step starts with free lanes", "[timeline]") {
  Story story;
  story.start(3).work(1).wait().work(2).start(1).wait();
  CHECK(time_of_events(story.trace_, story.rates_, 0, story.trace_.events.size()).seconds == 6);
  CHECK(time_of_events(story.trace_, story.rates_, 3, 5).seconds == 2);
}

}  // namespace
}  // namespace precbench
