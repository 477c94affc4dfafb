// Collectives between threads of one process, on host memory. Every rank publishes its buffer, waits, reads
// the others' and waits again. Each rank sums one slice over all ranks in rank order, so results are
// deterministic and the same on every rank. Point-to-point data is mail: posted by the sender, copied by the
// receiver.
//
// Failures elsewhere are detected only at the first wait of a collective. Either no rank passes it or all do,
// and then all complete, because nothing throws between the waits. Until then others may read a rank's
// buffer, so the rank must not leave.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "kernels/comm/comm.h"
#include "kernels/cpu/vector.h"

namespace precbench {
namespace {

constexpr const char* kAnotherFailed = "another rank failed";

/// Data from one rank to another; the receiver copies it.
struct Mail {
  enum class State : std::uint8_t { none, posted, being_read, read, refused };
  State state = State::none;
  Tensor values;
};

/// One rank's arguments of an all-to-all.
struct Counts {
  const std::vector<std::int64_t>*recv = nullptr, *send = nullptr;
};

struct Shared final : CommGroup {
  explicit Shared(int n) : size(n), buffers(n), counts(n), mail(n, std::vector<Mail>(n)) {}

  void abort() override {
    std::lock_guard lock(mutex);
    aborted = true;
    arrived.notify_all();
    for (const auto& [members, group] : subsets) group->abort();
  }

  std::unique_ptr<Comm> join(int rank, Device&) override;

  /// Returns the state shared by the ranks `members`, created by the first caller.
  Shared& subset(const std::vector<int>& members) {
    std::lock_guard lock(mutex);
    std::unique_ptr<Shared>& group = subsets[members];
    if (!group) group = std::make_unique<Shared>(static_cast<int>(members.size()));
    if (aborted) group->abort();
    return *group;
  }

  /// Waits until every rank has arrived; throws if one has failed and will not come.
  void open() {
    std::unique_lock lock(mutex);
    // A rank that has thrown still counts as waiting: later ranks must not mistake it for present.
    if (aborted || !arrive(lock, true)) throw std::runtime_error(kAnotherFailed);
  }
  /// Waits for all ranks once more after open(), when all are sure to come.
  void meet_again() {
    std::unique_lock lock(mutex);
    arrive(lock, false);
  }

  /// Waits for all ranks. Returns false only after an abort, and only with `until_aborted`.
  bool arrive(std::unique_lock<std::mutex>& lock, bool until_aborted) {
    const std::uint64_t mine = generation;
    if (++waiting == size) {
      waiting = 0;
      ++generation;
      arrived.notify_all();
    } else {
      arrived.wait(lock, [&] { return generation != mine || (until_aborted && aborted); });
    }
    return generation != mine;
  }

  void post(int from, int to, const Tensor& values) {
    const std::lock_guard lock(mutex);
    if (aborted) throw std::runtime_error(kAnotherFailed);
    mail[from][to] = {Mail::State::posted, values};
    arrived.notify_all();
  }
  /// Waits for the mail and copies it. Returns false if sizes differ; the sender then gets false too.
  bool receive(int from, int to, const Tensor& into) {
    std::unique_lock lock(mutex);
    Mail& letter = mail[from][to];
    arrived.wait(lock, [&] { return letter.state == Mail::State::posted || aborted; });
    if (aborted) throw std::runtime_error(kAnotherFailed);
    const bool fits = letter.values.bytes() == into.bytes();
    if (fits) {
      letter.state = Mail::State::being_read;
      lock.unlock();
      std::memcpy(into.data, letter.values.data, into.bytes());
      lock.lock();
    }
    letter.state = fits ? Mail::State::read : Mail::State::refused;
    arrived.notify_all();
    return fits;
  }
  /// Waits until the mail has been read; returns false if it was refused. `withdraw`: take it back unless it
  /// is being read.
  bool finish_post(int from, int to, bool withdraw) {
    std::unique_lock lock(mutex);
    Mail& letter = mail[from][to];
    arrived.wait(lock, [&] {
      return letter.state == Mail::State::read || letter.state == Mail::State::refused ||
             (letter.state == Mail::State::posted && (withdraw || aborted));
    });
    const Mail::State state = std::exchange(letter, {}).state;
    if (state == Mail::State::posted && !withdraw) throw std::runtime_error(kAnotherFailed);
    return state != Mail::State::refused;
  }

  const int size;
  std::vector<Tensor> buffers;          // published by each rank
  std::vector<Counts> counts;           // theirs, in an all-to-all
  std::vector<std::vector<Mail>> mail;  // [from][to]
  std::vector<float> staging;           // sums, before the ranks copy them
  std::map<std::vector<int>, std::unique_ptr<Shared>> subsets;
  std::mutex mutex;
  std::condition_variable arrived;
  int waiting = 0;
  std::uint64_t generation = 0;
  bool aborted = false;
};

class LocalComm final : public Comm {
 public:
  LocalComm(Shared& shared, int rank) : Comm(rank, shared.size), shared_(shared) {}
  std::string name() const override { return "local"; }

