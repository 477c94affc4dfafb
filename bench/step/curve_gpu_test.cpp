// Whole runs on a GPU follow the CPU device's. Any two runs of a model drift apart, whatever difference
// starts it, so the tolerance is measured too: the same GPU run from initial weights disturbed by up to one
// BF16 rounding, in three ways. The undisturbed GPU run may be at most twice as far from the CPU's curve as
// the farthest of these is from it (root mean square over the steps, nats).
#include <algorithm>
#include <cmath>
#include <thread>

#include "bench/predict/predict.h"
#include "bench/step/rank_testing.h"
#include "bench/step/step_runner.h"
#include "bench/step/weights.h"
#include "kernels/gpu/gpu_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr int kCurveSteps = 200;
constexpr double kBf16Roundoff = 0x1p-9;

std::unique_ptr<Device> repeatable_gpu() {
  return make_gpu_device(0, {.autotune = false, .deterministic = true});
}

/// Multiplies every weight by 1 + e, |e| <= one BF16 rounding.
void disturb(Parameters& parameters, std::uint64_t seed) {
  const Named weights = saved(parameters, Parameters::Kind::weights);
  std::uint64_t drawn = 0;
  parameters.load([&](const Parameter& p, float* values) {
    const std::vector<float>& before = weights.at(p.name);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double uniform = 2 * (random_bits(seed, drawn++) * 0x1p-32) - 1;
      values[i] = static_cast<float>(before[i] * (1 + uniform * kBf16Roundoff));
    }
  });
}

/// Returns the losses of `steps` steps. `disturbed_by`: seed of the disturbance, 0 for none.
std::vector<double> curve(Device& device, const Plan& plan, std::uint64_t disturbed_by, int steps) {
  const std::unique_ptr<DataSource> data = tokens_of(plan);
  const std::unique_ptr<CommGroup> group = make_local_group(1);
  const std::unique_ptr<Comm> comm = group->join(0, device);
  const std::int64_t bytes = dry_run(plan, &device).extent + watching_bytes(plan);
  const NanBlock block(device, bytes);
  Rank rank(device, *comm, plan, block.data(), bytes);
  rank.parameters().initialize(plan.seed, kInitialDeviation);
  if (disturbed_by) disturb(rank.parameters(), disturbed_by);
  StepRunner runner(rank, *data, GraphMode::on);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) losses.push_back(runner.run(step, 0).result.loss);
  return losses;
}

/// Compares the steps that both curves have.
double root_mean_square_difference(const std::vector<double>& x, const std::vector<double>& y) {
  const std::size_t n = std::min(x.size(), y.size());
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i) squares += (x[i] - y[i]) * (x[i] - y[i]);
  return std::sqrt(squares / static_cast<double>(n));
}

double mean(std::vector<double>::const_iterator from, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += from[static_cast<std::ptrdiff_t>(i)];
  return sum / static_cast<double>(count);
}

/// `cpu_steps`: number of leading steps, of kSteps, that the CPU runs too.
void check_curves(const Case& c, int cpu_threads, int cpu_steps) {
  const Plan plan = validate(c);
  INFO(c.model << " " << c.recipe);
  const std::vector<double> gpu = curve(*repeatable_gpu(), plan, 0, kCurveSteps);
  const std::vector<double> cpu = curve(*make_cpu_device(cpu_threads), plan, 0, cpu_steps);
  double band = 0;
  for (const std::uint64_t way : {11, 12, 13}) {
    const std::vector<double> disturbed = curve(*repeatable_gpu(), plan, way, cpu_steps);
    band = std::max(band, root_mean_square_difference(disturbed, gpu));
  }
  CHECK(band > 0);
  const double apart = root_mean_square_difference(gpu, cpu);
  CAPTURE(apart, band);
  CHECK(apart <= 2 * band);
  // The loss must fall: a flat curve would be easy to follow.
  constexpr std::size_t kWindow = 10;
  CHECK(mean(gpu.end() - kWindow, kWindow) < mean(gpu.begin(), kWindow) - 20 * band);
}

}  // namespace

TEST_CASE("200 steps of tiny on a GPU follow the CPU within twice the drift of disturbed runs", "[gpu]") {
  if (!gpu_here()) return;
  for (const char* recipe : {"bf16", "tensorwise", "rowwise", "blockwise", "mxfp8"}) {
    Case c;
    c.recipe = recipe;
    c.batch = 4;
    c.seq = 64;
    c.lr = 1e-3;
    c.warmup = 10;
    check_curves(c, 4, kCurveSteps);
  }
}

TEST_CASE("50 CPU steps of 125m are followed by a GPU within twice the drift of disturbed runs", "[gpu]") {
  if (!gpu_here()) return;
  Case c;
  c.model = "125m";
  c.batch = 1;
  c.seq = 64;
  c.lr = 1e-4;
  c.warmup = 20;
  // One CPU step takes half a second on 16 cores.
  constexpr int kCpuSteps = 50;
  check_curves(c, static_cast<int>(std::max(1u, std::thread::hardware_concurrency())), kCpuSteps);
}
