// Rates of ops by shape, measured in steps, and the time of an op from the nearest of them.
//
// A rate is stored as the fraction of the machine's peak that an op reaches: of its FLOPs at the dense peak of
// their precision, or of its bytes at memory bandwidth, whichever takes longer. Files are in
// results/rates, embedded at configure time, and written by `precbench rates` (fit_rates.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/machine/machine.h"
#include "bench/predict/attention_kernel.h"
#include "kernels/device/ops.h"

namespace precbench {

/// Measured step that points come from.
struct RateSource {
  std::string record;  ///< id of the record
  std::string model, recipe;
  std::string commit;
  double clock_mhz = 0, power_w = 0;  ///< medians while it was sampled
  bool operator==(const RateSource&) const = default;

  /// Returns what predictions of own cases leave out: the same model in the same recipe.
  std::string family() const { return model + "/" + recipe; }
};

/// An op with one shape in one step.
struct RatePoint {
  std::string op;  ///< OpCost::name
  std::vector<std::int64_t> shape;
  std::string formats;          ///< formats_text()
  double flops = 0, bytes = 0;  ///< of one call
  double fraction = 0;
  int source = 0;           ///< index in Rates::sources
  std::string kernel = {};  ///< attention_kernel() of attention; empty for other ops
};

/// Standard deviations of a normal distribution within which 80% of it lies.
inline constexpr double kInterval80 = 1.2816;

/// Returns the cost of one call of a point's op, without its formats. Its name lives as long as the point.
OpCost op_cost(const RatePoint& point);

/// Groups of ops whose errors are estimated together.
enum class RateClass : std::uint8_t { gemm, attention, memory };
inline constexpr int kRateClasses = 3;
const char* name_of(RateClass rate_class);
RateClass rate_class_of(const OpCost& op);

/// Standard deviation of the logarithm of predicted over measured times, for all ops of a class in a step.
struct RateErrors {
  std::array<double, kRateClasses> by_class{};  ///< rates of other families of the same GPU
  /// With the fractions of other formats (FP8 GEMMs at BF16's): estimated error of a rate borrowed from another GPU.
  std::array<double, kRateClasses> borrowed{};
  double step = 0;  ///< of whole steps of equal cases: boards, sessions
};

struct Rates {
  std::string machine;  ///< preset whose peaks the fractions are of
  std::vector<RateSource> sources;
  std::vector<RatePoint> points;
  RateErrors errors;
};

nlohmann::ordered_json rates_to_json(const Rates& rates);
/// Throws InvalidInput that starts with `where`.
Rates rates_from_json(const nlohmann::json& json, const std::string& where);
/// Returns the embedded rates of a machine preset; null if it has none.
const Rates* embedded_rates(const std::string& machine);

/// Peak rates, per second, that fractions refer to.
struct OpPeaks {
  double bf16_flops = 0, fp8_flops = 0, fp4_flops = 0, bytes = 0;
  bool hopper = false;  ///< has precbench's Hopper kernels of attention

  /// Returns the least seconds of an op.
  double ideal_seconds(double flops, double bytes_moved, DType math) const;
};
/// Returns the peaks of a machine; a precision that it does not multiply has the peak of the next wider one.
OpPeaks peaks_of(const Machine& machine);

/// Predicts times of ops.
class OpTimer {
 public:
  /// `used`: points to use; empty: all.
  OpTimer(const Rates& rates, const OpPeaks& peaks,
          const std::function<bool(const RatePoint&)>& used = nullptr);

  struct Time {
    double seconds = 0;
    bool other_formats = false;  ///< no point has the op's formats, or near it attention's kernel
  };
  /// Returns the time of one call from the nearest points in the logarithm of the shape, with these formats
  /// (formats_text()), whatever the op's own are. `kernel`: attention_kernel() of attention, which has to be near as
  /// well.
  Time time(const OpCost& op, const std::string& formats, const std::string& kernel) const;
  /// Returns the time of one call of an op on these peaks' GPU. `attention`: what decides about its kernel.
  Time time(const OpCost& op, const AttentionSetting& attention = {}) const {
    return time(op, formats_text(op), kernel_of(op, attention));
  }
  /// Returns the time of one call of a point's op.
  Time time(const RatePoint& point) const { return time(op_cost(point), point.formats, point.kernel); }
  /// Returns the attention_kernel() of an op on these peaks' GPU; empty for other ops.
  std::string kernel_of(const OpCost& op, const AttentionSetting& attention) const {
    return is_attention(op.name) ? attention_kernel(op, attention, peaks_.hopper) : "";
  }
  /// Returns true if there are points of ops of this class.
  bool knows(RateClass rate_class) const { return !by_class_[static_cast<std::size_t>(rate_class)].empty(); }
  /// As above, but GEMMs with the fractions of BF16 GEMMs: how wrong borrowing is.
  Time time_at_bf16(const RatePoint& point) const;

 private:
  struct Point {
    std::vector<double> place;    ///< logarithms of the shape
    double correction = 0;        ///< logarithm of the fraction over what expected_fraction() says
    std::string formats, kernel;  ///< of attention
  };
  using Points = std::vector<Point>;
  const Points* points_of(const std::string& op, const std::string& formats, bool& other_formats) const;

  OpPeaks peaks_;
  Time attention_time(const OpCost& op, const std::string& formats, const std::string& kernel) const;

  std::map<std::string, std::map<std::string, Points>> points_;  // by op and formats; attention's are below
  std::map<std::string, Points> attention_;                      // by op
  std::array<Points, kRateClasses> by_class_;                    // all ops of a class
};

/// Returns a timer without the points of one family (RateSource::family).
OpTimer timer_without(const std::string& family, const Rates& rates, const OpPeaks& peaks);

/// Returns the precision of the formats of a GEMM's operands.
DType math_of_formats(const std::string& formats);

/// Returns the relative fraction of peak that an op of this shape reaches for reasons that hold on every GPU:
/// tiles that do not fill the last wave of multiprocessors, short contractions, short sequences, launches.
double expected_fraction(const OpCost& op, const OpPeaks& peaks);

}  // namespace precbench
