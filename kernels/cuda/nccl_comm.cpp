// Collectives between GPUs through NCCL: one communicator per rank, with its own stream next to the device's,
// synchronized by events. During capture the events become edges of the graph, so everything started in a
// step must be waited for in it.
//
// Compiled into the CUDA part of the build; NCCL reads NCCL_* from the environment itself.
#include <fmt/format.h>

#include "kernels/base/errors.h"
#include "kernels/comm/comm.h"
#include "kernels/gpu/device_info.h"

#ifdef PRECBENCH_HAS_NCCL
#include <nccl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"

namespace precbench {

inline void check(ncclResult_t status, const char* call, const char* operation) {
  if (status == ncclSuccess) return;
  const std::string detail = ncclGetLastError(nullptr);
  throw_library_error("NCCL", status,
                      (ncclGetErrorString(status) + (detail.empty() ? "" : ": " + detail)).c_str(), call,
                      operation);
}

namespace {

constexpr const char* kAnotherFailed = "another rank failed";
/// Time that an abort waits for ranks to leave NCCL calls by themselves: enqueueing takes microseconds.
constexpr std::chrono::seconds kCallPatience(2);

/// The communicators of a process, so that a failing rank can end the others' waits. Aborting frees a
/// communicator, so no rank may start to use one afterwards, and an abort begins when no rank uses one.
/// Exception: a rank blocked inside an NCCL call, which only the abort releases.
class Registry {
 public:
  void add(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    if (aborted_) {
      ncclCommAbort(comm);
      throw std::runtime_error(kAnotherFailed);
    }
    comms_.insert(comm);
  }
  void remove(ncclComm_t comm) {
    {
      const std::lock_guard lock(mutex_);
      if (!comms_.erase(comm)) return;
    }
    ncclCommDestroy(comm);  // collective over the process's ranks, so without the lock
  }
  void abort() {
    std::unique_lock lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, kCallPatience, [&] { return calls_ == 0; });
    const std::set<ncclComm_t> comms = std::move(comms_);
    comms_.clear();
    lock.unlock();  // a rank released by the abort leaves its call
    for (ncclComm_t comm : comms) ncclCommAbort(comm);
  }
  /// Waits until every rank of this process has arrived: from then on none can fail before NCCL's own
  /// rendezvous, where the others could not be notified.
  void meet(int ranks) {
    std::unique_lock lock(mutex_);
    ++here_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return aborted_ || here_ >= ranks; });
    if (aborted_) throw std::runtime_error(kAnotherFailed);
  }

  /// Guard of a rank's use of a communicator. Throws if the communicators have been aborted.
  class Call {
   public:
    explicit Call(Registry& registry) : registry_(registry) {
      const std::lock_guard lock(registry_.mutex_);
      if (registry_.aborted_) throw std::runtime_error(kAnotherFailed);
      ++registry_.calls_;
    }
    ~Call() {
      const std::lock_guard lock(registry_.mutex_);
      --registry_.calls_;
      registry_.changed_.notify_all();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Registry& registry_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<ncclComm_t> comms_;
  int here_ = 0, calls_ = 0;
  bool aborted_ = false;
};

/// Stream of a lane of a rank's collectives: those of its communicator and of the subsets that share the lane
/// are ordered.
class CommStream {
 public:
  explicit CommStream(CudaDevice& device) : device_(device) {
    // High priority: a collective that waits for SM resources makes every rank wait.
    int lowest = 0, highest = 0;
    PRECBENCH_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    PRECBENCH_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
    PRECBENCH_CHECK(cudaEventCreateWithFlags(&device_moment_, cudaEventDisableTiming));
    for (cudaEvent_t& event : marks_)
      PRECBENCH_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  ~CommStream() {
    cudaEventDestroy(device_moment_);
    for (cudaEvent_t event : marks_) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
  }
  CommStream(const CommStream&) = delete;
  CommStream& operator=(const CommStream&) = delete;

  cudaStream_t get() const { return stream_; }
  CudaDevice& device() const { return device_; }

  /// Makes later work on the stream wait for the device's ops so far.
  void follow_device() {
    PRECBENCH_CHECK(cudaEventRecord(device_moment_, device_.stream()));
    PRECBENCH_CHECK(cudaStreamWaitEvent(stream_, device_moment_, 0));
  }
  /// Records an event after the stream's work so far and returns its number.
  std::uint64_t mark() {
    PRECBENCH_CHECK(cudaEventRecord(marks_[++marked_ % marks_.size()], stream_));
    return marked_;
  }
  /// Makes the device's later ops wait for that event. Events are reused in turn: one that was reused is
  /// replaced by the oldest remaining, which is later and therefore safe.
  void hold_device(std::uint64_t moment) {
    if (marked_ - moment >= marks_.size()) moment = marked_ - marks_.size() + 1;
    PRECBENCH_CHECK(cudaStreamWaitEvent(device_.stream(), marks_[moment % marks_.size()], 0));
  }

 private:
  CudaDevice& device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t device_moment_ = nullptr;
  std::array<cudaEvent_t, 64> marks_{};
  std::uint64_t marked_ = 0;
};

ncclDataType_t nccl_type(DType dtype) {
  if (dtype == DType::f32) return ncclFloat32;
  if (dtype == DType::bf16) return ncclBfloat16;
  throw std::logic_error("a sum over ranks of neither f32 nor bf16");
}

class NcclComm final : public Comm {
 public:
  NcclComm(int rank, int size, ncclComm_t comm, std::shared_ptr<CommStream> stream,
           std::shared_ptr<Registry> registry)
      : Comm(rank, size), comm_(comm), stream_(std::move(stream)), registry_(std::move(registry)) {
    registry_->add(comm_);
  }
  ~NcclComm() override {
    cudaStreamSynchronize(stream_->get());
    registry_->remove(comm_);
  }

  std::string name() const override {
    int version = 0;
    PRECBENCH_CHECK(ncclGetVersion(&version));
    return fmt::format("nccl {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
  }

  void replay(const std::function<void()>& launch) override {
    const Registry::Call call(*registry_);
    launch();
  }

 protected:
  bool asynchronous() const override { return true; }

  std::unique_ptr<Comm> do_subset(const std::vector<int>& members, int self, Lane lane) override {
    // Disjoint sets differ in their first member.
    ncclComm_t part = nullptr;
    const Registry::Call call(*registry_);
    PRECBENCH_CHECK(ncclCommSplit(comm_, members.front(), self, &part, nullptr));
    auto stream = lane == Lane::own ? std::make_shared<CommStream>(stream_->device()) : stream_;
    return std::make_unique<NcclComm>(self, static_cast<int>(members.size()), part, std::move(stream),
                                      registry_);
  }

  void do_wait(Ticket ticket) override { stream_->hold_device(moments_[ticket % moments_.size()]); }

  void do_all_reduce(const Tensor& x) override {
    run("all_reduce", [&] {
      return ncclAllReduce(x.data, x.data, x.size(), nccl_type(x.dtype), ncclSum, comm_, stream_->get());
    });
  }
  void do_all_reduce_max(const Tensor& x) override {
    // NCCL's float maximum drops NaNs. The bits of non-negative floats order like the floats, with NaN last.
    run("all_reduce_max",
        [&] { return ncclAllReduce(x.data, x.data, x.size(), ncclUint32, ncclMax, comm_, stream_->get()); });
  }
  void do_all_gather(const Tensor& full, const Tensor& shard) override {
    run("all_gather", [&] {
      return ncclAllGather(shard.data, full.data, shard.bytes(), ncclUint8, comm_, stream_->get());
    });
  }
  void do_reduce_scatter(const Tensor& shard, const Tensor& full) override {
    run("reduce_scatter", [&] {
      return ncclReduceScatter(full.data, shard.data, shard.size(), nccl_type(shard.dtype), ncclSum, comm_,
                               stream_->get());
    });
  }
  void do_all_to_all(const Tensor& recv, const std::vector<std::int64_t>& recv_counts, const Tensor& send,
                     const std::vector<std::int64_t>& send_counts) override {
    run_group("all_to_all", [&] {
      std::int64_t sent = 0, received = 0;
      for (int r = 0; r < size(); ++r) {
        if (send_counts[r] > 0) start_send(send.elements(sent, send_counts[r]), r);
        if (recv_counts[r] > 0) start_recv(recv.elements(received, recv_counts[r]), r);
        sent += send_counts[r];
        received += recv_counts[r];
      }
    });
  }
  void do_send_recv(const Tensor& recv, int from, const Tensor& send, int to) override {
    run_group("send_recv", [&] {
      if (to != kNobody) start_send(send, to);
      if (from != kNobody) start_recv(recv, from);
    });
  }

 private:
  void start_send(const Tensor& x, int to) {
    check(ncclSend(x.data, x.bytes(), ncclUint8, to, comm_, stream_->get()), "ncclSend", "a group");
  }
  void start_recv(const Tensor& x, int from) {
    check(ncclRecv(x.data, x.bytes(), ncclUint8, from, comm_, stream_->get()), "ncclRecv", "a group");
  }
  /// Runs sends and receives as one NCCL group.
  template <class Body>
  void run_group(const char* name, Body&& body) {
    run(name, [&] {
      check(ncclGroupStart(), "ncclGroupStart", name);
      try {
        body();
      } catch (...) {
        ncclGroupEnd();
        throw;
      }
      return ncclGroupEnd();
    });
  }

  template <class Body>
  void run(const char* name, Body&& body) {
    const Registry::Call call(*registry_);
    stream_->follow_device();
    check(body(), "the collective", name);
    moments_[started() % moments_.size()] = stream_->mark();
  }

  ncclComm_t comm_;
  std::shared_ptr<CommStream> stream_;
  std::shared_ptr<Registry> registry_;
  std::array<std::uint64_t, 64> moments_{};  // recorded on the stream, for the latest tickets
};

class NcclGroup final : public CommGroup {
 public:
  NcclGroup(int size, int local) : size_(size), local_(local) {
    if (local < size && !std::getenv("NCCL_COMM_ID"))
      throw InvalidInput("NCCL_COMM_ID: set it to host:port of the first process, the same for all of them");
    PRECBENCH_CHECK(ncclGetUniqueId(&id_));
  }

  void abort() override { registry_->abort(); }

  std::unique_ptr<Comm> join(int rank, Device& device) override {
    auto& cuda = dynamic_cast<CudaDevice&>(device);
    registry_->meet(local_);
    ncclComm_t comm = nullptr;
    PRECBENCH_CHECK(ncclCommInitRank(&comm, size_, id_, rank));
    return std::make_unique<NcclComm>(rank, size_, comm, std::make_shared<CommStream>(cuda), registry_);
  }

 private:
  int size_, local_;
  ncclUniqueId id_{};
  std::shared_ptr<Registry> registry_ = std::make_shared<Registry>();
};

}  // namespace

std::unique_ptr<CommGroup> make_gpu_group(int size, int local) {
  return std::make_unique<NcclGroup>(size, local);
}

}  // namespace precbench

#else

namespace precbench {

std::unique_ptr<CommGroup> make_gpu_group(int, int) {
  throw Unsupported("several GPUs: this build has no NCCL; configure where nccl.h and libnccl are found");
}

}  // namespace precbench

#endif
