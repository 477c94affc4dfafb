// Collectives between ranks. A rank is a thread; `LocalComm` joins CPU ranks, `DryComm` only counts.
// Every rank calls the same collectives in the same order; sums are made in rank order, in FP32, rounded
// once. One rank alone moves nothing: its shard is the full buffer, and callers hold them as one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/tensor.h"

namespace precbench {

class Comm {
 public:
  virtual ~Comm() = default;
  virtual std::string name() const = 0;  ///< "local", "dry", "nccl"
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// x = sum over ranks of x; f32 or bf16.
  void all_reduce(const Tensor& x);
  /// full = the shards of all ranks in rank order; full.size() == size() * shard.size().
  void all_gather(const Tensor& full, const Tensor& shard);
  /// shard = this rank's part of the sum over ranks of full; f32 or bf16.
  void reduce_scatter(const Tensor& shard, const Tensor& full);

  /// Bytes this rank has sent, by the ring algorithms' count: (n-1)/n of the buffer per pass, two passes for
  /// an all-reduce.
  double bytes_sent() const { return bytes_sent_; }

  /// Sees every collective as an op of class communication; the observer of the rank's device.
  void set_observer(OpObserver* observer) { observer_ = observer; }

 protected:
  Comm(int rank, int size) : rank_(rank), size_(size) {}
  virtual void do_all_reduce(const Tensor& x) = 0;
  virtual void do_all_gather(const Tensor& full, const Tensor& shard) = 0;
  virtual void do_reduce_scatter(const Tensor& shard, const Tensor& full) = 0;

 private:
  template <class Body>
  void run(const char* name, const Tensor& buffer, int passes, Body&& body);

  int rank_, size_;
  double bytes_sent_ = 0;
  OpObserver* observer_ = nullptr;
};

/// What the CPU ranks of one process share. When a rank fails it calls abort(), and every rank that waits in
/// a collective throws instead of waiting for ever.
class LocalGroup {
 public:
  virtual ~LocalGroup() = default;
  virtual void abort() = 0;
  virtual std::unique_ptr<Comm> join(int rank) = 0;
};
std::unique_ptr<LocalGroup> make_local_group(int size);

/// Counts bytes and moves none.
std::unique_ptr<Comm> make_dry_comm(int rank, int size);

}  // namespace precbench
