// The records of record_samples.h, compiled once for all tests.
#include "results/record/record_samples.h"

#include <cmath>
#include <memory>

#include "results/record/statistics.h"

namespace precbench::samples {

DefinitionRecord definition(const std::string& recipe, int seed) {
  using Json = nlohmann::ordered_json;
  const auto part = [](Json json) { return std::make_shared<const Json>(std::move(json)); };
  const Json operand =
      recipe == "bf16"
          ? Json{{"format", "bf16"}}
          : Json{
                {"format", "e4m3"}, {"granularity", "1x32"}, {"scale", "ue8m0"}, {"scale_rounding", "rceil"}};
  const Json gemm = {{"a", operand}, {"b", operand}, {"fast_accum", false}};
  return {part({{"name", "llama3.2-1b"},
                {"layers", 16},
                {"width", 2048},
                {"ffn", 8192},
                {"heads", 32},
                {"kv_heads", 8},
                {"head_dim", 64},
                {"vocab", 128256},
                {"tied", true},
                {"qk_norm", false},
                {"qkv_bias", false},
                {"rope_theta", 500000.0},
                {"norm_eps", 1e-5},
                {"sliding_window", 131072},
                {"max_positions", 131072},
                {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 32.0}}}}),
          part({{"name", recipe},
                {"reference", "a paper"},
                {"fprop", gemm},
                {"dgrad", gemm},
                {"wgrad", gemm},
                {"blocks", recipe == "bf16" ? "none" : "0-15"},
                {"linears", {{"qkv", "0-15"}}},
                {"head", false},
                {"optimizer", {{"m", "coat"}}},
                {"gradients", {{"format", "e4m3"}}}}),
          part({{"kind", "synthetic"}, {"fingerprint", nullptr}, {"seed", seed}}),
          part({{"kind", "normal"}, {"fingerprint", nullptr}, {"deviation", 0.02}, {"seed", seed}})};
}

namespace {

Training training_of(const std::string& recipe, double penalty) {
  Training training;
  for (int step = 0; step < 100; ++step) {
    training.loss.push_back(2.5 + penalty + 9.26 * std::exp(-step / 10.0));
    training.grad_norm.push_back(1.5 - 0.01 * step);
    training.lr.push_back(3e-5);
  }
  training.tokens_per_step = 8 * 2048;
  training.params_changed = training.params_total = 146;
  if (recipe != "bf16") training.converted_layers = {"layers.0.q_proj", "layers.0.k_proj"};
  training.entropy_floor = 2.1;
  training.uniform_loss = 11.76;
  training.evaluations = {{100, 65536, 2.6 + penalty, 0.02, 2.6}};
  return training;
}

}  // namespace

