// Reads rates and looks them up. See rates.h.
#include "bench/predict/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "bench/predict/rates_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/number_range.h"

namespace precbench {
namespace {

/// Returns the coordinates between which points are near: logarithms, weighted by how much a rate depends on
/// them.
std::vector<double> place_of(const OpCost& op) {
  const auto ln = [](double n) { return std::log(std::max(n, 1.0)); };
  const auto at = [&](int i) { return static_cast<double>(op.shape[static_cast<std::size_t>(i)]); };
  if (is_attention(op.name))  // parallel work, keys of a query, head width, sharing of keys
    return {0.3 * ln(at(0) * at(4)), ln(mean_keys(op)), 4 * ln(at(6)),
            0.15 * ln(at(4) / std::max(at(5), 1.0))};
  if (op.flops > 0) return {ln(at(0)), ln(at(1)), ln(at(2)), ln(at(3))};
  return {ln(op.bytes), 0.5 * ln(at(1))};
}

constexpr std::size_t kWidthAxis = 2;  // of attention's place

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

}  // namespace

DType math_of_formats(const std::string& formats) {
  // "e4m3 1x128 f32, e4m3 128x128 f32": the wider operand decides.
  const auto comma = formats.find(", ");
  if (comma == std::string::npos) return DType::bf16;
  const std::string a = formats.substr(0, comma), b = formats.substr(comma + 2);
  if (a.starts_with("bf16") || b.starts_with("bf16")) return DType::bf16;
  return a.starts_with("e2m1") && b.starts_with("e2m1") ? DType::e2m1 : DType::e4m3;
}

OpCost op_cost(const RatePoint& point) {
  OpCost cost{.name = point.op.c_str(), .flops = point.flops, .bytes = point.bytes};
  std::copy_n(point.shape.begin(), std::min(point.shape.size(), cost.shape.size()), cost.shape.begin());
  if (is_attention(point.op))
    cost.op_class = OpClass::attention;
  else if (point.flops > 0)
    cost.op_class = OpClass::gemm, cost.math = math_of_formats(point.formats);
  return cost;
}

const char* name_of(RateClass rate_class) {
  static constexpr const char* kNames[kRateClasses] = {"gemm", "attention", "memory"};
  return kNames[static_cast<int>(rate_class)];
}

RateClass rate_class_of(const OpCost& op) {
  return op.op_class == OpClass::attention ? RateClass::attention
         : op.flops > 0                    ? RateClass::gemm
                                           : RateClass::memory;
}

double OpPeaks::ideal_seconds(double flops, double bytes_moved, DType math) const {
  const double rate = math == DType::bf16 ? bf16_flops : math == DType::e2m1 ? fp4_flops : fp8_flops;
  return std::max(flops / rate, bytes_moved / bytes);
}

OpPeaks peaks_of(const Machine& machine) {
  const double bf16 = machine.bf16_tflops, fp8 = machine.fp8_tflops.value_or(bf16);
  return {1e12 * bf16, 1e12 * fp8, 1e12 * machine.fp4_tflops.value_or(fp8), 1e9 * machine.memory_gb_per_s,
          machine.capability == 90};
}

double expected_fraction(const OpCost& op, const OpPeaks& peaks) {
  const auto at = [&](int i) { return static_cast<double>(op.shape[static_cast<std::size_t>(i)]); };
  constexpr double kLaunch = 2.5e-6;  // s: what no kernel is shorter than
  const double ideal = peaks.ideal_seconds(op.flops, op.bytes, op.math);
  double fraction = ideal / (ideal + kLaunch);
  if (is_attention(op.name)) {
    constexpr double kRamp = 400;  // keys of a causal sequence before tiles off the diagonal dominate
    // While the bytes take longer than the FLOPs, fewer keys are no slower per byte: as with the keys that balance
    // both.
    const double balance = ideal / peaks.ideal_seconds(op.flops, 0, op.math);
    const double keys = 2 * mean_keys(op) * std::max(1.0, balance);
    return fraction * keys / (keys + kRamp);
  }
  if (op.flops <= 0) return fraction;
  // The multiprocessors of H100 and H200, where all points come from; other GPUs are taken to have as many.
  constexpr double kProcessors = 132, kTiles[][3] = {{128, 256, 1}, {128, 192, 0.97}, {128, 128, 0.92}};
  const double groups = std::max(at(3), 1.0);
  double waves = 0;
  for (const auto& [rows, cols, quality] : kTiles) {
    const double count = std::ceil(at(0) / rows) * std::ceil(at(1) / cols);
    const double covered = at(0) * at(1) / (rows * cols) / kProcessors;
    waves = std::max(waves, quality * covered / std::ceil(count / kProcessors));
  }
  if (groups > 1) waves = 1;      // tiles of all experts share the waves
  constexpr double kDepth = 250;  // of the contraction: prologue and epilogue of a tile
  const double tiles = waves * at(2) / (at(2) + kDepth);
  // A GEMM with a thin side, as of LoRA's adapters, waits for memory, however little of its tiles it fills (measured:
  // results/h200/lora-smollm2.jsonl.xz).
  constexpr double kThin = 64, kBandwidthShare = 0.6;
  const bool thin = groups <= 1 && std::min({at(0), at(1), at(2)}) <= kThin;
  return fraction * (thin ? std::max(tiles, kBandwidthShare) : tiles);
}

namespace {

bool has_softcap(std::string_view kernel) { return kernel.ends_with(" softcap"); }
bool has_window(std::string_view kernel) { return kernel.find(" window") != std::string_view::npos; }

/// Returns how many times as long attention takes as with plain scores in heads of 64 or 128 and as many FLOPs, where
/// it has no points. Measured for soft-capped scores, with precbench's Hopper and flash kernels, and for heads of 256
/// with its Hopper kernels on an H200 (results/h200/attention_softcap*.txt), with cuDNN's on an H100 (layers of
/// gemma-3-4b without a window, results/h100/beside-pytorch-families).
double assumed_slowdown(std::string_view kernel, std::int64_t width) {
  const bool hopper = kernel.starts_with(kHopperKernel);
  if (has_softcap(kernel)) return hopper ? 1.25 : 3;
  if (width <= 192) return 1;
  return hopper ? 1.2 : 1.7;
}

}  // namespace

OpTimer::OpTimer(const Rates& rates, const OpPeaks& peaks, const std::function<bool(const RatePoint&)>& used)
    : peaks_(peaks) {
  for (const RatePoint& point : rates.points) {
    if (used && !used(point)) continue;
    const OpCost cost = op_cost(point);
    Point known{place_of(cost), std::log(point.fraction / expected_fraction(cost, peaks)), {}, {}};
    by_class_[static_cast<std::size_t>(rate_class_of(cost))].push_back(known);
    if (is_attention(point.op)) {
      known.correction += std::log(assumed_slowdown(point.kernel, cost.shape[6]));
      known.formats = point.formats, known.kernel = point.kernel;
      attention_[point.op].push_back(std::move(known));
    } else
      points_[point.op][point.formats].push_back(std::move(known));
  }
}

const OpTimer::Points* OpTimer::points_of(const std::string& op, const std::string& formats,
                                          bool& other_formats) const {
  auto known = points_.find(op);
  constexpr std::string_view kGrouped = "grouped_";  // experts' GEMMs are most like those of linear layers
  if (known == points_.end() && op.starts_with(kGrouped)) known = points_.find(op.substr(kGrouped.size()));
  // Ops of equal traffic whose rates were not measured.
  constexpr std::pair<std::string_view, const char*> kAlike[] = {{"add_layernorm", "add_rmsnorm"},
                                                                 {"recompute_layernorm", "recompute_rmsnorm"},
                                                                 {"layernorm_backward", "rmsnorm_backward"},
                                                                 {"activate", "swiglu"},
                                                                 {"activate_backward", "swiglu_backward"}};
  for (const auto& [unmeasured, measured] : kAlike)
    if (known == points_.end() && op == unmeasured) known = points_.find(measured);
  if (known == points_.end()) return nullptr;
  if (const auto own = known->second.find(formats); own != known->second.end()) return &own->second;
  other_formats = true;
  // The formats most like these: equal in as many of their first letters as possible.
  const Points* best = nullptr;
  std::size_t most = 0;
  for (const auto& [name, points] : known->second) {
    const auto [end, other] = std::mismatch(name.begin(), name.end(), formats.begin(), formats.end());
    const auto alike = static_cast<std::size_t>(end - name.begin()) + 1;
    if (alike <= most) continue;
    most = alike;
    best = &points;
  }
  return best;
}

namespace {

/// Returns (weight, point) of the points that count: a point has the more weight the nearer it is. `share`: what is
/// left of the weight of a point that differs in what is no number.
template <class Points, class Share>
auto heaviest_points(const Points& points, const std::vector<double>& place, Share&& share) {
  constexpr double kNear = 0.06;  // squared distance within which points count alike
  constexpr std::size_t kMost = 12;
  std::vector<std::pair<double, decltype(points.data())>> found;
  std::vector<double> weights;
  found.reserve(points.size());
  for (const auto& point : points) {
    const double distance = kNear + squared_distance(point.place, place);
    found.emplace_back(share(point) / (distance * distance), &point);
    weights.push_back(found.back().first);
  }
  if (found.size() <= kMost) return found;
  // Points of one shape in several steps are equally near: all of them count, or none does.
  constexpr double kEqual = 1e-9;
  const auto last = weights.begin() + static_cast<std::ptrdiff_t>(kMost - 1);
  std::nth_element(weights.begin(), last, weights.end(), std::greater<>());
  std::erase_if(found, [least = *last * (1 - kEqual)](const auto& one) { return one.first < least; });
  return found;
}

/// Returns the mean correction of (weight, point).
template <class Found>
double mean_correction(const Found& found) {
  double sum = 0, weights = 0;
  for (const auto& [weight, point] : found) sum += weight * point->correction, weights += weight;
  return sum / weights;
}

}  // namespace

OpTimer::Time OpTimer::attention_time(const OpCost& op, const std::string& formats,
                                      const std::string& kernel) const {
  // Shares of the weight. Forward writes copies in other formats beside the same work. Another kernel's rate counts as
  // much as one of the own kernel at nearly twice as many keys, and that of other scores only where there is nothing
  // else.
  constexpr double kOtherFormats = 0.1, kOtherFamily = 0.01, kOtherWindow = 0.01, kOtherScores = 1e-4;
  const auto known = attention_.find(op.name);
  if (known == attention_.end()) throw InvalidInput(fmt::format("rates: no point like {}", op.name));
  const auto family = [](std::string_view name) { return name.substr(0, name.find(' ')); };
  const std::vector<double> place = place_of(op);
  const auto found = heaviest_points(known->second, place, [&](const Point& point) {
    return (point.formats != formats ? kOtherFormats : 1) *
           (family(point.kernel) != family(kernel) ? kOtherFamily : 1) *
           (has_window(point.kernel) != has_window(kernel) ? kOtherWindow : 1) *
           (has_softcap(point.kernel) != has_softcap(kernel) ? kOtherScores : 1);
  });
  constexpr std::int64_t kNarrow = 192;  // up to which widths are taken to be alike
  const std::int64_t width = op.shape[6];
  Time result;
  result.seconds = peaks_.ideal_seconds(op.flops, op.bytes, op.math) * assumed_slowdown(kernel, width) /
                   (expected_fraction(op, peaks_) * std::exp(mean_correction(found)));
  result.other_formats = std::none_of(found.begin(), found.end(), [&](const auto& one) {
    return one.second->kernel == kernel &&
           (width <= kNarrow || one.second->place[kWidthAxis] == place[kWidthAxis]);
  });
  return result;
}

OpTimer::Time OpTimer::time(const OpCost& op, const std::string& formats, const std::string& kernel) const {
  const double ideal = peaks_.ideal_seconds(op.flops, op.bytes, op.math);
  if (!(ideal > 0)) return {};
  if (is_attention(op.name)) return attention_time(op, formats, kernel);
  Time result;
  const Points* points = points_of(op.name, formats, result.other_formats);
  if (!points) {
    result.other_formats = true;
    points = &by_class_[static_cast<std::size_t>(rate_class_of(op))];
  }
  if (points->empty()) throw InvalidInput(fmt::format("rates: no point like {}", op.name));
  const auto found = heaviest_points(*points, place_of(op), [](const Point&) { return 1.0; });
  result.seconds = ideal / (expected_fraction(op, peaks_) * std::exp(mean_correction(found)));
  return result;
}

OpTimer::Time OpTimer::time_at_bf16(const RatePoint& point) const {
  const OpCost cost = op_cost(point);
  return rate_class_of(cost) == RateClass::gemm ? time(cost, "", "") : time(point);
}

OpTimer timer_without(const std::string& family, const Rates& rates, const OpPeaks& peaks) {
  return OpTimer(rates, peaks, [&](const RatePoint& point) {
    return rates.sources[static_cast<std::size_t>(point.source)].family() != family;
  });
}

nlohmann::ordered_json rates_to_json(const Rates& rates) {
  nlohmann::ordered_json json;
  json["machine"] = rates.machine;
  json["errors"] = {{"step", rates.errors.step}};
  for (int i = 0; i < kRateClasses; ++i) {
    const auto at = static_cast<std::size_t>(i);
    json["errors"][name_of(static_cast<RateClass>(i))] = rates.errors.by_class[at];
    json["errors"][std::string("borrowed_") + name_of(static_cast<RateClass>(i))] = rates.errors.borrowed[at];
  }
  for (const RateSource& s : rates.sources)
    json["sources"].push_back({{"record", s.record},
                               {"model", s.model},
                               {"recipe", s.recipe},
                               {"commit", s.commit},
                               {"clock_mhz", s.clock_mhz},
                               {"power_w", s.power_w}});
  json["columns"] = {"op", "shape", "formats", "flops", "bytes", "fraction", "source", "kernel"};
  for (const RatePoint& p : rates.points) {
    json["points"].push_back({p.op, p.shape, p.formats, p.flops, p.bytes, p.fraction, p.source});
    if (!p.kernel.empty()) json["points"].back().push_back(p.kernel);
  }
  return json;
}

Rates rates_from_json(const nlohmann::json& json, const std::string& where) {
  constexpr NumberRange kError{0, 10}, kWork{0, 1e24}, kDimension{0, 1e15}, kFraction{1e-12, 1e3},
      kClock{0, 1e5}, kPower{0, 1e6}, kSource{0, 1e6};
  try {
    Rates rates;
    rates.machine = json.at("machine");
    const auto& errors = json.at("errors");
    const auto error_of = [&](const std::string& name) {
      return number_within(errors.at(name), kError, fmt::format("{}: errors: {}", where, name));
    };
    rates.errors.step = error_of("step");
    for (int i = 0; i < kRateClasses; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const std::string name = name_of(static_cast<RateClass>(i));
      rates.errors.by_class[at] = error_of(name);
      rates.errors.borrowed[at] = error_of("borrowed_" + name);
    }
    for (const auto& s : json.at("sources"))
      rates.sources.push_back({s.at("record"), s.at("model"), s.at("recipe"), s.at("commit"),
                               number_within(s.at("clock_mhz"), kClock, where + ": clock_mhz"),
                               number_within(s.at("power_w"), kPower, where + ": power_w")});
    for (const auto& p : json.at("points")) {
      RatePoint point;
      point.op = p.at(0);
      const std::string here = fmt::format("{}: a point of {}", where, point.op);
      for (const auto& entry : p.at(1))
        point.shape.push_back(integer_within(entry, kDimension, here + ": shape"));
      point.formats = p.at(2);
      point.flops = number_within(p.at(3), kWork, here + ": flops");
      point.bytes = number_within(p.at(4), kWork, here + ": bytes");
      point.fraction = number_within(p.at(5), kFraction, here + ": fraction");
      point.source = static_cast<int>(integer_within(p.at(6), kSource, here + ": source"));
      if (point.source >= static_cast<int>(rates.sources.size()))
        throw InvalidInput(here + " without a source");
      if (is_attention(point.op)) {
        point.kernel = p.at(7);
        if (!is_attention_kernel(point.kernel))
          throw InvalidInput(fmt::format("{}: unknown kernel \"{}\"", here, point.kernel));
      }
      rates.points.push_back(std::move(point));
    }
    return rates;
  } catch (const nlohmann::json::exception& error) {
    throw InvalidInput(fmt::format("{}: {}", where, error.what()));
  }
}

const Rates* embedded_rates(const std::string& machine) {
  static const std::map<std::string, Rates> all = [] {
    std::map<std::string, Rates> known;
    for (const auto& [name, text] : kRatesFiles) {
      Rates rates = rates_from_json(nlohmann::json::parse(text), "results/rates/" + name + ".json");
      const std::string of = rates.machine;
      known.emplace(of, std::move(rates));
    }
    return known;
  }();
  const auto found = all.find(machine);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace precbench
