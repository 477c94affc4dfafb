// kernel_bench grouped: TFLOP/s of our grouped expert GEMMs on GPU 0.
//
//   grouped [SECONDS]              every shape below, recipe, GEMM and number of rows; default: 0.04 s per
//                                  figure, just over a minute in all
//   grouped SECONDS beside         from 1,024 rows on; after a slash cuBLASLt's grouped call (13.4+),
//                                  timed alternately figure by figure
//   grouped -                      answers lines of standard input, one figure each, so that another program
//                                  can alternate with it (tools/pytorch_baseline/grouped_gemm.py):
//                                  RECIPE fprop|dgrad|wgrad EXPERTS ROWS N K bf16|f32|f32+
//                                  recipe|fast|promoted SECONDS
//
// Sustained (sustained.h); random numbers. N x K is an expert's weight. Every expert has ROWS rows, a
// multiple of 128; or they have that many on average with shares proportional to 1 / rank (zipf:1), each
// padded to a multiple of 128, where padding costs time but is not counted. D is BF16; a weight gradient's is
// also FP32, stored or (f32+) added to. A GEMM that neither our kernels nor cuBLASLt's support is "none".
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/bench_program.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/grouped.h"
#include "kernels/cuda/gemm/grouped_plans.h"
#include "kernels/cuda/gemm/sustained.h"

namespace precbench {
namespace {

struct ExpertShape {
  const char* model;
  std::int64_t experts, N, K;
};

constexpr ExpertShape kShapes[] = {{"Qwen3-30B", 128, 1536, 2048},       {"", 128, 2048, 768},
                                   {"moe-4b-a1b", 32, 2048, 2048},       {"", 32, 2048, 1024},
                                   {"DeepSeek-V2-Lite", 64, 2816, 2048}, {"", 64, 2048, 1408},
                                   {"Mixtral", 8, 28672, 4096},          {"", 8, 4096, 14336},
                                   {"DeepSeek-V3", 32, 4096, 7168},      {"", 32, 7168, 2048},
                                   {"Scout", 16, 16384, 5120},           {"", 16, 5120, 8192}};

struct RowShares {
  std::int64_t mean;
  double zipf;  ///< an expert's share falls as 1 / rank^zipf; 0: equal shares
};
constexpr RowShares kRows[] = {{256, 0}, {512, 0}, {1024, 0}, {1024, 1}, {4096, 0}};

constexpr std::int64_t kRowsBeside = 1024;  ///< minimum for comparisons with cuBLASLt

struct GroupedCase {
  std::string recipe;
  GemmRole role;
  std::int64_t experts;
  RowShares rows;
  std::int64_t N, K;
  DType d;
  bool accumulate;
  std::string accumulation;  ///< "recipe", "fast" or "promoted"
};

/// Returns the rows of each expert. The sum is the same for all shares. Unlike with a router, an expert may
/// have more rows than there are tokens.
std::vector<std::int64_t> rows_of_experts(std::int64_t experts, const RowShares& rows) {
  std::vector<double> ends;
  double sum = 0;
  for (std::int64_t e = 1; e <= experts; ++e)
    ends.push_back(sum += std::pow(static_cast<double>(e), -rows.zipf));
  std::vector<std::int64_t> counts;
  std::int64_t before = 0;
  for (const double end : ends) {
    const std::int64_t up_to = std::llround(static_cast<double>(experts * rows.mean) * end / sum);
    counts.push_back(up_to - before);
    before = up_to;
  }
  return counts;
}

struct Tflops {
  double own = 0, cublaslt = 0;  ///< 0 if no kernel supports it
};

class GroupedBench {
 public:
  GroupedBench() : device_(0), plans_(device_), grouped_plans_(device_, plans_.handle()) {}

  /// Measures cuBLASLt only with `beside`. Throws InvalidInput for an unknown recipe.
  Tflops tflops(const GroupedCase& c, double seconds, bool beside = false) {
    Buffers buffers(device_);
    const Recipe recipe = find_recipe(c.recipe);
    const GemmRecipe& gemm = recipe.gemm(c.role);
    const bool wgrad = c.role == GemmRole::wgrad, dgrad = c.role == GemmRole::dgrad;
    const std::int64_t E = c.experts;
    const Groups groups = groups_of(buffers, rows_of_experts(E, c.rows));
    const std::int64_t capacity = groups.rows_capacity();
    const std::int64_t columns = dgrad || wgrad ? c.K : c.N, depth = dgrad ? c.N : c.K;
    ops::GroupedMatmul op{.d = buffers.tensor(c.d, wgrad ? E * c.N : capacity, columns),
                          .a = {},
                          .b = {},
                          .groups = groups,
                          .options = {c.role, gemm.fast_accum, c.accumulate}};
    if (c.accumulation != "recipe") op.options.fast_accum = c.accumulation == "fast";
    device_.zero({op.d});
    if (!gemm.a.quantized()) {
      op.a = {{}, random_bf16(buffers, device_, capacity, wgrad ? c.N : depth, 1), {}, wgrad};
      op.b = {{}, random_bf16(buffers, device_, wgrad ? capacity : E * c.N, c.K, 2), {}, wgrad || dgrad};
    } else if (wgrad) {
      op.a = random_operand(buffers, device_, gemm.a, c.N, capacity, 1, E * c.N);
      op.b = random_operand(buffers, device_, gemm.b, c.K, capacity, 2, E * c.K);
    } else {
      op.a = random_operand(buffers, device_, gemm.a, capacity, depth, 1, capacity);
      op.b = random_operand(buffers, device_, gemm.b, E * columns, depth, 2, E * columns);
    }
    device_.synchronize();
    const int capability = device_.compute_capability();
    const auto rate = [&](bool takes, const auto& launch) {
      if (!takes) return 0.0;
      launch();
      return 2.0 * static_cast<double>(groups.rows_expected) * static_cast<double>(c.N) *
             static_cast<double>(c.K) / sustained_ms(device_, seconds, launch) / 1e9;
    };
    Tflops result;
    result.own =
        rate(takes_grouped(op, capability), [&] { launch_grouped(op, capability, device_.stream()); });
    if (beside)
      result.cublaslt =
          rate(grouped_plans_.takes(op) && grouped_plans_.run(op), [&] { grouped_plans_.run(op); });
    return result;
  }

