// Helpers shared by tests of the grouped kernels: grouped GEMMs with groups that are empty, end around a tile
// or fill several, on the host with their exact values and on the device; and the error of D.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/checks/naive_gemm.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/grouped.h"
#include "kernels/cuda/gemm/grouped_kernels.h"
#include "kernels/device/buffers.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/numerics/format_testing.h"
#include "kernels/numerics/scale_layout.h"
#include "kernels/testing/catch.h"

namespace precbench::testing {

using checks::Accumulator, checks::kFp32, checks::kFp8, checks::kFp8Fast, checks::naive_dot, checks::round_to;

inline constexpr std::int64_t kTail = 128;  ///< rows of the capacity outside all groups
inline constexpr std::int64_t kGuard = 16;  ///< rows before and after D
inline constexpr std::byte kFill{0x3c};     ///< a small number in both dtypes of D

/// Shape of a group's D, and k for groups of rows: no tile or block of scales divides them.
struct GroupedShape {
  std::int64_t rows, columns, depth;
};
inline constexpr GroupedShape kShapes[] = {{192, 392, 320}, {320, 136, 1088}};

using Counts = std::vector<std::int32_t>;
inline const Counts kCounts = {0, 1, 127, 128, 129, 0, 300, 640};
/// The same total of rows, distributed differently.
inline const Counts kOtherCounts = {640, 0, 0, 300, 1, 129, 128, 127};
inline const Counts kAllToOne = {0, 0, 0, 1325, 0, 0, 0, 0};

inline std::vector<std::int32_t> offsets_of(const Counts& counts) {
  std::vector<std::int32_t> offsets = {0};
  for (const std::int32_t count : counts)
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(detail::padded(count, kGroupedPad)));
  return offsets;
}

/// One operand, [rows, k]: the GPU's input, and its exact values.
struct Side {
  std::int64_t rows, k;
  std::vector<std::byte> data;
  std::vector<float> scales;
  std::vector<double> values;
};

inline float decoded(DType dtype, std::uint32_t code) {
  return dtype == DType::bf16   ? bf16_decode(static_cast<std::uint16_t>(code))
         : dtype == DType::e4m3 ? e4m3_decode(static_cast<std::uint8_t>(code))
                                : e5m2_decode(static_cast<std::uint8_t>(code));
}

inline std::uint32_t encoded(DType dtype, float x) {
  return dtype == DType::bf16 ? bf16_encode(x) : dtype == DType::e4m3 ? e4m3_encode(x) : e5m2_encode(x);
}

/// Memory layout of an operand: `stacks` of [rows / stacks, k], or of k rows if MN-major; an element's
/// scale; and whether an element belongs to a group or is padding, which is 0.
struct SideLayout {
  DType dtype;
  bool mn_major;
  std::int64_t stacks, scales;
  std::function<std::int64_t(std::int64_t row, std::int64_t k)> scale_at;
  std::function<bool(std::int64_t k)> used;

  std::size_t at(std::int64_t rows, std::int64_t k, std::int64_t r, std::int64_t c) const {
    const std::int64_t height = rows / stacks;
    return static_cast<std::size_t>(mn_major ? (r / height * k + c) * height + r % height : r * k + c);
  }
};

inline Side make_side(const SideLayout& layout, std::int64_t rows, std::int64_t k, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-4, 4);
  std::array<std::uint32_t, 4096> codes;
  for (std::uint32_t& code : codes) code = encoded(layout.dtype, 16 * normal(random));
  std::vector<bool> used;
  for (std::int64_t c = 0; c < k; ++c) used.push_back(layout.used(c));
  const auto bytes = static_cast<std::size_t>(bytes_of(layout.dtype, 1));
  Side side{rows,
            k,
            std::vector<std::byte>(static_cast<std::size_t>(rows * k) * bytes),
            {},
            std::vector<double>(static_cast<std::size_t>(rows * k))};
  for (std::int64_t i = 0; i < layout.scales; ++i) side.scales.push_back(std::exp2(exponent(random)));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < k; ++c) {
      const std::uint32_t code = used[static_cast<std::size_t>(c)] ? codes[random() % codes.size()] : 0;
      std::memcpy(&side.data[layout.at(rows, k, r, c) * bytes], &code, bytes);
      const double scale = layout.scales ? side.scales[static_cast<std::size_t>(layout.scale_at(r, c))] : 1;
      side.values[static_cast<std::size_t>(r * k + c)] = scale * decoded(layout.dtype, code);
    }
  return side;
}

