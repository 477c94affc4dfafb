// Soft-capped scores and heads wider than 128 in our attention kernels for any GPU, against the definition in FP64: the error
// is at most twice that of a plain BF16 program (attention_reference.h).
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/attention/attention_testing.h"
#include "kernels/device/buffers.h"
#include "kernels/device/native_path.h"
#include "kernels/gpu/gpu_testing.h"

namespace precbench {
namespace {

struct MaskedCase {
  AttentionShape shape;
  bool documents = false;
  float deviation = 1.5f;      ///< of queries and keys; that of scores is its square
  std::int64_t key_start = 0;  ///< place of the first key in its sequence
};

/// Documents of 1, 4, 13, 40 and more tokens in the first sequence, of 2, 7, 22 in the second; then padding of a twelfth.
std::vector<std::int32_t> packed_first_keys(const AttentionShape& s, std::int64_t key_start = 0) {
  std::vector<std::int32_t> all;
  const std::int64_t first = s.offset + key_start, last = first + s.T;  // positions of the queries
  for (std::int64_t b = 0; b < s.B; ++b) {
    std::int64_t begin = 0, length = 1 + b;
    for (std::int64_t t = 0; t < last; ++t) {
      if (t == begin + length) begin = t, length = 3 * length + 1;
      if (t >= first) all.push_back(static_cast<std::int32_t>(t >= last - s.T / 12 ? t : begin));
    }
  }
  return all;
}

/// Results of the kernels, of FP64 and of the plain BF16 program.
struct MaskedRun {
  AttentionResult got, truth, naive;
};

template <class T>
AttentionResult reference(const MaskedCase& c, const Problem& problem, std::vector<std::int32_t> first) {
  for (std::int32_t& key : first) key = std::max(0, key - static_cast<std::int32_t>(c.key_start));
  return attention_reference<T>(c.shape, problem.qkv_values, problem.dout_values, problem.kv_values, first);
}

MaskedRun run_masked(CudaDevice& device, const MaskedCase& c) {
  Problem problem(device, c.shape, c.deviation);
  const std::vector<std::int32_t> first =
      c.documents ? packed_first_keys(c.shape, c.key_start) : std::vector<std::int32_t>();
  Buffers buffers(device);
  DocumentMask documents;
  if (c.documents) {
    documents.first_key = buffers.tensor(DType::i32, c.shape.tokens(), 1);
    documents.key_start = c.key_start;
    device.upload(documents.first_key, first.data());
  }
  problem.clear();
  run_flash(device, problem, c.shape, documents);
  return {problem.result(), reference<double>(c, problem, first), reference<float>(c, problem, first)};
}

void check_masked(CudaDevice& device, const MaskedCase& c) {
  INFO("softcap " << c.shape.softcap << " window " << c.shape.window << " documents " << c.documents
                  << " deviation " << c.deviation);
  const MaskedRun run = run_masked(device, c);
  check_close(c.shape, run.got, run.truth, run.naive);
}

/// Returns false, with a message, if this GPU has too little shared memory for wide heads.
bool takes_wide_heads() {
  const std::string why = flash_attention_refusal({1, 64, 1, 1, 256});
  if (why.empty()) return true;
  REQUIRE(why.find("shared memory") != std::string::npos);
  WARN(why);
  return false;
}

/// Edges of tiles of queries and keys, every kind of group, windows of one key, within a tile, of several, and of more than
/// the sequence, each with and without documents.
std::vector<MaskedCase> masked_cases(std::int64_t D, float softcap) {
  std::vector<MaskedCase> list;
  for (const bool documents : {false, true}) {
    for (const std::int64_t T : {1, 31, 33, 63, 65, 127, 129, 260})
      list.push_back(
          {{.B = 2, .T = T, .heads = 2, .kv_heads = 1, .head_dim = D, .softcap = softcap}, documents});
    for (const std::int64_t kv_heads : {4, 2, 1})
      list.push_back({{.B = 1, .T = 150, .heads = 4, .kv_heads = kv_heads, .head_dim = D, .softcap = softcap},
                      documents});
    for (const std::int64_t window : {1, 7, 40, 64, 129, 400})
      list.push_back(
          {{.B = 2, .T = 260, .heads = 2, .kv_heads = 1, .head_dim = D, .window = window, .softcap = softcap},
           documents});
  }
  return list;
}

}  // namespace

TEST_CASE("flash attention: soft-capped errors are at most twice those of plain BF16", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  const bool wide = takes_wide_heads();
  for (const std::int64_t D : {64, 128, 256}) {
    if (D > 128 && !wide) continue;
    // Scores have a standard deviation of 2.25: a cap of 2 bends nearly all.
    for (const MaskedCase& c : masked_cases(D, 2)) check_masked(device, c);
    // Gemma 2's cap, with scores of up to 150, and with scores that it hardly changes.
    for (const float deviation : {6.0f, 0.5f})
      check_masked(
          device,
          {{.B = 1, .T = 260, .heads = 2, .kv_heads = 1, .head_dim = D, .softcap = 50}, false, deviation});
  }
  for (const std::int64_t D : {16, 32, 40, 96, 136, 192, 200, 248}) {
    if (D > 128 && !wide) continue;
    for (const bool documents : {false, true})
      for (const std::int64_t window : {0, 40})
        check_masked(
            device,
            {{.B = 2, .T = 77, .heads = 4, .kv_heads = 2, .head_dim = D, .window = window, .softcap = 2},
             documents});
  }
}

TEST_CASE("flash attention: documents of keys at an offset", "[gpu][attention][offset]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  for (const std::int64_t D : {64, 96, 128, 256}) {
    if (D > 128 && !takes_wide_heads()) continue;
    for (const float softcap : {0.0f, 2.0f})
      for (const std::int64_t window : {0, 50})
        for (const auto& [T_k, offset, key_start] :
             {std::tuple(300, 150, 0), std::tuple(300, 150, 70), std::tuple(300, 0, 200),
              std::tuple(145, 145, 60), std::tuple(130, 100, 20)})
          check_masked(device, {{.B = 2,
                                 .T = 145,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = D,
                                 .T_k = T_k,
                                 .offset = offset,
                                 .window = window,
                                 .softcap = softcap},
                                true,
                                1.5f,
                                key_start});
  }
}

