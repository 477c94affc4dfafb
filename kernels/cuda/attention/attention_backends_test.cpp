// Attention on the GPU, cuDNN's and ours, against its definition in FP64: the error is at most twice that of
// a plain BF16 program (attention_reference.h).
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/attention/attention_testing.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/gpu/graph.h"

namespace precbench {
namespace {

// Selects the implementation; returns false with a message if it is not available.
bool use(CudaDevice& device, const std::string& which) {
  try {
    device.set_attention(which);
    return true;
  } catch (const Unsupported& refusal) {
    WARN(refusal.what());
    return false;
  }
}

struct Case {
  AttentionShape shape;
  float deviation = 1.5f;
};

// Tile edges on both sides, ragged tails, every group size; small T with many heads, so that the errors
// compared are means over many roundings.
std::vector<Case> cases() {
  std::vector<Case> list;
  for (const std::int64_t T : {1, 2, 3, 7, 15, 16, 17, 31, 32, 33}) list.push_back({{3, T, 8, 2, 32}});
  for (const std::int64_t T : {63, 64, 65, 95, 96, 97, 127, 128, 129}) list.push_back({{2, T, 4, 2, 64}});
  for (const std::int64_t T : {191, 192, 193, 255, 256, 257, 300}) list.push_back({{1, T, 2, 1, 128}});
  for (const std::int64_t D : {16, 32, 40, 64, 80, 96, 112, 128}) list.push_back({{2, 77, 4, 4, D}});
  for (const std::int64_t kv_heads : {8, 4, 2, 1}) {
    list.push_back({{1, 150, 8, kv_heads, 64}});
    list.push_back({{3, 131, 8, kv_heads, 128}});
  }
  list.push_back({{2, 200, 4, 2, 64}, 6.0f});    // nearly one-hot rows
  list.push_back({{2, 200, 4, 2, 128}, 0.02f});  // nearly equal weights
  return list;
}

}  // namespace

TEST_CASE("attention: forward and backward errors are at most twice those of plain BF16",
          "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  const bool cudnn = use(device, "cudnn");
  std::size_t by_cudnn = 0;
  for (const Case& c : cases()) {
    Problem problem(device, c.shape, c.deviation);
    const auto truth = attention_reference<double>(c.shape, problem.qkv_values, problem.dout_values);
    const auto naive = attention_reference<float>(c.shape, problem.qkv_values, problem.dout_values);
    for (const char* which : {"own", "any GPU's", "cudnn"}) {
      if (std::strcmp(which, "cudnn") == 0 && !cudnn) continue;
      problem.clear();
      try {
        if (std::strcmp(which, "any GPU's") ==
            0) {  // tested separately: "own" selects faster kernels if available
          run_flash(device, problem, c.shape);
        } else {
          device.set_attention(which);
          problem.forward();
          problem.backward();
        }
      } catch (const Unsupported& refusal) {
        INFO(refusal.what());
        CHECK(std::strcmp(which, "cudnn") == 0);  // ours supports all of them
        continue;
      }
      by_cudnn += std::strcmp(which, "cudnn") == 0;
      INFO(which);
      check_close(c.shape, problem.result(), truth, naive);
    }
  }
  if (cudnn) CHECK(by_cudnn >= cases().size() / 2);
}

namespace {

/// Names of the implementations; "any GPU's" kernels are run directly, since "own" selects faster ones if available.
constexpr const char* kAll[] = {"own", "any GPU's", "cudnn"};

/// Checks each implementation that takes the shape, forward and all gradients. Ours take all. Returns true if cuDNN's ran.
bool check_all(CudaDevice& device, const AttentionShape& shape, bool cudnn) {
  if (!flash_attention_refusal(shape).empty()) return false;  // wide heads on a GPU with little shared memory
  Problem problem(device, shape, 1.5f);
  const auto truth =
      attention_reference<double>(shape, problem.qkv_values, problem.dout_values, problem.kv_values);
  const auto naive =
      attention_reference<float>(shape, problem.qkv_values, problem.dout_values, problem.kv_values);
  bool ran = false;
  for (const std::string which : kAll) {
    const bool by_cudnn = which == "cudnn";
    if (by_cudnn && !cudnn) continue;
    INFO(which << ", window " << shape.window << ", softcap " << shape.softcap);
    problem.clear();
    try {
      if (which == "any GPU's") {
        run_flash(device, problem, shape);
      } else {
        device.set_attention(which);
        problem.forward();
        problem.backward();
      }
    } catch (const Unsupported& refusal) {
      INFO(refusal.what());
      CHECK(by_cudnn);
      if (cuda::cudnn_mask(shape)) WARN(refusal.what());
      continue;
    }
    ran |= by_cudnn;
    check_close(shape, problem.result(), truth, naive);
  }
  return ran;
}

/// Keys at an offset: tiles' edges, no offset, ends of keys and queries together, between, all keys, and queries that see none.
std::vector<AttentionShape> offset_shapes(std::int64_t D) {
  std::vector<AttentionShape> list;
  const auto add = [&](std::int64_t T, std::int64_t T_k, std::int64_t offset) {
    list.push_back({.B = 2, .T = T, .heads = 4, .kv_heads = 2, .head_dim = D, .T_k = T_k, .offset = offset});
  };
  for (const std::int64_t T : {1, 65, 128, 200})
    for (const std::int64_t T_k : {64, 130, 256, 300})
      for (const std::int64_t offset : {std::int64_t{0}, T_k - T, (T_k - T) / 2, T_k, std::int64_t{-20}})
        if (T_k != T || offset != 0) add(T, T_k, offset);
  add(128, 512, 128);  // an early half of two ranks' queries: the last 256 keys are seen by none
  add(77, 77, 77);     // a chunk of ring attention before the queries
  return list;
}

}  // namespace

TEST_CASE("attention: windows of plain scores", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  const bool cudnn = use(device, "cudnn");
  std::size_t ran = 0;
  for (const std::int64_t D : {64, 128, 256})
    for (const std::int64_t T : {77, 256, 300})
      for (const std::int64_t window : {1, 40, 64, 129, 255})
        ran += check_all(device, {.B = 2, .T = T, .heads = 4, .kv_heads = 2, .head_dim = D, .window = window},
                         cudnn);
  if (cudnn) CHECK(ran > 0);
}

TEST_CASE("attention: keys at an offset in every implementation", "[gpu][attention][offset]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  const bool cudnn = use(device, "cudnn");
  int ran[3] = {};
  const auto check = [&](const AttentionShape& shape) {
    if (check_all(device, shape, cudnn)) ++ran[static_cast<int>(cuda::cudnn_mask(shape)->kind)];
  };
  for (const std::int64_t D : {64, 128})
    for (const AttentionShape& shape : offset_shapes(D)) check(shape);
  for (const std::int64_t D : {32, 40, 96, 192, 256})
    for (const std::int64_t offset : {0, 70, 155, 300}) check({2, 145, 4, 2, D, 300, offset});
  for (const std::int64_t kv_heads : {6, 3, 1})
    for (const std::int64_t offset : {50, 150}) check({1, 150, 6, kv_heads, 64, 300, offset});
  if (cudnn)
    for (const int count : ran) CHECK(count > 0);
}

TEST_CASE("attention: windows and soft-capped scores of keys at an offset", "[gpu][attention][offset]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  for (const std::int64_t D : {64, 96, 128, 256})
    for (const float softcap : {0.0f, 2.0f})
      for (const std::int64_t window : {0, 1, 40, 129, 500})
        for (const std::int64_t offset : {0, 70, 155, 250, -20}) {
          if (softcap == 0 && window == 0) continue;
          check_all(device,
                    {.B = 2,
                     .T = 145,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = D,
                     .T_k = 300,
                     .offset = offset,
                     .window = window,
                     .softcap = softcap},
                    false);
        }
}

TEST_CASE("attention: an offset or a window that is off by one is found", "[gpu][attention][offset]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  for (const std::int64_t window : {0, 20}) {
    const AttentionShape shape{.B = 1,
                               .T = 64,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 64,
                               .T_k = 100,
                               .offset = 3,
                               .window = window};
    Problem problem(device, shape, 1.5f);
    const auto truth =
        attention_reference<double>(shape, problem.qkv_values, problem.dout_values, problem.kv_values);
    const auto naive =
        attention_reference<float>(shape, problem.qkv_values, problem.dout_values, problem.kv_values);
    for (const std::int64_t by : {-1, 1}) {
      AttentionShape wrong = shape;
      (window ? wrong.window : wrong.offset) += by;
      problem.clear();
      run_flash(device, problem, wrong);
      INFO("window " << window << ", by " << by);
      for (const Part& part : parts_of(shape))
        CHECK(part.distance(problem.result(), truth) > 10 * part.distance(naive, truth));
    }
  }
}

