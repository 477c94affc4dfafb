// The order of the checks, from parts to wholes. See run_checks.h.
#include "bench/doctor/run_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "bench/case/choose_layers.h"
#include "bench/machine/environment.h"
#include "bench/measure/measured_rates.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "kernels/checks/check_attention.h"
#include "kernels/checks/check_gemm.h"
#include "kernels/checks/check_quantize.h"
#include "kernels/device/devices.h"
#include "kernels/numerics/scale_layout.h"
#include "models/checks/check_step.h"

namespace precbench {
namespace {

using checks::Finding, checks::Findings;

bool is_native(const Device& device, const GemmRecipe& gemm, GemmRole role) {
  return device.support(gemm, role).execution == Execution::native;
}

bool is_native(const Device& device, const Recipe& recipe) {
  return std::all_of(std::begin(kGemmRoles), std::end(kGemmRoles),
                     [&](GemmRole role) { return is_native(device, recipe.gemm(role), role); });
}

struct Gemm {
  GemmRecipe recipe;
  GemmRole role;
};

/// Returns one GEMM for each native path.
std::vector<Gemm> native_gemms(const Device& device, const std::vector<Recipe>& recipes) {
  std::vector<Gemm> gemms;
  std::set<std::string> paths;
  for (const Recipe& recipe : recipes)
    for (const GemmRole role : kGemmRoles)
      if (is_native(device, recipe.gemm(role), role) &&
          paths.insert(gemm_path(recipe.gemm(role), role)).second)
        gemms.push_back({recipe.gemm(role), role});
  return gemms;
}

/// Returns the formats of the operands of native GEMMs.
std::vector<QuantFormat> native_formats(const Device& device, const std::vector<Recipe>& recipes) {
  std::vector<QuantFormat> formats;
  std::set<std::string> paths;
  for (const Recipe& recipe : recipes)
    for (const GemmRole role : kGemmRoles) {
      const GemmRecipe& gemm = recipe.gemm(role);
      if (!is_native(device, gemm, role)) continue;
      for (const QuantFormat* format : {&gemm.a, &gemm.b})
        if (format->quantized() && paths.insert(quantizer_path(*format)).second) formats.push_back(*format);
    }
  return formats;
}

/// Returns native recipes to run a step in. Those with other optimizer state have the GEMMs of another recipe.
std::vector<Recipe> step_recipes(const Device& device, const std::vector<Recipe>& all, bool quick) {
  static const std::set<std::string> kFamilies = {"bf16",      "tensorwise", "rowwise",
                                                  "blockwise", "mxfp8",      "nvfp4"};
  std::vector<Recipe> recipes;
  for (const Recipe& recipe : all)
    if (recipe.optimizer.empty() && is_native(device, recipe) && (!quick || kFamilies.contains(recipe.name)))
      recipes.push_back(recipe);
  return recipes;
}

struct ModelGemm {
  GemmRole role;
  checks::GemmShape shape;
  bool operator==(const ModelGemm&) const = default;
};

/// Returns the GEMMs of a model's linear layers, without experts, for 2048 tokens.
std::vector<ModelGemm> gemms_of(const ModelConfig& model) {
  constexpr std::int64_t kTokens = 2048;
  std::vector<ModelGemm> all;
  for (const std::int64_t layer : model.layer_of_each_kind())
    for (const LinearSpec& linear : convertible_linears(model, layer)) {
      if (is_stack(model, layer, linear.role)) continue;
      const std::int64_t out = linear.out(), in = linear.in;
      for (const ModelGemm& gemm : {ModelGemm{GemmRole::fprop, {kTokens, out, in}},
                                    {GemmRole::dgrad, {kTokens, in, out}},
                                    {GemmRole::wgrad, {out, in, kTokens}}})
        if (std::find(all.begin(), all.end(), gemm) == all.end()) all.push_back(gemm);
    }
  return all;
}

/// Returns true if the scale blocks of a GEMM's operands divide the shape, or may be partial.
bool fits(const GemmRecipe& gemm, const checks::GemmShape& shape) {
  for (const auto& [format, rows] : {std::pair(&gemm.a, shape.M), std::pair(&gemm.b, shape.N)}) {
    const Granularity g = format->granularity;
    if (block_length(g) == 0 || may_end_in_partial_block(g)) continue;
    if (shape.K % block_length(g) != 0 || rows % block_rows(g) != 0) return false;
  }
  return shape.K % 16 == 0;
}

/// Runs the checks of one device.
class Examination {
 public:
  Examination(const CheckedDevice& device, const PathCheckOptions& options)
      : device_(device), options_(options) {}

  PathCheckResult run() {
    for (const auto part : {&Examination::quantizers, &Examination::gemms, &Examination::attention,
                            &Examination::steps, &Examination::model_shapes, &Examination::rates})
      if (!result_.incomplete) (this->*part)();
    return std::move(result_);
  }

