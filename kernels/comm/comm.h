// Collectives between ranks. A rank is a thread with its own device. `LocalComm` joins CPU ranks, `NcclComm`
// GPUs, also across processes; `DryComm` only counts.
//
// Every rank calls the same collectives in the same order (send_recv: only the ranks that it names). A
// started collective runs concurrently with the device's later ops, but after its earlier ops and earlier
// collectives; it owns its buffers until wait(). Sums are computed in FP32 and rounded once (NCCL rounds BF16
// at every hop). A single rank moves nothing: its shard is the full buffer, and callers keep only one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/numerics/tensor.h"

namespace precbench {

/// Bytes that one rank sent with one kind of collective.
struct CollectiveCount {
  std::string name;  ///< "all_gather", ...
  std::int64_t calls = 0;
  double buffer_bytes = 0;   ///< of the full buffers, the larger of two, summed over calls
  double largest_bytes = 0;  ///< largest full buffer of one call
  int largest_in = 0;        ///< number() of the Comm that made that call
  /// Bytes between this rank and others. Reductions and gathers count a ring algorithm's (n-1)/n of a buffer
  /// per pass, rounded up; all_to_all and send_recv count the larger of bytes sent and received.
  double wire_bytes = 0;
};

/// Order of a subset's collectives: with those of the Comm that it comes from, or among themselves only, so
/// that they need not wait for a long one of the others. All ranks start the collectives of all lanes in one
/// order.
enum class Lane : std::uint8_t { shared, own };

class Comm;

/// Sees when collectives start and when the device's later ops wait for them: what a model of their overlap
/// with compute needs.
class CommObserver {
 public:
  virtual ~CommObserver() = default;
  /// `cost`: name and bytes that this rank sends; `buffer_bytes`: of the full buffer, the larger of two.
  virtual void started(const Comm& comm, std::uint64_t ticket, const OpCost& cost, double buffer_bytes) = 0;
  virtual void waited(const Comm& comm, std::uint64_t ticket) = 0;
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual std::string name() const = 0;  ///< "local", "dry", "nccl 2.28.3"
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns 0 for the whole Comm, or n for its n-th subset in order of creation.
  int number() const { return number_; }
  /// Returns 0 for the lane of the whole Comm, or n for the n-th lane of its own that a subset began.
  int lane() const { return lane_; }
  /// Returns the members as ranks of the whole Comm.
  const std::vector<int>& members() const { return members_; }

  /// Handle of a started collective of this Comm; 0 has always completed.
  using Ticket = std::uint64_t;

  /// x = sum over ranks of x; f32 or bf16.
  [[nodiscard]] Ticket start_all_reduce(const Tensor& x);
  /// x = maximum over ranks of x; f32, non-negative (amaxes); NaN if any rank has NaN.
  [[nodiscard]] Ticket start_all_reduce_max(const Tensor& x);
  /// full = all ranks' shards in rank order, any dtype, size() * shard.size(); this rank's own may already be
  /// in place.
  [[nodiscard]] Ticket start_all_gather(const Tensor& full, const Tensor& shard);
  /// shard = this rank's part of the sum over ranks of full; f32 or bf16. It may be this rank's part of full
  /// itself, whose other parts are then undefined.
  [[nodiscard]] Ticket start_reduce_scatter(const Tensor& shard, const Tensor& full);
  /// Sends every rank's part for every other. `send` is size() consecutive runs of elements, send_counts[r]
  /// for rank r; `recv` takes recv_counts[r] from rank r likewise. Any dtype of whole bytes; the buffers must
  /// not overlap. Throws std::invalid_argument if the counts do not fit the buffers. If send and receive
  /// counts disagree, CPU ranks throw it too, but GPUs may deadlock.
  [[nodiscard]] Ticket start_all_to_all(const Tensor& recv, const std::vector<std::int64_t>& recv_counts,
                                        const Tensor& send, const std::vector<std::int64_t>& send_counts);
  /// Sends one buffer and receives another concurrently, so that ranks may pass data around a ring. kNobody
  /// skips either. Only the named ranks take part, each pair in the same order. Throws std::invalid_argument
  /// for an invalid rank or this rank.
  [[nodiscard]] Ticket start_send_recv(const Tensor& recv, int from, const Tensor& send, int to);
  static constexpr int kNobody = -1;
  /// Makes the device's later ops wait for this collective and all started before it.
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

