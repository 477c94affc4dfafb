// Fields of a record's structs under their JSON names. Every visitor of a whole record uses these lists.
#pragma once

#include <type_traits>
#include <vector>

#include "results/record/record.h"

namespace precbench {

template <class Self, class Struct>
concept Is = std::is_same_v<std::remove_const_t<Self>, Struct>;

template <Is<DefinitionRecord> S, class F>
void each_field(S& s, F&& f) {
  f("model", s.model), f("recipe", s.recipe), f("data", s.data), f("init", s.init);
}

template <Is<GpuRecord> S, class F>
void each_field(S& s, F&& f) {
  f("name", s.name), f("cc", s.cc), f("memory", s.memory), f("driver", s.driver), f("uuid", s.uuid);
  f("ecc", s.ecc), f("power_limit", s.power_limit), f("nvlink", s.nvlink);
}

template <Is<Environment> S, class F>
void each_field(S& s, F&& f) {
  f("git", s.git), f("dirty", s.dirty), f("build", s.build), f("compiler", s.compiler), f("host", s.host);
  f("nodes", s.nodes), f("cpu", s.cpu), f("threads", s.threads), f("cpus", s.cpus);
  f("cpu_quota", s.cpu_quota), f("gpu", s.gpu);
  f("cuda", s.cuda), f("cublaslt", s.cublaslt), f("cudnn", s.cudnn), f("nccl", s.nccl);
}

template <Is<GemmPath> S, class F>
void each_field(S& s, F&& f) {
  f("path", s.path), f("reason", s.reason), f("kernels", s.kernels);
  f("emulated_shapes", s.emulated_shapes);
}

template <Is<Support> S, class F>
void each_field(S& s, F&& f) {
  f("fprop", s.fprop), f("dgrad", s.dgrad), f("wgrad", s.wgrad), f("attention", s.attention);
  f("verified", s.verified);
}

template <Is<Flops> S, class F>
void each_field(S& s, F&& f) {
  f("per_token", s.per_token), f("convention", s.convention);
}

template <Is<TimingRun> S, class F>
void each_field(S& s, F&& f) {
  f("created", s.created), f("warmup", s.warmup), f("samples", s.samples), f("stop_reason", s.stop_reason);
  f("median_ms", s.median_ms);
}

template <Is<Timing> S, class F>
void each_field(S& s, F&& f) {
  f("samples_ms", s.samples_ms), f("outliers", s.outliers), f("warmup", s.warmup),
      f("stop_reason", s.stop_reason);
  f("median_ms", s.median_ms), f("iqr_ms", s.iqr_ms), f("min_ms", s.min_ms), f("wall_ms", s.wall_ms);
  f("cpu_ms", s.cpu_ms), f("cpu_wait_ms", s.cpu_wait_ms);
  f("runs", s.runs), f("between_runs", s.between_runs);
}

template <Is<DeviceRates> S, class F>
void each_field(S& s, F&& f) {
  f("bf16_tflops", s.bf16_tflops), f("fp8_tflops", s.fp8_tflops), f("memory_gb_per_s", s.memory_gb_per_s);
  f("source", s.source), f("measured_bf16_tflops", s.measured_bf16_tflops);
  f("measured_fp8_tflops", s.measured_fp8_tflops), f("measured_copy_gb_per_s", s.measured_copy_gb_per_s);
  f("fp4_tflops", s.fp4_tflops), f("measured_fp4_tflops", s.measured_fp4_tflops);
}

template <Is<Metrics> S, class F>
void each_field(S& s, F&& f) {
  f("tokens_per_s", s.tokens_per_s), f("tokens_per_s_per_gpu", s.tokens_per_s_per_gpu);
  f("tflops_per_gpu", s.tflops_per_gpu), f("mfu_bf16", s.mfu_bf16), f("sol", s.sol);
  f("mfu_measured", s.mfu_measured), f("energy_j_per_token", s.energy_j_per_token), f("peaks", s.peaks);
  f("speed_from", s.speed_from);
}

template <Is<PredictedStep> S, class F>
void each_field(S& s, F&& f) {
  f("step_ms", s.step_ms), f("low_ms", s.low_ms), f("high_ms", s.high_ms), f("borrowed", s.borrowed);
  f("rates", s.rates);
}

template <Is<MemorySegments> S, class F>
void each_field(S& s, F&& f) {
  f("weights", s.weights), f("quantized_weights", s.quantized_weights), f("master", s.master);
  f("gradients", s.gradients), f("moments", s.moments), f("activations", s.activations);
  f("workspace", s.workspace), f("communication", s.communication), f("other", s.other);
  f("total", s.total), f("peak", s.peak);
}

template <Is<Memory> S, class F>
void each_field(S& s, F&& f) {
  f("predicted", s.predicted), f("measured", s.measured), f("driver", s.driver);
}

template <Is<OpRecord> S, class F>
void each_field(S& s, F&& f) {
  f("name", s.name), f("op_class", s.op_class), f("calls", s.calls), f("ms", s.ms);
  f("flops", s.flops), f("bytes", s.bytes), f("shape", s.shape), f("formats", s.formats);
}

template <Is<Breakdown> S, class F>
void each_field(S& s, F&& f) {
  f("gemm_ms", s.gemm_ms), f("quantize_ms", s.quantize_ms), f("attention_ms", s.attention_ms);
  f("norm_elementwise_ms", s.norm_elementwise_ms), f("head_loss_ms", s.head_loss_ms);
  f("optimizer_ms", s.optimizer_ms), f("communication_ms", s.communication_ms), f("idle_ms", s.idle_ms);
  f("routing_ms", s.routing_ms), f("ops", s.ops);
}

template <Is<CollectiveRecord> S, class F>
void each_field(S& s, F&& f) {
  f("name", s.name), f("calls", s.calls), f("buffer_bytes", s.buffer_bytes), f("wire_bytes", s.wire_bytes);
  f("bus_gb_per_s", s.bus_gb_per_s);
}

template <Is<Communication> S, class F>
void each_field(S& s, F&& f) {
  f("backend", s.backend), f("wire_bytes", s.wire_bytes), f("predicted_wire_bytes", s.predicted_wire_bytes);
  f("environment", s.environment), f("collectives", s.collectives);
}

template <Is<Telemetry> S, class F>
void each_field(S& s, F&& f) {
  f("sm_clock_mhz", s.sm_clock_mhz), f("sm_clock_min_mhz", s.sm_clock_min_mhz);
  f("sm_clock_max_mhz", s.sm_clock_max_mhz), f("memory_clock_mhz", s.memory_clock_mhz);
  f("power_w", s.power_w), f("power_max_w", s.power_max_w), f("temperature_c", s.temperature_c);
  f("throttle_reasons", s.throttle_reasons), f("ecc_errors", s.ecc_errors);
}

template <Is<Reading> S, class F>
void each_field(S& s, F&& f) {
  f("recipe", s.recipe), f("loss", s.loss), f("groups", s.groups), f("outputs", s.outputs);
}

template <Is<Evaluation> S, class F>
void each_field(S& s, F&& f) {
  f("step", s.step), f("tokens", s.tokens), f("loss", s.loss), f("loss_error", s.loss_error);
  f("bf16_loss", s.bf16_loss), f("readings", s.readings);
}

template <Is<Training> S, class F>
void each_field(S& s, F&& f) {
  f("loss", s.loss), f("grad_norm", s.grad_norm), f("lr", s.lr), f("tokens_per_step", s.tokens_per_step);
  f("params_changed", s.params_changed), f("params_total", s.params_total);
  f("converted_layers", s.converted_layers), f("entropy_floor", s.entropy_floor);
  f("uniform_loss", s.uniform_loss), f("bytes_per_token", s.bytes_per_token);
  f("held_out_bytes_per_token", s.held_out_bytes_per_token), f("evaluations", s.evaluations);
}

template <Is<QuantizationStats> S, class F>
void each_field(S& s, F&& f) {
  f("role", s.role), f("format", s.format), f("underflow_percent", s.underflow_percent);
  f("saturation_percent", s.saturation_percent), f("sqnr_db", s.sqnr_db);
}

template <Is<StudySize> S, class F>
void each_field(S& s, F&& f) {
  f("trunks", s.trunks), f("seeds", s.seeds), f("ages", s.ages);
}

template <Is<StudyPlace> S, class F>
void each_field(S& s, F&& f) {
  f("study", s.study), f("part", s.part), f("trunk", s.trunk), f("age", s.age), f("seed", s.seed);
  f("rung", s.rung), f("base", s.base), f("asked", s.asked), f("apart_from", s.apart_from);
  f("breaks", s.breaks), f("margin", s.margin), f("level", s.level);
  f("trained_tokens", s.trained_tokens), f("steady", s.steady), f("against", s.against);
  f("sizes", s.sizes);
}

template <Is<MeanInterval> S, class F>
void each_field(S& s, F&& f) {
  f("mean", s.mean), f("low", s.low), f("high", s.high);
}

template <Is<GradientFidelity> S, class F>
void each_field(S& s, F&& f) {
  f("name", s.name), f("error", s.error), f("cosine", s.cosine), f("bias", s.bias);
}

template <Is<WholeFidelity> S, class F>
void each_field(S& s, F&& f) {
  f("error", s.error), f("cosine", s.cosine), f("bias", s.bias);
}

template <Is<RouteFlips> S, class F>
void each_field(S& s, F&& f) {
  f("all", s.all), f("layers", s.layers);
}

template <Is<OutputDistance> S, class F>
void each_field(S& s, F&& f) {
  f("tokens", s.tokens), f("held_out", s.held_out), f("log_probability", s.log_probability);
  f("largest_log_probability", s.largest_log_probability), f("kl", s.divergence);
  f("largest_kl", s.largest_divergence);
}

template <Is<Fidelity> S, class F>
void each_field(S& s, F&& f) {
  f("stress", s.stress), f("batches", s.batches), f("loss_bf16", s.loss_bf16);
  f("loss_difference", s.loss_difference), f("whole", s.whole), f("roles", s.roles), f("layers", s.layers);
  f("route_flips", s.route_flips), f("outputs", s.outputs);
}

template <Is<CellRecord> S, class F>
void each_field(S& s, F&& f) {
  f("group", s.group), f("kind", s.kind), f("part", s.part), f("loss_difference", s.loss_difference);
  f("bought_back", s.bought_back), f("whole", s.whole), f("kept_flops", s.kept_flops);
  f("keep_bf16", s.keep_bf16), f("note", s.note);
}

template <Is<CellSum> S, class F>
void each_field(S& s, F&& f) {
  f("group", s.group), f("kind", s.kind), f("sum", s.sum), f("interaction", s.interaction);
}

template <Is<SkippedCell> S, class F>
void each_field(S& s, F&& f) {
  f("part", s.part), f("reason", s.reason);
}

template <Is<SensitivityRecord> S, class F>
void each_field(S& s, F&& f) {
  f("batches", s.batches), f("loss_bf16", s.loss_bf16), f("quantized_flops", s.quantized_flops);
  f("cells", s.cells), f("sums", s.sums);
  f("skipped", s.skipped);
}

template <Is<ParameterCounts> S, class F>
void each_field(S& s, F&& f) {
  f("total", s.total), f("active", s.active);
}

template <Is<ExpertRows> S, class F>
void each_field(S& s, F&& f) {
  f("expected", s.expected), f("actual", s.actual), f("padded", s.padded), f("dropped", s.dropped);
}

template <Is<ExpertLoad> S, class F>
void each_field(S& s, F&& f) {
  f("median", s.median), f("max", s.max), f("layers", s.layers), f("empty_experts", s.empty_experts);
}

template <Is<ExpertFlops> S, class F>
void each_field(S& s, F&& f) {
  f("expected", s.expected), f("actual", s.actual), f("router", s.router);
}

template <Is<ExchangeBytes> S, class F>
void each_field(S& s, F&& f) {
  f("dispatch", s.dispatch), f("combine", s.combine);
  f("predicted_dispatch", s.predicted_dispatch), f("predicted_combine", s.predicted_combine);
}

template <Is<MoeRecord> S, class F>
void each_field(S& s, F&& f) {
  f("experts", s.experts), f("top_k", s.top_k), f("expert_ffn", s.expert_ffn), f("shared_ffn", s.shared_ffn);
  f("score", s.score), f("routing", s.routing), f("grouped", s.grouped);
  f("capacity", s.capacity), f("rows", s.rows);
  f("padding_fraction", s.padding_fraction), f("load", s.load), f("flops", s.flops);
  f("aux_loss", s.aux_loss), f("z_loss", s.z_loss), f("bias_min", s.bias_min), f("bias_max", s.bias_max);
  f("ep", s.ep), f("exchange", s.exchange), f("dispatch", s.dispatch), f("slots", s.slots);
  f("columns", s.columns), f("bytes", s.bytes);
}

template <Is<CastCounts> S, class F>
void each_field(S& s, F&& f) {
  f("standalone", s.standalone), f("fused", s.fused);
}

template <Is<Conversion> S, class F>
void each_field(S& s, F&& f) {
  f("role", s.role), f("e_conv", s.e_conv), f("e_total", s.e_total), f("e_direct", s.e_direct);
  f("underflow_percent", s.underflow_percent);
}

template <Is<FlowRecord> S, class F>
void each_field(S& s, F&& f) {
  f("on", s.on), f("casts", s.casts), f("transposes", s.transposes), f("conversion", s.conversion);
}

template <Is<ImportSource> S, class F>
void each_field(S& s, F&& f) {
  f("program", s.program), f("version", s.version), f("format", s.format), f("file_sha256", s.file_sha256);
  f("run", s.run), f("lines_used", s.lines_used), f("lines_header", s.lines_header);
  f("lines_skipped", s.lines_skipped), f("window_steps", s.window_steps);
  f("tokens_per_step", s.tokens_per_step), f("first_step", s.first_step), f("last_step", s.last_step);
  f("convention", s.convention), f("claimed_mfu", s.claimed_mfu), f("claimed_tflops", s.claimed_tflops);
  f("loss", s.loss), f("memory", s.memory), f("memory_bytes", s.memory_bytes), f("steps", s.steps);
}

template <Is<WorkTime> S, class F>
void each_field(S& s, F&& f) {
  f("work", s.work), f("s", s.s);
}

template <Is<Record> S, class F>
void each_field(S& s, F&& f) {
  f("schema", s.schema), f("method_version", s.method_version), f("id", s.id), f("created", s.created);
  f("case", s.case_fields), f("definition", s.definition), f("status", s.status), f("error", s.error);
  f("warnings", s.warnings);
  f("env", s.env), f("support", s.support), f("flops", s.flops), f("timing", s.timing);
  f("durations", s.durations), f("metrics", s.metrics), f("predicted", s.predicted), f("memory", s.memory),
      f("breakdown", s.breakdown);
  f("communication", s.communication), f("telemetry", s.telemetry);
  f("training", s.training), f("quantization", s.quantization), f("fidelity", s.fidelity);
  f("sensitivity", s.sensitivity), f("study", s.study), f("params", s.params), f("moe", s.moe),
      f("flow", s.flow), f("source", s.source);
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
inline constexpr bool kIsOptional = std::is_same_v<T, OptionalNumber>;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsOptional<OptionalPart<T>> = true;

}  // namespace precbench