 private:
  /// Runs one check, unless the examination has ended. An error of the device ends it: what follows would fail,
  /// too.
  void check(const std::string& path, const std::function<Findings()>& work) {
    if (result_.incomplete) return;
    if (options_.stop()) {
      result_.incomplete = "interrupted before " + path;
      return;
    }
    options_.started(path);
    try {
      append(result_.findings, work());
    } catch (const Unsupported&) {  // not a path of this device
    } catch (const OutOfMemory& error) {
      result_.rates.push_back({Health::unknown, path, fmt::format("not judged: {}", error.what())});
    } catch (const std::runtime_error& error) {
      result_.findings.push_back({path, "error", error.what(), false});
      result_.incomplete = "ended by the error of " + path;
    }
  }

  std::unique_ptr<Device> open(GpuOptions options) const {
    options.autotune = false;
    options.deterministic = true;
    return device_.open(options);
  }

  void quantizers() {
    const std::unique_ptr<Device> device = open({});
    checks::TwoDevices devices(*device, openmp_threads());
    for (const QuantFormat& format : native_formats(*device, options_.recipes)) {
      check(quantizer_path(format), [&] { return Findings{check_quantizer(devices, format)}; });
      check(quantizer_path(format), [&] { return Findings{check_producers(devices, format)}; });
    }
  }

  void gemms() {
    for (const std::string& choice : device_.gemm_choices) {
      const std::unique_ptr<Device> device = open({.gemm = choice});
      for (const Gemm& gemm : native_gemms(*device, options_.recipes))
        for (const checks::Output& output : checks::outputs_of(gemm.role))
          check(gemm_path(gemm.recipe, gemm.role),
                [&] { return Findings{check_gemm(*device, gemm.recipe, gemm.role, output)}; });
    }
  }

  void attention() {
    std::vector<AttentionShape> shapes = {{2, 200, 4, 2, 64}, {1, 257, 2, 1, 128}};
    if (options_.model) {
      const ModelConfig& model = *options_.model;
      shapes.push_back({1, 300, model.heads / model.kv_heads, 1, model.head_dim});
      shapes.back().value_dim = model.latent.v_dim;
      shapes.back().softcap = static_cast<float>(model.block.attention_softcap);
    }
    for (const std::string& choice : device_.attention_choices)
      for (const AttentionShape& shape : shapes)
        check("attention " + choice,
              [&] { return checks::check_attention(*open({.attention = choice}), shape); });
  }

  void steps() {
    const std::vector<Recipe> recipes = step_recipes(*open({}), options_.recipes, options_.quick);
    const auto make_device = [&] { return open({}); };
    for (const char* name : {"tiny", "tiny-moe-shared"}) {
      checks::StepSetup setup{.model = find_model(name), .B = 2, .T = 128};
      setup.model.layers = 2;
      std::vector<Recipe> fit = recipes;
      if (setup.model.moe)
        std::erase_if(fit,
                      [](const Recipe& recipe) { return experts_unsupported_reason(recipe).has_value(); });
      if (setup.model.moe && options_.quick) return;
      std::unique_ptr<checks::StepChecks> steps;
      for (const Recipe& recipe : fit)
        check("step " + recipe.name, [&] {
          if (!steps) steps = std::make_unique<checks::StepChecks>(setup, fit, openmp_threads());
          return steps->check(recipe, make_device, fmt::format("two blocks of {}", name));
        });
    }
  }

  /// As cases run: autotuned, with every kernel.
  void model_shapes() {
    if (!options_.model) return;
    const std::unique_ptr<Device> device = device_.open({});
    const std::vector<Gemm> gemms = native_gemms(*device, options_.recipes);
    for (const ModelGemm& of_model : gemms_of(*options_.model)) {
      std::unique_ptr<checks::LargeGemm> large;
      const checks::Output output{of_model.role == GemmRole::wgrad ? DType::f32 : DType::bf16,
                                  of_model.role == GemmRole::wgrad};
      for (const Gemm& gemm : gemms) {
        if (gemm.role != of_model.role || !fits(gemm.recipe, of_model.shape)) continue;
        check(gemm_path(gemm.recipe, gemm.role), [&] {
          if (!large) large = std::make_unique<checks::LargeGemm>(*device, of_model.shape);
          return Findings{large->check(gemm.recipe, gemm.role, output)};
        });
      }
    }
  }

  void rates() {
    if (options_.quick || !device_.peaks) return;
    const std::unique_ptr<Device> device = device_.open({});
    for (const char* name : {"tensorwise", "nvfp4"}) {
      const Recipe recipe = find_recipe(name);
      if (result_.rates.empty() || is_native(*device, recipe))
        check("rates " + recipe.name, [&] {
          add_rates(measure_rates(*device, is_native(*device, recipe) ? recipe : find_recipe("bf16")));
          return Findings{};
        });
    }
  }

