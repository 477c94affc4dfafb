// Collectives between ranks. A rank is a thread with a device of its own. `LocalComm` joins CPU ranks,
// `NcclComm` GPUs, also of several processes; `DryComm` only counts.
//
// Every rank calls the same collectives in the same order (send_recv: those that it names). One that is
// started runs beside the device's later ops, after its earlier ones and after collectives started before it;
// its buffers are the collective's until wait(). Sums are made in FP32 and rounded once (NCCL rounds BF16 at
// every hop). One rank alone moves nothing: its shard is the full buffer, and callers hold them as one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/numerics/tensor.h"

namespace precbench {

/// What one rank has sent by one kind of collective.
struct CollectiveCount {
  std::string name;  ///< "all_gather", ...
  std::int64_t calls = 0;
  double buffer_bytes = 0;   ///< of the full buffers, the larger of two, summed over the calls
  double largest_bytes = 0;  ///< of one call's full buffer
  int largest_in = 0;        ///< number() of the Comm that made that call
  /// What went between this rank and others. Reductions and gathers: by the ring algorithms' count, (n-1)/n of a
  /// buffer per pass, rounded up. all_to_all and send_recv: sent or received, whichever is more.
  double wire_bytes = 0;
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual std::string name() const = 0;  ///< "local", "dry", "nccl 2.28.3"
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// 0, or of its subsets the first, second, ... that was made.
  int number() const { return number_; }

  /// A collective that was started; 0 has always ended. Only this Comm knows it.
  using Ticket = std::uint64_t;

  /// x = sum over ranks of x; f32 or bf16.
  [[nodiscard]] Ticket start_all_reduce(const Tensor& x);
  /// x = greatest over ranks of x; f32, none below 0 (amaxes); NaN where any rank has one.
  [[nodiscard]] Ticket start_all_reduce_max(const Tensor& x);
  /// full = the shards of all ranks in rank order, any dtype, size() * shard.size(); one's own may stand in full already.
  [[nodiscard]] Ticket start_all_gather(const Tensor& full, const Tensor& shard);
  /// shard = this rank's part of the sum over ranks of full; f32 or bf16.
  [[nodiscard]] Ticket start_reduce_scatter(const Tensor& shard, const Tensor& full);
  /// Every rank's part for every other. `send` is size() runs of elements, one behind the other: send_counts[r] for
  /// rank r. `recv` takes recv_counts[r] from rank r likewise. Any dtype of whole bytes; the buffers do not overlap.
  /// Throws std::invalid_argument where the counts do not fit the buffers; where one rank sends what the other does
  /// not expect, the CPU's ranks throw it too, and GPUs may wait for ever.
  [[nodiscard]] Ticket start_all_to_all(const Tensor& recv, const std::vector<std::int64_t>& recv_counts,
                                        const Tensor& send, const std::vector<std::int64_t>& send_counts);
  /// Sends one buffer and receives another, both at once, so that ranks may pass data on in a ring; either is left out
  /// where its rank is kNobody. Only the ranks that are named take part, each pair in the same order. Throws
  /// std::invalid_argument for a rank that is none, or oneself.
  [[nodiscard]] Ticket start_send_recv(const Tensor& recv, int from, const Tensor& send, int to);
  static constexpr int kNobody = -1;
  /// The device's later ops run after this collective and all that were started before it.
  void wait(Ticket ticket);

  void all_reduce(const Tensor& x) { wait(start_all_reduce(x)); }
  void all_reduce_max(const Tensor& x) { wait(start_all_reduce_max(x)); }
  void all_gather(const Tensor& full, const Tensor& shard) { wait(start_all_gather(full, shard)); }
  void reduce_scatter(const Tensor& shard, const Tensor& full) { wait(start_reduce_scatter(shard, full)); }
  void all_to_all(const Tensor& recv, const std::vector<std::int64_t>& recv_counts, const Tensor& send,
                  const std::vector<std::int64_t>& send_counts) {
    wait(start_all_to_all(recv, recv_counts, send, send_counts));
  }
  void send_recv(const Tensor& recv, int from, const Tensor& send, int to) {
    wait(start_send_recv(recv, from, send, to));
  }
  void send(const Tensor& x, int to) { send_recv({}, kNobody, x, to); }
  void recv(const Tensor& x, int from) { send_recv(x, from, {}, kNobody); }