 private:
  Groups groups_of(Buffers& buffers, const std::vector<std::int64_t>& rows) {
    std::vector<std::int32_t> offsets = {0}, counts;
    std::int64_t all = 0, end = 0;
    for (const std::int64_t of_expert : rows) {
      counts.push_back(static_cast<std::int32_t>(of_expert));
      all += of_expert;
      end += (of_expert + kGroupedPad - 1) / kGroupedPad * kGroupedPad;
      offsets.push_back(static_cast<std::int32_t>(end));
    }
    const auto E = static_cast<std::int64_t>(rows.size());
    return {.offsets = buffers.copy_of(Tensor{offsets.data(), DType::i32, 1, E + 1}),
            .counts = buffers.copy_of(Tensor{counts.data(), DType::i32, 1, E}),
            .row_of = {nullptr, DType::i32, all, 1},
            .source = {nullptr, DType::i32, 1, end},
            .pad = kGroupedPad,
            .rows_expected = all};
  }

  CudaDevice device_;
  MatmulPlans plans_;
  GroupedPlans grouped_plans_;
};

std::string in_words(double tflops) { return tflops > 0 ? fmt::format("{:.0f}", tflops) : "none"; }

GemmRole role_of(const std::string& word) {
  for (const GemmRole role : kGemmRoles)
    if (word == name_of(role)) return role;
  throw InvalidInput(fmt::format("a GEMM is fprop, dgrad or wgrad, not \"{}\"", word));
}

void answer(GroupedBench& bench) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    GroupedCase c;
    std::string role, d;
    double seconds = 0;
    c.rows.zipf = 0;
    if (!(words >> c.recipe >> role >> c.experts >> c.rows.mean >> c.N >> c.K >> d >> c.accumulation >>
          seconds))
      throw InvalidInput(
          fmt::format("\"{}\" is not RECIPE GEMM EXPERTS ROWS N K D ACCUMULATION SECONDS", line));
    c.role = role_of(role);
    c.d = d == "bf16" ? DType::bf16 : DType::f32;
    c.accumulate = d == "f32+";
    const double tflops = bench.tflops(c, seconds).own;
    fmt::print("{}\n", tflops > 0 ? fmt::format("{:.1f}", tflops) : "none");
    std::fflush(stdout);
  }
}

void table(GroupedBench& bench, double seconds, bool beside) {
  constexpr const char* kRecipes[] = {"bf16", "tensorwise", "rowwise", "blockwise"};
  struct Destination {
    const char* name;
    DType dtype;
    bool accumulate;
  };
  constexpr Destination kDestinations[] = {
      {"bf16", DType::bf16, false}, {"f32", DType::f32, false}, {"f32+", DType::f32, true}};
  fmt::print("{:>16} {:>8} {:>12} {:>12} {:>6} {:>4}", "", "E", "rows", "N x K", "", "D");
  for (const char* recipe : kRecipes) fmt::print(" {:>11}", recipe);
  fmt::print("\n");
  for (const ExpertShape& shape : kShapes)
    for (const RowShares& rows : kRows) {
      if (beside && rows.mean < kRowsBeside) continue;
      for (const GemmRole role : kGemmRoles)
        for (const Destination& d : kDestinations) {
          if (d.dtype == DType::f32 && role != GemmRole::wgrad) continue;
          fmt::print(
              "{:>16} {:>8} {:>12} {:>12} {:>6} {:>4}", shape.model, shape.experts,
              rows.zipf > 0 ? fmt::format("{} zipf:{}", rows.mean, rows.zipf) : fmt::format("{}", rows.mean),
              fmt::format("{}x{}", shape.N, shape.K), name_of(role), d.name);
          for (const char* recipe : kRecipes) {
            const Tflops found = bench.tflops(
                {recipe, role, shape.experts, rows, shape.N, shape.K, d.dtype, d.accumulate, "recipe"},
                seconds, beside);
            fmt::print(" {:>11}", in_words(found.own) + (beside ? "/" + in_words(found.cublaslt) : ""));
          }
          fmt::print("\n");
          std::fflush(stdout);
        }
    }
}

}  // namespace

void bench_grouped(const std::vector<std::string>& words) {
  const std::string argument = words.empty() ? "0.04" : words.front(), more = words.size() > 1 ? words[1] : "";
  GroupedBench bench;
  if (argument == "-") return answer(bench);
  const double seconds = std::atof(argument.c_str());
  if (!(seconds > 0)) throw InvalidInput("give seconds above 0, or -");
  if (!more.empty() && more != "beside") throw InvalidInput(fmt::format("\"{}\" is not beside", more));
  const GpuProperties gpu = gpu_properties(0);
  fmt::print("{}, {} SMs, driver {}, CUDA {}, cuBLASLt {}; TFLOP/s, sustained {} s a figure\n", gpu.name,
             gpu.sm_count, gpu.driver, gpu.cuda_runtime, gpu.cublaslt, seconds);
  table(bench, seconds, more == "beside");
}

}  // namespace precbench
