// Records to JSON and back. One list of fields per struct (each_field) drives both directions.
#include "results/record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

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
  f("cpu", s.cpu), f("threads", s.threads), f("gpu", s.gpu);
  f("cuda", s.cuda), f("cublaslt", s.cublaslt), f("cudnn", s.cudnn), f("nccl", s.nccl);
}

template <Is<GemmPath> S, class F>
void each_field(S& s, F&& f) {
  f("path", s.path), f("reason", s.reason), f("kernels", s.kernels);
}

template <Is<Support> S, class F>
void each_field(S& s, F&& f) {
  f("fprop", s.fprop), f("dgrad", s.dgrad), f("wgrad", s.wgrad), f("attention", s.attention);
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
  f("runs", s.runs), f("between_runs", s.between_runs);
}

template <Is<DeviceRates> S, class F>
void each_field(S& s, F&& f) {
  f("bf16_tflops", s.bf16_tflops), f("fp8_tflops", s.fp8_tflops), f("memory_gb_per_s", s.memory_gb_per_s);
  f("source", s.source), f("measured_bf16_tflops", s.measured_bf16_tflops);
  f("measured_fp8_tflops", s.measured_fp8_tflops), f("measured_copy_gb_per_s", s.measured_copy_gb_per_s);
}

template <Is<Metrics> S, class F>
void each_field(S& s, F&& f) {
  f("tokens_per_s", s.tokens_per_s), f("tokens_per_s_per_gpu", s.tokens_per_s_per_gpu);
  f("tflops_per_gpu", s.tflops_per_gpu), f("mfu_bf16", s.mfu_bf16), f("sol", s.sol);
  f("mfu_measured", s.mfu_measured), f("energy_j_per_token", s.energy_j_per_token), f("peaks", s.peaks);
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
  f("name", s.name), f("op_class", s.op_class), f("calls", s.calls), f("ms", s.ms), f("flops", s.flops);
  f("bytes", s.bytes);
}

