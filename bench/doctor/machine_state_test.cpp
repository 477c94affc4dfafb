// Judgement of made-up machines: every line of the doctor in its good and bad states, with the remedy.
#include "bench/doctor/machine_state.h"

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

/// A healthy H200 in a build of the newest libraries.
MachineFacts healthy() {
  MachineFacts facts;
  facts.visible = {1, "", "cuda"};
  facts.architectures = "80 89-real 90a-real 100";
  facts.shared_memory_bytes = std::int64_t{64} << 30;
  GpuFacts gpu;
  gpu.properties.name = "NVIDIA H200";
  gpu.properties.description = "NVIDIA H200, compute capability 9.0, 140 GiB, cuBLASLt 13.1.0";
  gpu.properties.compute_capability = 90;
  gpu.properties.ecc = 1;
  gpu.properties.power_limit_w = 700;
  gpu.properties.driver = "580.159.04";
  gpu.properties.cuda_runtime = gpu.properties.cuda_driver = "13.0";
  gpu.properties.cublaslt = "13.1.0", gpu.properties.cudnn = "9.14.0", gpu.properties.nccl = "2.28.3";
  gpu.peaks = datasheet_rates(gpu.properties.name);
  gpu.nvml = true;
  gpu.default_power_limit_w = 700;
  gpu.max_sm_clock_mhz = 1980;
  gpu.reading.sm_clock_mhz = 345;
  gpu.ecc_errors = 0;
  gpu.mig = false;
  gpu.pcie = NvmlGpu::PcieLink{16, 16, 5};
  for (const char* name : {"bf16", "tensorwise", "rowwise", "mxfp8"}) {
    const std::optional<int> needed = cublaslt_needed(find_recipe(name), 90);
    gpu.recipes.push_back(
        {name, {needed ? Execution::native : Execution::emulated, needed ? "" : "no mode"}, needed});
  }
  facts.gpus = {gpu};
  return facts;
}

HealthLine line_of(const MachineFacts& facts, const std::string& subject) {
  for (const HealthLine& line : judge_machine(facts))
    if (line.subject == subject) return line;
  FAIL("no line of " << subject);
  return {};
}

