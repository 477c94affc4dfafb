// Device's handling of the list of ops: accounting, rejection of an unimplemented op, and the dry run.
#include "kernels/device/device.h"

#include "kernels/base/errors.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Implements one op and counts its calls.
class OneOpDevice final : public Device {
 public:
  explicit OneOpDevice(bool executes) : executes_(executes) {}
  std::string name() const override { return "one-op"; }
  GemmSupport support(const GemmRecipe&, GemmRole) const override { return {}; }
  OpSet supported_ops() const override { return bodies_of<OneOpDevice>(); }
  void* allocate(std::int64_t) override { return nullptr; }
  void deallocate(void*) override {}
  void upload(const Tensor&, const void*) override {}
  void download(void*, const Tensor&) override {}
  void synchronize() override {}
  void do_zero(const ops::Zero&) override { ++calls; }

  int calls = 0;

 protected:
  bool executes() const override { return executes_; }

 private:
  bool executes_;
};

class Names final : public OpObserver {
 public:
  void begin(const OpCost& cost) override { begun.push_back(cost.name); }
  void end(const OpCost& cost) override { ended.push_back(cost.name); }
  std::vector<std::string> begun, ended;
};

}  // namespace

TEST_CASE("Device: an op without implementation throws by name and supports is false", "[device]") {
  OneOpDevice device(true);
  CHECK(device.supported_ops().count() == 1);
  CHECK(device.supports(OpKind::zero));
  CHECK_FALSE(device.supports(OpKind::swiglu_backward));
  device.zero({});
  CHECK(device.calls == 1);
  try {
    device.swiglu_backward({});
    FAIL("it ran");
  } catch (const Unsupported& refusal) {
    CHECK(std::string(refusal.what()) == "the one-op device has no swiglu_backward");
  }
}

TEST_CASE("Device: the CPU device supports every op", "[cpu][device]") {
  const auto cpu = make_cpu_device(1);
  for (int kind = 0; kind < kOpKinds; ++kind) {
    INFO(name_of(static_cast<OpKind>(kind)));
    CHECK(cpu->supports(static_cast<OpKind>(kind)));
  }
  CHECK(make_dry_device(cpu.get())->supported_ops() == cpu->supported_ops());
}

TEST_CASE("Device: without execution every op is accounted for and none runs", "[device]") {
  OneOpDevice device(false);
  Names names;
  device.set_observer(&names);
  device.zero({});
  device.swiglu({});
  device.quantize({});  // no output requested
  CHECK(device.calls == 0);
  CHECK(names.begun == std::vector<std::string>{"zero", "swiglu"});
  CHECK(names.ended == names.begun);
}

TEST_CASE("attention cost: counts only visible scores", "[device]") {
  const auto flops = [](const AttentionShape& shape) {
    return ops::Attention{{}, {}, {}, shape}.cost().flops;
  };
  const AttentionShape square{2, 64, 4, 2, 8};
  CHECK(flops(square) == 2.0 * 2 * 4 * 64 * 64 * 8);
  AttentionShape s = square;
  s.T_k = 128, s.offset = 64;  // a triangle of queries after 64 keys that all of them see
  CHECK(flops(s) == 2.0 * 2 * 4 * (2 * 64 * 64 + 64 * 64) * 8);
  s.offset = 1000;  // sees all keys
  CHECK(flops(s) == 2.0 * 2 * 4 * (2 * 64 * 128) * 8);
  s.offset = -64;  // sees no keys
  CHECK(flops(s) == 0);
  // The parts of a sequence add up to the cost of the whole.
  AttentionShape first = square, second = square;
  first.T = second.T = 32;
  first.T_k = second.T_k = 64;
  second.offset = 32;
  CHECK(flops(first) + flops(second) == flops(square));
}