struct GroupedProblem {
  const GroupedKernel& kernel;
  GroupedGemm gemm;
  std::vector<std::int32_t> counts, offsets;
  bool a_rows, b_rows;  ///< scales per row or per tensor
  Side a, b;
  SideLayout layout_a;

  std::int64_t rows_of_d() const { return gemm.over_k ? gemm.groups * gemm.rows : gemm.capacity; }
};

/// `row_scales`: per row, else per tensor, if the kernel supports both.
inline GroupedProblem make_problem(const GroupedKernel& kernel, bool over_k, const GroupedShape& shape,
                                   bool row_scales, const Counts& counts) {
  const auto E = static_cast<std::int64_t>(counts.size());
  const std::vector<std::int32_t> offsets = offsets_of(counts);
  const GroupedGemm gemm{over_k, E, offsets.back() + kTail, shape.rows, shape.columns, shape.depth};
  const std::int64_t a_rows = over_k ? gemm.rows : gemm.capacity, k = over_k ? gemm.capacity : gemm.depth;
  const std::int64_t b_rows = over_k ? gemm.columns : E * gemm.columns;
  const auto group_of = [offsets](std::int64_t row) {
    return std::upper_bound(offsets.begin() + 1, offsets.end() - 1, row) - offsets.begin() - 1;
  };
  const auto used = [=](std::int64_t c) {
    return !over_k ||
           c < offsets[static_cast<std::size_t>(group_of(c))] + counts[static_cast<std::size_t>(group_of(c))];
  };
  const auto layout = [&](bool is_b) {
    const std::int64_t rows = is_b ? b_rows : a_rows;
    SideLayout side{is_b ? kernel.b : kernel.a,
                    is_b ? kernel.b_mn_major : kernel.a_mn_major,
                    is_b && !over_k ? E : 1,
                    0,
                    {},
                    used};
    const auto blocks = [&](Granularity g) {
      side.scales = scale_count(g, rows, k);
      side.scale_at = [=](std::int64_t r, std::int64_t c) { return scale_index(g, rows, k, r, c / 128); };
    };
    if (kernel.scales == GroupedScales::block_128x128 && is_b) {
      constexpr Granularity g = Granularity::block_128x128;
      const std::int64_t of_group = scale_count(g, shape.columns, k);
      side.scales = E * of_group;
      side.scale_at = [=](std::int64_t r, std::int64_t c) {
        return r / shape.columns * of_group + scale_index(g, shape.columns, k, r % shape.columns, c / 128);
      };
    } else if (kernel.scales == GroupedScales::block_128x128 || kernel.scales == GroupedScales::block_1x128) {
      blocks(Granularity::block_1x128);
    } else if (kernel.scales == GroupedScales::row_or_tensor) {
      side.scales = row_scales ? (over_k ? E * rows : rows) : (is_b && !over_k ? E : 1);
      side.scale_at = [=](std::int64_t r, std::int64_t c) {
        if (row_scales) return over_k ? group_of(c) * rows + r : r;
        return is_b && !over_k ? r / (rows / E) : 0;
      };
    }
    return side;
  };
  const SideLayout of_a = layout(false), of_b = layout(true);
  return {kernel,
          gemm,
          counts,
          offsets,
          row_scales,
          row_scales,
          make_side(of_a, a_rows, k, 1),
          make_side(of_b, b_rows, k, 2),
          of_a};
}

inline std::string words(const GroupedProblem& p) {
  constexpr const char* kScales[] = {"", " 1x128 x 128x128", " 1x128", " scaled at the end"};
  return std::string(p.kernel.name) + " " + name_of(p.kernel.a) + (p.kernel.a_mn_major ? " MN-major" : "") +
         " x " + name_of(p.kernel.b) + (p.kernel.b_mn_major ? " MN-major" : "") +
         kScales[static_cast<int>(p.kernel.scales)] + (p.kernel.fast ? " fast" : "") +
         (p.gemm.over_k ? ", groups of k" : ", groups of rows") + (p.a_rows ? ", rows" : "") + " into " +
         name_of(p.kernel.d) + (p.kernel.accumulate ? ", accumulated" : "") + ", D of " +
         std::to_string(p.gemm.columns);
}

