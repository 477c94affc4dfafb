// A record: what one case of a sweep left behind, one JSON object on one line. It is the only thing that
// crosses between making numbers (bench) and reading them (report, check), so it depends on neither.
//
// Units are in the key or in record.schema.json. What is not known is null, never invented: std::nullopt
// here. NaN and infinity are never written; a non-finite value of a series is null in JSON and NaN in memory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/case_fields.h"
#include "results/definition.h"
#include "results/fidelity.h"
#include "results/optional_number.h"
#include "results/packed_series.h"
#include "results/sensitivity.h"
#include "results/shared.h"
#include "results/shared_list.h"
#include "results/study.h"

namespace precbench {

/// The layout of a record. Raised when a key changes its name, type or meaning. 1 had no `definition`, and its ids do
/// not cover what built-in names stand for; it is still read.
inline constexpr int kSchemaVersion = 2;
/// How numbers are made (what a sample is, when sampling stops, the FLOP formula). Records of different
/// method versions are never compared.
inline constexpr int kMethodVersion = 2;

enum class Status : std::uint8_t { ok, oom, unsupported, timeout, crashed, diverged };
enum class ExecutionPath : std::uint8_t { native, emulated, unsupported };
/// Which rule ended sampling. target: enough samples, time and low noise; stable_noise: more samples would
/// not lower the noise; time_limit: the case's time was up; fixed_steps: the user asked for this many steps.
enum class StopReason : std::uint8_t { target, stable_noise, time_limit, fixed_steps };

const char* name_of(Status status);
const char* name_of(ExecutionPath path);
const char* name_of(StopReason reason);

struct GpuRecord {
  std::string name;                    ///< as the driver says it
  std::optional<std::string> cc;       ///< compute capability, "9.0"
  std::optional<std::int64_t> memory;  ///< bytes on the board
  std::optional<std::string> driver;   ///< driver version
  std::optional<std::string> uuid;
  std::optional<bool> ecc;
  std::optional<double> power_limit;  ///< W
  /// Of all GPUs of the case on this host, "4 GPUs, all pairs NV18"; of one alone, "18 links up".
  std::optional<std::string> nvlink;
};

struct Environment {
  Shared<std::string> git;       ///< commit of the source that was built
  std::optional<bool> dirty;     ///< built from a tree with uncommitted changes
  Shared<std::string> build;     ///< build type and the flags that matter
  Shared<std::string> compiler;  ///< name and version
  Shared<std::string> host;
  Shared<std::string> cpu;                          ///< model name
  std::optional<std::int64_t> threads;              ///< CPU threads of all ranks together
  /// CPUs that the process may run on by its affinity mask, and CPU seconds a second that its control groups allow; null:
  /// no limit. Both null in older records.
  std::optional<std::int64_t> cpus;
  OptionalNumber cpu_quota;
  Shared<GpuRecord> gpu;                            ///< null on the CPU device
  Shared<std::string> cuda, cublaslt, cudnn, nccl;  ///< versions at run time
};

/// How one GEMM of the linear layers ran; the reason says why it was not native.
struct GemmPath {
  ExecutionPath path = ExecutionPath::native;
  std::optional<std::string> reason;
  std::optional<std::string> kernels =
      {};  ///< whose: "cuBLASLt", "own 256x128"; none where there is no choice
  /// Shapes "M x N x K, ..." that were emulated on a device that runs the formats natively, because nobody has a kernel for
  /// them; none where there are none. The path is then `emulated`.
  std::optional<std::string> emulated_shapes = {};
};

struct Support {
  GemmPath fprop, dgrad, wgrad;
  std::optional<std::string> attention;  ///< whose kernels ran it: "cpu", "cudnn 9.14.0", "own"
  /// The weakest of the three: unsupported, else emulated, else native.
  ExecutionPath path() const;
};

struct Flops {
  double per_token = 0;    ///< model FLOPs of one training step per token; nothing recomputed is counted
  std::string convention;  ///< how attention is counted: "causal": a masked half is left out
};

/// One of the two runs of a case that was measured interleaved with the other recipes.
struct TimingRun {
  std::string created;      ///< as Record::created
  std::int64_t warmup = 0;  ///< steps before its first sample
  std::int64_t samples = 0;
  StopReason stop_reason = StopReason::target;
  std::optional<double> median_ms;
};

/// Time of one optimizer step.
struct Timing {
  PackedSeries samples_ms;            ///< every sample, in the order taken
  SharedList<std::int64_t> outliers;  ///< indices into samples_ms; flagged, not discarded
  std::int64_t warmup = 0;            ///< steps before the first sample
  StopReason stop_reason = StopReason::target;
  /// Null when there is no sample. Of all samples, but an interleaved case's median is its runs' mean.
  OptionalNumber median_ms, iqr_ms, min_ms;
  /// The host's clock over all samples, per step: with what samples_ms, the device's clock, leaves out, the host's
  /// work between two steps (the next tokens, their upload, the loss read back). Null in records of before.
  OptionalNumber wall_ms;
  /// Interleaved (A B B A): both runs, whose samples stand one after the other above; else empty.
  SharedList<TimingRun> runs;
  OptionalNumber between_runs;  ///< how far the runs' medians lie apart, fraction of median_ms
};

/// The denominators of the metrics.
struct DeviceRates {
  std::optional<double> bf16_tflops;           ///< dense peak, of mfu_bf16; null for an unknown GPU
  std::optional<double> fp8_tflops;            ///< dense peak
  std::optional<double> memory_gb_per_s;       ///< data-sheet bandwidth
  Shared<std::string> source;                  ///< where the three above come from
  std::optional<double> measured_bf16_tflops;  ///< GEMM rate measured on this GPU in this run
  std::optional<double> measured_fp8_tflops;
  std::optional<double> measured_copy_gb_per_s;
  std::optional<double> fp4_tflops = {};           ///< dense peak; null for a GPU without FP4
  std::optional<double> measured_fp4_tflops = {};  ///< of a recipe with FP4 GEMMs
};

/// All null for an emulated recipe, which has no speed.
struct Metrics {
  OptionalNumber tokens_per_s;  ///< all ranks together, from the median step or what speed_from says
  OptionalNumber tokens_per_s_per_gpu;
  OptionalNumber tflops_per_gpu;      ///< model FLOPs, not recomputed ones
  // Fractions; above 1 where a GPU's clock exceeds its data sheet's, or a step is faster than the GEMMs measured after it.
  OptionalNumber mfu_bf16;            ///< of peaks.bf16_tflops
  OptionalNumber sol;                 ///< of the speed of light
  OptionalNumber mfu_measured;        ///< of the rates measured in this run
  OptionalNumber energy_j_per_token;  ///< all GPUs together; null where several processes drive them
  Shared<DeviceRates> peaks;
  Shared<std::string>
      speed_from;  ///< "mean" where speeds are made from the mean step; null: from the median step
};

/// Bytes by segment on the rank that needs most. A segment that a case does not have is 0.
struct MemorySegments {
  std::int64_t weights = 0, quantized_weights = 0, master = 0, gradients = 0, moments = 0, activations = 0,
               workspace = 0, communication = 0, other = 0;
  std::int64_t total = 0;  ///< sum of the segments, each at its own highest
  std::int64_t peak = 0;   ///< most bytes alive at one time
};

struct Memory {
  Shared<MemorySegments> predicted;  ///< from the dry device
  Shared<MemorySegments> measured;
  std::optional<std::int64_t> driver;  ///< bytes, as the driver says (CPU: peak resident set of the process)
};

/// What all calls of one op in the profiled step do: the same in every run of a case.
struct OpWork {
  std::string name;      ///< "matmul wgrad"
  std::string op_class;  ///< "gemm", as the keys of Breakdown
  std::int64_t calls = 0;
  double flops = 0;  ///< matrix multiply-adds, counted as 2
  double bytes = 0;  ///< each input read once, each output written once
};

/// All calls of one op in the profiled step.
struct OpRecord {
  OpRecord() = default;
  OpRecord(std::string name, std::string op_class, std::int64_t calls, double time_ms, double flops,
           double bytes)
      : work(OpWork{std::move(name), std::move(op_class), calls, flops, bytes}), ms(time_ms) {}

