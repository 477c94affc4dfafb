// One rank's memory: a stack arena with every byte counted in a named segment.
//
// A training step allocates in stack order: forward pushes what backward needs, backward pops it. The arena
// is therefore one block with a bump pointer. Allocation costs nothing, and addresses repeat from step to
// step, so a captured CUDA graph stays valid. The dry run makes the same calls and knows the peak to the
// byte: the real run requests that capacity.
//
// The gradient buffer may overlay the stack. It sits at the end of the block, and backward fills it from its
// end (the head) to its start (the first block); until then its low part is free for the stack. See
// overlay_gradients.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/numerics/tensor.h"

namespace precbench {

enum class Segment : std::uint8_t {
  weights,            ///< BF16 compute weights (under FSDP a shard, plus those that stay gathered)
  quantized_weights,  ///< weights in a recipe's quantized formats
  master,             ///< FP32 master weights
  gradients,
  moments,
  activations,    ///< tensors that forward keeps for backward, and all temporary activations
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
  /// Alignment of every allocation in bytes (cuBLASLt wants 256 for workspaces, 16 for operands).
  static constexpr std::int64_t kAlignment = 256;

  /// `base` may be a fake address (dry device); capacity in bytes.
  Arena(void* base, std::int64_t capacity) : base_(static_cast<std::byte*>(base)), capacity_(capacity) {}

  /// Returns a tensor on top of the stack with undefined contents. Throws OutOfMemory beyond the capacity.
  Tensor push(Segment segment, DType dtype, std::int64_t rows, std::int64_t cols);
  /// Like push, for allocations outside a training step (saving weights, probing collectives). They are not
  /// counted, so that the step's accounts stay correct.
  Tensor push_uncounted(DType dtype, std::int64_t rows, std::int64_t cols);

  /// Returns a tensor at the end of the block whose bytes count only once committed; one per arena.
  /// commit_gradients puts its elements from first_element to the end into use. The committed part only
  /// grows, until release_gradients returns all of it to the stack.
  Tensor overlay_gradients(DType dtype, std::int64_t elements);
  void commit_gradients(std::int64_t first_element);
  void release_gradients();

  struct Mark {
    std::size_t allocations;
  };
  Mark mark() const { return {stack_.size()}; }
  /// Pops everything pushed after `mark`.
  void release(Mark mark);

  /// Restarts peak() and highest() from the current use; peak_extent() stays.
  void restart_accounts() { peak_ = highest_ = current_; }

  MemoryUse current() const { return current_; }
  /// Returns the use by segment at the moment of largest total use.
  MemoryUse peak() const { return peak_; }
  /// Returns each segment's own maximum.
  MemoryUse highest() const { return highest_; }
  /// Returns the bytes of block that the run needs: the capacity with which a repetition fits exactly.
  std::int64_t peak_extent() const { return peak_extent_; }

 private:
  struct Allocation {
    Segment segment;
    std::int64_t bytes;
    bool counted;
  };
  /// Takes `bytes` from the top of the stack for `what` (named in the error).
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

/// Pops everything pushed inside a block when the block is left.
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
