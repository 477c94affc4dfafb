// Every op of the CPU device gives committed bits, whatever compiler built it: GCC 12 with glibc 2.36, GCC 14 with
// glibc 2.41 and Clang 14 gave these. A change of the numerics changes the hashes of its ops; a new compiler must not.
#include <map>
#include <string>

#include "kernels/base/fnv1a.h"
#include "kernels/cpu/every_op_testing.h"
#include "kernels/device/devices.h"
#include "kernels/numerics/multiply_add.h"
#include "kernels/testing/catch.h"

using namespace precbench;
using namespace precbench::testing;

#ifdef PRECBENCH_HAS_FMA  // without FMAs sums are rounded twice as often
namespace {

/// Hashes of the bytes of all outputs of a group of ops.
const std::map<std::string, std::uint64_t> kHashes = {{"elementwise", 0x62ce6b551d4e23feu},
                                                      {"matmul", 0xed85f0377133fd42u},
                                                      {"quantize", 0xabe0ff60bc595d33u},
                                                      {"quantize to FP4", 0x9e9dc965bfaaf63eu},
                                                      {"embedding", 0xe42943c1c139848du},
                                                      {"RMSNorm", 0x8b38c8b499b70f08u},
                                                      {"LayerNorm", 0x312ef076e89ba0e9u},
                                                      {"attention and RoPE", 0x2a91ccb0f84ce40eu},
                                                      {"soft-capped attention", 0xe48bd507a540a224u},
                                                      {"attention sink", 0xaf2a40e61366b81u},
                                                      {"merge attention", 0x84d9731981f3115eu},
                                                      {"latent heads", 0xd5ea24fae8039d0au},
                                                      {"bias and gate", 0x8a15b05b9bb492ccu},
                                                      {"SwiGLU", 0xd97832592e7f680du},
                                                      {"kept inputs", 0x8444bd810969e92eu},
                                                      {"activation", 0xe4bb3042069f1f99u},
                                                      {"GELU", 0x5b77fce4efa64c6eu},
                                                      {"cross-entropy", 0xa73e78ab5e7ec347u},
                                                      {"soft-capped cross-entropy", 0x69288e6e7a180443u},
                                                      {"router", 0xc1d679b1d876a0c8u},
                                                      {"experts", 0x8ee0bdb1078ffd07u},
                                                      {"AdamW", 0x5e32e9ad00de96e4u},
                                                      {"Lion and Muon", 0x2bae8afc528e29d3u},
                                                      {"Adafactor", 0x806b69bb1babd2a6u},
                                                      {"scaled values", 0x5979faac1eb46ec5u}};

std::uint64_t hash_of(const OpRun& run) {
  std::uint64_t hash = kFingerprintStart;
  for (const Tensor& out : run.outputs())
    add_to_fingerprint(hash, {static_cast<const char*>(out.data), static_cast<std::size_t>(out.bytes())});
  return hash;
}

}  // namespace

TEST_CASE("CPU device: every op gives the committed bits", "[cpu][bits]") {
  CHECK(kHashes.size() == every_op().size());
  for (const OpGroup& op : every_op()) {
    OpRun run;
    op.run(*make_cpu_device(1), run);
    INFO(op.name);
    CHECK(hash_of(run) == kHashes.at(op.name));
  }
}
#endif