/// Calls check for every kernel of this build with all supported kinds of groups and scales; never without
/// Hopper.
inline void for_problems(const std::function<void(CudaDevice&, const GroupedProblem&)>& check,
                         const Counts& counts = kCounts) {
  if (!gpu_here()) return;
  if (gpu_properties(0).compute_capability != 90) {
    WARN("skipped: the kernels are for compute capability 9.0");
    return;
  }
  CudaDevice device(0);
  for (const auto kernels : {hopper_plain_grouped_kernels(), hopper_blockwise_grouped_kernels()})
    for (const GroupedKernel& kernel : kernels)
      for (const bool over_k : {false, true})
        for (const GroupedShape& shape : kShapes)
          for (const bool row_scales : {false, true}) {
            if (!(over_k ? kernel.over_k : kernel.over_rows)) continue;
            // For scales at the end, each kind has its own shape.
            if (kernel.scales == GroupedScales::row_or_tensor ? row_scales != (shape.rows == kShapes[0].rows)
                                                              : row_scales)
              continue;
            const GroupedProblem problem = make_problem(kernel, over_k, shape, row_scales, counts);
            INFO(words(problem));
            check(device, problem);
          }
}

/// A problem in device memory.
class OnDevice {
 public:
  OnDevice(CudaDevice& device, const GroupedProblem& problem)
      : device_(device), problem_(problem), memory_(device) {
    const auto put = [&](const void* data, std::size_t bytes) {
      return memory_.copy_of(
          Tensor{const_cast<void*>(data), DType::e4m3, 1, static_cast<std::int64_t>(bytes)});
    };
    on_.a = put(problem.a.data.data(), problem.a.data.size()).data;
    on_.b = put(problem.b.data.data(), problem.b.data.size()).data;
    if (!problem.a.scales.empty()) {
      on_.a_scale = put(problem.a.scales.data(), problem.a.scales.size() * sizeof(float)).as<float>();
      on_.b_scale = put(problem.b.scales.data(), problem.b.scales.size() * sizeof(float)).as<float>();
    }
    on_.a_scale_rows = problem.a_rows;
    on_.b_scale_rows = problem.b_rows;
    groups_[0] = put(problem.offsets.data(), problem.offsets.size() * sizeof(std::int32_t));
    groups_[1] = put(problem.counts.data(), problem.counts.size() * sizeof(std::int32_t));
    on_.offsets = groups_[0].as<std::int32_t>();
    on_.counts = groups_[1].as<std::int32_t>();
  }

  /// Returns D's bytes after the kernel ran on `before`, which includes the guard rows.
  std::vector<std::byte> run(std::vector<std::byte> before) {
    const Tensor whole = place_d(before);
    launch();
    device_.download(before.data(), whole);
    return before;
  }

  /// The same with a launch that was captured while the groups were `earlier`.
  std::vector<std::byte> replay(std::vector<std::byte> before, const Counts& earlier) {
    const Tensor whole = place_d(before);
    const std::vector<std::int32_t> offsets = offsets_of(earlier);
    device_.upload(groups_[0], offsets.data());
    device_.upload(groups_[1], earlier.data());
    launch();
    device_.upload(whole, before.data());
    device_.begin_capture();
    launch();
    const cudaGraphExec_t graph = device_.end_capture().graph;
    device_.upload(groups_[0], problem_.offsets.data());
    device_.upload(groups_[1], problem_.counts.data());
    PRECBENCH_CHECK(cudaGraphLaunch(graph, device_.stream()));
    device_.download(before.data(), whole);
    cudaGraphExecDestroy(graph);
    return before;
  }

 private:
  Tensor place_d(std::vector<std::byte>& before) {
    const Tensor whole = memory_.copy_of(
        Tensor{before.data(), problem_.kernel.d, problem_.rows_of_d() + 2 * kGuard, problem_.gemm.columns});
    on_.d = whole.slice_rows(kGuard, problem_.rows_of_d()).data;
    return whole;
  }
  void launch() {
    problem_.kernel.launch(problem_.gemm, on_, device_.stream());
    device_.launched("grouped_matmul");
  }

  CudaDevice& device_;
  const GroupedProblem& problem_;
  Tensor groups_[2];  // offsets and counts
  Buffers memory_;
  GroupedBuffers on_{};
};

inline double element(const std::vector<std::byte>& bits, DType dtype, std::int64_t index) {
  float value = 0;
  std::uint16_t half = 0;
  if (dtype == DType::f32) {
    std::memcpy(&value, &bits[static_cast<std::size_t>(4 * index)], 4);
    return value;
  }
  std::memcpy(&half, &bits[static_cast<std::size_t>(2 * index)], 2);
  return bf16_decode(half);
}

/// The group's k of one element of D, and its rows of A and B.
struct Sum {
  const double *a, *b;
  std::int64_t k;
};

