// Our Hopper attention kernels, each separately: the bound of attention_test.cpp for every supported shape,
// and an error of at most 1.1 times cuDNN's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/checks/host_tensors.h"
#include "kernels/cuda/attention/attention_testing.h"
#include "kernels/cuda/attention/flash.h"
#include "kernels/device/buffers.h"
#include "kernels/gpu/gpu_testing.h"

namespace precbench {
namespace {

constexpr std::int64_t kWidths[] = {64, 128, 256};  ///< of heads

/// Runs one kernel of each direction: out and lse of the first go into the second.
void run_kernels(CudaDevice& device, Problem& problem, const AttentionShape& shape,
                 const HopperForward& forward, const HopperBackward& backward) {
  problem.clear();
  forward.launch(tensors_of(problem), shape, device.stream());
  const DeviceBlock workspace(device, backward.workspace_bytes(shape));
  const std::vector<std::uint8_t> ones(backward.workspace_bytes(shape), 0xFF);
  device.upload({workspace.data(), DType::e4m3, 1, backward.workspace_bytes(shape)}, ones.data());
  backward.launch(gradients_of(problem, workspace.data()), shape, device.stream());
  device.synchronize();
}

/// Calls body with pairs such that each kernel is in one of them.
template <class Body>
void for_kernels(CudaDevice& device, const AttentionShape& shape, Body&& body) {
  const auto forward = hopper_forward_kernels(shape, device.compute_capability());
  const auto backward = hopper_backward_kernels(shape, device.compute_capability());
  if (forward.empty() || backward.empty()) return;
  for (std::size_t i = 0; i < std::max(forward.size(), backward.size()); ++i)
    body(*forward[i % forward.size()], *backward[i % backward.size()]);
}

/// Edges of tiles on both sides, ragged ends, every kind of group, offsets of both signs, queries that see
/// nothing.
std::vector<AttentionShape> shapes(std::int64_t D, float softcap = 0) {
  std::vector<AttentionShape> list;
  for (const std::int64_t T :
       {1, 31, 32, 33, 63, 64, 65, 79, 80, 81, 127, 128, 129, 159, 160, 161, 191, 193, 256, 300})
    list.push_back({2, T, 2, 1, D});
  for (const std::int64_t kv_heads : {6, 3, 2, 1}) list.push_back({2, 150, 6, kv_heads, D});
  list.push_back({40, 130, 4, 2, D});  // more tiles than multiprocessors
  list.push_back({2, 100, 4, 2, D, 300, 200});
  list.push_back({2, 100, 4, 2, D, 333, 155});
  list.push_back({2, 190, 4, 2, D, 140, -70});
  list.push_back({1, 150, 4, 4, D, 70, 37});
  list.push_back({2, 200, 4, 2, D, 200, 200});  // a chunk of ring attention before the queries
  for (AttentionShape& shape : list) shape.softcap = softcap;
  return list;
}

}  // namespace

namespace {

/// Checks every kernel for the shapes. Scores have the square of `deviation` as standard deviation.
void check_hopper(CudaDevice& device, const std::vector<AttentionShape>& all, float deviation) {
  for (const AttentionShape& shape : all) {
    Problem problem(device, shape, deviation);
    std::optional<AttentionResult> truth, naive;
    for_kernels(device, shape, [&](const HopperForward& forward, const HopperBackward& backward) {
      if (!truth) {
        truth =
            attention_reference<double>(shape, problem.qkv_values, problem.dout_values, problem.kv_values);
        naive = attention_reference<float>(shape, problem.qkv_values, problem.dout_values, problem.kv_values);
      }
      run_kernels(device, problem, shape, forward, backward);
      INFO(forward.name << ", " << backward.name << ", softcap " << shape.softcap);
      check_close(shape, problem.result(), *truth, *naive);
    });
  }
}

}  // namespace

TEST_CASE("hopper attention: errors are at most twice those of plain BF16", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  for (const std::int64_t D : kWidths) check_hopper(device, shapes(D), 1.5f);
}

TEST_CASE("hopper attention: errors with soft-capped scores are at most twice those of plain BF16",
          "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  for (const std::int64_t D : kWidths) {
    check_hopper(device, shapes(D, 2), 1.5f);  // a cap that bends nearly all scores
    AttentionShape gemma{1, 300, 4, 2, D};
    gemma.softcap = 50;
    for (const float deviation : {0.5f, 6.0f}) check_hopper(device, {gemma}, deviation);
    // The definition without the cap is ten times as far off as the bound allows.
    AttentionShape capped{1, 200, 2, 1, D}, plain = capped;
    capped.softcap = 2;
    Problem problem(device, capped, 1.5f);
    const auto truth = attention_reference<double>(capped, problem.qkv_values, problem.dout_values),
               naive = attention_reference<float>(capped, problem.qkv_values, problem.dout_values),
               uncapped = attention_reference<double>(plain, problem.qkv_values, problem.dout_values);
    for_kernels(device, capped, [&](const HopperForward& forward, const HopperBackward& backward) {
      run_kernels(device, problem, capped, forward, backward);
      INFO(forward.name << ", " << backward.name);
      for (const Part& part : parts_of(capped))
        CHECK(part.distance(problem.result(), uncapped) > 20 * part.distance(naive, truth));
    });
  }
}