TEST_CASE("attention: keys at an offset give the same bits from a graph", "[gpu][attention][offset][graph]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  device.set_deterministic(true);
  for (const char* which : {"own", "cudnn"}) {
    if (!use(device, which)) continue;
    for (const std::int64_t D : {96, 128}) {
      // The last 256 keys are seen by no query.
      const AttentionShape shape{
          .B = 2, .T = 128, .heads = 4, .kv_heads = 2, .head_dim = D, .T_k = 512, .offset = 128};
      if (const std::string why = device.attention_refusal(shape); !why.empty()) {
        WARN(why);
        continue;
      }
      Problem problem(device, shape, 1.5f);
      INFO(which << ", head_dim " << D);
      check_replays(device, problem);
    }
  }
}

TEST_CASE("attention: lse of each implementation works in the backward of the other", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  if (!use(device, "cudnn")) return;
  const AttentionShape shape{2, 256, 4, 2, 64};
  Problem problem(device, shape, 1.5f);
  const auto truth = attention_reference<double>(shape, problem.qkv_values, problem.dout_values);
  const auto naive = attention_reference<float>(shape, problem.qkv_values, problem.dout_values);
  for (const auto& [forward, backward] : {std::pair("cudnn", "own"), std::pair("own", "cudnn")}) {
    problem.clear();
    device.set_attention(forward);
    problem.forward();
    device.set_attention(backward);
    problem.backward();
    CHECK(device.attention_name().find(" forward, ") != std::string::npos);
    check_close(shape, problem.result(), truth, naive);
  }
}

