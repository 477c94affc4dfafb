// Tests shape and plateau of fork courses, on simulated courses with a known truth and on measured ones.
#include "tools/analysis/fork_course.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

constexpr double kSmall = 0.003;

/// Noise of courses: standard deviation and autocorrelation of each step, and of the offset that a trunk's
/// steps share.
struct Noise {
  double step, correlation, trunk;
};
/// Similar to SmolLM2's forks (golden/courses.json), and, smaller, to those of 36m on an H200.
constexpr Noise kTrained{0.0013, 0.1, 0.0002}, kCorrelated{0.0013, 0.5, 0.0002}, kYoung{0.0003, 0.1, 0.0001};

/// Returns measured courses by their name in golden/courses.json, which says what they are of; nats.
std::vector<std::vector<double>> real_course(const char* name) {
  std::ifstream file(PRECBENCH_SOURCE_DIR "/tools/analysis/golden/courses.json");
  auto courses = nlohmann::json::parse(file).at(name).get<std::vector<std::vector<double>>>();
  for (std::vector<double>& course : courses)
    for (double& difference : course) difference *= 1e-5;
  return courses;
}

/// Mean course, as a function of the step and of an amplitude factor that varies by a tenth between trunks.
using Course = std::function<double(double step, double amplitude)>;

class Simulated {
 public:
  Simulated(Course mean, Noise noise, int trunks, int steps, unsigned seed)
      : mean_(std::move(mean)), noise_(noise), trunks_(trunks), steps_(steps), random_(seed) {}

  ForkCourse draw() {
    std::vector<std::vector<double>> courses;
    for (int trunk = 0; trunk < trunks_; ++trunk) {
      const double offset = noise_.trunk * normal_(random_), amplitude = 1 + 0.1 * normal_(random_);
      double last = normal_(random_);
      courses.emplace_back();
      for (int step = 0; step < steps_; ++step) {
        last = noise_.correlation * last +
               std::sqrt(1 - noise_.correlation * noise_.correlation) * normal_(random_);
        courses.back().push_back(mean_(step, amplitude) + offset + noise_.step * last);
      }
    }
    return fit_course(courses, kSmall).value();
  }

  /// Returns the fraction of `count` simulated courses for which `holds` is true.
  template <class Holds>
  double share(const Holds& holds, int count = 400) {
    int found = 0;
    for (int i = 0; i < count; ++i) found += holds(draw());
    return static_cast<double>(found) / count;
  }

 private:
  Course mean_;
  Noise noise_;
  int trunks_, steps_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

Course relaxes(double plateau, double amplitude, double tau) {
  return [=](double step, double factor) { return plateau + factor * amplitude * std::exp(-step / tau); };
}

auto is(CourseShape shape) {
  return [=](const ForkCourse& course) { return course.shape == shape; };
}
bool has_plateau(const ForkCourse& course) { return course.plateau.has_value(); }

}  // namespace

TEST_CASE("fit_course: the plateau's 95% interval covers the truth at least 90% of the time", "[course]") {
  struct Truth {
    const char* words;
    Course course;
    double plateau;
    Noise noise;
  };
  for (const int steps : {150, 1000})
    for (const int trunks : {2, 3, 5}) {
      if (steps == 1000 && trunks != 3) continue;  // these take long
      const double length = steps;
      for (const Truth& truth :
           {Truth{"falls like SmolLM2", relaxes(0.015, 0.007, 18), 0.015, kTrained},
            Truth{"falls slowly", relaxes(0.015, 0.007, length / 6), 0.015, kTrained},
            Truth{"falls, noise is correlated", relaxes(0.015, 0.007, length / 8), 0.015, kCorrelated},
            Truth{"falls to zero", relaxes(0, 0.007, length / 8), 0, kTrained},
            Truth{"is flat", relaxes(0.001, 0, 1), 0.001, kYoung},
            Truth{"grows", relaxes(0.003, -0.002, length / 8), 0.003, kYoung}}) {
        INFO(truth.words << ", " << trunks << " trunks, " << steps << " steps");
        Simulated simulated(truth.course, truth.noise, trunks, steps, 7);
        int reached = 0, covered = 0;
        const int count = steps == 150 ? 400 : 200;
        for (int i = 0; i < count; ++i) {
          const ForkCourse course = simulated.draw();
          if (!course.plateau) continue;
          ++reached;
          covered += course.plateau->low <= truth.plateau && truth.plateau <= course.plateau->high;
        }
        CHECK(reached > 0.3 * count);
        if (trunks > 2) CHECK(reached > 0.9 * count);
        CHECK(covered >= 0.9 * reached);
      }
    }
}

