// Ranks on GPUs over NCCL: collectives against sums made here, and training that does not depend on how many
// GPUs there are or how they share the model. Skipped where fewer than two GPUs are visible.
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "bench/plan.h"
#include "bench/predict.h"
#include "bench/rank.h"
#include "bench/step_runner.h"
#include "bench/team.h"
#include "bench/weights.h"
#include "kernels/cuda/device_info.h"
#include "kernels/devices.h"
#include "kernels/formats.h"
#include "models/step_testing.h"
#include "tools/catch.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// As many as there are, four at most; 0 after saying why where that is fewer than two.
int gpus_or_skip() {
  const VisibleGpus gpus = find_gpus();
  if (gpus.count >= 2) return std::min(gpus.count, 4);
  WARN("skipped: " << (gpus.count ? "only one GPU is visible" : gpus.reason));
  return 0;
}

/// The same kernels whatever the number of ranks, and sums in one order.
constexpr CudaOptions kRepeatable{.autotune = false, .deterministic = true};

/// body(rank, device, comm) on `ranks` GPUs.
template <class Body>
void on_gpus(int ranks, Body&& body) {
  const std::unique_ptr<CommGroup> group =
      ranks > 1 ? make_nccl_group(ranks, ranks) : make_local_group(ranks);
  run_team(
      ranks,
      [&](int rank) {
        const std::unique_ptr<Device> device = make_cuda_device(rank, kRepeatable);
        const std::unique_ptr<Comm> comm = group->join(rank, *device);
        body(rank, *device, *comm);
      },
      [&] { group->abort(); });
}

class GpuBlock {
 public:
  GpuBlock(Device& device, std::int64_t bytes) : device_(device), data_(device.allocate(bytes)) {}
  ~GpuBlock() { device_.deallocate(data_); }
  GpuBlock(const GpuBlock&) = delete;
  GpuBlock& operator=(const GpuBlock&) = delete;
  void* data() const { return data_; }

 private:
  Device& device_;
  void* data_;
};

struct Trained {
  std::vector<double> losses, norms;
  Named weights;
};

/// 8 sequences in all, over ranks and accumulation steps, so that every setting sees the same tokens.
Trained train(const std::string& recipe, int ranks, const std::string& parallel, int shard_group = 1,
              bool graph = false, int accumulation = 1) {
  Case c;
  c.model = "tiny";
  c.recipe = recipe;
  c.gpus = ranks;
  c.batch = 8 / ranks / accumulation;
  c.accumulation = accumulation;
  c.parallel = parallel;
  c.shard_group = shard_group;
  c.lr = 1e-3;
  const Plan plan = make_plan(c);
  const std::unique_ptr<DataSource> data = open_data(data_options(c, plan.model));
  Trained trained;
  on_gpus(ranks, [&](int index, Device& device, Comm& comm) {
    const std::int64_t bytes = dry_run(plan, &device).extent + (std::int64_t{1} << 24);
    const GpuBlock block(device, bytes);
    Rank rank(device, comm, plan, block.data(), bytes);
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    StepRunner runner(rank, *data, graph);
    for (int step = 0; step < 5; ++step) {
      const StepResult result = runner.run(step, 0).result;
      if (index > 0) continue;
      trained.losses.push_back(result.loss);
      trained.norms.push_back(result.grad_norm);
    }
    rank.parameters().save(Parameters::Kind::weights, [&](const Parameter& p, const float* values) {
      if (index == 0) trained.weights[p.name].assign(values, values + p.size());
    });
  });
  return trained;
}

}  // namespace

