// Collectives with known sums. See check_collectives.h.
#include "kernels/checks/check_collectives.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "kernels/checks/host_tensors.h"
#include "kernels/device/buffers.h"

namespace precbench::checks {
namespace {

/// Rank r's element i: an integer in [0, 8), so that the sum of 32 ranks is exact in BF16.
float contribution(int rank, std::int64_t i) {
  return static_cast<float>(random_bits(static_cast<std::uint64_t>(rank) + 1, static_cast<std::uint64_t>(i)) %
                            8);
}

float sum_of(int ranks, std::int64_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += contribution(r, i);
  return sum;
}

/// A rank's buffers, and its count of wrong elements by check.
class RankCheck {
 public:
  RankCheck(Device& device, Comm& comm, std::int64_t elements)
      : device_(device), comm_(comm), buffers_(device), elements_(elements) {}

  std::int64_t all_reduce(DType dtype) {
    const Tensor x = given(dtype, elements_, [&](std::int64_t i) { return contribution(comm_.rank(), i); });
    comm_.all_reduce(x);
    return wrong(x, [&](std::int64_t i) { return sum_of(comm_.size(), i); });
  }
  std::int64_t all_gather(DType dtype) {
    const std::int64_t part = elements_ / comm_.size();
    const Tensor full = given(dtype, elements_, [](std::int64_t) { return -1.0f; });
    const Tensor shard = given(dtype, part, [&](std::int64_t i) { return contribution(comm_.rank(), i); });
    comm_.all_gather(full, shard);
    return wrong(full, [&](std::int64_t i) { return contribution(static_cast<int>(i / part), i % part); });
  }
  std::int64_t reduce_scatter(DType dtype) {
    const std::int64_t part = elements_ / comm_.size();
    const Tensor full =
        given(dtype, elements_, [&](std::int64_t i) { return contribution(comm_.rank(), i); });
    const Tensor shard = given(dtype, part, [](std::int64_t) { return -1.0f; });
    comm_.reduce_scatter(shard, full);
    return wrong(shard, [&](std::int64_t i) { return sum_of(comm_.size(), comm_.rank() * part + i); });
  }
  std::int64_t all_to_all(DType dtype) {
    const std::int64_t part = elements_ / comm_.size();
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(comm_.size()), part);
    const Tensor send =
        given(dtype, elements_, [&](std::int64_t i) { return contribution(comm_.rank(), i); });
    const Tensor recv = given(dtype, elements_, [](std::int64_t) { return -1.0f; });
    comm_.all_to_all(recv, counts, send, counts);
    return wrong(recv, [&](std::int64_t i) {
      return contribution(static_cast<int>(i / part), comm_.rank() * part + i % part);
    });
  }
  std::int64_t pair(int from, int to) {
    const Tensor x = given(DType::f32, elements_, [&](std::int64_t i) {
      return comm_.rank() == from ? contribution(from, i) : -1.0f;
    });
    if (comm_.rank() == from) comm_.send(x, to);
    if (comm_.rank() != to) return 0;
    comm_.recv(x, from);
    return wrong(x, [&](std::int64_t i) { return contribution(from, i); });
  }

 private:
  template <class Value>
  Tensor given(DType dtype, std::int64_t count, Value&& value) {
    HostMemory host;
    const Tensor t = host.tensor(dtype, 1, count);
    for (std::int64_t i = 0; i < count; ++i) HostMemory::set(t, i, value(i));
    return buffers_.copy_of(t);
  }
  template <class Value>
  std::int64_t wrong(const Tensor& x, Value&& value) {
    HostMemory host;
    const Tensor t = host.tensor(x.dtype, 1, x.size());
    device_.download(t.data, x);
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < t.size(); ++i) count += HostMemory::get(t, i) != value(i);
    return count;
  }

  Device& device_;
  Comm& comm_;
  Buffers buffers_;
  std::int64_t elements_;
};

Finding finding_of(const std::string& path, const std::string& what, std::int64_t wrong) {
  return {path, what, wrong == 0 ? "equal" : fmt::format("{} elements differ", wrong), wrong == 0};
}

}  // namespace

void run_ranks(int ranks, CommGroup& group, const MakeRankDevice& make_device,
               const std::function<void(Device&, Comm&)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        const std::unique_ptr<Device> device = make_device(r);
        const std::unique_ptr<Comm> comm = group.join(r, *device);
        body(*device, *comm);
      } catch (...) {
        errors[static_cast<std::size_t>(r)] = std::current_exception();
        group.abort();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

Findings check_collectives(int ranks, CommGroup& group, const MakeRankDevice& make_device,
                           std::int64_t elements) {
  if (ranks < 2) return {};
  struct Check {
    const char* name;
    std::int64_t (RankCheck::*run)(DType);
    std::atomic<std::int64_t> wrong = 0;
  };
  Check checks[] = {{"all-reduce", &RankCheck::all_reduce},
                    {"all-gather", &RankCheck::all_gather},
                    {"reduce-scatter", &RankCheck::reduce_scatter},
                    {"all-to-all", &RankCheck::all_to_all}};
  std::vector<std::atomic<std::int64_t>> pairs(static_cast<std::size_t>(ranks * ranks));
  run_ranks(ranks, group, make_device, [&](Device& device, Comm& comm) {
    RankCheck rank(device, comm, elements);
    for (Check& check : checks)
      for (const DType dtype : {DType::f32, DType::bf16}) check.wrong += (rank.*check.run)(dtype);
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to)
        if (from != to) pairs[static_cast<std::size_t>(from * ranks + to)] += rank.pair(from, to);
  });
  Findings findings;
  for (const Check& check : checks)
    findings.push_back(finding_of(
        check.name, fmt::format("{} ranks, {} elements, f32 and bf16", ranks, elements), check.wrong));
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to)
      if (from != to)
        findings.push_back(finding_of(fmt::format("copy {} to {}", from, to),
                                      fmt::format("{} elements", elements),
                                      pairs[static_cast<std::size_t>(from * ranks + to)]));
  return findings;
}

}  // namespace precbench::checks