  Shared<OpWork> work = OpWork{};  ///< never null
  double ms = 0;
};

/// One profiled step outside the timed samples, by op class.
struct Breakdown {
  double gemm_ms = 0, quantize_ms = 0, attention_ms = 0, norm_elementwise_ms = 0, head_loss_ms = 0,
         optimizer_ms = 0, communication_ms = 0, idle_ms = 0;
  std::optional<double> routing_ms;  ///< none without experts
  std::vector<OpRecord> ops;         ///< longest first
};

/// One kind of collective in one step, as one rank sees it.
struct CollectiveRecord {
  std::string name;  ///< "all_gather", "reduce_scatter", ...
  std::int64_t calls = 0;
  double buffer_bytes = 0;  ///< of the full buffers, all calls together
  double wire_bytes = 0;    ///< that the rank sends, by the ring algorithms' count
  /// Of a call with the step's largest buffer, alone on the machine: wire bytes over time. NCCL-tests' busbw.
  std::optional<double> bus_gb_per_s;
};

/// How ranks talk to each other. What of it is not hidden behind compute is Breakdown::communication_ms.
struct Communication {
  std::string backend;                   ///< "nccl 2.28.3", or "local" between CPU threads
  double wire_bytes = 0;                 ///< counted in a step, one rank
  double predicted_wire_bytes = 0;       ///< the same from the dry device
  std::vector<std::string> environment;  ///< NCCL_* variables that were set: "NCCL_NVLS_ENABLE=0"
  std::vector<CollectiveRecord> collectives;
};

/// What the GPUs of rank 0's process said while the samples were taken.
struct Telemetry {
  OptionalNumber sm_clock_mhz, sm_clock_min_mhz, sm_clock_max_mhz;  ///< median, lowest, highest
  OptionalNumber memory_clock_mhz;                                  ///< median
  OptionalNumber power_w, power_max_w;                              ///< of one GPU: mean, highest
  OptionalNumber temperature_c;                                     ///< highest
  SharedList<std::string> throttle_reasons;                         ///< seen at least once
  std::optional<std::int64_t> ecc_errors;                           ///< uncorrected, new during the run
};

/// The loss of held-out text after a number of steps, nats. Null where it is not finite.
struct Evaluation {
  std::int64_t step = 0;    ///< steps done
  std::int64_t tokens = 0;  ///< whole sequences
  std::optional<double> loss;
  std::optional<double> loss_error;  ///< standard error of that mean, by sequence; null of a single one
  std::optional<double> bf16_loss;   ///< of the same weights in BF16; null where ranks exchange them in FP8
};

/// Series have one entry per optimizer step. A null of the JSON is NaN here.
struct Training {
  PackedSeries loss;       ///< mean token cross-entropy, nats
  PackedSeries grad_norm;  ///< global 2-norm before clipping
  PackedSeries lr;
  std::optional<std::int64_t> tokens_per_step;  ///< all ranks and accumulation steps together
  std::optional<std::int64_t> params_changed;   ///< parameter tensors that the first step changed
  std::optional<std::int64_t> params_total;     ///< parameter tensors
  SharedList<std::string> converted_layers;     ///< linear layers that run in the recipe's formats
  OptionalNumber entropy_floor;                 ///< nats per token, of a source whose entropy is known
  OptionalNumber uniform_loss;                  ///< ln V: the loss of a model that has learnt nothing, nats
  SharedList<Evaluation> evaluations;           ///< in the order of their steps; none without --eval-data
};

/// What quantization does to one tensor role, over all layers that have it.
struct QuantizationStats {
  std::string
      role;  ///< linear layer, operand (x, dy, w) and direction of its scales: "qkv.x rows", "o.w columns"
  std::string format;                        ///< "e4m3 1x128 f32"
  std::optional<double> underflow_percent;   ///< non-zero elements that became zero
  std::optional<double> saturation_percent;  ///< elements that were clamped
  std::optional<double> sqnr_db;             ///< 20 log10(|x| / |x - q|)
};

/// Of a mixture's slots the share that goes to another expert than in BF16, with the same weights and tokens. Means over
/// batches and ranks.
struct RouteFlips {
  double all = 0;
  std::vector<double> layers;  ///< the blocks with experts, first to last
};

/// The fidelity probe of one state of the weights.
struct Fidelity {
  std::string stress;               ///< "none", or the one they bore for it: "ffn:8:4"
  std::int64_t batches = 0;         ///< a training step's tokens each
  std::optional<double> loss_bf16;  ///< mean, nats
  MeanInterval loss_difference;     ///< recipe minus BF16, nats
  WholeFidelity whole;
  std::vector<GradientFidelity> roles;  ///< linear layers, "norm", "embedding", "lm_head"; together the whole
  std::vector<GradientFidelity> layers;        ///< the blocks, first to last
  std::optional<RouteFlips> route_flips = {};  ///< of a model with experts
};

/// Parameters of a model with experts, and those that a token meets.
struct ParameterCounts {
  std::int64_t total = 0, active = 0;
};

/// Rows of experts in a step, of all layers on one rank.
struct ExpertRows {
  double expected = 0;  ///< slots that are not dropped at even load
  double actual = 0;    ///< computed
  double padded = 0;    ///< with padding
  double dropped = 0;   ///< slots of this rank's tokens
};

/// The most loaded expert's slots over the mean of all.
struct ExpertLoad {
  OptionalNumber median, max;      ///< over layers
  std::vector<double> layers;      ///< each block's with experts
  std::int64_t empty_experts = 0;  ///< without a slot, of all layers
};

struct ExpertFlops {
  double expected = 0, actual = 0;  ///< of the experts' products
  double router = 0;                ///< which no other count has
};

/// What one rank exchanges with those that have the other experts, by the links' count.
struct ExchangeBytes {
  double dispatch = 0, combine = 0;  ///< to the experts, and back; both forward and backward
  std::optional<double> predicted_dispatch, predicted_combine;  ///< the same from the dry device
};

/// A mixture of experts in the last timed step, on one rank.
struct MoeRecord {
  std::int64_t experts = 0, top_k = 0, expert_ffn = 0, shared_ffn = 0;
  std::string score;                   ///< "softmax", "sigmoid"
  std::string routing;                 ///< --routing
  std::optional<std::string> grouped;  ///< who ran their products on a GPU: "own", "loop" or both
  std::optional<double> capacity;      ///< none: an expert takes as many as there are
  ExpertRows rows;
  double padding_fraction = 0;  ///< of the padded rows
  ExpertLoad load;
  ExpertFlops flops;
  std::vector<double> aux_loss, z_loss;  ///< by layer, without their coefficients
  std::optional<double> bias_min, bias_max;
  std::optional<std::int64_t>
      ep;  ///< ranks that have different experts; none: each has all, and what follows neither
  std::optional<std::string> exchange, dispatch;
  std::optional<std::int64_t> slots;  ///< of exchange slots: rows for each rank
  std::optional<std::string>
      columns;  ///< of dispatch fp8: "exact", or of codes of rows "requantized" or "transposed"
  std::optional<ExchangeBytes> bytes;
};

/// Quantized forms of activations and gradients that a step makes of values: by ops that do nothing else, or by what made the
/// values.
struct CastCounts {
  std::int64_t standalone = 0, fused = 0;
};

/// What is lost where an operand's columns are transposed codes: sums over all layers.
struct Conversion {
  std::string role;  ///< "qkv.x", "down.dy"
  std::optional<double>
      e_conv;  ///< |D(T(c)) - D(c)| / |D(c)|, of codes c, their values D and their transposition T
  std::optional<double> e_total,
      e_direct;  ///< of D(T(c)), and of the value's own columnwise form: |q - x| / |x|; null: nobody here has the value
  std::optional<double> underflow_percent;  ///< codes other than 0 that T makes 0
};

/// The casts of a recipe whose codes could be transposed, in the profiled step on rank 0; see Recipe::flow.
struct FlowRecord {
  bool on = false;
  CastCounts casts;
  std::int64_t transposes = 0;         ///< of codes
  std::vector<Conversion> conversion;  ///< none where it is off
};

struct Record {
  int schema = kSchemaVersion;
  int method_version = kMethodVersion;
  std::string id;       ///< hash of the case fields that define the work, and of the definition
  std::string created;  ///< ISO 8601, UTC: "2025-01-31T12:00:00Z"
  /// The fields of the case under the names of the command line; scalars, so that a reader needs no knowledge
  /// of them.
  CaseFields case_fields;
  Shared<DefinitionRecord> definition;  ///< null in records of schema 1
  Status status = Status::ok;
  Shared<std::string> error;         ///< one line; not null unless status is ok
  SharedList<std::string> warnings;  ///< one line each: what a reader must know before trusting the numbers
  Shared<Environment> env = Environment{};  ///< never null
  Shared<Support> support;
  Shared<Flops> flops;
  Shared<Timing> timing;
  Shared<Metrics> metrics;
  Shared<Memory> memory;
  Shared<Breakdown> breakdown;
  Shared<Communication> communication;  ///< null for one rank
  Shared<Telemetry> telemetry;
  Shared<Training> training;
  SharedList<QuantizationStats> quantization;
  SharedList<Fidelity>
      fidelity;  ///< of the first weights, then under each stress; none without --fidelity-batches
  Shared<SensitivityRecord> sensitivity;  ///< null without --sensitivity
  Shared<StudyPlace> study;        ///< null unless a study made the row
  Shared<ParameterCounts> params;  ///< null without experts, as moe
  Shared<MoeRecord> moe;
  Shared<FlowRecord> flow;  ///< null where no recipe's codes could be transposed
};

/// Whether a field of a case decides what work is measured. The others say what is saved, for how long a case is sampled
/// and how much of it is looked at: bench/case/case.cpp leaves them out of an id, and readers out of every comparison.
bool changes_work(const std::string& case_field);
/// Whether a row has this field of its case only where it is not at its default: without it, it is.
bool only_where_used(const std::string& case_field);

/// "NVIDIA H200", or on the CPU device the CPU's model. Speeds of different machines are never compared.
std::string machine_of(const Environment& env);

/// JSON keys are the member names, except `case` for case_fields. A status of ok with a non-finite loss is
/// written as diverged: no reader may take such a run for a success.
void to_json(nlohmann::ordered_json& json, const Record& record);
/// Throws InvalidInput with the key of the first value that is missing, of another type, or an integer that its field
/// cannot hold. Schema (schema.h) is the complete check.
void from_json(const nlohmann::ordered_json& json, Record& record);

}  // namespace precbench