template <Is<Breakdown> S, class F>
void each_field(S& s, F&& f) {
  f("gemm_ms", s.gemm_ms), f("quantize_ms", s.quantize_ms), f("attention_ms", s.attention_ms);
  f("norm_elementwise_ms", s.norm_elementwise_ms), f("head_loss_ms", s.head_loss_ms);
  f("optimizer_ms", s.optimizer_ms), f("communication_ms", s.communication_ms), f("idle_ms", s.idle_ms);
  f("ops", s.ops);
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

template <Is<Evaluation> S, class F>
void each_field(S& s, F&& f) {
  f("step", s.step), f("tokens", s.tokens), f("loss", s.loss), f("loss_error", s.loss_error);
  f("bf16_loss", s.bf16_loss);
}

template <Is<Training> S, class F>
void each_field(S& s, F&& f) {
  f("loss", s.loss), f("grad_norm", s.grad_norm), f("lr", s.lr), f("tokens_per_step", s.tokens_per_step);
  f("params_changed", s.params_changed), f("params_total", s.params_total);
  f("converted_layers", s.converted_layers), f("entropy_floor", s.entropy_floor);
  f("uniform_loss", s.uniform_loss), f("evaluations", s.evaluations);
}

template <Is<QuantizationStats> S, class F>
void each_field(S& s, F&& f) {
  f("role", s.role), f("format", s.format), f("underflow_percent", s.underflow_percent);
  f("saturation_percent", s.saturation_percent), f("sqnr_db", s.sqnr_db);
}

template <Is<StudyPlace> S, class F>
void each_field(S& s, F&& f) {
  f("study", s.study), f("part", s.part), f("trunk", s.trunk), f("age", s.age), f("seed", s.seed);
  f("rung", s.rung), f("base", s.base), f("asked", s.asked), f("apart_from", s.apart_from);
  f("breaks", s.breaks), f("margin", s.margin), f("level", s.level);
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

template <Is<Fidelity> S, class F>
void each_field(S& s, F&& f) {
  f("stress", s.stress), f("batches", s.batches), f("loss_bf16", s.loss_bf16);
  f("loss_difference", s.loss_difference), f("whole", s.whole), f("roles", s.roles), f("layers", s.layers);
}

template <Is<Record> S, class F>
void each_field(S& s, F&& f) {
  f("schema", s.schema), f("method_version", s.method_version), f("id", s.id), f("created", s.created);
  f("case", s.case_fields), f("definition", s.definition), f("status", s.status), f("error", s.error);
  f("warnings", s.warnings);
  f("env", s.env), f("support", s.support), f("flops", s.flops), f("timing", s.timing);
  f("metrics", s.metrics), f("memory", s.memory), f("breakdown", s.breakdown);
  f("communication", s.communication), f("telemetry", s.telemetry);
  f("training", s.training), f("quantization", s.quantization), f("fidelity", s.fidelity);
  f("study", s.study);
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

constexpr EnumNames<Status, 6> kStatusNames{{"ok", "oom", "unsupported", "timeout", "crashed", "diverged"}};
constexpr EnumNames<ExecutionPath, 3> kPathNames{{"native", "emulated", "unsupported"}};
constexpr EnumNames<StudyPart, 5> kPartNames{{"trunk", "fork", "learning_rate", "bits", "batch"}};
constexpr EnumNames<StopReason, 4> kStopReasonNames{{"target", "stable_noise", "time_limit", "fixed_steps"}};

template <class Enum>
constexpr const auto& names_of() {
  if constexpr (std::is_same_v<Enum, Status>)
    return kStatusNames;
  else if constexpr (std::is_same_v<Enum, ExecutionPath>)
    return kPathNames;
  else if constexpr (std::is_same_v<Enum, StudyPart>)
    return kPartNames;
  else
    return kStopReasonNames;
}

/// Keys that a record leaves out where they have nothing to say.
bool left_out(std::string_view key) { return key == "kernels"; }

template <class T>
Json write_value(const T& value) {
  if constexpr (kIsOptional<T>) {
    return value ? write_value(*value) : Json(nullptr);
  } else if constexpr (IsVector<T>::value) {
    Json array = Json::array();
    for (const auto& element : value) array.push_back(write_value(element));
    return array;
  } else if constexpr (std::is_enum_v<T>) {
    return name_of(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
                       std::is_same_v<T, CaseFields>) {
    return value;
  } else if constexpr (std::is_same_v<T, DefinitionPart>) {
    return value ? *value : Json::object();
  } else {
    Json object = Json::object();
    each_field(value, [&](const char* key, const auto& field) {
      Json member = write_value(field);
      if (!member.is_null() || !left_out(key)) object[key] = std::move(member);
    });
    return object;
  }
}

[[noreturn]] void wrong_type(const std::string& where, const char* wanted, const Json& json) {
  throw InvalidInput(where + ": not " + wanted + " but " + json.type_name());
}

/// Keys that records from before they existed lack; their default says so.
bool added_later(const std::string& where, std::string_view key) {
  if (where.empty()) return key == "definition" || key == "fidelity" || key == "study";
  if (where == "/training") return key == "evaluations";
  if (where.starts_with("/support/")) return left_out(key);
  return where == "/timing" && (key == "wall_ms" || key == "runs" || key == "between_runs");
}

/// A whole number that T holds; 3.0 is one too.
template <class T>
T integer(const Json& json, const std::string& where) {
  const auto fits = [&](auto number) {
    if (!std::in_range<T>(number)) throw InvalidInput(where + ": " + json.dump() + " is out of range");
    return static_cast<T>(number);
  };
  if (json.is_number_unsigned()) return fits(json.get<std::uint64_t>());
  if (json.is_number_integer()) return fits(json.get<std::int64_t>());
  const double number = json.is_number_float() ? json.get<double>() : 0.5;
  if (std::floor(number) != number) wrong_type(where, "an integer", json);
  // Beyond 2^53 a double has no odd numbers, so that it is none that somebody counted.
  if (std::abs(number) > 0x1p53) throw InvalidInput(where + ": " + json.dump() + " is out of range");
  return fits(static_cast<std::int64_t>(number));
}

template <class T>
void read_value(const Json& json, const std::string& where, T& value) {
  if constexpr (kIsOptional<T>) {
    if (json.is_null()) return value.reset();
    read_value(json, where, value.emplace());
  } else if constexpr (IsVector<T>::value) {
    if (!json.is_array()) wrong_type(where, "an array", json);
    value.clear();
    value.reserve(json.size());
    for (const Json& element : json) {
      typename T::value_type item{};
      read_value(element, where + "/" + std::to_string(value.size()), item);
      value.push_back(std::move(item));
    }
  } else if constexpr (std::is_enum_v<T>) {
    if (!json.is_string()) wrong_type(where, "a name", json);
    const auto found = names_of<T>().find(json.template get_ref<const std::string&>());
    if (!found) throw InvalidInput(where + ": unknown value \"" + json.template get<std::string>() + "\"");
    value = *found;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) wrong_type(where, "true or false", json);
    value = json.template get<bool>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number() && !json.is_null()) wrong_type(where, "a number", json);
    value = json.is_null() ? std::numeric_limits<T>::quiet_NaN() : json.template get<T>();
  } else if constexpr (std::is_integral_v<T>) {
    value = integer<T>(json, where);
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) wrong_type(where, "a string", json);
    value = json.template get<std::string>();
  } else if constexpr (std::is_same_v<T, CaseFields>) {
    if (!json.is_object()) wrong_type(where, "an object", json);
    value = CaseFields(json);
  } else if constexpr (std::is_same_v<T, DefinitionPart>) {
    if (!json.is_object()) wrong_type(where, "an object", json);
    value = std::make_shared<const Json>(json);
  } else {
    if (!json.is_object()) wrong_type(where, "an object", json);
    each_field(value, [&](const char* key, auto& field) {
      const auto found = json.find(key);
      if (found == json.end() && added_later(where, key)) return;
      if (found == json.end()) throw InvalidInput(where + "/" + key + ": missing");
      read_value(*found, where + "/" + key, field);
    });
  }
}

}  // namespace