TEST_CASE(
    "hopper attention: errors with soft-capped scores in a window are at most twice those of plain BF16",
    "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  for (const std::int64_t D : kWidths) {
    std::vector<AttentionShape> windows;
    // One key, within a tile, ends of tiles on both sides, several tiles, and more than the sequence.
    for (const std::int64_t window : {1, 7, 31, 33, 63, 64, 65, 79, 81, 127, 128, 129, 160, 200, 320, 400})
      for (const std::int64_t T : {63, 130, 385})
        windows.push_back(
            {.B = 2, .T = T, .heads = 4, .kv_heads = 2, .head_dim = D, .window = window, .softcap = 2});
    for (const std::int64_t kv_heads : {6, 3, 1})
      windows.push_back(
          {.B = 1, .T = 300, .heads = 6, .kv_heads = kv_heads, .head_dim = D, .window = 100, .softcap = 2});
    // More tiles than multiprocessors, and several blocks before and after the window.
    windows.push_back(
        {.B = 3, .T = 1300, .heads = 8, .kv_heads = 4, .head_dim = D, .window = 300, .softcap = 50});
    check_hopper(device, windows, 1.5f);
    // Without the window the definition is ten times as far off as the bound allows.
    const AttentionShape narrow{
        .B = 1, .T = 300, .heads = 2, .kv_heads = 1, .head_dim = D, .window = 40, .softcap = 2};
    AttentionShape whole = narrow;
    whole.window = 0;
    Problem problem(device, narrow, 1.5f);
    const auto truth = attention_reference<double>(narrow, problem.qkv_values, problem.dout_values),
               naive = attention_reference<float>(narrow, problem.qkv_values, problem.dout_values),
               without = attention_reference<double>(whole, problem.qkv_values, problem.dout_values);
    int kernels = 0;
    for_kernels(device, narrow, [&](const HopperForward& forward, const HopperBackward& backward) {
      run_kernels(device, problem, narrow, forward, backward);
      INFO(forward.name << ", " << backward.name);
      for (const Part& part : parts_of(narrow))
        CHECK(part.distance(problem.result(), without) > 20 * part.distance(naive, truth));
      ++kernels;
    });
    if (device.compute_capability() == 90) CHECK(kernels > 0);
    AttentionShape shared = narrow;
    shared.T_k = 600, shared.offset = 300;
    CHECK(hopper_forward_kernels(shared, 90).empty());
    CHECK(hopper_backward_kernels(shared, 90).empty());
    // Windows of plain scores are other kernels'.
    whole.softcap = 0, whole.window = 40;
    CHECK(hopper_forward_kernels(whole, 90).empty());
  }
}

