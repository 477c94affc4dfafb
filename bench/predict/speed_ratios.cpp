// Reads ratios and looks them up. See speed_ratios.h.
#include "bench/predict/speed_ratios.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "bench/predict/rates.h"
#include "bench/predict/rates_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/number_range.h"

namespace precbench {
namespace {

constexpr const char* kTableFormats[] = {"bf16", "fp8", "fp8_block", "mxfp8", "nvfp4"};

constexpr NumberRange kRatioRange{1e-3, 1e3}, kRatioSpreadRange{0, 10};

/// Place on an axis: between entries `low` and `low` + 1, `share` of the way.
struct AxisPlace {
  std::size_t low = 0;
  double share = 0;
};

AxisPlace place_on(const std::vector<double>& axis, double size) {
  const double exponent = std::log2(std::max(size, 1.0));
  if (axis.size() < 2 || exponent <= axis.front()) return {};
  const auto above = std::upper_bound(axis.begin(), axis.end(), exponent);
  if (above == axis.end()) return {axis.size() - 2, 1};
  const auto low = static_cast<std::size_t>(above - axis.begin()) - 1;
  return {low, (exponent - axis[low]) / (axis[low + 1] - axis[low])};
}

/// Returns the formats of a GEMM of this role with FP8 operands and one scale per tensor.
std::string fp8_formats(std::string_view op) {
  return op.ends_with("fprop") ? "e4m3 tensor f32, e4m3 tensor f32" : "e5m2 tensor f32, e4m3 tensor f32";
}

RatioGrid grid_from_json(const nlohmann::json& json, const std::vector<const char*>& axes,
                         const std::string& where) {
  constexpr NumberRange kExponent{0, 40};
  RatioGrid grid;
  std::size_t places = 1;
  for (const char* name : axes) {
    std::vector<double>& axis = grid.axes.emplace_back();
    for (const auto& exponent : json.at(name))
      axis.push_back(number_within(exponent, kExponent, fmt::format("{}: {}", where, name)));
    if (axis.empty() || std::adjacent_find(axis.begin(), axis.end(), std::greater_equal<>()) != axis.end())
      throw InvalidInput(fmt::format("{}: {}: exponents do not ascend", where, name));
    places *= axis.size();
  }
  for (const auto& ratio : json.at("ratios"))
    grid.ratios.push_back(number_within(ratio, kRatioRange, where + ": ratios"));
  if (grid.ratios.size() != places)
    throw InvalidInput(
        fmt::format("{}: {} ratios at {} places of the axes", where, grid.ratios.size(), places));
  grid.spread = number_within(json.at("spread"), kRatioSpreadRange, where + ": spread");
  return grid;
}

BusRates bus_rates(const nlohmann::json& json, const std::string& where) {
  constexpr NumberRange kBytes{1, 1e15}, kRate{1e-6, 1e6}, kGroupRanks{2, 1e6};
  BusRates rates;
  for (const auto& [collective, by_ranks] : json.items()) {
    if (collective == "nccl") continue;  // version
    const std::string here = fmt::format("{}: bus_gb_per_s: {}", where, collective);
    Collective kind{};
    try {
      kind = collective_of(collective);
    } catch (const std::invalid_argument& error) {
      throw InvalidInput(fmt::format("{}: {}", here, error.what()));
    }
    for (const auto& [text, sizes] : by_ranks.items()) {
      const std::int64_t ranks = integer_within(nlohmann::json::parse(text), kGroupRanks, here);
      auto& known = rates[kind][ranks];
      for (const auto& size : sizes) {
        known.emplace_back(number_within(size.at(0), kBytes, here),
                           1e9 * number_within(size.at(1), kRate, here));
        if (known.size() > 1 && known.back().first <= known[known.size() - 2].first)
          throw InvalidInput(here + ": sizes do not ascend");
      }
    }
  }
  return rates;
}

}  // namespace

double RatioGrid::at(const std::vector<double>& sizes) const {
  // Mean of the logarithms at the corners around the place, weighted by nearness.
  std::vector<std::pair<std::size_t, double>> corners{{0, 1.0}};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const AxisPlace place = place_on(axes[i], sizes.at(i));
    std::vector<std::pair<std::size_t, double>> next;
    for (const auto& [index, weight] : corners) {
      next.emplace_back(index * axes[i].size() + place.low, weight * (1 - place.share));
      if (place.share > 0) next.emplace_back(next.back().first + 1, weight * place.share);
    }
    corners = std::move(next);
  }
  double sum = 0;
  for (const auto& [index, weight] : corners) sum += weight * std::log(ratios.at(index));
  return std::exp(sum);
}

