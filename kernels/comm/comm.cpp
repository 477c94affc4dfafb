// Cost accounting of collectives, and the dry device's Comm.
#include "kernels/comm/comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace precbench {

Comm::Comm(int rank, int size) : rank_(rank), size_(size), members_(size) {
  std::iota(members_.begin(), members_.end(), 0);
}

void Comm::count(const OpCost& cost, double buffer_bytes) {
  std::vector<CollectiveCount>& counts = books_->counts;
  auto entry = std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.name == cost.name; });
  if (entry == counts.end()) entry = counts.insert(entry, CollectiveCount{cost.name});
  ++entry->calls;
  entry->buffer_bytes += buffer_bytes;
  if (buffer_bytes > entry->largest_bytes) {
    entry->largest_bytes = buffer_bytes;
    entry->largest_in = number_;
  }
  entry->wire_bytes += cost.bytes;
}

std::unique_ptr<Comm> Comm::subset(const std::vector<int>& members, Lane lane) {
  const auto self = std::find(members.begin(), members.end(), rank_) - members.begin();
  std::unique_ptr<Comm> comm = do_subset(members, static_cast<int>(self), lane);
  comm->books_ = books_;
  comm->number_ = ++books_->subsets;
  comm->lane_ = lane == Lane::own ? ++books_->lanes : lane_;
  std::transform(members.begin(), members.end(), comm->members_.begin(), [&](int m) { return members_[m]; });
  return comm;
}

template <class Body>
Comm::Ticket Comm::start(const char* name, std::int64_t buffer_bytes, std::int64_t wire_bytes, Body&& body) {
  const OpCost cost{name, OpClass::communication, 0, static_cast<double>(wire_bytes), DType::bf16};
  count(cost, static_cast<double>(buffer_bytes));
  ++started_;
  if (books_->comm_observer)
    books_->comm_observer->started(*this, started_, cost, static_cast<double>(buffer_bytes));
  if (asynchronous()) {
    in_flight_.push_back(cost);
    body();
    return started_;
  }
  if (books_->observer) books_->observer->begin(cost);
  body();
  if (books_->observer) books_->observer->end(cost);
  waited_ = started_;
  return started_;
}

template <class Body>
Comm::Ticket Comm::start_ring(const char* name, const Tensor& buffer, int passes, Body&& body) {
  if (size_ == 1) return 0;
  // Whole bytes: their sums are exact, so predicted and counted bytes agree in any order of addition.
  const std::int64_t wire_bytes = (buffer.bytes() * passes * (size_ - 1) + size_ - 1) / size_;
  return start(name, buffer.bytes(), wire_bytes, body);
}

void Comm::wait(Ticket ticket) {
  if (books_->comm_observer && ticket > told_) books_->comm_observer->waited(*this, ticket);
  told_ = std::max(told_, ticket);
  if (ticket <= waited_) return;
  // Several collectives completed by one wait are reported as the last of them, with the bytes of all.
  const auto end = in_flight_.begin() + static_cast<std::ptrdiff_t>(ticket - waited_);
  OpCost cost = *(end - 1);
  cost.bytes = 0;
  for (auto it = in_flight_.begin(); it != end; ++it) cost.bytes += it->bytes;
  in_flight_.erase(in_flight_.begin(), end);
  if (books_->observer) books_->observer->begin(cost);
  do_wait(ticket);
  if (books_->observer) books_->observer->end(cost);
  waited_ = ticket;
}

/// A sum over ranks in BF16 differs from one in FP32 and has its own name.
Comm::Ticket Comm::start_all_reduce(const Tensor& x) {
  return start_ring(x.dtype == DType::bf16 ? "all_reduce bf16" : "all_reduce", x, 2,
                    [&] { do_all_reduce(x); });
}

Comm::Ticket Comm::start_all_reduce_max(const Tensor& x) {
  return start_ring("all_reduce_max", x, 2, [&] { do_all_reduce_max(x); });
}

Comm::Ticket Comm::start_all_gather(const Tensor& full, const Tensor& shard) {
  return start_ring("all_gather", full, 1, [&] { do_all_gather(full, shard); });
}

Comm::Ticket Comm::start_reduce_scatter(const Tensor& shard, const Tensor& full) {
  return start_ring(full.dtype == DType::bf16 ? "reduce_scatter bf16" : "reduce_scatter", full, 1,
                    [&] { do_reduce_scatter(shard, full); });
}

