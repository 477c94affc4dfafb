// The books of the collectives, and the comm of the dry device.
#include "kernels/comm/comm.h"

namespace precbench {

template <class Body>
void Comm::run(const char* name, const Tensor& buffer, int passes, Body&& body) {
  if (size_ == 1) return;
  const double bytes = static_cast<double>(buffer.bytes()) * passes * (size_ - 1) / size_;
  bytes_sent_ += bytes;
  const OpCost cost{name, OpClass::communication, 0, bytes, DType::bf16};
  if (observer_) observer_->begin(cost);
  body();
  if (observer_) observer_->end(cost);
}

void Comm::all_reduce(const Tensor& x) {
  run("all_reduce", x, 2, [&] { do_all_reduce(x); });
}

void Comm::all_gather(const Tensor& full, const Tensor& shard) {
  run("all_gather", full, 1, [&] { do_all_gather(full, shard); });
}

void Comm::reduce_scatter(const Tensor& shard, const Tensor& full) {
  run("reduce_scatter", full, 1, [&] { do_reduce_scatter(shard, full); });
}

namespace {

class DryComm final : public Comm {
 public:
  DryComm(int rank, int size) : Comm(rank, size) {}
  std::string name() const override { return "dry"; }

 protected:
  void do_all_reduce(const Tensor&) override {}
  void do_all_gather(const Tensor&, const Tensor&) override {}
  void do_reduce_scatter(const Tensor&, const Tensor&) override {}
};

}  // namespace

std::unique_ptr<Comm> make_dry_comm(int rank, int size) { return std::make_unique<DryComm>(rank, size); }

}  // namespace precbench