TEST_CASE("flash attention: errors of heads wider than 128 are at most twice those of plain BF16",
          "[gpu][attention]") {
  if (!gpu_here() || !takes_wide_heads()) return;
  CudaDevice device(0);
  for (const std::int64_t D : {136, 192, 256})
    for (const MaskedCase& c : masked_cases(D, 0)) check_masked(device, c);
}

TEST_CASE("flash attention: results of soft-capped scores are far from those of plain scores",
          "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  const bool wide = takes_wide_heads();
  for (const std::int64_t D : {64, 128, 256})
    for (const std::int64_t window : {0, 40})
      for (const bool documents : {false, true}) {
        if (D > 128 && !wide) continue;
        MaskedCase c{
            {.B = 1, .T = 200, .heads = 2, .kv_heads = 1, .head_dim = D, .window = window, .softcap = 2},
            documents};
        const MaskedRun run = run_masked(device, c);
        Problem problem(device, c.shape, c.deviation);  // the same values
        c.shape.softcap = 0;
        const AttentionResult plain = reference<double>(
            c, problem, documents ? packed_first_keys(c.shape) : std::vector<std::int32_t>());
        INFO("head_dim " << D << " window " << window << " documents " << documents);
        // Ten times the bound of check_close.
        for (const Part& part : parts_of(c.shape))
          CHECK(part.distance(run.got, plain) > 20 * part.distance(run.naive, run.truth));
      }
}

TEST_CASE("attention: soft-capped scores run on our kernels and limits are named", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  const bool hopper = device.compute_capability() == 90;
  struct Setting {
    std::int64_t head_dim, window;
    const char* which;
  };
  std::vector<Setting> settings;
  for (const std::int64_t head_dim : {96, 128, 256})
    for (const std::int64_t window : {0, 70})
      for (const char* which : {"auto", "own"}) settings.push_back({head_dim, window, which});
  for (const auto& [head_dim, window, which] : settings) {
    if (head_dim > 128 && !takes_wide_heads()) continue;
    const AttentionShape s{
        .B = 2, .T = 150, .heads = 4, .kv_heads = 2, .head_dim = head_dim, .window = window, .softcap = 50};
    device.set_attention(which);
    Problem problem(device, s, 4.0f);
    problem.clear();
    problem.forward();
    problem.backward();
    INFO("head_dim " << head_dim << ", window " << window << ", " << which << ": "
                     << device.attention_name());
    CHECK((device.attention_name() == "own") == (!hopper || head_dim == 96));
    // The doctor knows a name by its first word.
    for (const std::string& path : attention_paths(device.attention_name())) CHECK(path == "attention own");
    CHECK(device.attention_refusal(s) == "");
    check_close(s, problem.result(), attention_reference<double>(s, problem.qkv_values, problem.dout_values),
                attention_reference<float>(s, problem.qkv_values, problem.dout_values));
  }
  const AttentionShape s{.B = 2, .T = 150, .heads = 4, .kv_heads = 2, .head_dim = 256, .softcap = 50};
  AttentionShape latent = s;
  latent.value_dim = 64;
  CHECK(device.attention_refusal(latent) == "attention: our attention kernels take values as wide as keys");
  AttentionShape wide = s;
  wide.head_dim = 264;
  CHECK(
      device.attention_refusal(wide) ==
      "attention: our attention kernels take a head_dim that is a multiple of 8 and at most 256, this one is 264");
  for (const std::int64_t head_dim : {128, 256}) {
    AttentionShape beyond = s;
    beyond.head_dim = head_dim;
    beyond.softcap = 2000;
    CHECK(device.attention_refusal(beyond).find("soft-cap scores at 1/1024 to 1024, not at 2000") !=
          std::string::npos);
  }
  try {
    device.set_attention("cudnn");
  } catch (const Unsupported& refusal) {
    WARN(refusal.what());
    return;
  }
  CHECK(device.attention_refusal(s) == "attention with cuDNN: has no soft-capped scores; use auto or own");
}

TEST_CASE("attention: soft-capped scores give the same bits in every run and from a graph",
          "[gpu][attention][graph]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  const bool wide = takes_wide_heads();
  for (const std::int64_t D : {128, 256}) {
    if (D > 128 && !wide) continue;
    Problem problem(
        device, {.B = 1, .T = 333, .heads = 8, .kv_heads = 4, .head_dim = D, .window = 100, .softcap = 50},
        4.0f);
    INFO("head_dim " << D);
    check_replays(device, problem);
  }
}

}  // namespace precbench
