// A record: the result of one case of a sweep, one JSON object on one line. It is the only interface between
// code that makes numbers (bench) and code that reads them (report, check), so it depends on neither.
//
// Units are in the key or in record.schema.json. Unknown values are null (std::nullopt here), never invented.
// NaN and infinity are never written; a non-finite value of a series is null in JSON and NaN in memory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/record/case_fields.h"
#include "results/record/definition_record.h"
#include "results/record/fidelity_record.h"
#include "results/record/import_source.h"
#include "results/record/optional_number.h"
#include "results/record/optional_part.h"
#include "results/record/sensitivity_record.h"
#include "results/record/study_place.h"

namespace precbench {

/// Layout version of a record, raised when a key changes its name, type or meaning. Version 1 had no
/// `definition`, and its ids do not cover what built-in names stand for; it is still read.
inline constexpr int kSchemaVersion = 2;
/// Version of the measuring method (definition of a sample, stop rules, FLOP formula). Records of different
/// method versions are never compared.
inline constexpr int kMethodVersion = 2;

enum class Status : std::uint8_t { ok, oom, unsupported, timeout, crashed, diverged };
enum class ExecutionPath : std::uint8_t { native, emulated, unsupported };
/// Rule that ended sampling. target: enough samples, time and low noise; stable_noise: more samples would not
/// reduce the noise; time_limit: the case's time was up; fixed_steps: the requested steps were done.
enum class StopReason : std::uint8_t { target, stable_noise, time_limit, fixed_steps };

const char* name_of(Status status);
const char* name_of(ExecutionPath path);
const char* name_of(StopReason reason);

struct GpuRecord {
  std::string name;                    ///< as the driver reports it
  std::optional<std::string> cc;       ///< compute capability, "9.0"
  std::optional<std::int64_t> memory;  ///< bytes on the board
  std::optional<std::string> driver;   ///< driver version
  std::optional<std::string> uuid;
  std::optional<bool> ecc;
  std::optional<double> power_limit;  ///< W
  /// Links between all GPUs of the case on this host, "4 GPUs, all pairs NV18"; for a single GPU "18 links
  /// up".
  std::optional<std::string> nvlink;
};

struct Environment {
  std::optional<std::string> git;       ///< commit of the built source
  std::optional<bool> dirty;            ///< built from a tree with uncommitted changes
  std::optional<std::string> build;     ///< build type and relevant flags
  std::optional<std::string> compiler;  ///< name and version
  std::optional<std::string> host;
  std::optional<std::int64_t> nodes;    ///< hosts of all ranks, told apart by name; null in older records
  std::optional<std::string> cpu;       ///< model name
  std::optional<std::int64_t> threads;  ///< CPU threads of all ranks together
  /// CPUs of the process's affinity mask, and CPU seconds per second that its control groups allow (null: no
  /// limit). Both null in older records.
  std::optional<std::int64_t> cpus;
  OptionalNumber cpu_quota;
  std::optional<GpuRecord> gpu;                            ///< null on the CPU device
  std::optional<std::string> cuda, cublaslt, cudnn, nccl;  ///< versions at run time
};

/// Execution of one GEMM of the linear layers; the reason tells why it was not native.
struct GemmPath {
  ExecutionPath path = ExecutionPath::native;
  std::optional<std::string> reason;
  std::optional<std::string> kernels = {};  ///< "cuBLASLt", "own 256x128"; null without alternatives
  /// Shapes "M x N x K, ..." that were emulated although the device runs the formats natively, for lack of a
  /// kernel; null if none. The path is then `emulated`.
  std::optional<std::string> emulated_shapes = {};
};

struct Support {
  GemmPath fprop, dgrad, wgrad;
  std::optional<std::string> attention;  ///< attention kernels: "cpu", "cudnn 9.14.0", "own"
  /// True if `precbench doctor --run` has shown on this machine that all native paths of the case compute what the
  /// CPU computes; false if not. Null in older records, on the CPU and if no GEMM is native.
  std::optional<bool> verified = {};
  /// Returns the weakest of the three: unsupported, else emulated, else native.
  ExecutionPath path() const;
};

struct Flops {
  double per_token = 0;    ///< model FLOPs of one training step per token, without recomputation
  std::string convention;  ///< counting of attention: "causal" omits the masked half
};

/// One of the two runs of a case that was interleaved with the other recipes.
struct TimingRun {
  std::string created;      ///< see Record::created
  std::int64_t warmup = 0;  ///< steps before its first sample
  std::int64_t samples = 0;
  StopReason stop_reason = StopReason::target;
  std::optional<double> median_ms;
};

/// Time of one optimizer step.
struct Timing {
  std::vector<double> samples_ms;      ///< every sample, in order
  std::vector<std::int64_t> outliers;  ///< indices into samples_ms; flagged, not discarded
  std::int64_t warmup = 0;             ///< steps before the first sample
  StopReason stop_reason = StopReason::target;
  /// Over all samples; null without samples. The median of an interleaved case is the mean of its runs'
  /// medians.
  OptionalNumber median_ms, iqr_ms, min_ms;
  /// Host-clock time per step over all samples. Includes the host's work between steps (next tokens, upload,
  /// reading back the loss), which the device clock of samples_ms excludes. Null in older records.
  OptionalNumber wall_ms;
  /// CPU time of the process per step, over the same time as wall_ms: of all its threads, in user and kernel mode. On
  /// the CPU device less than wall_ms times the threads means that threads slept or had to share CPUs. Null in older
  /// records and if several processes run the case.
  OptionalNumber cpu_ms;
  /// Time per step that the process's threads, together, were ready to run and waited for a CPU by the
  /// kernel's scheduling statistics, over the same time: other processes, or a CPU quota, held the CPUs. Null where the
  /// kernel does not count it.
  OptionalNumber cpu_wait_ms;
  /// Interleaved case (A B B A): both runs, whose samples are consecutive above; else empty.
  std::vector<TimingRun> runs;
  OptionalNumber between_runs;  ///< difference of the runs' medians, as a fraction of median_ms
};

/// The denominators of the metrics.
struct DeviceRates {
  std::optional<double> bf16_tflops;      ///< dense peak, denominator of mfu_bf16; null for an unknown GPU
  std::optional<double> fp8_tflops;       ///< dense peak
  std::optional<double> memory_gb_per_s;  ///< data-sheet bandwidth
  std::optional<std::string> source;      ///< source of the three above
  std::optional<double> measured_bf16_tflops;  ///< GEMM rate measured on this GPU in this run
  std::optional<double> measured_fp8_tflops;
  std::optional<double> measured_copy_gb_per_s;
  std::optional<double> fp4_tflops = {};           ///< dense peak; null for a GPU without FP4
  std::optional<double> measured_fp4_tflops = {};  ///< for a recipe with FP4 GEMMs
};

/// Speed metrics; all null for an emulated recipe, whose speed is not reported.
struct Metrics {
  OptionalNumber tokens_per_s;  ///< all ranks together, from the median step unless speed_from is set
  OptionalNumber tokens_per_s_per_gpu;
  OptionalNumber tflops_per_gpu;  ///< model FLOPs, without recomputation
  // Fractions. Above 1 if a GPU's clock exceeds its data sheet's or a step is faster than the GEMMs measured
  // after it.
  OptionalNumber mfu_bf16;            ///< of peaks.bf16_tflops
  OptionalNumber sol;                 ///< of the speed of light
  OptionalNumber mfu_measured;        ///< of the rates measured in this run
  OptionalNumber energy_j_per_token;  ///< all GPUs together; null if several processes drive them
  std::optional<DeviceRates> peaks;
  std::optional<std::string>
      speed_from;  ///< "mean" if speeds are computed from the mean step; null: from the median step
};

/// Bytes by segment on the rank that needs most; 0 for unused segments.
struct MemorySegments {
  std::int64_t weights = 0, quantized_weights = 0, master = 0, gradients = 0, moments = 0, activations = 0,
               workspace = 0, communication = 0, other = 0;
  std::int64_t total = 0;  ///< sum of the segments' individual peaks
  std::int64_t peak = 0;   ///< maximum of bytes in use at one time
};

struct Memory {
  std::optional<MemorySegments> predicted;  ///< from the dry device
  std::optional<MemorySegments> measured;
  /// Bytes, as the driver reports (CPU: peak resident set of the process).
  std::optional<std::int64_t> driver;
};

/// All calls of one op with one shape in the profiled step. In older records: with any shape, without the
/// shape.
struct OpRecord {
  std::string name;      ///< "matmul wgrad"
  std::string op_class;  ///< "gemm", as in the keys of Breakdown
  std::int64_t calls = 0;
  double ms = 0;
  double flops = 0;  ///< matrix multiply-adds, counted as 2
  double bytes = 0;  ///< each input read once, each output written once
  /// GEMM: m, n, k of D[m,n] = A[m,k] B[n,k]^T, and the number of experts; attention: B, T, keys, offset,
  /// heads, kv_heads, head_dim; others: rows and columns. Null for an op without rows.
  std::optional<std::vector<std::int64_t>> shape = {};
  /// GEMM: formats of A and B; others: of the rowwise and the columnwise copy that they write. "e4m3 1x128
  /// f32, e4m3 128x128 f32"; null if both are BF16.
  std::optional<std::string> formats = {};
};

/// One profiled step outside the timed samples, by op class.
struct Breakdown {
  double gemm_ms = 0, quantize_ms = 0, attention_ms = 0, norm_elementwise_ms = 0, head_loss_ms = 0,
         optimizer_ms = 0, communication_ms = 0, idle_ms = 0;
  std::optional<double> routing_ms;  ///< null without experts
  std::vector<OpRecord> ops;         ///< longest first
};

/// One kind of collective in one step, as one rank sees it.
struct CollectiveRecord {
  std::string name;  ///< "all_gather", "reduce_scatter", ...
  std::int64_t calls = 0;
  double buffer_bytes = 0;  ///< of the full buffers, all calls together
  double wire_bytes = 0;    ///< sent by the rank, by the ring algorithms' count
  /// Wire bytes over time of a call with the step's largest buffer on the otherwise idle machine, like
  /// NCCL-tests' busbw.
  std::optional<double> bus_gb_per_s;
};

/// Communication of the ranks. Time that compute does not hide is Breakdown::communication_ms.
struct Communication {
  std::string backend;                   ///< "nccl 2.28.3", or "local" between CPU threads
  double wire_bytes = 0;                 ///< counted in a step, one rank
  double predicted_wire_bytes = 0;       ///< predicted by the dry device
  std::vector<std::string> environment;  ///< NCCL_* variables that were set: "NCCL_NVLS_ENABLE=0"
  std::vector<CollectiveRecord> collectives;
};

/// Telemetry of the GPUs of rank 0's process during sampling.
struct Telemetry {
  OptionalNumber sm_clock_mhz, sm_clock_min_mhz, sm_clock_max_mhz;  ///< median, lowest, highest
  OptionalNumber memory_clock_mhz;                                  ///< median
  OptionalNumber power_w, power_max_w;                              ///< per GPU: mean, highest
  OptionalNumber temperature_c;                                     ///< highest
  std::vector<std::string> throttle_reasons;                        ///< seen at least once
  std::optional<std::int64_t> ecc_errors;                           ///< uncorrected, new during the run
};

/// Held-out loss after a number of steps, nats; null if not finite.
struct Evaluation {
  std::int64_t step = 0;    ///< completed steps
  std::int64_t tokens = 0;  ///< of whole sequences
  std::optional<double> loss;
  std::optional<double> loss_error;  ///< standard error of the mean over sequences; null for a single one
  std::optional<double> bf16_loss;   ///< loss of the same weights in BF16; null if ranks exchange them in FP8
  std::optional<std::vector<Reading>> readings =
      {};  ///< after the last step, BF16's first; null without --eval-recipes
};

/// Series have one entry per optimizer step. A null in JSON is NaN here.
struct Training {
  std::vector<double> loss;       ///< mean token cross-entropy, nats
  std::vector<double> grad_norm;  ///< global 2-norm before clipping
  std::vector<double> lr;
  std::optional<std::int64_t> tokens_per_step;  ///< all ranks and accumulation steps together
  std::optional<std::int64_t> params_changed;   ///< parameter tensors that the first step changed
  std::optional<std::int64_t> params_total;     ///< parameter tensors
  std::vector<std::string> converted_layers;    ///< linear layers that run in the recipe's formats
  OptionalNumber entropy_floor;                 ///< nats per token, for a source of known entropy
  OptionalNumber uniform_loss;                  ///< ln V, the loss of an untrained model, nats
  std::vector<Evaluation> evaluations;          ///< in order of steps; empty without --eval-data
  /// Bytes of text that a token with a loss stands for, on average, in --data and in --eval-data: nats per token over this
  /// are nats per byte. Null where the length of tokens is unknown, and in older records.
  OptionalNumber bytes_per_token, held_out_bytes_per_token;
};

/// Quantization statistics of one tensor role over all layers that have it.
struct QuantizationStats {
  std::string
      role;  ///< linear layer, operand (x, dy, w) and direction of its scales: "qkv.x rows", "o.w columns"
  std::string format;                        ///< "e4m3 1x128 f32"
  std::optional<double> underflow_percent;   ///< nonzero elements that became zero
  std::optional<double> saturation_percent;  ///< elements that were clamped
  std::optional<double> sqnr_db;             ///< 20 log10(|x| / |x - q|)
};

/// Share of an MoE model's slots that go to another expert than in BF16, with the same weights and tokens. Means
/// over batches and ranks.
struct RouteFlips {
  double all = 0;
  std::vector<double> layers;  ///< the blocks with experts, first to last
};

/// The fidelity probe of one state of the weights.
struct Fidelity {
  std::string stress;               ///< "none", or the outlier stress applied to the weights: "ffn:8:4"
  std::int64_t batches = 0;         ///< number of batches, each of a training step's tokens
  std::optional<double> loss_bf16;  ///< mean, nats
  MeanInterval loss_difference;     ///< recipe minus BF16, nats
  WholeFidelity whole;
  /// Linear layers, "norm", "embedding", "lm_head"; together all parameters.
  std::vector<GradientFidelity> roles;
  std::vector<GradientFidelity> layers;        ///< the blocks, first to last
  std::optional<RouteFlips> route_flips = {};  ///< null without experts
  std::optional<OutputDistance> outputs = {};  ///< null under stress
};

/// Total and active (per token) parameters of a model with experts.
struct ParameterCounts {
  std::int64_t total = 0, active = 0;
};

/// Rows of experts in a step, over all layers on one rank.
struct ExpertRows {
  double expected = 0;  ///< slots that are not dropped at even load
  double actual = 0;    ///< computed rows
  double padded = 0;    ///< computed rows with padding
  double dropped = 0;   ///< dropped slots of this rank's tokens
};

/// Slots of the busiest expert divided by the mean over all experts.
struct ExpertLoad {
  OptionalNumber median, max;      ///< over layers
  std::vector<double> layers;      ///< per block with experts
  std::int64_t empty_experts = 0;  ///< experts without a slot, over all layers
};

struct ExpertFlops {
  double expected = 0, actual = 0;  ///< of the experts' GEMMs
  double router = 0;                ///< counted nowhere else
};

/// Bytes that one rank exchanges with the other expert-parallel ranks, as counted at the links.
struct ExchangeBytes {
  double dispatch = 0, combine = 0;  ///< to the experts; from the experts; forward and backward
  std::optional<double> predicted_dispatch, predicted_combine;  ///< predicted by the dry device
};

/// A mixture of experts in the last timed step, on one rank.
struct MoeRecord {
  std::int64_t experts = 0, top_k = 0, expert_ffn = 0, shared_ffn = 0;
  std::string score;    ///< "softmax", "sigmoid"
  std::string routing;  ///< --routing
  /// Implementation of the experts' GEMMs on a GPU: "own", "loop" or both.
  std::optional<std::string> grouped;
  std::optional<double> capacity;  ///< MoE capacity factor; null: unlimited
  ExpertRows rows;
  double padding_fraction = 0;  ///< fraction of the padded rows
  ExpertLoad load;
  ExpertFlops flops;
  std::vector<double> aux_loss, z_loss;  ///< by layer, without their coefficients
  std::optional<double> bias_min, bias_max;
  std::optional<std::int64_t> ep;  ///< expert-parallel ranks; null: none, and the fields below are null
  std::optional<std::string> exchange, dispatch;
  std::optional<std::int64_t> slots;  ///< exchange slots: rows per destination rank
  std::optional<std::string>
      columns;  ///< dispatch fp8: "exact", or made from rowwise data: "requantized" or "transposed"
  std::optional<ExchangeBytes> bytes;
};

/// Casts of activations and gradients in a step: by ops of their own, or fused into the ops that made the
/// values.
struct CastCounts {
  std::int64_t standalone = 0, fused = 0;
};

/// Error from transposing an operand's FP8 data instead of casting its values again: sums over all layers.
struct Conversion {
  std::string role;  ///< "qkv.x", "down.dy"
  std::optional<double>
      e_conv;  ///< |D(T(c)) - D(c)| / |D(c)| for data c, dequantization D and transposition T
  /// |q - x| / |x| for q = D(T(c)), and for the value's own columnwise cast; null: no rank has the value.
  std::optional<double> e_total, e_direct;
  std::optional<double> underflow_percent;  ///< nonzero data that T makes 0
};

/// Casts of a recipe that supports Recipe::flow, in the profiled step on rank 0.
struct FlowRecord {
  bool on = false;
  CastCounts casts;
  std::int64_t transposes = 0;         ///< transpositions of FP8 data
  std::vector<Conversion> conversion;  ///< empty if flow is off
};

/// The step as the cost model of this version predicts it from the case and the GPU's name alone.
struct PredictedStep {
  double step_ms = 0;
  double low_ms = 0, high_ms = 0;  ///< 80% interval
  double borrowed = 0;             ///< share of the ops' time with rates of other GPUs or formats
  std::string rates;               ///< machine on which the rates were measured: "h200"
};

/// Wall-clock time of a case's process at one kind of work, such as "steps" or "fidelity probe".
struct WorkTime {
  std::string work;
  double s = 0;
};

struct Record {
  int schema = kSchemaVersion;
  int method_version = kMethodVersion;
  std::string id;       ///< hash of the case fields that define the work, and of the definition
  std::string created;  ///< ISO 8601, UTC: "2025-01-31T12:00:00Z"
  /// The fields of the case under their command-line names. Scalars, so that readers need not know them.
  CaseFields case_fields;
  std::optional<DefinitionRecord> definition;  ///< null in records of schema 1 and in imported ones
  Status status = Status::ok;
  std::optional<std::string> error;   ///< one line; not null unless status is ok
  std::vector<std::string> warnings;  ///< one line each: what a reader must know before trusting the numbers
  Environment env;
  std::optional<Support> support;
  std::optional<Flops> flops;
  std::optional<Timing> timing;
  std::vector<WorkTime> durations;  ///< of the process of rank 0, in order; empty in older records
  std::optional<Metrics> metrics;
  std::optional<PredictedStep> predicted;  ///< null in older records and without rates for the machine
  std::optional<Memory> memory;
  std::optional<Breakdown> breakdown;
  std::optional<Communication> communication;  ///< null for one rank
  std::optional<Telemetry> telemetry;
  std::optional<Training> training;
  std::vector<QuantizationStats> quantization;
  std::vector<Fidelity>
      fidelity;  ///< of the initial weights, then under each stress; empty without --fidelity-batches
  std::optional<SensitivityRecord> sensitivity;  ///< null without --sensitivity
  std::optional<StudyPlace> study;               ///< null unless a study made the row
  std::optional<ParameterCounts> params;         ///< null without experts, like moe
  std::optional<MoeRecord> moe;
  std::optional<FlowRecord> flow;  ///< null if no recipe of the case supports flow
  /// Not null for a record read from another program's log. Its definition is then null, its method version
  /// kImportMethodVersion, and series have an entry per line of the log.
  OptionalPart<ImportSource> source;
};

/// Returns true if a field of a case determines the measured work. The others control what is saved, how long
/// a case is sampled and how it is evaluated; bench/case/case.cpp excludes them from ids, and readers from
/// every comparison.
bool changes_work(const std::string& case_field);
/// Returns true if a row has this field only when it differs from the default; a missing field means the
/// default.
bool only_where_used(const std::string& case_field);

/// Returns "NVIDIA H200", or on the CPU device the CPU's model. Speeds of different machines are never
/// compared.
std::string machine_of(const Environment& env);

/// Writes the member names as JSON keys, except `case` for case_fields. Writes a status of ok with a
/// non-finite loss as diverged, so that no reader takes such a run for a success.
void to_json(nlohmann::ordered_json& json, const Record& record);
/// Throws InvalidInput with the key of the first value that is missing, has another type, or is an integer
/// outside its field's range. The complete check is Schema (schema.h).
void from_json(const nlohmann::ordered_json& json, Record& record);

}  // namespace precbench
