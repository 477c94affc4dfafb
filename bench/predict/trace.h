// A trace: what one rank does in a step, in order. Ops run on the device one after the other; collectives run
// beside them from their start until they are done, in the order of their starts; a wait holds back all later
// ops. Made by a dry run (predict.h), timed by timeline.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "bench/predict/attention_kernel.h"
#include "kernels/comm/comm.h"
#include "kernels/device/ops.h"

namespace precbench {

inline constexpr int kSharedLane = 0;  ///< of the whole Comm (Comm::lane())

/// A kind of call that repeats: equal name, bytes and communicator.
struct TraceCollective {
  std::string name;         ///< as in CollectiveCount: "all_gather", "reduce_scatter bf16", ...
  double buffer_bytes = 0;  ///< of the full buffer, the larger of two
  double wire_bytes = 0;    ///< sent by this rank
  int comm = 0;             ///< index in Trace::comms
  int lane = 0;             ///< Comm::lane(); collectives of one lane run one after the other
  bool operator==(const TraceCollective&) const = default;
};

/// Returns a hash of what same_call() compares.
std::size_t hash_of(const OpCost& op);

struct TraceEvent {
  enum class Kind : std::uint8_t { op, start, wait };
  Kind kind = Kind::op;
  /// op: index in Trace::ops; start: in Trace::collectives; wait: in Trace::comms.
  std::int32_t index = 0;
  /// wait: number of collectives of the communicator that started after the one that must be done.
  std::int32_t later = 0;
};

/// An op with the number of its calls in a step.
struct CountedOp {
  OpCost cost;  ///< of one call
  std::int64_t calls = 0;
};

/// Events in order, of which [repeat_begin, repeat_end) happen `repeats` times in a row: micro-steps between the
/// first and the last are equal, and are traced once. In a micro-step, the ops before the first of class
/// head_loss are the forward pass.
struct Trace {
  std::vector<OpCost> ops;                   ///< all different; no collectives
  std::vector<TraceCollective> collectives;  ///< all different
  std::vector<std::vector<int>> comms;       ///< ranks of each communicator, ascending
  std::vector<TraceEvent> events;
  std::vector<std::size_t> micro_steps;  ///< event at which each traced micro-step begins
  std::size_t update_begin = 0;  ///< event at which the optimizer's part begins, with the waits before it
  std::size_t repeat_begin = 0, repeat_end = 0;
  std::int64_t repeats = 1;
  AttentionSetting attention;  ///< which kernels compute it

  /// Appends the start of a collective.
  void start(TraceCollective collective);
  /// Returns how often an event happens.
  std::int64_t times(std::size_t event) const {
    return event >= repeat_begin && event < repeat_end ? repeats : 1;
  }
  /// Returns the ops, and the collectives as ops of class communication, with their calls in the step.
  std::vector<CountedOp> counted() const;
  /// Returns every call in order, collectives where they start.
  std::vector<OpCost> calls() const;
};

/// Writes a trace: observes a device and its communicators.
class TraceWriter final : public OpObserver, public CommObserver {
 public:
  void begin(const OpCost& cost) override;
  void end(const OpCost&) override {}
  void started(const Comm& comm, std::uint64_t ticket, const OpCost& cost, double buffer_bytes) override;
  void waited(const Comm& comm, std::uint64_t ticket) override;

  void begin_micro_step() { trace_.micro_steps.push_back(trace_.events.size()); }
  /// Returns the trace and starts a new one. The second micro-step stands for `repeats` of them.
  Trace take(std::int64_t repeats);

 private:
  int op_index(const OpCost& cost);
  int comm_index(const Comm& comm);
  bool is_update(const TraceEvent& event) const;

  Trace trace_;
  std::vector<int> numbers_;                                 // Comm::number() of each communicator
  std::vector<std::uint64_t> tickets_;                       // latest of each communicator
  std::unordered_map<std::size_t, std::vector<int>> known_;  // indices of ops by hash
  std::vector<int> next_{-1};  // op that last followed no op and each op; -1: none
  std::size_t last_ = 0;       // entry of next_ of the last op
};

}  // namespace precbench
