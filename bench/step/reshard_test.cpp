// Buffers of gathered units: neither sharing them in turn nor keeping gathered weights changes a bit.
#include "bench/step/rank_setup_testing.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("Rank: units that share buffers change no bit for any number of blocks", "[rank]") {
  for (const int layers : {1, 2, 3, 4, 5})
    for (const bool tied : {false, true}) {
      Setup setup{.tied = tied, .ranks = 2, .layers = layers};
      INFO(layers << " blocks" << (tied ? ", tied" : ""));
      const Trained whole = train(setup);
      setup.parallel = "fsdp";
      for (const char* reshard : {"on", "off"}) {
        INFO("reshard " << reshard);
        setup.reshard = reshard;
        check_same_bits(train(setup), whole);
      }
    }
}

TEST_CASE("Rank: keeping gathered weights equals gathering them again", "[rank]") {
  std::vector<Setup> setups(10);
  setups[0].master = "bf16";
  setups[1].master = "bf16_sr", setups[1].accumulation = 2;
  setups[2].accumulation = 3;
  setups[3].recompute = "block";
  setups[4].recipe = "mxfp8";
  setups[5].recipe = "tensorwise", setups[5].gather = "fp8";
  setups[6].recipe = "tensorwise", setups[6].gather = "fp8", setups[6].master = "bf16";
  setups[7].recipe = "blockwise", setups[7].gather = "fp8", setups[7].whole_blocks = true;
  setups[8].recipe = "mxfp8", setups[8].gather = "fp8", setups[8].whole_blocks = true;
  setups[9] = setups[8], setups[9].master = "bf16", setups[9].keep_bf16 = "first:1";  // block 0 is BF16
  for (std::size_t i = 0; i < setups.size(); ++i)
    for (const int ranks : {2, 4}) {
      Setup& setup = setups[i];
      INFO("setup " << i << ", " << ranks << " ranks");
      setup.ranks = ranks;
      setup.parallel = ranks == 4 ? "hsdp" : "fsdp";
      setup.shard_group = ranks == 4 ? 2 : 1;
      setup.reshard = "on";
      const Trained again = train(setup);
      setup.reshard = "off";
      check_same_bits(train(setup), again);
    }
}