TEST_CASE("hopper attention: errors are at most 1.1 times those of cuDNN", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  try {
    device.set_attention("cudnn");
  } catch (const Unsupported& refusal) {
    WARN(refusal.what());
    return;
  }
  for (const AttentionShape& shape :
       {AttentionShape{1, 512, 4, 2, 64}, AttentionShape{1, 512, 4, 2, 128},
        AttentionShape{1, 512, 4, 2, 256}, AttentionShape{1, 2048, 2, 1, 64},
        AttentionShape{1, 2048, 2, 1, 128}, AttentionShape{1, 2048, 2, 1, 256}}) {
    Problem problem(device, shape, 1.0f);
    const auto truth = attention_reference<double>(shape, problem.qkv_values, problem.dout_values);
    problem.forward();
    problem.backward();
    const AttentionResult theirs = problem.result();
    for_kernels(device, shape, [&](const HopperForward& forward, const HopperBackward& backward) {
      run_kernels(device, problem, shape, forward, backward);
      const AttentionResult ours = problem.result();
      for (const Part& part : parts_of(shape)) {
        INFO(part.name << " of " << forward.name << ", " << backward.name << ", head_dim " << shape.head_dim
                       << ", T " << shape.T);
        CHECK(part.distance(ours, truth) <= 1.1 * part.distance(theirs, truth));
      }
    });
  }
}

TEST_CASE("hopper attention: deterministic kernels repeat bit for bit", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  // Heads of 256 whose key tiles do and do not suffice for all multiprocessors: dk and dv in parts, and as a whole.
  const AttentionShape wide{1, 1024, 8, 4, 256}, many{3, 1024, 8, 4, 256};
  AttentionShape capped = wide;
  capped.softcap = 50;
  for (const AttentionShape& shape :
       {AttentionShape{1, 1024, 8, 2, 128}, AttentionShape{2, 640, 8, 8, 64}, wide, many, capped}) {
    Problem problem(device, shape, 1.5f);
    for_kernels(device, shape, [&](const HopperForward& forward, const HopperBackward& backward) {
      if (!backward.deterministic) return;
      std::optional<std::vector<std::uint8_t>> first;
      for (int i = 0; i < 4; ++i) {
        run_kernels(device, problem, shape, forward, backward);
        const auto bits = problem.bits();
        if (!first) first = bits;
        INFO(forward.name << ", " << backward.name << ", run " << i);
        CHECK((bits == *first));
      }
    });
  }
}

TEST_CASE("hopper attention: a deterministic request selects a deterministic kernel", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  for (const std::int64_t D : kWidths) {
    const AttentionShape shape{1, 128, 2, 1, D};
    const HopperBackward* kernel = hopper_backward(shape, device.compute_capability(), true);
    CHECK((!kernel || kernel->deterministic));
  }
}