TEST_CASE("attention: deterministic backward repeats bit for bit", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  device.set_deterministic(true);
  for (const char* which : {"own", "cudnn"}) {
    if (!use(device, which)) continue;
    for (const AttentionShape& shape :
         {AttentionShape{1, 1024, 8, 2, 128}, AttentionShape{2, 640, 8, 8, 64}}) {
      Problem problem(device, shape, 1.5f);
      std::optional<std::vector<std::uint8_t>> first;
      for (int i = 0; i < 4; ++i) {
        problem.clear();
        problem.forward();
        problem.backward();
        const auto bits = problem.bits();
        if (!first) first = bits;
        INFO(which << " run " << i);
        CHECK((bits == *first));
      }
    }
  }
}

TEST_CASE("attention: replay from a graph gives the same bits", "[gpu][attention][graph]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  device.set_deterministic(true);
  for (const char* which : {"own", "cudnn"}) {
    if (!use(device, which)) continue;
    for (const std::int64_t T : {384, 333}) {  // 333: cuDNN's tail lengths are copied in from the host
      const AttentionShape shape{1, T, 8, 2, 128};
      Problem problem(device, shape, 1.5f);
      INFO(which << " T " << T);
      check_replays(device, problem);
    }
  }
}

TEST_CASE("attention: a NaN in one head's keys reaches only later rows of that head", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  for (const char* which : {"own", "cudnn"}) {
    if (!use(device, which)) continue;
    const AttentionShape s{1, 256, 2, 2, 64};
    Problem problem(device, s, 1.0f);
    std::vector<std::uint16_t> values = problem.qkv_values;
    const std::int64_t poisoned = 100;
    values[poisoned * s.qkv_width() + (s.heads + 1) * s.head_dim] = 0x7FC0;  // key of head 1
    device.upload(tensors_of(problem).qkv, values.data());
    problem.clear();
    problem.forward();
    std::vector<std::uint16_t> got(s.tokens() * s.q_width());
    device.download(got.data(), tensors_of(problem).out);
    bool as_expected = true;
    for (std::int64_t t = 0; t < s.T; ++t)
      for (std::int64_t head = 0; head < s.heads; ++head) {
        const bool nan = std::isnan(bf16_decode(got[t * s.q_width() + head * s.head_dim]));
        if (head == 1 && t < poisoned && std::strcmp(which, "cudnn") == 0)
          continue;  // it may add masks, not select
        as_expected &= nan == (head == 1 && t >= poisoned);
      }
    INFO(which);
    CHECK(as_expected);
  }
}

TEST_CASE("set_attention: selects by name and errors suggest an alternative", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  CHECK(device.attention_name() == "none yet");
  CHECK_THROWS_AS(device.set_attention("cudn"), InvalidInput);
  device.set_attention("own");
  const AttentionShape wide{1, 64, 1, 1, 264};
  Problem problem(device, wide, 1.0f);
  CHECK_THROWS_AS(problem.forward(), Unsupported);
  Problem small(device, {1, 64, 2, 1, 64}, 1.0f);
  small.forward();
  CHECK(device.attention_name().rfind("own", 0) == 0);
}

}  // namespace precbench
