// GPU devices by name; needs no GPU.
#include "kernels/gpu/device_info.h"

#include "kernels/device/devices.h"
#include "kernels/gpu/graph.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

TEST_CASE("gpu_device_names: every GPU device has a unique name that a case may use", "[gpu_names]") {
  CHECK(gpu_device_names() == std::vector<std::string>{"cuda"});
  for (const std::string& name : gpu_device_names()) CHECK(is_gpu(name));
  for (const char* name : {"cpu", "auto", "dry", "", "cud", "cuda "}) CHECK_FALSE(is_gpu(name));
}

TEST_CASE("best_device: a GPU if one can be used", "[gpu_names]") {
  const VisibleGpus gpus = find_gpus();
  CHECK(is_gpu(best_device()) == (gpus.count > 0));
  CHECK((gpus.count > 0 || best_device() == "cpu"));
  CHECK(gpus.reason.empty() == (gpus.count > 0));
}

TEST_CASE("cpu_fallback_warning: only if a driver is loaded and no GPU can be used", "[gpu_names]") {
  CHECK(cpu_fallback_warning({0, "CUDA does not start: invalid device ordinal", "cuda", true}) ==
        "--device auto: runs on the CPU: CUDA does not start: invalid device ordinal");
  CHECK(!cpu_fallback_warning({0, "no NVIDIA driver is loaded on this machine", "cuda"}));
  CHECK(!cpu_fallback_warning({2, "", "cuda", true}));
}

TEST_CASE("gpu_unsupported_reason: a GPU device rejects unsupported shapes and other devices accept all",
          "[gpu_names]") {
  const auto holds = [](const std::optional<std::string>& text, const char* part) {
    return text && text->find(part) != std::string::npos;
  };
  CHECK(!gpu_unsupported_reason("cuda", 4096, {128, 128, 128}));
  CHECK(holds(gpu_unsupported_reason("cuda", 16392, {128}), "at most 16384, not 16392"));
  CHECK(holds(gpu_unsupported_reason("cuda", 4096, {24}), "multiple of 16, not 24"));
  CHECK(holds(gpu_unsupported_reason("cuda", 4096, {48, 48, 48}), "power of two up to 512, not 48"));
  // QK-norm over all heads: any head size that RoPE supports, up to the elements that a block's threads hold.
  CHECK(!gpu_unsupported_reason("cuda", 4096, {48, 48 * 16, 48 * 4}));
  CHECK(!gpu_unsupported_reason("cuda", 4096, {128, 8192, 8192}));
  CHECK(holds(gpu_unsupported_reason("cuda", 4096, {128, 16384, 1024}), "at most 16384, not 16384 and 1024"));
  CHECK(!gpu_unsupported_reason("cpu", 16392, {24, 24, 24}));
}

TEST_CASE("code_for: machine code within a generation and PTX for later ones", "[gpu_names]") {
  const std::string all = "80 89-real 90a-real 100";
  CHECK(code_for(80, all) == GpuCode::compiled);
  CHECK(code_for(86, all) == GpuCode::compiled);
  CHECK(code_for(89, all) == GpuCode::compiled);
  CHECK(code_for(90, all) == GpuCode::compiled);
  CHECK(code_for(103, all) == GpuCode::compiled);
  CHECK(code_for(120, all) == GpuCode::jit);
  CHECK(code_for(75, all) == GpuCode::none);
  CHECK(code_for(90, "90a-real") == GpuCode::compiled);
  CHECK(code_for(100, "90a-real") == GpuCode::none);
  CHECK(code_for(100, "90-virtual") == GpuCode::jit);
  CHECK(code_for(90, "90-virtual") == GpuCode::jit);
  CHECK(code_for(90, "80") == GpuCode::jit);
  CHECK(code_for(90, "80-real") == GpuCode::none);
  CHECK(code_for(90, "") == GpuCode::none);
}

TEST_CASE("hopper_fallback_reason: without tensor maps only Hopper gives a warning", "[gpu_names]") {
  CHECK(hopper_fallback_reason(90, false).value().starts_with("driver: "));
  CHECK(!hopper_fallback_reason(90, true));
  CHECK(!hopper_fallback_reason(89, false));
  CHECK(!hopper_fallback_reason(100, false));
}

TEST_CASE("has_graphs: false for the CPU device", "[gpu_names]") {
  CHECK_FALSE(has_graphs(*make_cpu_device(1)));
}

}  // namespace
}  // namespace precbench
