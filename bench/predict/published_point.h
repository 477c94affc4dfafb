// Published training throughput with its setting: results/published/points.json. Points are compared with
// predictions (published_prediction.h), which use none of them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/machine/machine.h"
#include "bench/predict/stack_factor.h"
#include "models/config/config.h"

namespace precbench {

/// How a point is compared with a prediction.
enum class JudgedAs : std::uint8_t {
  absolute_native,  ///< tokens/s against our step: stacks built like ours
  absolute_stack,   ///< tokens/s against our step times the factor of PyTorch (stack_factor.h)
  speedup,          ///< ratio to a BF16 point of the same source
  scaling,          ///< ratio to a point of the same source on fewer GPUs
  shown             ///< printed, never judged
};
inline constexpr int kJudgedAs = 5;
const char* name_of(JudgedAs judged);
/// Returns true for ratios of two points, whose errors are differences; others are relative.
inline bool is_ratio(JudgedAs judged) { return judged == JudgedAs::speedup || judged == JudgedAs::scaling; }

/// A row of the file; null or empty: not stated by the source.
struct PublishedPoint {
  std::string id, source, where, date, framework;
  std::string model, gpu, precision, recompute, flop_convention, confidence, caveat, machine_notes;
  std::optional<double> params;
  std::optional<std::int64_t> gpus, nodes;
  std::optional<std::int64_t> dp, fsdp, tp, pp, vp, cp, ep;  ///< dp: replicas times shards; fsdp: shards
  bool hsdp = false;
  std::optional<std::int64_t> micro_batch, global_batch, seq;
  std::optional<double> tokens_per_s_per_gpu, tflops_per_gpu, step_s, speedup_over_bf16;
  std::optional<double> peak_gb;  ///< memory of a GPU, 10^9 bytes
  /// Tokens/s per GPU over those of scaling_from_id, from sources that state no tokens/s.
  std::optional<double> scaling_ratio;
  std::vector<JudgedAs> judged_as;
  std::string speedup_over_id, scaling_from_id;

  bool is_judged(JudgedAs as) const;
};

/// Parses and checks a file of points. Throws InvalidInput that starts with `where` and names the point: an
/// unknown key, a wrong type, a number outside its range (with the range), a pipeline with too many passes to simulate,
/// an id that occurs twice, a partner that does not exist, axes whose product is not `gpus`, or tokens/s of a dense
/// Llama that differ from its TFLOP/s by more than kRateTolerance.
std::vector<PublishedPoint> points_from_json(const nlohmann::json& json, const std::string& where);
std::vector<PublishedPoint> read_points(const std::string& path);
inline constexpr double kRateTolerance = 0.025;

/// Returns a point by its id; null if there is none.
const PublishedPoint* find_point(const std::vector<PublishedPoint>& points, const std::string& id);

/// Returns the shape of a published model: a preset ("llama3-8b"), a shape of results/published/models.json,
/// or one written into the name ("C5120 L40 H40/8 F17920 V128256"). Throws InvalidInput for an unknown one.
ModelConfig published_model(const std::string& name);

/// Returns the stack of a point's software; Stack::precbench for software whose steps are built like ours (llm.q) and
/// for other software that no factor is for.
Stack stack_of(const PublishedPoint& point);
/// Returns who published a point, the first part of its id.
std::string source_of(const PublishedPoint& point);

/// Returns the machine of a point: its GPU's preset, with the domain size and the NIC rate of its nodes if they are
/// stated. Throws InvalidInput if no preset has this GPU.
Machine published_machine(const PublishedPoint& point);

}  // namespace precbench