TEST_CASE("NCCL's collectives", "[gpu][comm]") {
  const int ranks = gpus_or_skip();
  if (!ranks) return;
  constexpr std::int64_t n = 1021;
  std::vector<int> wrong(ranks);
  on_gpus(ranks, [&](int r, Device& device, Comm& comm) {
    const GpuBlock block(device, 1 << 20);
    Arena arena(block.data(), 1 << 20);
    // Small whole numbers: every order of summation is exact, in BF16 too.
    const auto value = [](int rank, std::int64_t i) { return static_cast<float>((rank * 5 + i) % 13); };
    const auto put = [&](std::int64_t size, auto&& f) {
      const Tensor x = arena.push(Segment::other, DType::f32, 1, size);
      std::vector<float> values(size);
      for (std::int64_t i = 0; i < size; ++i) values[i] = f(i);
      device.upload(x, values.data());
      return x;
    };
    const auto check = [&](const Tensor& x, auto&& expected) {
      std::vector<float> got(x.size());
      device.download(got.data(), x);
      for (std::int64_t i = 0; i < x.size(); ++i) {
        const float want = expected(i);
        wrong[r] += !(got[i] == want || (std::isnan(got[i]) && std::isnan(want)));
      }
    };
    const auto sum = [&](std::int64_t i) {
      float total = 0;
      for (int k = 0; k < ranks; ++k) total += value(k, i);
      return total;
    };
    const Tensor x = put(n, [&](std::int64_t i) { return value(r, i); });
    const Tensor low = arena.push(Segment::other, DType::bf16, 1, n);
    const Tensor back = arena.push(Segment::other, DType::f32, 1, n);
    device.convert(low, x);
    comm.all_reduce(x);
    check(x, sum);
    comm.all_reduce(low);
    device.convert(back, low);
    check(back, sum);

    const Tensor shard = put(n, [&](std::int64_t i) { return value(r, i); });
    const Tensor full = arena.push(Segment::other, DType::f32, 1, n * ranks);
    comm.all_gather(full, shard);
    check(full, [&](std::int64_t i) { return value(static_cast<int>(i / n), i % n); });
    comm.reduce_scatter(shard, full);  // every rank holds the same `full`
    check(shard, [&](std::int64_t i) { return static_cast<float>(ranks) * value(r, i); });

    const float nan = std::nanf("");
    const Tensor amax =
        put(3, [&](std::int64_t i) { return i == 2 && r == 1 ? nan : static_cast<float>(r + i); });
    comm.all_reduce_max(amax);
    check(amax, [&](std::int64_t i) { return i == 2 ? nan : static_cast<float>(ranks - 1 + i); });

    const std::unique_ptr<Comm> pair = comm.subset({r / 2 * 2, r / 2 * 2 + 1});
    const Tensor two = put(1, [&](std::int64_t) { return static_cast<float>(r); });
    pair->all_reduce(two);
    check(two, [&](std::int64_t) { return static_cast<float>(r / 2 * 4 + 1); });
  });
  CHECK(wrong == std::vector<int>(ranks));
}

TEST_CASE("a collective in flight leaves what the device does meanwhile alone", "[gpu][comm]") {
  const int ranks = gpus_or_skip();
  if (!ranks) return;
  constexpr std::int64_t n = 1 << 20;
  std::vector<int> wrong(ranks);
  on_gpus(ranks, [&](int r, Device& device, Comm& comm) {
    const std::int64_t bytes = 64 << 20;
    const GpuBlock block(device, bytes);
    Arena arena(block.data(), bytes);
    const Tensor a = arena.push(Segment::other, DType::f32, 1, n),
                 b = arena.push(Segment::other, DType::f32, 1, n);
    std::vector<float> got(n);
    for (int round = 0; round < 100; ++round) {  // more than the events that are used in turn
      device.fill(a, 1.0f);
      const Comm::Ticket first = comm.start_all_reduce(a);
      device.fill(b, 2.0f);
      const Comm::Ticket second = comm.start_all_reduce(b);
      comm.wait(second);  // and with it the first
      comm.wait(first);
      device.add(b, a);
    }
    device.download(got.data(), b);
    for (const float v : got) wrong[r] += v != 3.0f * static_cast<float>(ranks);
  });
  CHECK(wrong == std::vector<int>(ranks));
}

TEST_CASE("GPUs train alike however they share the model", "[gpu][rank]") {
  const int gpus = gpus_or_skip();
  if (!gpus) return;
  for (const char* recipe : {"bf16", "tensorwise", "blockwise"}) {
    // One scale spans the tokens of one rank only, so tensorwise is compared among equal numbers of ranks.
    const bool by_rank = std::string(recipe) == "tensorwise";
    const Trained one = train(recipe, by_rank ? gpus : 1, "ddp");
    struct Setting {
      int ranks;
      std::string parallel;
      int shard_group;
      int accumulation = 1;
    };
    std::vector<Setting> settings = {{2, "ddp", 1}, {2, "fsdp", 1}, {2, "fsdp", 1, 2}, {gpus, "fsdp", 1}};
    if (gpus == 4) settings.push_back({4, "ddp", 1});
    if (gpus == 4) settings.push_back({4, "hsdp", 2});
    for (const Setting& s : settings) {
      if (by_rank && (s.ranks != gpus || s.accumulation > 1)) continue;
      for (const bool graph : {false, true}) {
        INFO(recipe << " " << s.ranks << " GPUs " << s.parallel << " accumulation " << s.accumulation
                    << (graph ? " graph" : ""));
        const Trained many = train(recipe, s.ranks, s.parallel, s.shard_group, graph, s.accumulation);
        REQUIRE(many.losses.size() == one.losses.size());
        // Weights of a step differ by FP32 roundoff of the gradients' sums and so, here and there, by one
        // BF16 rounding; five steps of that, at a loss near 5.
        for (std::size_t i = 0; i < one.losses.size(); ++i) {
          CHECK(std::fabs(many.losses[i] / one.losses[i] - 1) < 1e-4);
          CHECK(std::fabs(many.norms[i] / one.norms[i] - 1) < 5e-3);
        }
        const Farthest far = farthest(many.weights, one.weights);
        INFO(far.name);
        CHECK(far.distance < 1e-3);
      }
    }
  }
}
