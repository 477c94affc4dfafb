// Statements of others about the loss of training in low precision: results/published/losses.json, as part of the program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace precbench {

/// One entry. The file's `about` explains its fields.
struct PublishedLoss {
  enum class Kind : std::uint8_t { gap, failure, no_difference } kind = Kind::gap;
  std::string id, group, source, where, model, published;
  std::string tier;     ///< judged, share, continued or shown
  std::string nearest;  ///< built-in recipe most like the published one; empty: none
  std::string differs;  ///< how the published recipe differs from `nearest`; empty: it does not
  bool from_scratch = false;
  bool by_numerics = false;          ///< a failure that the recipe's numerics caused
  std::optional<double> parameters;  ///< active ones
  std::optional<double> tokens, tokens_before;
  std::optional<double> gap_nats, gap_percent, bound_nats, bound_percent, noise_nats;
};

/// Throws InvalidInput if the text is not such a file. tools/ci/check_losses.py checks more.
std::vector<PublishedLoss> read_published_losses(const std::string& text);

/// Returns the entries that are part of the program.
const std::vector<PublishedLoss>& published_losses();

/// Returns the first published failure that numerics caused in a recipe like this one; null if none is known. A study of
/// small or young models does not refute it.
const PublishedLoss* known_failure(const std::string& recipe);

/// Returns "known to fail at 8B (Megatron-Bridge)".
std::string known_failure_words(const PublishedLoss& failure);

}  // namespace precbench
