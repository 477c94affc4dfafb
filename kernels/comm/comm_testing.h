// Helper for tests below bench: ranks as threads, joined by real collectives on the CPU.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/devices.h"

namespace precbench::testing {

/// Runs body(device, comm) on every rank of a new group, each with a single-threaded CPU device. A rank that
/// throws releases the others; of several exceptions the lowest rank's is rethrown.
inline void on_cpu_ranks(int ranks, const std::function<void(Device&, Comm&)>& body) {
  const std::unique_ptr<CommGroup> group = make_local_group(ranks);
  std::vector<std::exception_ptr> errors(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        const std::unique_ptr<Device> device = make_cpu_device(1);
        const std::unique_ptr<Comm> comm = group->join(r, *device);
        body(*device, *comm);
      } catch (...) {
        errors[r] = std::current_exception();
        group->abort();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// Does so for a body that needs no device.
inline void on_ranks(int ranks, const std::function<void(Comm&)>& body) {
  on_cpu_ranks(ranks, [&](Device&, Comm& comm) { body(comm); });
}

}  // namespace precbench::testing
