// The doctor from end to end on devices with planted faults: each is found, kept, demoted and told; and the command of
// the built binary on the CPU.
#include "bench/doctor/doctor.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "bench/cli/cli_testing.h"
#include "bench/machine/cache_testing.h"
#include "kernels/checks/faulty_device_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"

namespace precbench {
namespace {

using namespace testing;

GpuProperties made_up_gpu() {
  GpuProperties gpu;
  gpu.name = "Made-up GPU", gpu.driver = "1.2", gpu.cuda_runtime = "13.0", gpu.cublaslt = "13.1.0";
  gpu.description = "Made-up GPU, compute capability 9.0, 80 GiB, cuBLASLt 13.1.0";
  gpu.compute_capability = 90;
  return gpu;
}

/// A GPU that runs everything natively as the CPU does, but for a fault.
std::vector<DeviceToCheck> device_with(std::optional<Fault> fault) {
  const auto open = [fault](const GpuOptions&) { return std::make_unique<FaultyDevice>(fault); };
  return {{{"GPU 0", open, {"cublaslt"}, {"own"}}, verified_machine(made_up_gpu())}};
}

/// Few paths of each kind: the checks themselves are tested in kernels/checks and models/checks.
PathCheckOptions few() { return {.recipes = {find_recipe("bf16"), find_recipe("rowwise")}, .quick = true}; }

std::set<std::string> wrong_paths(const Verification& verification) {
  std::set<std::string> wrong;
  for (const auto& [path, verdict] : verification.paths)
    if (!verdict.agrees) wrong.insert(path);
  return wrong;
}

std::string text_of(const HealthLines& lines) { return to_text(lines, {400, true}); }

}  // namespace

TEST_CASE("diagnose: a device without a fault agrees in every path and is kept as verified", "[doctor]") {
  const CacheFolder cache;
  const Diagnosis diagnosis = diagnose(device_with({}), few());
  INFO(text_of(diagnosis.lines));
  CHECK(diagnosis.complete);
  for (const HealthLine& line : diagnosis.lines) CHECK(line.health == Health::ok);
  REQUIRE(diagnosis.verifications.size() == 1);
  const auto kept = read_verification(verified_machine(made_up_gpu()));
  REQUIRE(kept);
  CHECK(wrong_paths(*kept).empty());
  // Every GEMM is verified, with its quantizers.
  for (const Recipe& recipe : few().recipes)
    for (const GemmRole role : kGemmRoles) {
      INFO(recipe.name << " " << name_of(role));
      CHECK(unverified_paths({{recipe.gemm(role), role}}, "own", &*kept).empty());
    }
  CHECK(demoted_paths(*kept).empty());
}

TEST_CASE("diagnose: a fault in one GEMM role is found and demotes that path until it is trusted",
          "[doctor]") {
  const CacheFolder cache;
  Fault fault{OpKind::matmul};
  fault.role = GemmRole::wgrad;
  const Diagnosis diagnosis = diagnose(device_with(fault), few());
  INFO(text_of(diagnosis.lines));
  CHECK(std::any_of(diagnosis.lines.begin(), diagnosis.lines.end(), [](const HealthLine& line) {
    return line.health == Health::fail && line.subject == "GPU 0 gemm" &&
           line.text.find("wgrad") != std::string::npos;
  }));
  const Verification kept = read_verification(verified_machine(made_up_gpu())).value();
  const GemmRecipe wgrad = find_recipe("rowwise").wgrad;
  CHECK(wrong_paths(kept).contains(gemm_path(wgrad, GemmRole::wgrad)));
  CHECK_FALSE(wrong_paths(kept).contains(gemm_path(find_recipe("rowwise").fprop, GemmRole::fprop)));
  const GpuOptions options = without_demoted({}, &kept);
  CHECK_FALSE(demoted_reason(options.demoted, wgrad, GemmRole::wgrad).empty());
  Verification trusted = kept;
  trusted.trusted = true;
  CHECK(without_demoted({}, &trusted).demoted.empty());
  // A later run without the fault lifts it.
  diagnose(device_with({}), few());
  CHECK(wrong_paths(read_verification(kept.machine).value()).empty());
}

TEST_CASE("diagnose: a fault in a quantizer or in attention or in an op of the step demotes what uses it",
          "[doctor]") {
  const CacheFolder cache;
  const QuantFormat row = quantizer_format(find_recipe("rowwise").fprop.a);
  Fault of_row{OpKind::quantize, Place::row_code};
  of_row.format = row;
  Verification kept = diagnose(device_with(of_row), few()).verifications.at(0);
  CHECK(wrong_paths(kept).contains(quantizer_path(row)));
  CHECK_FALSE(demoted_reason(demoted_paths(kept), find_recipe("rowwise").fprop, GemmRole::fprop).empty());
  CHECK(demoted_reason(demoted_paths(kept), find_recipe("mxfp8").fprop, GemmRole::fprop).empty());

  kept = diagnose(device_with(Fault{OpKind::attention}), few()).verifications.at(0);
  CHECK(wrong_paths(kept).contains("attention own"));
  CHECK(demoted_paths(kept).contains(kEveryGemm));

  // RoPE has no check of its own: whole steps find it.
  const Diagnosis diagnosis = diagnose(device_with(Fault{OpKind::rope, Place::value, Extent::row}), few());
  kept = diagnosis.verifications.at(0);
  CHECK(wrong_paths(kept).contains("step bf16"));
  CHECK(wrong_paths(kept).contains(gemm_path({}, GemmRole::fprop)));
  CHECK(text_of(diagnosis.lines).find("FAIL     GPU 0 step") != std::string::npos);
}

TEST_CASE("diagnose: shapes of a model are checked too", "[doctor]") {
  const CacheFolder cache;
  const ModelConfig model = find_model("tiny");
  int checks = 0;
  PathCheckOptions options = few();
  options.recipes = {find_recipe("bf16")};
  options.model = model;
  const Diagnosis diagnosis = diagnose(device_with({}), options);
  INFO(text_of(diagnosis.lines));
  for (const checks::Finding& finding : diagnosis.findings) {
    CHECK(finding.agrees);
    checks += finding.what.starts_with("2048 x ");
  }
  CHECK(checks > 0);
}

TEST_CASE("diagnose: an interrupt ends with what has been judged so far", "[doctor]") {
  const CacheFolder cache;
  int left = 7;
  PathCheckOptions options = few();
  options.stop = [&] { return left-- <= 0; };
  const Diagnosis diagnosis = diagnose(device_with({}), options);
  CHECK_FALSE(diagnosis.complete);
  CHECK(diagnosis.findings.size() == 7);
  CHECK(text_of(diagnosis.lines).find("interrupted before") != std::string::npos);
  const Verification kept = read_verification(verified_machine(made_up_gpu())).value();
  CHECK_FALSE(kept.paths.empty());
  CHECK_FALSE(unverified_paths({{find_recipe("bf16").fprop, GemmRole::fprop}}, "own", &kept).empty());
}

TEST_CASE("diagnose: an error of the device is a failure of the path that had it", "[doctor]") {
  const CacheFolder cache;
  int opened = 0;
  std::vector<DeviceToCheck> devices = device_with({});
  devices[0].device.open = [&](const GpuOptions&) -> std::unique_ptr<Device> {
    if (opened++ > 1) throw std::runtime_error("CUDA error 700");
    return std::make_unique<FaultyDevice>();
  };
  const Diagnosis diagnosis = diagnose(devices, few());
  const std::string text = text_of(diagnosis.lines);
  INFO(text);
  CHECK(text.find("CUDA error 700") != std::string::npos);
  CHECK(text.find("the rest was not judged") != std::string::npos);
  CHECK(wrong_paths(diagnosis.verifications.at(0)).contains("attention own"));
}

TEST_CASE("share_text: at most 2 kB with everything that is wrong first", "[doctor]") {
  MachineFacts facts;
  facts.gpus.resize(1);
  facts.gpus[0].properties = made_up_gpu();
  Verification verification;
  verification.created = "2026-01-02T03:04:05Z";
  verification.paths = {{"gemm a", {true, "3 checks"}}, {"gemm b", {false, "error 3, bound 2"}}};
  const HealthLines lines = {{Health::ok, "GPU 0", "fine"}, {Health::warn, "GPU 0 power limit", "500 W"}};
  const std::string text = share_text(facts, lines, {verification});
  for (const char* part : {"Made-up GPU", "driver 1.2", "warn GPU 0 power limit: 500 W", "gemm: 1 agree",
                           "disagrees: gemm b (error 3, bound 2)"})
    CHECK(text.find(part) != std::string::npos);
  CHECK(text.find("fine") == std::string::npos);
  for (int i = 0; i < 500; ++i)
    verification.paths["gemm " + std::to_string(i)] = {false, std::string(400, 'x')};
  const std::string longest = share_text(facts, lines, {verification});
  CHECK(longest.size() <= 2000);
  CHECK(longest.size() > 1500);
  CHECK(longest.find(" more lines\n") != std::string::npos);
}

TEST_CASE("doctor: flags that do not go together are refused in one line", "[doctor][cli]") {
  CHECK(refused("doctor --quick") == "precbench: doctor: --quick belongs to --run");
  CHECK(refused("doctor --model tiny") == "precbench: doctor: --model belongs to --run");
  CHECK(refused("doctor --device cpu") == "precbench: doctor: --device belongs to --run");
  CHECK(refused("doctor --run --trust") == "precbench: doctor: --trust after --run, not with it");
  CHECK(refused("doctor --run --device tpu") ==
        "precbench: doctor: --device: tpu is none of auto, cpu, cuda");
  CHECK(refused("doctor --run --device cpu --gpu 0") == "precbench: doctor: --gpu: --device cpu has none");
  CHECK(refused("doctor --run --model qwen9").find("unknown model \"qwen9\"") != std::string::npos);
  if (find_gpus().count == 0) {
    CHECK(refused("doctor --trust") == "precbench: doctor: --trust: " + find_gpus().reason);
    CHECK(refused("doctor --run --gpu 3").starts_with("precbench: doctor: there is no GPU 3: "));
  }
}

TEST_CASE("doctor: says what is missing without a GPU", "[doctor][cli]") {
  if (find_gpus().count > 0) return;
  const Answer machine = precbench_says("doctor");
  CHECK(machine.status == kDoctorAgrees);
  CHECK(machine.text.find("warn     GPU       none: " + find_gpus().reason) != std::string::npos);
  CHECK(precbench_says("doctor --share").text.size() <= 2000);
  const Answer run = precbench_says("doctor --run");
  CHECK(run.status == kDoctorUnjudged);
  CHECK(run.text.find("unknown  native paths  not judged: ") != std::string::npos);
}

TEST_CASE("doctor: --run on the CPU judges its native paths and the collectives", "[doctor][cli]") {
  const Answer run = precbench_says("doctor --run --quick --verbose --device cpu");
  INFO(run.text);
  CHECK(run.status == kDoctorAgrees);
  for (const char* part : {"CPU gemm", "CPU attention", "CPU step", "ranks all-reduce",
                           "ok       gemm bf16 x bf16 wgrad; 256 x 384 x 640 into f32, accumulated: error"})
    CHECK(run.text.find(part) != std::string::npos);
}

TEST_CASE("doctor: SIGINT ends --run with status 3", "[doctor][cli]") {
  TempDirectory folder;
  const std::string errors = folder / "errors";
  const pid_t pid = fork();
  if (pid == 0) {
    signal(SIGINT, SIG_DFL);  // a shell in the background ignores it
    errors_to(errors);
    freopen((folder / "out").c_str(), "w", stdout);
    _exit(
        execl(PRECBENCH_BINARY_DIR "/precbench", "precbench", "doctor", "--run", "--device", "cpu", nullptr));
  }
  CHECK(
      eventually([&] { return file_text(errors).find("doctor: gemm") != std::string::npos || !alive(pid); }));
  kill(pid, SIGINT);
  CHECK(exit_status(pid) == kDoctorUnjudged);
  CHECK(file_text(folder / "out").find("interrupted before") != std::string::npos);
}

}  // namespace precbench
