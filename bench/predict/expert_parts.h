// The parts of a trace that experts take: routing, exchange of rows and the experts' layers. Each lies between two
// norms, or a norm and a linear layer, of other layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "bench/predict/trace.h"

namespace precbench {

inline bool is_called(const OpCost& op, const char* name) { return std::strcmp(op.name, name) == 0; }
/// Return true for norms of a block's input, repeated and backward, of either kind.
inline bool is_repeated_norm(const OpCost& op) {
  return is_called(op, "recompute_rmsnorm") || is_called(op, "recompute_layernorm");
}
inline bool is_norm_backward(const OpCost& op) {
  return is_called(op, "rmsnorm_backward") || is_called(op, "layernorm_backward");
}
/// Returns true for norms of a block's input, forward and backward.
inline bool is_row_op(const OpCost& op) {
  return is_called(op, "add_rmsnorm") || is_called(op, "add_layernorm") || is_repeated_norm(op) ||
         is_norm_backward(op);
}
/// Returns true for GEMMs of linear layers other than the experts'.
inline bool is_gemm(const OpCost& op) { return std::strncmp(op.name, "matmul ", 7) == 0; }

class ExpertParts {
 public:
  /// The trace must outlive this.
  explicit ExpertParts(const Trace& trace);

  /// Events [begin, end).
  struct Part {
    std::size_t begin, end;
  };
  const std::vector<Part>& all() const { return parts_; }
  /// Returns the number of the part that holds the event; null if none does.
  std::optional<std::size_t> part_of(std::size_t event) const;
  /// Returns true if the event's result goes to experts: a part follows, or other norms and a part.
  bool follows(std::size_t event) const;
  /// Returns true for starts of exchanges of rows and waits for them.
  bool is_exchange(std::size_t event) const { return traffic_[event].exchange; }
  /// Returns TraceEvent::later of a wait, counting exchanges alone, or all other collectives alone.
  std::int32_t later(std::size_t event) const { return traffic_[event].later; }

 private:
  struct Traffic {
    bool exchange = false;
    std::int32_t later = 0;
  };
  /// Tells exchanges from other collectives, which may share a communicator.
  void find_traffic();
  void find_parts();
  const OpCost& op_of(const TraceEvent& event) const {
    return trace_.ops[static_cast<std::size_t>(event.index)];
  }
  bool is_outside(const TraceEvent& event) const;
  bool is_of_experts(const TraceEvent& event) const;

  const Trace& trace_;
  std::vector<Part> parts_;
  std::vector<Traffic> traffic_;  // by event
};

}  // namespace precbench