const char* name_of(Status status) { return kStatusNames.of(status); }
const char* name_of(ExecutionPath path) { return kPathNames.of(path); }
const char* name_of(StudyPart part) { return kPartNames.of(part); }
const char* name_of(StopReason reason) { return kStopReasonNames.of(reason); }

ExecutionPath Support::path() const { return std::max({fprop.path, dgrad.path, wgrad.path}); }

bool changes_work(const std::string& case_field) {
  static const std::set<std::string> kNotWork = {"save_init",       "save_final",       "save_grads",
                                                 "time_limit",      "checkpoint_every", "checkpoint_dir",
                                                 "checkpoint_keep", "eval_every",       "eval_tokens"};
  return !kNotWork.contains(case_field);
}

std::string machine_of(const Environment& env) {
  return env.gpu ? env.gpu->name : env.cpu.value_or("unknown CPU");
}

void to_json(nlohmann::ordered_json& json, const Record& record) {
  json = write_value(record);
  if (!record.definition) json.erase("definition");
  if (!record.study) json.erase("study");
  if (record.status != Status::ok || !record.training) return;
  const auto& loss = record.training->loss;
  const auto bad = std::find_if(loss.begin(), loss.end(), [](double x) { return !std::isfinite(x); });
  if (bad == loss.end()) return;
  json["status"] = name_of(Status::diverged);
  if (!record.error) json["error"] = "the loss is not finite at step " + std::to_string(bad - loss.begin());
}

void from_json(const nlohmann::ordered_json& json, Record& record) {
  read_value(json, "", record);
  if (!record.definition && record.schema > 1) throw InvalidInput("/definition: missing");
}

}  // namespace precbench
