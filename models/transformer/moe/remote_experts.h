// Common base of the exchanges of expert parallelism: sends BF16 rows, or quantized data with scales, while
// other work runs, and returns partial sums per token. An implementation packs the rows and chooses the
// collective.
#pragma once

#include <memory>

#include "models/transformer/moe/expert_exchange.h"

namespace precbench {

class RemoteExperts : public ExpertExchange {
 public:
  using ExpertExchange::ExpertExchange;

  std::int64_t first_expert() const override { return comm().rank() * own_experts(); }
  bool sends_quantized(const QuantFormat& format) const override {
    return step_.options.exchange.codes && format.quantized() && bits_of(format.dtype) == 8;
  }
  ReceivedTokens push_received(const QuantFormat& format) const override;
  QuantizedTensor dispatch(const SavedRouting& routing, const QuantizedTensor& x, const QuantFormat& format,
                           const ReceivedTokens& to, KeepValue keep, const Overlap& overlap) const override;
  QuantizedTensor received(const SavedRouting& routing, const ReceivedTokens& x, const QuantFormat& format,
                           KeepValue keep, const Tensor& known) const override;
  void combine(const SavedRouting& routing, ops::Unpermute op, const OverlapResult& addend) const override;

 protected:
  Comm& comm() const { return *step_.parameters.expert_comm(); }

  /// Return this rank's rows in the order in which they are sent; may allocate.
  virtual Tensor pack(const SavedRouting& routing, const Tensor& rows) const = 0;
  virtual GemmOperand pack(const SavedRouting& routing, const GemmOperand& rows) const = 0;
  /// Scales of 1x128 blocks, [blocks, rows], of packed rows: returns them with each destination's contiguous.
  virtual Tensor pack_scales(const Tensor& scale, std::int64_t blocks) const = 0;
  /// Start sending packed rows, or scales, of which every rank sends and receives equally many.
  virtual Comm::Ticket start(const SavedRouting& routing, const Tensor& to, const Tensor& packed) const = 0;
  virtual Comm::Ticket start_scales(const Tensor& to, const Tensor& packed) const = 0;

  /// Runs or starts collectives and adds the bytes they move to one part of the traffic. Returns what `body`
  /// returns.
  template <class Body>
  auto counted(double ExpertTraffic::*part, Body&& body) const {
    struct Counting {
      const RemoteExperts& experts;
      double ExpertTraffic::*part;
      double before = wire_bytes(experts.comm());
      ~Counting() {
        experts.step_.parameters.routers()->note_traffic(part, wire_bytes(experts.comm()) - before);
      }
    } const counting{*this, part};
    return body(comm());
  }

 private:
  static double wire_bytes(const Comm& comm);
  void send_rows(const SavedRouting& routing, const Tensor& to, const Tensor& from,
                 const Overlap& overlap) const;
  void send_quantized(const SavedRouting& routing, const GemmOperand& to, const QuantizedTensor& x,
                      const Overlap& overlap) const;
  void send_scales(const GemmOperand& to, const GemmOperand& from, const Overlap& overlap) const;
};

std::unique_ptr<ExpertExchange> make_all_gather_exchange(const StepContext& step);
/// Slots or sync, see ExchangeOptions.
std::unique_ptr<ExpertExchange> make_all_to_all_exchange(const StepContext& step);

}  // namespace precbench