TEST_CASE("hopper attention: keys beyond those that are seen change nothing, up to 2^24 rows of all heads",
          "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  constexpr std::int64_t kB = 2, kT = 128, kHeads = 64, kSeen = 200, kFew = 256, kMany = 131072, D = 64;
  const AttentionShape few{kB, kT, kHeads, 1, D, kFew, kSeen - kT},
      many{kB, kT, kHeads, 1, D, kMany, kSeen - kT};
  const int capability = device.compute_capability();
  if (hopper_forward_kernels(few, capability).empty()) return;
  REQUIRE(hopper_forward(many, capability));
  REQUIRE(hopper_backward(many, capability, true));
  checks::HostMemory host;
  Buffers buffers(device);
  const Tensor qkv = buffers.copy_of(host.random(DType::bf16, kB * kT, few.qkv_width(), 1.0f)),
               dout = buffers.copy_of(host.random(DType::bf16, kB * kT, few.q_width(), 1.0f));
  const Tensor few_keys = host.random(DType::bf16, kB * kFew, few.kv_width(), 1.0f),
               many_keys = host.tensor(DType::bf16, kB * kMany, few.kv_width());
  std::fill_n(many_keys.as<std::uint16_t>(), many_keys.size(), std::uint16_t{0});
  for (std::int64_t b = 0; b < kB; ++b) {
    const Tensor rows = few_keys.slice_rows(b * kFew, kFew);
    std::copy_n(rows.as<std::uint16_t>(), rows.size(),
                many_keys.slice_rows(b * kMany, kFew).as<std::uint16_t>());
  }
  const auto run = [&](const AttentionShape& shape, const Tensor& keys) {
    const AttentionTensors tensors{buffers.tensor(DType::bf16, kB * kT, shape.q_width()),
                                   buffers.tensor(DType::f32, kHeads, kB * kT), qkv, buffers.copy_of(keys)};
    const Tensor dqkv = buffers.copy_of(host.tensor(DType::bf16, kB * kT, shape.qkv_width())),
                 dkv = buffers.tensor(DType::bf16, keys.rows, keys.cols);
    hopper_forward(shape, capability)->launch(tensors, shape, device.stream());
    const HopperBackward& backward = *hopper_backward(shape, capability, true);
    const DeviceBlock workspace(device, backward.workspace_bytes(shape));
    backward.launch({dqkv, dkv, dout, tensors, workspace.data()}, shape, device.stream());
    device.synchronize();
    std::vector<Tensor> results;
    for (const Tensor& on_device : {tensors.out, tensors.lse, dqkv, dkv}) {
      const Tensor result = host.tensor(on_device.dtype, on_device.rows, on_device.cols);
      device.download(result.data, on_device);
      results.push_back(result);
    }
    return results;
  };
  const std::vector<Tensor> expected = run(few, few_keys), got = run(many, many_keys);
  for (int i = 0; i < 3; ++i) CHECK(checks::same_bits(got[i], expected[i]));
  double error = 0, scale = 0, beyond = 0;
  for (std::int64_t b = 0; b < kB; ++b)
    for (std::int64_t i = 0; i < kMany * few.kv_width(); ++i) {
      const double value = checks::HostMemory::get(got[3], b * kMany * few.kv_width() + i);
      if (i >= kFew * few.kv_width()) {
        beyond += std::fabs(value);
        continue;
      }
      const double wanted = checks::HostMemory::get(expected[3], b * kFew * few.kv_width() + i);
      error += (value - wanted) * (value - wanted);
      scale += wanted * wanted;
    }
  CHECK(beyond == 0);
  // The heads of a group are added in other parts, then rounded to BF16.
  CHECK(std::sqrt(error / scale) <= 1e-2);
}

TEST_CASE("hopper attention: there are no kernels for other GPUs", "[gpu][attention]") {
  const AttentionShape shape{1, 128, 2, 1, 128};
  for (const int compute_capability : {80, 89, 100, 103, 120}) {
    INFO(compute_capability);
    CHECK(hopper_forward_kernels(shape, compute_capability).empty());
    CHECK(hopper_backward_kernels(shape, compute_capability).empty());
    CHECK(!hopper_forward(shape, compute_capability));
  }
  // Heads of 128 have cuDNN's backward with many keys, others ours.
  for (const std::int64_t D : kWidths) {
    INFO("head_dim " << D);
    CHECK(hopper_backward_is_faster({1, 8192, 2, 1, D}, false) == (D != 128));
  }
  // On Hopper the kernels exist: otherwise the checks above would be vacuous.
  if (!gpu_here() || gpu_properties(0).compute_capability != 90) return;
  for (const std::int64_t D : kWidths)
    for (const float softcap : {0.0f, 50.0f}) {
      INFO("head_dim " << D << ", softcap " << softcap);
      AttentionShape supported{1, 128, 2, 1, D};
      supported.softcap = softcap;
      CHECK_FALSE(hopper_forward_kernels(supported, 90).empty());
      CHECK(hopper_backward(supported, 90, true) != nullptr);
    }
}

