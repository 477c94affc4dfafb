// The CUDA device apart from its ops: availability, memory, and errors during graph capture.
#include <stdexcept>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/device/buffers.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/gpu/graph.h"
#include "kernels/numerics/formats.h"

namespace precbench {
namespace {

TEST_CASE("find_gpus: a GPU or a reason why there is none", "[cuda]") {
  const VisibleGpus gpus = find_gpus();
  CHECK((gpus.count > 0) == gpus.reason.empty());
  if (gpus.count > 0) {
    CHECK(gpu_properties(0).compute_capability >= 80);
    CHECK_THROWS_AS(gpu_properties(gpus.count), InvalidInput);
  } else {
    CHECK_THROWS_AS(make_gpu_device(0), Unsupported);
  }
}

TEST_CASE("CudaDevice: an allocation that cannot fit throws OutOfMemory and leaves the device usable",
          "[gpu]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const GpuMemory memory = gpu_memory(0);
  CHECK_THROWS_AS(device->allocate(memory.total_bytes + 1), OutOfMemory);
  void* block = device->allocate(1 << 20);
  device->deallocate(block);
  device->synchronize();
}

TEST_CASE("capture: unsupported calls throw and the device stays usable", "[gpu][graph]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  std::vector<std::uint16_t> ones(128 * 128, bf16_encode(1.0f));
  Buffers buffers(*device);
  const GemmOperand operand{{}, buffers.copy_of(Tensor{ones.data(), DType::bf16, 128, 128}), {}, false};
  const Tensor d = buffers.tensor(DType::f32, 128, 128);
  std::vector<float> host(128 * 128);
  CHECK_THROWS_AS(capture_step(*device,
                               [&] {
                                 device->matmul({d, operand, operand, {}});
                               }),
                  std::logic_error);
  CHECK_THROWS_AS(capture_step(*device, [&] { device->upload(d, host.data()); }), std::logic_error);
  CHECK_THROWS_AS(capture_step(*device, [&] { device->download(host.data(), d); }), std::logic_error);
  CHECK_THROWS_AS(capture_step(*device, [&] { device->synchronize(); }), std::logic_error);
  device->matmul({d, operand, operand, {}});
  device->download(host.data(), d);
  CHECK(host == std::vector<float>(128 * 128, 128.0f));
}

// Detects kernels that read before the previous one has written: sums of many values, and GEMMs in between.
TEST_CASE("capture_step: early kernels start before the previous one ends and give the same results",
          "[gpu][graph]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  const std::int64_t n = 1024;
  std::vector<std::uint16_t> ones(n * n, bf16_encode(1.0f));
  Buffers buffers(*device);
  const GemmOperand operand{{}, buffers.copy_of(Tensor{ones.data(), DType::bf16, n, n}), {}, false};
  const Tensor product = buffers.tensor(DType::f32, n, n), sum = buffers.tensor(DType::f32, n, n);
  constexpr int kRounds = 20;
  const auto step = [&] {
    device->fill({sum, 0.0f});
    for (int round = 0; round < kRounds; ++round) {
      device->matmul({product, operand, operand, {}});
      device->add({sum, product});
      device->fill({product, 1.0f});
      device->add({sum, product});
    }
  };
  step();
  const std::unique_ptr<StepGraph> graph = capture_step(*device, step, KernelStart::early);
  if (gpu_properties(0).compute_capability >= 90) CHECK(graph->early_kernels() >= 3 * kRounds);
  CHECK(capture_step(*device, step)->early_kernels() == 0);
  std::vector<float> host(n * n);
  for (int replay = 0; replay < 20; ++replay) {
    graph->replay();
    device->download(host.data(), sum);
    CHECK(host == std::vector<float>(n * n, kRounds * (n + 1.0f)));
  }
}

}  // namespace
}  // namespace precbench