  /// Runs `launch`, which starts previously captured collectives of this Comm or its subsets. Throws like a
  /// collective if another rank has failed.
  virtual void replay(const std::function<void()>& launch) { launch(); }

  /// Returns a Comm of the ranks `members`, numbered in that order. Every rank of this Comm calls it at the
  /// same point with its own set; the sets are disjoint. It shares the counts and the observer.
  std::unique_ptr<Comm> subset(const std::vector<int>& members, Lane lane = Lane::shared);

  /// Returns the bytes sent since the last reset, by kind.
  const std::vector<CollectiveCount>& counts() const { return books_->counts; }
  void reset_counts() { books_->counts.clear(); }

  /// Sets the observer, which sees communication as ops of its class; use that of the rank's device. An
  /// overlapped collective is reported where the device waits for it: only exposed time shows.
  void set_observer(OpObserver* observer) { books_->observer = observer; }
  /// Sets the observer of starts and waits, of this Comm and its subsets; null for none.
  void set_comm_observer(CommObserver* observer) { books_->comm_observer = observer; }

 protected:
  Comm(int rank, int size);
  /// Returns true if do_wait is needed. Otherwise a collective is complete, in the device's order, when its
  /// do_ function returns.
  virtual bool asynchronous() const { return false; }
  virtual void do_wait(Ticket) {}
  virtual std::unique_ptr<Comm> do_subset(const std::vector<int>& members, int self, Lane lane) = 0;
  virtual void do_all_reduce(const Tensor& x) = 0;
  virtual void do_all_reduce_max(const Tensor& x) = 0;
  virtual void do_all_gather(const Tensor& full, const Tensor& shard) = 0;
  virtual void do_reduce_scatter(const Tensor& shard, const Tensor& full) = 0;
  virtual void do_all_to_all(const Tensor& recv, const std::vector<std::int64_t>& recv_counts,
                             const Tensor& send, const std::vector<std::int64_t>& send_counts) = 0;
  virtual void do_send_recv(const Tensor& recv, int from, const Tensor& send, int to) = 0;
  /// Returns the ticket of the collective being started.
  Ticket started() const { return started_; }

 private:
  /// Starts a collective of a full buffer of `buffer_bytes` that sends `wire_bytes`.
  template <class Body>
  Ticket start(const char* name, std::int64_t buffer_bytes, std::int64_t wire_bytes, Body&& body);
  /// Starts a collective that passes a buffer around the ring `passes` times.
  template <class Body>
  Ticket start_ring(const char* name, const Tensor& buffer, int passes, Body&& body);
  void check_counts(const char* verb, const Tensor& buffer, const std::vector<std::int64_t>& counts) const;
  void check_peer(const char* verb, int rank, const Tensor& buffer) const;
  void count(const OpCost& cost, double buffer_bytes);

  int rank_, size_, number_ = 0, lane_ = 0;
  std::vector<int> members_;
  Ticket started_ = 0, waited_ = 0, told_ = 0;  // told_: to the CommObserver
  std::vector<OpCost> in_flight_;               // for tickets waited_ + 1 to started_
  struct Books {
    std::vector<CollectiveCount> counts;
    OpObserver* observer = nullptr;
    CommObserver* comm_observer = nullptr;
    int subsets = 0, lanes = 0;  // made so far; lanes beside that of the whole Comm
  };
  std::shared_ptr<Books> books_ = std::make_shared<Books>();
};

/// State shared by the ranks of one process. Joining is a collective: every rank of the process calls it
/// once, in its own thread, with its own device. A rank that fails calls abort(); ranks waiting for it then
/// throw instead of waiting forever.
class CommGroup {
 public:
  virtual ~CommGroup() = default;
  virtual void abort() = 0;
  /// Returns when all ranks of all processes have joined. Throws std::runtime_error after an abort or with
  /// NCCL's error. The device must be of the group's kind.
  virtual std::unique_ptr<Comm> join(int rank, Device& device) = 0;
};

/// Creates a group of CPU ranks.
std::unique_ptr<CommGroup> make_local_group(int size);

/// Creates a Comm that counts bytes and moves none.
std::unique_ptr<Comm> make_dry_comm(int rank, int size);

}  // namespace precbench
