// The FLOP formula against published numbers and numbers that follow from others' code.
#include "models/transformer/flops.h"

#include <cmath>
#include <filesystem>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

double total(const char* model, std::int64_t seq, FlopConvention convention) {
  return static_cast<double>(flops_per_token(find_model(model), seq, convention).total());
}

// Returns true if `got` rounds to `want` at its last printed digit.
bool rounds_to(double got, double want, double last_digit) { return std::abs(got - want) <= last_digit / 2; }

TEST_CASE("flops_per_token: causal count of Llama 3.1 8B at 8192 tokens equals the formula by hand",
          "[models]") {
  const FlopCount count = flops_per_token(find_model("llama3.1-8b"), 8192);
  CHECK(rounds_to(static_cast<double>(count.total()), 5.147e10, 1e7));
  // By hand: 218,103,808 linear weights per block.
  CHECK(count.gemm == 6LL * 32 * 218'103'808);
  CHECK(count.head == 6LL * 128256 * 4096);
  CHECK(count.attention == 6LL * 32 * 8192 * 4096);
}

TEST_CASE("flops_per_token: causal count reproduces NVIDIA's published H100 rows", "[models]") {
  // Megatron Bridge's performance summary, 25.11, sequence 8192: TFLOP/s per GPU and tokens/s per GPU. Both
  // are printed as integers, so the formula matches a row if it maps one rounding interval onto the other.
  struct Row {
    const char* model;
    double tflops, tokens_per_s;
  };
  for (const Row& row :
       {Row{"llama3.1-8b", 744, 14451}, Row{"llama3-70b", 736, 1639}, Row{"llama3.1-405b", 827, 328}}) {
    INFO(row.model);
    const double per_token = total(row.model, 8192, FlopConvention::causal);
    CHECK((row.tflops - 0.5) * 1e12 / per_token < row.tokens_per_s + 0.5);
    CHECK((row.tflops + 0.5) * 1e12 / per_token > row.tokens_per_s - 0.5);
  }
}

TEST_CASE("flops_per_token: attention of packed documents is that of their own lengths",
          "[models][documents]") {
  const ModelConfig model = find_model("llama3.2-1b");
  const FlopCount whole = flops_per_token(model, 1000);
  // Two sequences of 1,000 positions: 600 and 400; 500 and 500 of padding.
  const PackedLengths packed{{600, 400, 500}, 2};
  const FlopCount count = flops_per_token(model, 1000, FlopConvention::causal, 0, &packed);
  CHECK(count.gemm == whole.gemm);
  CHECK(count.head == whole.head);
  CHECK(std::abs(static_cast<double>(count.attention) / static_cast<double>(whole.attention) -
                 (0.36 + 0.16 + 0.25) / 2) < 1e-9);
  CHECK(PackedLengths{{1000, 1000}, 2}.visible(1000, 0) == 1);
  // In a window of 300 a document of 600 has 600^2 - 300^2 doubled pairs, one of 200 all of its own.
  CHECK(std::abs(PackedLengths{{600, 200}, 1}.visible(1000, 300) - (270000.0 + 40000) / (1000000 - 490000)) <
        1e-12);
}

TEST_CASE("flops_per_token: model files of the PyTorch baseline agree with the presets of their names",
          "[models]") {
  int files = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(PRECBENCH_SOURCE_DIR "/tools/pytorch_baseline/configs")) {
    const std::string name = file.path().stem().string();
    INFO(name);
    const ModelConfig read = find_model(file.path().string()), preset = find_model(name);
    CHECK(parameter_count(read) == parameter_count(preset));
    CHECK(active_parameter_count(read) == active_parameter_count(preset));
    CHECK(flops_per_token(read, 4096).total() == flops_per_token(preset, 4096).total());
    ++files;
  }
  CHECK(files == 4);
}