void Comm::check_counts(const char* verb, const Tensor& buffer,
                        const std::vector<std::int64_t>& counts) const {
  const std::string who = fmt::format("all_to_all: rank {} of {} {}", rank_, size_, verb);
  if (counts.size() != static_cast<std::size_t>(size_))
    throw std::invalid_argument(fmt::format("{} {} counts for {} ranks", who, counts.size(), size_));
  if (const auto bad = std::find_if(counts.begin(), counts.end(), [](auto n) { return n < 0; });
      bad != counts.end())
    throw std::invalid_argument(
        fmt::format("{} {} elements, rank {}'s part", who, *bad, bad - counts.begin()));
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (total != buffer.size())
    throw std::invalid_argument(fmt::format("{} {} elements in a buffer of {}", who, total, buffer.size()));
  if (bits_of(buffer.dtype) % 8 != 0)
    throw std::invalid_argument(fmt::format("{} {}, less than a byte each", who, name_of(buffer.dtype)));
}

void Comm::check_peer(const char* verb, int rank, const Tensor& buffer) const {
  const std::string who = fmt::format("send_recv: rank {} of {} {}", rank_, size_, verb);
  if (rank == kNobody && !buffer.empty())
    throw std::invalid_argument(fmt::format("{} nobody, but has a buffer for it", who));
  if (rank == kNobody) return;
  if (rank < 0 || rank >= size_)
    throw std::invalid_argument(fmt::format("{} rank {}, which is none", who, rank));
  if (rank == rank_) throw std::invalid_argument(fmt::format("{} itself", who));
  if (buffer.empty()) throw std::invalid_argument(fmt::format("{} rank {} without a buffer", who, rank));
}

Comm::Ticket Comm::start_all_to_all(const Tensor& recv, const std::vector<std::int64_t>& recv_counts,
                                    const Tensor& send, const std::vector<std::int64_t>& send_counts) {
  check_counts("receives", recv, recv_counts);
  check_counts("sends", send, send_counts);
  if (recv.dtype != send.dtype || recv_counts[rank_] != send_counts[rank_])
    throw std::invalid_argument(fmt::format("all_to_all: rank {} of {} sends itself {} {} and receives {} {}",
                                            rank_, size_, send_counts[rank_], name_of(send.dtype),
                                            recv_counts[rank_], name_of(recv.dtype)));
  if (size_ == 1) return 0;
  const std::int64_t larger = std::max(recv.size(), send.size());
  return start("all_to_all", bytes_of(send.dtype, larger), bytes_of(send.dtype, larger - send_counts[rank_]),
               [&] { do_all_to_all(recv, recv_counts, send, send_counts); });
}

Comm::Ticket Comm::start_send_recv(const Tensor& recv, int from, const Tensor& send, int to) {
  check_peer("receives from", from, recv);
  check_peer("sends to", to, send);
  if (from == kNobody && to == kNobody) return 0;
  const std::int64_t received = from == kNobody ? 0 : recv.bytes(), sent = to == kNobody ? 0 : send.bytes();
  const std::int64_t larger = std::max(received, sent);
  return start("send_recv", larger, larger, [&] { do_send_recv(recv, from, send, to); });
}

namespace {

class DryComm final : public Comm {
 public:
  DryComm(int rank, int size) : Comm(rank, size) {}
  std::string name() const override { return "dry"; }

 protected:
  std::unique_ptr<Comm> do_subset(const std::vector<int>& members, int self, Lane) override {
    return std::make_unique<DryComm>(self, static_cast<int>(members.size()));
  }
  void do_all_reduce(const Tensor&) override {}
  void do_all_reduce_max(const Tensor&) override {}
  void do_all_gather(const Tensor&, const Tensor&) override {}
  void do_reduce_scatter(const Tensor&, const Tensor&) override {}
  void do_all_to_all(const Tensor&, const std::vector<std::int64_t>&, const Tensor&,
                     const std::vector<std::int64_t>&) override {}
  void do_send_recv(const Tensor&, int, const Tensor&, int) override {}
};

}  // namespace

std::unique_ptr<Comm> make_dry_comm(int rank, int size) { return std::make_unique<DryComm>(rank, size); }

}  // namespace precbench
