// Helpers shared by tests of token sources.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/testing/text_checks.h"
#include "models/data/data.h"

namespace precbench::testing {

/// Returns the T + 1 tokens of a sequence.
inline std::vector<std::int32_t> sequence_of(const DataSource& data, std::uint64_t index, std::int64_t T) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(T) + 1, -1);
  data.sequence(index, T, tokens.data());
  return tokens;
}

/// Returns why the data cannot be opened; empty if it can.
inline std::string data_refusal(const DataOptions& options) {
  return refusal_of([&] { open_data(options); });
}

}  // namespace precbench::testing