std::string table_format(const std::string& formats) {
  if (formats.empty()) return "bf16";
  const DType math = math_of_formats(formats);
  if (math == DType::bf16) return {};
  if (math == DType::e2m1) return "nvfp4";
  if (formats.find("ue8m0") != std::string::npos) return "mxfp8";
  return formats.find("x128 ") != std::string::npos ? "fp8_block" : "fp8";
}

std::optional<SpeedRatio> SpeedRatios::of(const OpCost& op, bool softcap) const {
  const auto at = [&](int i) { return static_cast<double>(op.shape[static_cast<std::size_t>(i)]); };
  const std::string formats = formats_text(op);
  const RateClass rate_class = rate_class_of(op);
  if (rate_class == RateClass::memory) {
    if (cast <= 0) return std::nullopt;
    const bool is_cast = op.name == std::string_view("quantize");
    return SpeedRatio{cast, cast_spread, formats, is_cast};
  }
  if (rate_class == RateClass::attention) {
    constexpr std::int64_t kWidest = 192;
    const std::int64_t width = op.shape[6];
    if (softcap || width > kWidest || attention.empty() || leaves_out_pairs(op)) return std::nullopt;
    const Attention* nearest = &attention.front();
    for (const Attention& one : attention)
      if (std::abs(one.head_dim - width) < std::abs(nearest->head_dim - width)) nearest = &one;
    return SpeedRatio{nearest->grid.at({at(2)}), nearest->grid.spread, formats,
                      op.name == std::string_view("attention")};
  }
  const std::string format = table_format(formats);
  const auto found =
      std::find_if(gemms.begin(), gemms.end(), [&](const Gemm& gemm) { return gemm.format == format; });
  if (found == gemms.end()) return std::nullopt;
  // A grouped GEMM's m, or the k of its weight gradient, is the rows of all experts together; the tables have one
  // expert's.
  const std::string_view name = op.name;
  const bool wgrad = name.ends_with("wgrad");
  const double experts = std::max(at(3), 1.0);
  return SpeedRatio{found->grid.at({at(0) / (wgrad ? 1 : experts), at(1), at(2) / (wgrad ? experts : 1)}),
                    found->grid.spread, found->over == format ? formats : fp8_formats(name), experts <= 1};
}

SpeedRatios speed_ratios_from_json(const nlohmann::json& json, const std::string& where) {
  constexpr NumberRange kWidth{1, 1024};
  const auto known_format = [&](const nlohmann::json& value) {
    const std::string name = value;
    if (std::find(std::begin(kTableFormats), std::end(kTableFormats), name) == std::end(kTableFormats))
      throw InvalidInput(fmt::format("{}: gemm: unknown format \"{}\"", where, name));
    return name;
  };
  try {
    SpeedRatios ratios;
    ratios.machine = json.at("machine");
    ratios.over = json.at("over");
    const auto& source = json.at("source");
    ratios.source =
        fmt::format("{} {} ({})", source.at("package").get<std::string>(),
                    source.at("version").get<std::string>(), source.at("license").get<std::string>());
    for (const auto& one : json.at("gemm")) {
      SpeedRatios::Gemm gemm{known_format(one.at("format")), known_format(one.at("over")), {}};
      if (gemm.over != gemm.format && gemm.over != "fp8")
        throw InvalidInput(fmt::format("{}: gemm: {} over {}", where, gemm.format, gemm.over));
      gemm.grid = grid_from_json(one, {"m", "n", "k"}, fmt::format("{}: gemm: {}", where, gemm.format));
      ratios.gemms.push_back(std::move(gemm));
    }
    for (const auto& one : json.at("attention"))
      ratios.attention.push_back({integer_within(one.at("head_dim"), kWidth, where + ": attention: head_dim"),
                                  grid_from_json(one, {"tokens"}, where + ": attention")});
    if (const auto& cast = json.at("cast"); !cast.is_null()) {
      ratios.cast = number_within(cast.at("ratio"), kRatioRange, where + ": cast: ratio");
      ratios.cast_spread = number_within(cast.at("spread"), kRatioSpreadRange, where + ": cast: spread");
    }
    if (const auto& bus = json.at("bus_gb_per_s"); !bus.is_null()) ratios.bus = bus_rates(bus, where);
    return ratios;
  } catch (const nlohmann::json::exception& error) {
    throw InvalidInput(fmt::format("{}: {}", where, error.what()));
  }
}

const SpeedRatios* embedded_speed_ratios(const std::string& machine) {
  static const std::map<std::string, SpeedRatios> all = [] {
    std::map<std::string, SpeedRatios> known;
    for (const auto& [name, text] : kRatioFiles) {
      SpeedRatios ratios =
          speed_ratios_from_json(nlohmann::json::parse(text), "results/rates/ratios/" + name + ".json");
      known[ratios.machine] = ratios;
    }
    return known;
  }();
  const auto found = all.find(machine);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace precbench