  void add_rates(const OpRates& rates) {
    const auto add = [&](const char* what, double rate, std::optional<double> sheet, const char* unit) {
      if (rate <= 0 || std::any_of(result_.rates.begin(), result_.rates.end(),
                                   [&](const HealthLine& line) { return line.subject == what; }))
        return;
      constexpr double kLeast = 0.5;  // of the data sheet; healthy GPUs reach 65% and more
      result_.rates.push_back(
          {!sheet                   ? Health::unknown
           : rate < kLeast * *sheet ? Health::warn
                                    : Health::ok,
           what,
           fmt::format(
               "{:.0f} {}{}", rate, unit,
               sheet ? fmt::format(", {:.0f}% of the data sheet's {:g}", 100 * rate / *sheet, *sheet) : "")});
    };
    const std::optional<DatasheetRates> peaks = device_.peaks();
    const auto sheet = [&](auto member) -> std::optional<double> {
      return peaks ? std::optional<double>((*peaks).*member) : std::nullopt;
    };
    add("copy", rates.bytes / 1e9, sheet(&DatasheetRates::memory_gb_per_s), "GB/s");
    add("BF16 GEMM", rates.bf16_flops / 1e12, sheet(&DatasheetRates::bf16_tflops), "TFLOP/s");
    add("FP8 GEMM", rates.fp8_flops / 1e12, peaks ? peaks->fp8_tflops : std::nullopt, "TFLOP/s");
    add("FP4 GEMM", rates.fp4_flops / 1e12, peaks ? peaks->fp4_tflops : std::nullopt, "TFLOP/s");
  }

  const CheckedDevice& device_;
  const PathCheckOptions& options_;
  PathCheckResult result_;
};

/// Returns "gemm" of "gemm e4m3 ...".
std::string kind_of(const std::string& path) { return path.substr(0, path.find(' ')); }

std::optional<Recipe> recipe_of_step(const std::string& path) {
  constexpr std::string_view kStep = "step ";
  for (const Recipe& recipe : every_recipe())
    if (path == std::string(kStep) + recipe.name) return recipe;
  return std::nullopt;
}

}  // namespace

std::vector<Recipe> every_recipe() {
  std::vector<Recipe> all;
  for (const auto* table : {&builtin_recipes(), &fp4_recipes()})
    all.insert(all.end(), table->begin(), table->end());
  return all;
}

CheckedDevice checked_gpu(int ordinal) {
  return {fmt::format("GPU {}", ordinal),
          [ordinal](const GpuOptions& options) { return make_gpu_device(ordinal, options); },
          {"cublaslt", "own"},
          {"own", "cudnn"},
          [ordinal] { return known_peaks(gpu_properties(ordinal).name); }};
}

CheckedDevice checked_cpu() {
  return {"CPU", [](const GpuOptions&) { return make_cpu_device(1); }, {"auto"}, {"cpu"}};
}

PathCheckResult run_checks(const CheckedDevice& device, const PathCheckOptions& options) {
  return Examination(device, options).run();
}

std::map<std::string, PathVerdict> verdicts_of(const Findings& findings) {
  std::map<std::string, PathVerdict> verdicts;
  std::map<std::string, int> counts;
  const auto disagree = [&](const std::string& path, const std::string& detail) {
    const auto [place, added] = verdicts.try_emplace(path, PathVerdict{true, ""});
    if (place->second.agrees) place->second = {false, detail};
  };
  for (const Finding& finding : findings) {
    verdicts.try_emplace(finding.path, PathVerdict{true, ""});
    ++counts[finding.path];
    if (finding.agrees) continue;
    const std::string detail = fmt::format("{}: {}", finding.what, finding.measured);
    disagree(finding.path, detail);
    if (const auto recipe = recipe_of_step(finding.path))
      for (const GemmRole role : kGemmRoles)
        disagree(gemm_path(recipe->gemm(role), role), fmt::format("{}, {}", finding.path, detail));
  }
  for (auto& [path, verdict] : verdicts)
    if (verdict.agrees) verdict.detail = plural(counts[path], "check");
  return verdicts;
}

HealthLines summary_of(const std::string& device, const PathCheckResult& result) {
  struct Kind {
    std::set<std::string> paths;
    std::size_t checks = 0;
    HealthLines failures;
  };
  std::vector<std::pair<std::string, Kind>> kinds;  // in the order of the checks
  for (const Finding& finding : result.findings) {
    const std::string name = kind_of(finding.path);
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == name; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {name, {}});
    kind->second.paths.insert(finding.path);
    ++kind->second.checks;
    if (!finding.agrees)
      kind->second.failures.push_back(
          {Health::fail, device + " " + name,
           fmt::format("{}; {}: {}", finding.path, finding.what, finding.measured)});
  }
  HealthLines lines;
  for (const auto& [name, kind] : kinds) {
    if (kind.failures.empty())
      lines.push_back({Health::ok, device + " " + name,
                       fmt::format("{}, {}, all as on the CPU", plural(kind.paths.size(), "path"),
                                   plural(kind.checks, "check"))});
    lines.insert(lines.end(), kind.failures.begin(), kind.failures.end());
  }
  for (HealthLine line : result.rates) {
    line.subject = device + " " + line.subject;
    lines.push_back(std::move(line));
  }
  if (result.incomplete)
    lines.push_back({Health::unknown, device, *result.incomplete + ": the rest was not judged"});
  return lines;
}

}  // namespace precbench
