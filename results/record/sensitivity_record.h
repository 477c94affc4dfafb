// Contribution of a recipe's parts to its loss, as stored in records: the recipe and variants of it ("cells")
// against BF16, with the same weights and tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "results/record/fidelity_record.h"

namespace precbench {

/// Kind of a cell:
///   whole    the recipe of the case
///   control  the recipe with nothing quantized; its price is 0 apart from nondeterministic kernels' noise
///   alone    only the named part in the recipe, the rest in BF16
///   kept     the recipe with only the named part in BF16
///   variant  the recipe with another format in all of its operands
///   set      the recipe with several parts in BF16
enum class CellKind : std::uint8_t { whole, control, alone, kept, variant, set };
const char* name_of(CellKind kind);

struct CellName {
  std::string group;  ///< "gemms", "roles", ..., as in --sensitivity; "recipe" for whole and control
  CellKind kind = CellKind::whole;
  std::string part;  ///< "fprop", "weights", "down", "7", "7.down", "e4m4", "2 by price"
};

/// Means with 95% intervals over batches, which are the pairs: every cell sees the same tokens.
struct CellRecord {
  std::string group;
  CellKind kind = CellKind::whole;
  std::string part;
  MeanInterval loss_difference;  ///< price: loss of the cell minus BF16's, nats
  MeanInterval bought_back;      ///< price of the whole recipe minus that of the cell, nats
  WholeFidelity whole;           ///< gradient of the cell against BF16's
  std::optional<double>
      kept_flops;  ///< GEMM FLOPs kept in BF16, as a fraction of the recipe's; null: mixed operands
  std::vector<std::string> keep_bf16{};  ///< arguments for --keep-bf16; empty if they cannot express the cell
  std::optional<std::string> note = {};
};

/// Sum of the prices of a group's parts, compared with the price of the whole recipe.
struct CellSum {
  std::string group;
  CellKind kind = CellKind::alone;  ///< alone: prices are added; kept: what each buys back
  MeanInterval sum;                 ///< nats
  MeanInterval interaction;         ///< the sum minus the price of the whole recipe
};

struct SkippedCell {
  std::string part;
  std::string reason;
};

struct SensitivityRecord {
  std::int64_t batches = 0;         ///< batches of a training step's tokens; sets use as many further ones
  std::optional<double> loss_bf16;  ///< mean over the batches, nats
  double quantized_flops = 0;  ///< FLOPs of GEMMs that the recipe quantizes, as a fraction of the model's
  std::vector<CellRecord> cells;
  std::vector<CellSum> sums;
  std::vector<SkippedCell> skipped;
};

}  // namespace precbench