TEST_CASE("fit_course: a plateau above zero is distinguished from one at zero", "[course]") {
  const auto above = [](const ForkCourse& course) { return course.above_zero(); };
  CHECK(Simulated(relaxes(0.015, 0.007, 18), kTrained, 3, 150, 8).share(above) > 0.99);
  CHECK(Simulated(relaxes(0, 0.007, 18), kTrained, 3, 150, 9).share(above) < 0.06);  // 2.5% by chance
}

TEST_CASE("fit_course: falling and flat and growing courses are recognized", "[course]") {
  for (const int steps : {60, 150, 1000}) {
    INFO(steps);
    CHECK(Simulated(relaxes(0.015, 0.007, steps / 8.0), kTrained, 3, steps, 1)
              .share(is(CourseShape::falling), 100) > 0.9);
    CHECK(Simulated(relaxes(0.003, -0.002, steps / 8.0), kYoung, 3, steps, 2)
              .share(is(CourseShape::growing), 100) > 0.9);
    CHECK(Simulated(relaxes(0.001, 0, 1), kYoung, 3, steps, 3).share(is(CourseShape::flat), 200) > 0.9);
  }
  // If trunks scatter by more than a change that matters, the shape is unclear.
  const Noise wide{0.02, 0.1, 0.01};
  CHECK(Simulated(relaxes(0.015, 0, 1), wide, 3, 150, 4).share(is(CourseShape::unclear)) > 0.9);
}

TEST_CASE("fit_course: a course that never settles has no plateau", "[course]") {
  const auto steps = 150.0;
  CHECK(Simulated([=](double t, double a) { return 0.0005 + 0.002 * a * std::sqrt(t / steps); }, kYoung, 3,
                  150, 1)
            .share(has_plateau) < 0.05);
  CHECK(Simulated([](double t, double a) { return 0.0005 + 0.0004 * a * std::log1p(t); }, kYoung, 3, 150, 2)
            .share(has_plateau) < 0.1);
  CHECK(Simulated([=](double t, double a) { return 0.015 - 0.006 * a * t / steps; }, kTrained, 3, 150, 3)
            .share(has_plateau) < 0.05);
  CHECK(Simulated(relaxes(0.015, 0.007, steps / 2), kTrained, 3, 150, 4).share(has_plateau) < 0.05);
  // With two trunks most shapes are unclear, which gives no plateau either.
  CHECK(Simulated(relaxes(0.015, 0.007, steps / 2), kTrained, 2, 150, 5).share(has_plateau) < 0.1);
}

TEST_CASE("fit_course: SmolLM2's gap falls to a plateau above zero and a one-bit change has no gap",
          "[course]") {
  const ForkCourse floor = fit_course(real_course("mxfp8_floor"), kSmall).value();
  CHECK(floor.shape == CourseShape::falling);
  REQUIRE(floor.plateau);
  CHECK(floor.plateau->mean == Approx(0.0225).margin(0.0003));
  CHECK(floor.above_zero());
  CHECK((floor.tau > 10 && floor.tau < 30));
  const ForkCourse mxfp8 = fit_course(real_course("mxfp8"), kSmall).value();
  CHECK(mxfp8.change.mean < -0.004);
  REQUIRE(mxfp8.plateau);
  CHECK(mxfp8.plateau->mean == Approx(0.0147).margin(0.0003));
  CHECK(mxfp8.above_zero());
  // 150 steps are too few to show a plateau here: a logarithm fits better.
  const ForkCourse tensorwise = fit_course(real_course("tensorwise"), kSmall).value();
  CHECK(tensorwise.shape == CourseShape::falling);
  CHECK_FALSE(tensorwise.plateau);
  const ForkCourse one_bit = fit_course(real_course("one bit"), kSmall).value();
  CHECK(one_bit.shape == CourseShape::flat);
  REQUIRE(one_bit.plateau);
  CHECK(std::abs(one_bit.plateau->mean) < 0.0002);
  CHECK_FALSE(one_bit.above_zero());
}

TEST_CASE("fit_course: too few trunks or steps or a non-finite loss returns null", "[course]") {
  const std::vector<double> flat(kFewestCourseSteps, 0.001), shorter(kFewestCourseSteps - 1, 0.001);
  CHECK(fit_course({flat, flat}, kSmall));
  CHECK_FALSE(fit_course({flat}, kSmall));
  CHECK_FALSE(fit_course({}, kSmall));
  CHECK_FALSE(fit_course({flat, shorter}, kSmall));
  std::vector<double> broken = flat;
  broken[3] = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(fit_course({flat, broken}, kSmall));
}
