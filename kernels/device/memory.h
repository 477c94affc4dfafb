// One rank's memory: an arena that is a stack, with every byte counted in a named segment.
//
// A training step allocates like a stack by nature: forward pushes what backward needs, backward pops it. So
// the arena is one block with a bump pointer. Allocation costs nothing, addresses repeat from step to step (a
// captured CUDA graph stays valid), and the dry run, which makes the same calls, knows the peak to the byte:
// that peak is the capacity the real run asks its device for.
//
// The gradient buffer may overlay the stack: it sits at the end of the block, backward fills it from its end (the
// head) to its start (the first block), and until then its low part is free for the stack. See overlay_gradients.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/numerics/tensor.h"

namespace precbench {

enum class Segment : std::uint8_t {
  weights,            ///< BF16 compute weights (a shard of them under FSDP, or all that stay gathered)
  quantized_weights,  ///< weights in a recipe's forms
  master,             ///< FP32 master weights
  gradients,
  moments,
  activations,    ///< what forward keeps for backward, and every transient activation
  workspace,      ///< scratch of libraries and kernels
  communication,  ///< gather and reduce buffers
  other,
};
inline constexpr int kSegments = 9;
const char* name_of(Segment segment);

/// Bytes by segment at one moment.
struct MemoryUse {
  std::array<std::int64_t, kSegments> bytes{};
  std::int64_t total() const;
};

class Arena {
 public:
  /// Every allocation starts at a multiple of this (cuBLASLt wants 256 for workspaces, 16 for operands).
  static constexpr std::int64_t kAlignment = 256;

  /// `base` may be a fake address (dry device); capacity in bytes.
  Arena(void* base, std::int64_t capacity) : base_(static_cast<std::byte*>(base)), capacity_(capacity) {}

  /// A tensor on top of the stack, contents undefined. Throws OutOfMemory beyond the capacity.
  Tensor push(Segment segment, DType dtype, std::int64_t rows, std::int64_t cols);
  /// The same for what is no part of a training step (saving weights, probing collectives): it is not
  /// counted, so that the accounts of the step stay true.
  Tensor push_uncounted(DType dtype, std::int64_t rows, std::int64_t cols);

  /// A tensor at the end of the block whose bytes count only once committed; one per arena. commit_gradients
  /// takes its elements from first_element to the end into use; what is committed only grows, until
  /// release_gradients leaves all of it to the stack.
  Tensor overlay_gradients(DType dtype, std::int64_t elements);
  void commit_gradients(std::int64_t first_element);
  void release_gradients();

  struct Mark {
    std::size_t allocations;
  };
  Mark mark() const { return {stack_.size()}; }
  /// Pops everything pushed after `mark`.
  void release(Mark mark);

  /// peak() and highest() begin anew with what is in use now; peak_extent() stays.
  void restart_accounts() { peak_ = highest_ = current_; }

  MemoryUse current() const { return current_; }
  /// The moment of largest total use, by segment.
  MemoryUse peak() const { return peak_; }
  /// Every segment at its own highest.
  MemoryUse highest() const { return highest_; }
  /// Bytes of block that the run needs: the capacity with which a repetition fits exactly.
  std::int64_t peak_extent() const { return peak_extent_; }

 private:
  struct Allocation {
    Segment segment;
    std::int64_t bytes;
    bool counted;
  };
  /// The top of the stack, `bytes` of it; `what` they are for.
  std::byte* take(const char* what, std::int64_t bytes);
  void account(Segment segment, std::int64_t bytes);

  std::byte* base_;
  std::int64_t capacity_;
  std::int64_t top_ = 0;        // bytes of stack in use
  std::int64_t overlay_ = 0;    // bytes of the gradient buffer
  std::int64_t committed_ = 0;  // bytes of it in use, counted from the end
  int overlay_element_bits_ = 32;
  std::int64_t peak_extent_ = 0;
  std::vector<Allocation> stack_;
  MemoryUse current_, peak_, highest_;
};

/// Pops, on leaving a block, everything pushed inside it.
class Scope {
 public:
  explicit Scope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~Scope() { arena_.release(mark_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace precbench