 protected:
  std::unique_ptr<Comm> do_subset(const std::vector<int>& members, int self, Lane) override {
    return std::make_unique<LocalComm>(shared_.subset(members), self);
  }
  void do_all_reduce(const Tensor& x) override {
    const std::int64_t slice = (x.size() + size() - 1) / size();
    const std::int64_t first = std::min(x.size(), rank() * slice);
    const std::int64_t n = std::min(slice, x.size() - first);
    std::vector<float> converted(n);
    if (rank() == 0) shared_.staging.resize(x.size());
    publish(x);
    sum_over_ranks(shared_.staging.data() + first, first, n, converted.data());
    shared_.meet_again();
    cpu::store(x, 0, x.size(), shared_.staging.data());
    shared_.meet_again();
  }

  void do_all_reduce_max(const Tensor& x) override {
    std::vector<float> greatest(x.as<float>(), x.as<float>() + x.size());
    publish(x);
    for (const Tensor& other : shared_.buffers)
      for (std::int64_t i = 0; i < x.size(); ++i) {
        const float value = other.as<float>()[i];
        if (value > greatest[i] || std::isnan(value)) greatest[i] = value;
      }
    shared_.meet_again();
    std::copy(greatest.begin(), greatest.end(), x.as<float>());
  }

  void do_all_gather(const Tensor& full, const Tensor& shard) override {
    publish(shard);
    for (int r = 0; r < size(); ++r)
      if (std::byte* place = full.as<std::byte>() + r * shard.bytes(); place != shared_.buffers[r].data)
        std::memcpy(place, shared_.buffers[r].data, shard.bytes());
    shared_.meet_again();
  }

  void do_reduce_scatter(const Tensor& shard, const Tensor& full) override {
    std::vector<float> total(shard.size()), converted(shard.size());
    publish(full);
    sum_over_ranks(total.data(), rank() * shard.size(), shard.size(), converted.data());
    shared_.meet_again();
    cpu::store(shard, 0, shard.size(), total.data());
  }

  void do_all_to_all(const Tensor& recv, const std::vector<std::int64_t>& recv_counts, const Tensor& send,
                     const std::vector<std::int64_t>& send_counts) override {
    shared_.counts[rank()] = {&recv_counts, &send_counts};
    publish(send);
    // Every rank checks all counts, so that either all of them throw or none does.
    const std::optional<Disagreement> disagree = disagreement();
    std::int64_t into = 0;
    for (int r = 0; r < size() && !disagree; ++r) {
      const std::vector<std::int64_t>& theirs = *shared_.counts[r].send;
      const std::int64_t from = std::accumulate(theirs.begin(), theirs.begin() + rank(), std::int64_t{0});
      const Tensor target = recv.elements(into, recv_counts[r]);
      if (target.size() > 0)
        std::memcpy(target.data, shared_.buffers[r].elements(from, recv_counts[r]).data, target.bytes());
      into += recv_counts[r];
    }
    shared_.meet_again();
    if (disagree)
      throw std::invalid_argument(fmt::format(
          "all_to_all: rank {} sends rank {} {} {}, which expects {} {}", disagree->from, disagree->to,
          disagree->sent, name_of(disagree->sent_as), disagree->expected, name_of(disagree->expected_as)));
  }

  void do_send_recv(const Tensor& recv, int from, const Tensor& send, int to) override {
    bool received = true;
    if (to != kNobody) shared_.post(rank(), to, send);
    try {
      if (from != kNobody) received = shared_.receive(from, rank(), recv);
    } catch (...) {
      if (to != kNobody) shared_.finish_post(rank(), to, true);
      throw;
    }
    const bool sent = to == kNobody || shared_.finish_post(rank(), to, false);
    if (!received)
      throw std::invalid_argument(
          fmt::format("send_recv: rank {} of {} receives {} bytes from rank {}, which sends another number",
                      rank(), size(), recv.bytes(), from));
    if (!sent)
      throw std::invalid_argument(
          fmt::format("send_recv: rank {} of {} sends {} bytes to rank {}, which receives another number",
                      rank(), size(), send.bytes(), to));
  }

 private:
  /// A sender and a receiver of an all-to-all whose counts or dtypes differ.
  struct Disagreement {
    int from, to;
    std::int64_t sent, expected;
    DType sent_as, expected_as;
  };
  std::optional<Disagreement> disagreement() const {
    for (int from = 0; from < size(); ++from)
      for (int to = 0; to < size(); ++to) {
        const Disagreement pair{from,
                                to,
                                (*shared_.counts[from].send)[to],
                                (*shared_.counts[to].recv)[from],
                                shared_.buffers[from].dtype,
                                shared_.buffers[to].dtype};
        if (pair.sent != pair.expected || pair.sent_as != pair.expected_as) return pair;
      }
    return std::nullopt;
  }

  /// From here to the last wait of the collective nothing may throw, so memory must be allocated before.
  void publish(const Tensor& buffer) {
    shared_.buffers[rank()] = buffer;
    shared_.open();
  }

  /// `converted`: space for n floats.
  void sum_over_ranks(float* total, std::int64_t first, std::int64_t n, float* converted) {
    for (int r = 0; r < size(); ++r) {
      const float* values = cpu::load(shared_.buffers[r], first, n, converted);
      for (std::int64_t i = 0; i < n; ++i) total[i] = r == 0 ? values[i] : total[i] + values[i];
    }
  }

  Shared& shared_;
};

std::unique_ptr<Comm> Shared::join(int rank, Device&) { return std::make_unique<LocalComm>(*this, rank); }

}  // namespace

std::unique_ptr<CommGroup> make_local_group(int size) { return std::make_unique<Shared>(size); }

}  // namespace precbench