TEST_CASE("hopper attention: a NaN or Inf in a head's gradient stays in that head", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  constexpr std::int64_t kPoisoned = 100;
  for (const std::uint16_t poison : {0x7FC0, 0x7F80})  // NaN, infinity
    for (const std::int64_t D : kWidths) {
      const AttentionShape s{2, 256, 2, 2, D};
      Problem problem(device, s, 1.0f);
      std::vector<std::uint16_t> dout = problem.dout_values;
      dout[kPoisoned * s.q_width() + D] = poison;  // of head 1, sequence 0
      device.upload(gradients_of(problem, nullptr).dout, dout.data());
      for_kernels(device, s, [&](const HopperForward& forward, const HopperBackward& backward) {
        run_kernels(device, problem, s, forward, backward);
        const std::vector<double> dqkv = problem.result().dqkv;
        const auto is_finite = [&](std::int64_t token, std::int64_t head) {
          const auto begin = dqkv.begin() + token * s.qkv_width() + head * D;
          return std::all_of(begin, begin + D, [](double x) { return std::isfinite(x); });
        };
        std::int64_t wrong = 0;
        for (std::int64_t t = 0; t < s.tokens(); ++t)
          for (std::int64_t head = 0; head < s.heads; ++head) {
            const bool reached = head == 1 && t <= kPoisoned;
            wrong += is_finite(t, head) == (reached && t == kPoisoned);
            for (const std::int64_t part : {s.heads, s.heads + s.kv_heads}) {  // dk, dv
              // The head's later keys are not checked: a GEMM with a masked 0 gives NaN.
              if (head == 1 && t > kPoisoned && t < s.T) continue;
              wrong += is_finite(t, part + head) == reached;
            }
          }
        INFO(forward.name << ", " << backward.name << ", head_dim " << D << ", poison " << poison);
        CHECK(wrong == 0);
      });
    }
}

TEST_CASE("hopper attention: a NaN or Inf in a head's q or k or v stays in that head", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  enum class Poisoned : std::uint8_t { query, key, value };
  for (const std::int64_t D : kWidths)
    for (const Poisoned part : {Poisoned::query, Poisoned::key, Poisoned::value})
      for (const std::uint16_t poison : {0x7FC0, 0x7F80}) {  // NaN, infinity
        const AttentionShape s{2, 256, 2, 2, D};
        constexpr std::int64_t kToken = 100;
        Problem problem(device, s, 1.0f);
        std::vector<std::uint16_t> values = problem.qkv_values;
        values[kToken * s.qkv_width() + (static_cast<int>(part) * s.heads + 1) * D] =
            poison;  // head 1, sequence 0
        const AttentionTensors tensors = tensors_of(problem);
        for (const HopperForward* kernel : hopper_forward_kernels(s, device.compute_capability())) {
          const auto outputs = [&](const std::vector<std::uint16_t>& qkv) {
            device.upload(tensors.qkv, qkv.data());
            problem.clear();
            kernel->launch(tensors, s, device.stream());
            std::vector<std::uint16_t> got(s.tokens() * s.q_width());
            device.download(got.data(), tensors.out);
            return got;
          };
          const std::vector<std::uint16_t> clean = outputs(problem.qkv_values), got = outputs(values);
          std::int64_t spread = 0, lost = 0;
          for (std::int64_t t = 0; t < s.tokens(); ++t)
            for (std::int64_t head = 0; head < s.heads; ++head) {
              const bool masked = part != Poisoned::query && t < kToken;
              const bool in_reach =
                  head == 1 && t < s.T && !masked && (part != Poisoned::query || t == kToken);
              const auto at = static_cast<std::ptrdiff_t>(t * s.q_width() + head * D);
              const bool same = std::equal(got.begin() + at, got.begin() + at + D, clean.begin() + at);
              // Values have their own columns; masked rows of a tile are multiplied by 0, which gives NaN.
              if (part == Poisoned::value && head == 1 && t < kToken) continue;
              spread += !in_reach && !same;
              // An infinite score may also hide its key (minus infinity): then the other numbers change.
              lost += in_reach && (poison == 0x7FC0 ? std::isfinite(bf16_decode(got[at])) : same);
            }
          INFO(kernel->name << ", head_dim " << D << ", part " << static_cast<int>(part) << ", poison "
                            << poison);
          CHECK(spread == 0);
          CHECK(lost == 0);
        }
      }
}

}  // namespace precbench