bool says(const HealthLine& line, Health health, const std::string& part) {
  INFO(line.text);
  CHECK(line.health == health);
  return line.text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("judge_machine: a healthy machine has only ok lines", "[doctor]") {
  const HealthLines lines = judge_machine(healthy());
  CHECK(lines.size() == 15);
  for (const HealthLine& line : lines) {
    INFO(line.text);
    CHECK(line.health == Health::ok);
  }
  const std::string text = to_text(lines, {200, true});
  CHECK(text.find("ok       GPU 0 code         compiled for 9.0") != std::string::npos);
}

TEST_CASE("judge_machine: no GPU is a warning with the reason", "[doctor]") {
  MachineFacts facts;
  facts.visible = {0, "no NVIDIA driver is loaded on this machine", "cuda"};
  CHECK(says(line_of(facts, "GPU"), Health::warn, "no NVIDIA driver is loaded"));
  CHECK(says(line_of(facts, "memlock"), Health::ok, "unlimited"));
  CHECK(says(line_of(facts, "/dev/shm"), Health::unknown, "not there"));
}

TEST_CASE("judge_machine: code is compiled or JIT or missing", "[doctor]") {
  MachineFacts facts = healthy();
  facts.architectures = "80";
  CHECK(says(line_of(facts, "GPU 0 code"), Health::warn, "-DPRECBENCH_CUDA_ARCHS=90"));
  facts.architectures = "100-real";
  CHECK(says(line_of(facts, "GPU 0 code"), Health::fail, "none for 9.0 (build: 100-real)"));
}

TEST_CASE("judge_machine: a driver older than the runtime", "[doctor]") {
  MachineFacts facts = healthy();
  GpuProperties& gpu = facts.gpus[0].properties;
  gpu.cuda_driver = "12.8", gpu.cuda_runtime = "12.9";
  CHECK(says(line_of(facts, "GPU 0 driver"), Health::warn, "minor-version compatibility"));
  gpu.cuda_runtime = "13.0";
  CHECK(says(line_of(facts, "GPU 0 driver"), Health::fail, "update the driver"));
  gpu.cuda_driver = "";
  CHECK(says(line_of(facts, "GPU 0 driver"), Health::unknown, "not known"));
}

TEST_CASE("judge_machine: an old cuBLASLt names the recipes that it costs", "[doctor]") {
  MachineFacts facts = healthy();
  GpuFacts& gpu = facts.gpus[0];
  gpu.properties.cublaslt = "12.8.4";
  gpu.recipes[2].support = {Execution::emulated, "needs cuBLASLt 12.9"};  // rowwise
  CHECK(says(line_of(facts, "GPU 0 cuBLASLt"), Health::warn, "12.8.4; 12.9 would make native: rowwise"));
  CHECK(says(line_of(facts, "GPU 0 recipes"), Health::ok, "2 of 4 recipes native: bf16 tensorwise"));
  // A newer library that refuses the formats is another matter.
  gpu.properties.cublaslt = "12.9.0";
  CHECK(says(line_of(facts, "GPU 0 cuBLASLt"), Health::ok, "12.9.0"));
  CHECK(says(line_of(facts, "GPU 0 recipes"), Health::warn, "refused by cuBLASLt: rowwise (needs"));
}

TEST_CASE("judge_machine: a GPU that cannot be opened is a failure with the reason", "[doctor]") {
  MachineFacts facts = healthy();
  facts.gpus[0].recipes.clear();
  facts.gpus[0].open_error = "all CUDA-capable devices are busy";
  CHECK(says(line_of(facts, "GPU 0 recipes"), Health::fail, "devices are busy"));
}

TEST_CASE("cublaslt_needed: versions by recipe and compute capability", "[doctor]") {
  const auto needed = [](const char* name, int cc) {
    return cublaslt_needed(find_recipe(name), cc).value_or(-1);
  };
  CHECK(needed("bf16", 80) == 0);
  CHECK(needed("tensorwise", 80) == -1);
  CHECK(needed("tensorwise", 89) == 110800);
  CHECK(needed("rowwise", 90) == 120900);
  CHECK(needed("blockwise", 90) == 120900);
  CHECK(needed("blockwise", 100) == -1);
  CHECK(needed("blockwise_pow2", 100) == 120800);
  CHECK(needed("mxfp8", 90) == -1);
  CHECK(needed("mxfp8", 100) == 120800);
  CHECK(needed("nvfp4", 100) == 120800);
  CHECK(needed("quartet", 100) == -1);
}

TEST_CASE("judge_machine: missing libraries and peaks", "[doctor]") {
  MachineFacts facts = healthy();
  GpuFacts& gpu = facts.gpus[0];
  gpu.properties.cudnn = "";
  CHECK(says(line_of(facts, "GPU 0 libraries"), Health::warn, "no cuDNN in this build"));
  gpu.properties.cudnn = "9.14.0", gpu.properties.nccl = "";
  CHECK(says(line_of(facts, "GPU 0 libraries"), Health::ok, "one GPU only"));
  facts.gpus.push_back(gpu);
  CHECK(says(line_of(facts, "GPU 0 libraries"), Health::warn, "one GPU only; install it"));
  facts.gpus[0].peaks.reset();
  CHECK(says(line_of(facts, "GPU 0 peaks"), Health::warn, "PRECBENCH_PEAKS="));
}

TEST_CASE("judge_machine: power and clocks and memory errors", "[doctor]") {
  MachineFacts facts = healthy();
  GpuFacts& gpu = facts.gpus[0];
  gpu.properties.power_limit_w = 500;
  CHECK(says(line_of(facts, "GPU 0 power limit"), Health::warn,
             "500 W, below the default of 700 W; sudo nvidia-smi -i 0 -pl 700"));
  gpu.default_power_limit_w.reset();
  CHECK(says(line_of(facts, "GPU 0 power limit"), Health::unknown, "not known"));
  gpu.reading.throttle_bits = 0x2;
  CHECK(says(line_of(facts, "GPU 0 clocks"), Health::warn, "nvidia-smi -rac"));
  gpu.reading.throttle_bits = 0x40;
  CHECK(says(line_of(facts, "GPU 0 clocks"), Health::warn, "held back by hw_thermal_slowdown"));
  gpu.reading.throttle_bits = 0x1;  // idle
  CHECK(says(line_of(facts, "GPU 0 clocks"), Health::ok, "SM 345 MHz now, at most 1980"));
  gpu.ecc_errors = 2;
  CHECK(says(line_of(facts, "GPU 0 ECC"), Health::fail, "2 uncorrected memory errors"));
  gpu.ecc_errors = 0, gpu.properties.ecc = 0;
  CHECK(says(line_of(facts, "GPU 0 ECC"), Health::ok, "off"));
}

TEST_CASE("judge_machine: MIG and PCIe and other processes", "[doctor]") {
  MachineFacts facts = healthy();
  GpuFacts& gpu = facts.gpus[0];
  gpu.mig = true;
  CHECK(says(line_of(facts, "GPU 0 MIG"), Health::warn, "on"));
  gpu.pcie->width = 8;
  CHECK(says(line_of(facts, "GPU 0 PCIe"), Health::warn, "x8 of x16"));
  gpu.other_processes = 3;
  CHECK(says(line_of(facts, "GPU 0 processes"), Health::warn, "3 other"));
  gpu.nvml = false, gpu.mig.reset(), gpu.pcie.reset(), gpu.reading = {};
  for (const char* subject : {"GPU 0 MIG", "GPU 0 PCIe", "GPU 0 processes", "GPU 0 clocks"})
    CHECK(says(line_of(facts, subject), Health::unknown, "not known"));
}

TEST_CASE("judge_machine: pairs of GPUs and limits of the host", "[doctor]") {
  MachineFacts facts = healthy();
  facts.gpus.push_back(facts.gpus[0]);
  facts.pairs = {{0, 1, true, 18}};
  CHECK(says(line_of(facts, "GPUs 0 and 1"), Health::ok, "peer access, NVLink x18"));
  facts.pairs = {{0, 1, false, 0}};
  CHECK(says(line_of(facts, "GPUs 0 and 1"), Health::warn,
             "no peer access, no NVLink: copies go through host memory"));
  facts.pairs = {{0, 1, {}, {}}};
  CHECK(says(line_of(facts, "GPUs 0 and 1"), Health::unknown, "not known"));
  facts.shared_memory_bytes = 64 << 20;
  CHECK(says(line_of(facts, "/dev/shm"), Health::warn, "--shm-size=1g"));
  facts.locked_memory_bytes = 8 << 20;
  CHECK(says(line_of(facts, "memlock"), Health::warn, "8 MiB, InfiniBand needs more"));
  facts.gpus.pop_back();
  CHECK(says(line_of(facts, "memlock"), Health::ok, "8 MiB"));
}

}  // namespace precbench
