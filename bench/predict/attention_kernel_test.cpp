// Kernels of attention: the rule of the CUDA device, and the names in records.
#include "bench/predict/attention_kernel.h"

#include <string>
#include <tuple>

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

using Choice = AttentionSetting::Choice;

/// Returns forward or backward attention of `shape`.
OpCost attention_op(AttentionShape shape, bool backward) {
  if (!backward) {
    ops::Attention op{};
    op.shape = shape;
    return op.cost();
  }
  ops::AttentionBackward op{};
  op.shape = shape;
  return op.cost();
}

AttentionShape square_shape(std::int64_t T, std::int64_t width, std::int64_t window = 0) {
  return {.B = 1, .T = T, .heads = 16, .kv_heads = 4, .head_dim = width, .window = window};
}

TEST_CASE("attention_kernel: follows the table of kernels/cuda/attention/README.md", "[attention-kernel]") {
  const auto kernel = [](const AttentionShape& shape, bool backward, const AttentionSetting& setting = {},
                         bool hopper = true) {
    return attention_kernel(attention_op(shape, backward), setting, hopper);
  };
  const AttentionSetting own{.choice = Choice::own}, cudnn{.choice = Choice::cudnn},
      deterministic{.deterministic = true}, softcap{.softcap = true};
  for (const std::int64_t width : {64, 128, 256}) {
    CAPTURE(width);
    const AttentionShape short_one = square_shape(4096, width), long_one = square_shape(8192, width);
    CHECK(kernel(short_one, false) == "hopper");
    CHECK(kernel(short_one, true) == "hopper");
    CHECK(kernel(long_one, false) == "hopper");
    CHECK(kernel(long_one, true) == (width == 128 ? "cudnn" : "hopper"));
    CHECK(kernel(long_one, true, deterministic) == "hopper");
    CHECK(kernel(long_one, true, own) == "hopper");
    CHECK(kernel(short_one, true, cudnn) == "cudnn");
    CHECK(kernel(long_one, false, cudnn) == "cudnn");
    CHECK(kernel(long_one, true, {}, false) == "cudnn");
    CHECK(kernel(long_one, true, own, false) == "flash");
    CHECK(kernel(long_one, true, softcap) == "hopper softcap");
    CHECK(kernel(long_one, true, softcap, false) == "flash softcap");
    const AttentionShape window = square_shape(8192, width, 1024);
    CHECK(kernel(window, false) == "cudnn window");
    CHECK(kernel(window, true, own) == "flash window");
    CHECK(kernel(window, true, softcap) == "hopper window softcap");
    AttentionShape shared = long_one;  // a context rank's queries of keys of all ranks
    shared.T = 2048, shared.T_k = 8192, shared.offset = 6144;
    CHECK(kernel(shared, true) == "hopper");
    CHECK(kernel(shared, true, cudnn) == "hopper");
    CHECK(kernel(shared, true, {}, false) == "hopper");
    CHECK(kernel(shared, true, own, false) == "flash");
    CHECK(kernel(shared, true, softcap, false) == "flash softcap");
    AttentionShape in_window = shared;
    in_window.window = 1024;
    CHECK(kernel(in_window, true) == "flash window");
    CHECK(kernel(in_window, true, softcap) == "flash window softcap");
    shared.T = shared.T_k, shared.offset = shared.T;  // in a ring: all of a chunk, or its own causally
    for (const AttentionShape& chunk : {shared, long_one}) {
      CHECK(kernel(chunk, true, {.separate_keys = true}) == "hopper");
      CHECK(kernel(chunk, true, {.choice = Choice::cudnn, .separate_keys = true}) == "cudnn");
      CHECK(kernel(chunk, true, {.separate_keys = true}, false) == "cudnn");
    }
  }
  CHECK(kernel(square_shape(8192, 96), false) == "cudnn");
  AttentionShape latent = square_shape(8192, 192);
  latent.value_dim = 128;
  CHECK(kernel(latent, false) == "cudnn");
}

TEST_CASE("mean_keys: half of a causal sequence, a window, and what other ranks hold", "[attention-kernel]") {
  for (const bool backward : {false, true}) {
    CHECK(mean_keys(attention_op(square_shape(8192, 128), backward)) == Approx(4096));
    CHECK(mean_keys(attention_op(square_shape(65536, 64, 1024), backward)) == Approx(1016).epsilon(0.01));
    AttentionShape shared = square_shape(4096, 128);
    shared.T_k = 32768, shared.offset = 28672;
    CHECK(mean_keys(attention_op(shared, backward)) == Approx(30720));
  }
}

TEST_CASE("attention_setting: without cuDNN a case runs precbench's kernels", "[attention-kernel]") {
  for (const auto& [choice, has_cudnn, expected] :
       {std::tuple("auto", true, Choice::automatic), std::tuple("auto", false, Choice::own),
        std::tuple("own", true, Choice::own), std::tuple("cudnn", true, Choice::cudnn)}) {
    Case c;
    c.model = "tiny", c.attention = choice;
    CHECK(attention_setting(validate(c), has_cudnn).choice == expected);
  }
}

TEST_CASE("recorded_attention_kernel: reads the names of records", "[attention-kernel]") {
  const std::string mixed = "own 128x160 forward, cudnn 9.14 backward",
                    both = "own 192x128 forward, own 128x128 in one pass backward";
  CHECK(recorded_attention_kernel(mixed, false) == kHopperKernel);
  CHECK(recorded_attention_kernel(mixed, true) == kCudnnKernel);
  CHECK(recorded_attention_kernel(both, true) == kHopperKernel);
  CHECK(recorded_attention_kernel("cudnn 9.14", false) == kCudnnKernel);
  CHECK(recorded_attention_kernel("own", true) == kFlashKernel);
  CHECK_FALSE(recorded_attention_kernel("none yet", true));
}

}  // namespace
}  // namespace precbench