TEST_CASE("flops_per_token: MoE models count activated experts and no router", "[models][moe]") {
  // Qwen3-30B-A3B at 4096 in the published convention, which matches Megatron Bridge's rows.
  CHECK(flops_per_token(find_model("qwen3-30b-a3b"), 4096).total() == 23'006'281'728);
  const FlopCount count = flops_per_token(find_model("deepseek-v2-lite-gqa"), 4096);
  // By hand: four attention matrices 2048^2; the first layer's SwiGLU; six experts and a shared one in the
  // others.
  CHECK(count.gemm ==
        6LL * (27LL * 4 * 2048 * 2048 + 3LL * 2048 * 10944 + 26LL * 3 * 2048 * (6 * 1408 + 2816)));
}

TEST_CASE("flops_per_token: torchtitan convention reproduces torchtitan's numbers", "[models]") {
  CHECK(rounds_to(total("llama3.1-8b", 8192, FlopConvention::torchtitan), 5.7914e10, 1e6));
  CHECK(rounds_to(total("llama3.1-8b", 2048, FlopConvention::torchtitan), 4.8251e10, 1e6));
  CHECK(rounds_to(total("llama3.2-1b", 8192, FlopConvention::torchtitan), 1.0636e10, 1e6));
  CHECK(rounds_to(total("llama3.2-3b", 8192, FlopConvention::torchtitan), 2.7732e10, 1e6));
  CHECK(rounds_to(total("llama3-70b", 8192, FlopConvention::torchtitan), 4.8144e11, 1e7));
}

TEST_CASE("flops_per_token: torchtitan convention counts windows as torchtitan does", "[models]") {
  // The numbers of pytorch/torchtitan#4300, before and after, whose difference is the attention beyond the windows.
  struct Row {
    const char* model;
    std::int64_t before, after;
  };
  for (const Row& row : {Row{"gpt-oss-20b", 26'481'681'792, 24'141'260'160},
                         Row{"gpt-oss-120b", 38'044'854'144, 34'534'221'696}}) {
    CAPTURE(row.model);
    ModelConfig model = find_model(row.model);
    CHECK(flops_per_token(model, 4096, FlopConvention::torchtitan).total() == row.after);
    model.sliding_window = 0;
    model.block.local_layers = {};
    CHECK(flops_per_token(model, 4096, FlopConvention::torchtitan).total() == row.before);
  }
}

TEST_CASE("flops_per_token: torchtitan convention counts no embedding of positions", "[models]") {
  ModelConfig config = find_model("gpt2");
  const FlopCount count = flops_per_token(config, 128, FlopConvention::torchtitan);
  config.learned_positions /= 2;
  CHECK(flops_per_token(config, 128, FlopConvention::torchtitan).total() == count.total());
}

TEST_CASE("flops_per_token: tied and untied heads cost the same", "[models]") {
  ModelConfig config = find_model("tiny");
  const FlopCount tied = flops_per_token(config, 128);
  config.tied = false;
  CHECK(flops_per_token(config, 128).total() == tied.total());
}

TEST_CASE("flops_per_token: attention uses heads times head_dim instead of the width", "[models]") {
  const ModelConfig config = find_model("qwen3-4b");  // 32 heads of 128, width 2560
  CHECK(flops_per_token(config, 4096).attention == 6LL * 36 * 4096 * 32 * 128);
}

TEST_CASE("flops_per_token: attention counts the pairs inside a layer's window", "[models]") {
  ModelConfig config = find_model("tiny");  // 4 layers, q_width 128
  config.sliding_window = 100;
  config.block.local_layers = {0, 2};
  // Half of T^2 pairs in a full layer; w T - w^2 / 2 in a local one. Six GEMMs' worth of 2 FLOPs a pair.
  const std::int64_t T = 1000, w = 100, full = T * T / 2, local = w * T - w * w / 2;
  CHECK(flops_per_token(config, T).attention == 12 * 128 * (2 * full + 2 * local) / T);
  CHECK(flops_per_token(config, w).attention == 6 * 4 * w * 128);  // the window has no effect
  // torchtitan counts every pair in a full layer, and w for each query in a local one.
  CHECK(flops_per_token(config, T, FlopConvention::torchtitan).attention == 12 * 128 * (2 * T + 2 * w));
  CHECK(flops_per_token(config, w, FlopConvention::torchtitan).attention == 12 * 128 * 4 * w);
}

TEST_CASE("flops_per_token: largest preset at a million tokens does not overflow", "[models]") {
  const FlopCount count = flops_per_token(find_model("llama3.1-405b"), 1 << 20, FlopConvention::torchtitan);
  CHECK(count.attention == 12LL * 126 * (1 << 20) * 16384);
}

}  // namespace
}  // namespace precbench
