// Reads Kineto traces, the JSON files of torch.profiler, in bounded memory.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "tools/explain/training_trace.h"

namespace precbench {

/// Fills a buffer; returns the number of bytes, 0 at the end.
using ByteSource = std::function<std::size_t(char* to, std::size_t most)>;

/// Limits on JSON: depth of nesting, and bytes of a string.
inline constexpr int kMostTraceDepth = 32;
inline constexpr std::size_t kMostTraceString = std::size_t{1} << 20;

/// Reads a trace. `name`: of the input, for messages. Throws InvalidInput if it is not JSON, exceeds the limits, or has
/// no events.
TrainingTrace read_kineto(const std::string& name, const ByteSource& source);

}  // namespace precbench