Record gpu_record(const std::string& recipe, double median_ms, double penalty, int seed) {
  Record r;
  r.id = "1b-" + recipe + "-" + std::to_string(seed);
  r.created = "2025-03-01T12:00:00Z";
  r.case_fields = nlohmann::ordered_json{
      {"model", "llama3.2-1b"}, {"recipe", recipe}, {"seq", 2048},      {"batch", 8},   {"gpus", 1},
      {"parallel", "ddp"},      {"seed", seed},     {"device", "cuda"}, {"steps", 100}, {"master", "fp32"},
      {"moments", "fp32"}};
  r.definition = definition(recipe, seed);
  r.env.git = "0123abc";
  r.env.dirty = false;
  r.env.build = "Release";
  r.env.compiler = "GNU 12.2.0";
  r.env.host = "node7";
  r.env.cpu = "Xeon Platinum 8480C";
  r.env.threads = 16;
  r.env.gpu = GpuRecord{"NVIDIA H200", "9.0", 150754820096, "570.86", "GPU-1", true, 700.0, std::nullopt};
  r.env.cuda = "12.9";
  r.env.cublaslt = "12.9.1";
  r.env.cudnn = "9.8";
  r.support = Support{};
  r.support->attention = "cudnn 9.8.0";
  r.flops = Flops{8.2e9, "causal attention halved"};
  Timing timing;
  // Two runs of 6 and 5 samples, each with this median.
  for (const int i : {-5, -3, -1, 1, 3, 5, -4, -2, 0, 2, 4})
    timing.samples_ms.push_back(median_ms * (1 + 0.0004 * i));
  timing.warmup = 6;
  timing.stop_reason = StopReason::target;
  timing.median_ms = median_ms;
  timing.iqr_ms = median_ms * 0.002;
  timing.min_ms = median_ms * 0.998;
  timing.runs = {{"2025-03-01T12:00:00Z", 6, 6, StopReason::target, median_ms},
                 {"2025-03-01T12:05:00Z", 6, 5, StopReason::target, median_ms}};
  timing.between_runs = 0.0;
  r.timing = timing;
  Metrics metrics;
  metrics.tokens_per_s = 8 * 2048 / (median_ms * 1e-3);
  metrics.tokens_per_s_per_gpu = metrics.tokens_per_s;
  metrics.tflops_per_gpu = *metrics.tokens_per_s * r.flops->per_token * 1e-12;
  metrics.mfu_bf16 = *metrics.tflops_per_gpu / 989;
  metrics.sol = 0.7;
  metrics.mfu_measured = 0.8;
  metrics.energy_j_per_token = 0.012;
  metrics.peaks = DeviceRates{989, 1979, 4800, "NVIDIA H200 data sheet, dense", 768, 1351, 4100};
  r.metrics = metrics;
  MemorySegments memory;
  memory.weights = 2'471'628'800;
  memory.master = memory.gradients = 4'943'257'600;
  memory.moments = 9'886'515'200;
  memory.activations = recipe == "bf16" ? 20'000'000'000 : 16'000'000'000;
  memory.workspace = 33'554'432;
  memory.quantized_weights = recipe == "bf16" ? 0 : 1'946'157'056;
  memory.total = memory.weights + memory.master + memory.gradients + memory.moments + memory.activations +
                 memory.workspace + memory.quantized_weights;
  memory.peak = memory.total;
  r.memory = Memory{memory, memory, memory.peak + 500'000'000};
  r.communication =
      Communication{"nccl", 3e6, 3e6, {"NCCL_NVLS_ENABLE=0"}, {{"all_gather", 4, 4e6, 3e6, 340.0}}};
  r.breakdown = Breakdown{median_ms * 0.6,
                          median_ms * 0.1,
                          median_ms * 0.1,
                          median_ms * 0.1,
                          median_ms * 0.05,
                          median_ms * 0.04,
                          0,
                          median_ms * 0.01,
                          {},
                          {{"matmul fprop", "gemm", 128, median_ms * 0.2, 1e14, 1e10}}};
  r.durations = {{"start", 2.5}, {"steps", 20}, {"profiled step", 0.5}};
  r.telemetry = Telemetry{1980, 1965, 1980, 3201, 640, 690, 61, {"sw_power_cap"}, 0};
  r.training = training_of(recipe, penalty);
  if (recipe != "bf16") r.quantization = {{"fprop.a", "e4m3 1x128 f32", 0.01, 0.0, 31.5}};
  const GradientFidelity part{"qkv", 0.07, 0.998, -0.001};
  const WholeFidelity whole{{0.07, 0.06, 0.08}, {0.998, 0.997, 0.999}, {-0.001, -0.002, 0.0}};
  if (recipe != "bf16")
    r.fidelity = {{"none",
                   2,
                   2.5,
                   {0.001, 0.0, 0.002},
                   whole,
                   {part},
                   {part},
                   {},
                   OutputDistance{16384, false, {0.012, 0.011, 0.013}, 0.4, {2e-4, 1e-4, 3e-4}, 0.02}}};
  return r;
}

Record cpu_record(const std::string& recipe, double penalty, int seed) {
  Record r = gpu_record(recipe, 750, penalty, seed);
  r.id = "tiny-" + recipe + "-" + std::to_string(seed);
  r.case_fields["model"] = "tiny";
  r.case_fields["seq"] = 128;
  r.case_fields["device"] = "cpu";
  r.env.gpu.reset();
  r.env.cuda.reset();
  r.env.cublaslt.reset();
  r.env.cudnn.reset();
  r.telemetry.reset();
  if (recipe == "bf16") {
    Metrics metrics;
    metrics.tokens_per_s = metrics.tokens_per_s_per_gpu = 8 * 2048 / 0.75;
    r.metrics = metrics;
  } else {
    const GemmPath emulated{ExecutionPath::emulated, "the cpu device has no FP8 arithmetic"};
    r.support = Support{emulated, emulated, emulated, "cpu"};
    r.metrics = Metrics{};
  }
  return r;
}

