// Words of the text fields that select an enum value or a switch, in the order of the enum. The field table
// takes its choices from here and validate() its values, so that every word stands once.
#pragma once

#include <cstdint>
#include <string>

#include "bench/case/case.h"
#include "kernels/base/enum_names.h"
#include "kernels/numerics/recipe.h"
#include "kernels/numerics/routing_rule.h"
#include "models/transformer/optimizer/optimizer.h"
#include "models/transformer/parallel/parameters.h"
#include "models/transformer/transformer.h"

namespace precbench {

/// Data parallelism: replicated, sharded, or sharded within groups of ranks.
enum class DataParallel : std::uint8_t { ddp, fsdp, hsdp };
inline constexpr EnumNames<DataParallel, 3> kParallelWords{{"ddp", "fsdp", "hsdp"}};

/// Resharding of gathered weights after each use; `automatic`: off where memory allows.
enum class Reshard : std::uint8_t { on, off, automatic };
inline constexpr EnumNames<Reshard, 3> kReshardWords{{"on", "off", "auto"}};

/// Micro-steps in which sharded ranks reduce gradients; `automatic`: the last where memory allows.
enum class GradSync : std::uint8_t { every, last, automatic };
inline constexpr EnumNames<GradSync, 3> kGradSyncWords{{"every", "last", "auto"}};

/// Ranks over which amaxes of per-tensor scales are reduced: none, all, or those that share a sequence.
enum class ReduceAmax : std::uint8_t { off, on, group };
inline constexpr EnumNames<ReduceAmax, 3> kReduceAmaxWords{{"off", "on", "group"}};

/// CUDA graph of the step; `early`: captured, and our kernels start by programmatic dependent launch.
enum class GraphMode : std::uint8_t { on, off, early };
inline constexpr EnumNames<GraphMode, 3> kGraphWords{{"on", "off", "early"}};

/// Checkpoints kept on disk.
enum class CheckpointKeep : std::uint8_t { last, all };
inline constexpr EnumNames<CheckpointKeep, 2> kCheckpointKeepWords{{"last", "all"}};

inline constexpr EnumNames<Master, 4> kMasterWords{{"fp32", "bf16", "bf16_sr", "fp16"}};
inline constexpr EnumNames<Schedule, 3> kScheduleWords{{"constant", "cosine", "linear"}};
inline constexpr EnumNames<ExchangeOptions::Mode, 3> kExchangeWords{{"gather", "slots", "sync"}};

inline constexpr EnumNames<bool, 2> kSwitchWords{{"off", "on"}};
inline constexpr EnumNames<bool, 2> kSentInFp8Words{{"bf16", "fp8"}};  ///< --gather, --dispatch
inline constexpr EnumNames<bool, 2> kHeadInRecipeWords{{"bf16", "recipe"}};
inline constexpr EnumNames<bool, 2> kPerturbWords{{"none", "ulp"}};

/// Names of the dtypes of the training state: the case's, or the recipe's for fields that the case leaves at
/// their defaults. If the case sets one moment, it decides both. How gradients are summed is decided by the
/// recipe only.
struct KeptWords {
  std::string m, v, master, weights, gradients;
  std::string gradient_sum;  ///< "e4m3", or empty for FP32; only with e4m3 gradients

  bool operator==(const KeptWords&) const = default;
};
KeptWords kept_words(const Case& c, const Recipe& recipe);

/// Parsed --routing: the kind and the exponent of zipf. parse_routing() throws InvalidInput.
struct RoutingChoice {
  Routing routing = Routing::learned;
  double exponent = 0;
};
RoutingChoice parse_routing(const std::string& text);

}  // namespace precbench