inline Sum sum_of(const GroupedProblem& p, std::int64_t group, std::int64_t row, std::int64_t column) {
  const auto g = static_cast<std::size_t>(group);
  const std::int64_t K = p.a.k, first = p.gemm.over_k ? p.offsets[g] : 0;
  const std::int64_t a_row = p.gemm.over_k ? row : p.offsets[g] + row;
  const std::int64_t b_row = p.gemm.over_k ? column : group * p.gemm.columns + column;
  return {&p.a.values[static_cast<std::size_t>(a_row * K + first)],
          &p.b.values[static_cast<std::size_t>(b_row * K + first)], p.gemm.over_k ? p.counts[g] : K};
}

/// Calls row_is for every row of D in a group: group, row within it, the index of its first element in D.
template <class Row>
inline void for_rows(const GroupedProblem& p, Row&& row_is) {
  for (std::int64_t g = 0; g < p.gemm.groups; ++g) {
    const std::int64_t rows = p.gemm.over_k ? p.gemm.rows : p.counts[static_cast<std::size_t>(g)];
    const std::int64_t first = p.gemm.over_k ? g * p.gemm.rows : p.offsets[static_cast<std::size_t>(g)];
#pragma omp parallel for
    for (std::int64_t r = 0; r < rows; ++r) row_is(g, r, (first + r) * p.gemm.columns);
  }
}

inline std::vector<std::byte> filled(const GroupedProblem& p) {
  const std::int64_t elements = (p.rows_of_d() + 2 * kGuard) * p.gemm.columns;
  return std::vector<std::byte>(static_cast<std::size_t>(bytes_of(p.kernel.d, elements)), kFill);
}

inline Accumulator accumulator_of(const GroupedKernel& kernel) {
  return kernel.a == DType::bf16 ? kFp32 : kernel.fast ? kFp8Fast : kFp8;
}

/// Squared errors relative to |row of A|^2 |row of B|^2 + the squared addend: of D, and of the naive GEMM in
/// some rows of each group; and the number of empty sums that are not `was`, or not 0 without accumulation.
/// `times`: consecutive launches into the same D.
struct Deviation {
  double error = 0, naive = 0;
  std::int64_t elements = 0, naive_elements = 0, wrong = 0;
};

inline Deviation deviation_of(const GroupedProblem& p, const std::vector<std::byte>& bits, double was,
                              int times) {
  constexpr std::int64_t kNaiveRows = 8;
  const double old = p.kernel.accumulate ? was : 0;
  Deviation all;
  const auto norm = [](const double* x, std::int64_t k) { return std::inner_product(x, x + k, x, 0.0); };
  std::vector<double> norms(
      static_cast<std::size_t>(p.gemm.groups * p.gemm.columns));  // of each group's columns
  for (std::int64_t i = 0; i < p.gemm.groups * p.gemm.columns; ++i) {
    const Sum sum = sum_of(p, i / p.gemm.columns, 0, i % p.gemm.columns);
    norms[static_cast<std::size_t>(i)] = norm(sum.b, sum.k);
  }
  for_rows(p, [&](std::int64_t g, std::int64_t r, std::int64_t first) {
    Deviation mine;
    const double norm_a = norm(sum_of(p, g, r, 0).a, sum_of(p, g, r, 0).k);
    for (std::int64_t c = 0; c < p.gemm.columns; ++c) {
      const Sum sum = sum_of(p, g, r, c);
      const double got = element(bits, p.kernel.d, kGuard * p.gemm.columns + first + c);
      const int added = p.kernel.accumulate ? times : 1;
      const double size =
          added * added * norm_a * norms[static_cast<std::size_t>(g * p.gemm.columns + c)] + old * old;
      const double exact = old + added * std::inner_product(sum.a, sum.a + sum.k, sum.b, 0.0);
      ++mine.elements;
      mine.wrong += sum.k == 0 && got != old;
      mine.error += size > 0 ? std::pow(got - exact, 2) / size : 0;
      if (r >= kNaiveRows) continue;
      const double dot = naive_dot(sum.a, sum.b, sum.k, accumulator_of(p.kernel));
      double naive = old;
      for (int i = 0; i < added; ++i) naive = round_to(p.kernel.d, dot + naive);
      ++mine.naive_elements;
      mine.naive += size > 0 ? std::pow(naive - exact, 2) / size : 0;
    }
#pragma omp critical
    all = {all.error + mine.error, all.naive + mine.naive, all.elements + mine.elements,
           all.naive_elements + mine.naive_elements, all.wrong + mine.wrong};
  });
  return all;
}

}  // namespace precbench::testing
