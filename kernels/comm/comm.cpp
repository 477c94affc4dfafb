// What the collectives cost, and the comm of the dry device.
#include "kernels/comm/comm.h"

#include <algorithm>

namespace precbench {

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

std::unique_ptr<Comm> Comm::subset(const std::vector<int>& members) {
  const auto self = std::find(members.begin(), members.end(), rank_) - members.begin();
  std::unique_ptr<Comm> comm = do_subset(members, static_cast<int>(self));
  comm->books_ = books_;
  comm->number_ = ++books_->subsets;
  return comm;
}

template <class Body>
Comm::Ticket Comm::start(const char* name, const Tensor& buffer, int passes, Body&& body) {
  if (size_ == 1) return 0;
  // Whole bytes: their sums are exact, so that what is predicted and what is counted agree in any order.
  const std::int64_t wire_bytes = (buffer.bytes() * passes * (size_ - 1) + size_ - 1) / size_;
  const OpCost cost{name, OpClass::communication, 0, static_cast<double>(wire_bytes), DType::bf16};
  count(cost, static_cast<double>(buffer.bytes()));
  ++started_;
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

void Comm::wait(Ticket ticket) {
  if (ticket <= waited_) return;
  // Several that are waited for at once show as the last of them, with the bytes of all.
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

Comm::Ticket Comm::start_all_reduce(const Tensor& x) {
  return start("all_reduce", x, 2, [&] { do_all_reduce(x); });
}

Comm::Ticket Comm::start_all_reduce_max(const Tensor& x) {
  return start("all_reduce_max", x, 2, [&] { do_all_reduce_max(x); });
}

Comm::Ticket Comm::start_all_gather(const Tensor& full, const Tensor& shard) {
  return start("all_gather", full, 1, [&] { do_all_gather(full, shard); });
}

Comm::Ticket Comm::start_reduce_scatter(const Tensor& shard, const Tensor& full) {
  return start("reduce_scatter", full, 1, [&] { do_reduce_scatter(shard, full); });
}

namespace {

class DryComm final : public Comm {
 public:
  DryComm(int rank, int size) : Comm(rank, size) {}
  std::string name() const override { return "dry"; }

 protected:
  std::unique_ptr<Comm> do_subset(const std::vector<int>& members, int self) override {
    return std::make_unique<DryComm>(self, static_cast<int>(members.size()));
  }
  void do_all_reduce(const Tensor&) override {}
  void do_all_reduce_max(const Tensor&) override {}
  void do_all_gather(const Tensor&, const Tensor&) override {}
  void do_reduce_scatter(const Tensor&, const Tensor&) override {}
};

}  // namespace

std::unique_ptr<Comm> make_dry_comm(int rank, int size) { return std::make_unique<DryComm>(rank, size); }

}  // namespace precbench