  /// Runs `launch`, which starts collectives of this Comm or its subsets that were captured earlier. Throws
  /// like a collective where another rank has failed.
  virtual void replay(const std::function<void()>& launch) { launch(); }

  /// A Comm of some of the ranks, numbered as they stand in `members`. Every rank of this one calls it at the
  /// same point, with the set that it is in itself; the sets are disjoint. Its collectives keep one order
  /// with this one's, and it shares the counts and the observer.
  std::unique_ptr<Comm> subset(const std::vector<int>& members);

  /// What was sent since the last reset, by kind.
  const std::vector<CollectiveCount>& counts() const { return books_->counts; }
  void reset_counts() { books_->counts.clear(); }

  /// Sees communication as ops of its class; the observer of the rank's device. A collective that runs beside
  /// the device's work is seen where the device waits for it: what shows is the time that is not hidden.
  void set_observer(OpObserver* observer) { books_->observer = observer; }

 protected:
  Comm(int rank, int size) : rank_(rank), size_(size) {}
  /// Whether do_wait is needed; else a collective has ended, in the device's order, when its do_ returns.
  virtual bool asynchronous() const { return false; }
  virtual void do_wait(Ticket) {}
  virtual std::unique_ptr<Comm> do_subset(const std::vector<int>& members, int self) = 0;
  virtual void do_all_reduce(const Tensor& x) = 0;
  virtual void do_all_reduce_max(const Tensor& x) = 0;
  virtual void do_all_gather(const Tensor& full, const Tensor& shard) = 0;
  virtual void do_reduce_scatter(const Tensor& shard, const Tensor& full) = 0;
  virtual void do_all_to_all(const Tensor& recv, const std::vector<std::int64_t>& recv_counts,
                             const Tensor& send, const std::vector<std::int64_t>& send_counts) = 0;
  virtual void do_send_recv(const Tensor& recv, int from, const Tensor& send, int to) = 0;
  /// The number of the collective that is being started.
  Ticket started() const { return started_; }

 private:
  /// A collective of so many bytes, of which so many go over the wire.
  template <class Body>
  Ticket start(const char* name, std::int64_t buffer_bytes, std::int64_t wire_bytes, Body&& body);
  /// One that passes a buffer round the ring so many times.
  template <class Body>
  Ticket start_ring(const char* name, const Tensor& buffer, int passes, Body&& body);
  void check_counts(const char* verb, const Tensor& buffer, const std::vector<std::int64_t>& counts) const;
  void check_peer(const char* verb, int rank, const Tensor& buffer) const;
  void count(const OpCost& cost, double buffer_bytes);

  int rank_, size_, number_ = 0;
  Ticket started_ = 0, waited_ = 0;
  std::vector<OpCost> in_flight_;  // of waited_ + 1 to started_
  struct Books {
    std::vector<CollectiveCount> counts;
    OpObserver* observer = nullptr;
    int subsets = 0;
  };
  std::shared_ptr<Books> books_ = std::make_shared<Books>();
};

/// What the ranks of one process share. Joining is a collective: every rank of the process calls it once, in
/// its own thread, with its own device. When a rank fails it calls abort(), and every rank that waits for
/// another throws instead of waiting for ever.
class CommGroup {
 public:
  virtual ~CommGroup() = default;
  virtual void abort() = 0;
  /// Returns when all ranks of all processes have joined. Throws std::runtime_error after an abort, or with what
  /// NCCL refuses; the device must be of the kind that the group connects.
  virtual std::unique_ptr<Comm> join(int rank, Device& device) = 0;
};

/// Ranks on the CPU device.
std::unique_ptr<CommGroup> make_local_group(int size);

/// Counts bytes and moves none.
std::unique_ptr<Comm> make_dry_comm(int rank, int size);

}  // namespace precbench