Record imported_record(const std::string& recipe, double mean_ms, int seed) {
  constexpr double kTokens = 65536;
  Record r;
  r.method_version = kImportMethodVersion;
  r.id = "import-" + recipe + "-" + std::to_string(seed);
  r.created = "2026-01-01T12:00:00Z";
  r.case_fields = nlohmann::ordered_json{
      {"model", "llama3.1-8b"}, {"recipe", recipe}, {"seq", 8192}, {"batch", 1},
      {"gpus", 8},              {"seed", seed},     {"source", "torchtitan"}};
  r.env.gpu = GpuRecord{"NVIDIA H200", {}, {}, {}, {}, {}, {}, {}};
  r.flops = Flops{51.47e9, "causal"};
  Timing& timing = r.timing.emplace();
  timing.samples_ms = {mean_ms * 0.99, mean_ms * 1.01, mean_ms, mean_ms * 1.005, mean_ms * 0.995};
  timing.warmup = 2;
  timing.median_ms = mean_ms;
  timing.min_ms = mean_ms * 0.99;
  Metrics& metrics = r.metrics.emplace();
  metrics.speed_from = "mean";
  metrics.tokens_per_s = 1e3 * kTokens / mean_ms;
  metrics.tokens_per_s_per_gpu = *metrics.tokens_per_s / 8;
  metrics.tflops_per_gpu = *metrics.tokens_per_s_per_gpu * r.flops->per_token / 1e12;
  Training& training = r.training.emplace();
  training.tokens_per_step = static_cast<std::int64_t>(kTokens);
  ImportSource& source = r.source.emplace();
  source.program = source.format = "torchtitan";
  source.file_sha256 = std::string(64, 'a');
  source.lines_used = 7;
  source.window_steps = 10;
  source.tokens_per_step = training.tokens_per_step;
  source.first_step = 20, source.last_step = 60;
  source.convention = "full";
  source.claimed_mfu = 0.41;
  source.memory = "reserved";
  source.memory_bytes = std::int64_t{50} << 30;
  for (int line = 0; line < 7; ++line) {
    source.steps.push_back(line == 0 ? 1 : 10 * line);
    training.loss.push_back(12 / (1 + 0.1 * line));
  }
  return r;
}

void set_samples(Record& r, const std::vector<double>& samples_ms) {
  const SampleStatistics statistics = *sample_statistics(samples_ms);
  const double faster = *r.timing->median_ms / statistics.median;
  r.timing->samples_ms = samples_ms;
  r.timing->runs.clear();
  r.timing->between_runs.reset();
  r.timing->median_ms = statistics.median;
  r.timing->iqr_ms = statistics.iqr();
  r.timing->min_ms = statistics.min;
  for (OptionalNumber* speed :
       {&r.metrics->tokens_per_s, &r.metrics->tokens_per_s_per_gpu, &r.metrics->tflops_per_gpu})
    if (*speed) **speed *= faster;
}

void set_gpus(Record& r, int gpus) {
  r.case_fields["gpus"] = gpus;
  *r.training->tokens_per_step *= gpus;
  *r.metrics->tokens_per_s *= gpus;
}

Record failed_record(const std::string& recipe, Status status, const std::string& error) {
  Record r = gpu_record(recipe, 250);
  r.status = status;
  r.error = error;
  r.timing.reset();
  r.durations.clear();
  r.metrics.reset();
  r.breakdown.reset();
  r.telemetry.reset();
  r.training.reset();
  r.quantization.clear();
  r.fidelity.clear();
  r.memory->measured.reset();
  r.memory->driver.reset();
  return r;
}

Record of_schema_1(Record r) {
  r.schema = 1;
  r.definition.reset();
  return r;
}

Record redefined(Record r, DefinitionPart DefinitionRecord::*part, const std::string& place,
                 const nlohmann::ordered_json& value) {
  nlohmann::ordered_json json = *((*r.definition).*part);
  json[nlohmann::ordered_json::json_pointer(place)] = value;
  (*r.definition).*part = std::make_shared<const nlohmann::ordered_json>(std::move(json));
  return r;
}

RecordSet set_of(const std::vector<Record>& records) {
  RecordSet set;
  for (const Record& record : records) set.records.push_back({record, {"f", set.records.size() + 1}});
  return set;
}

}  // namespace precbench::samples
