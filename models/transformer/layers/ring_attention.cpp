// Ring attention (Liu et al. 2023, arXiv:2310.01889) over sequences that several ranks share. Each rank keeps its queries,
// and the keys and values of one rank after another pass by: while attention runs with those that are there, the next ones
// are on their way. Outputs of the parts are merged in FP32 by their log sum exp. In backward, gradients of keys and values
// follow them around the ring, in the activations' dtype, and end where the keys are; those of queries are summed in FP32.
//
// A half of the queries sees all keys of a chunk before it, none of a chunk behind it, and its own chunk causally. With the
// chunks of sequence_part.h every rank computes two pairs of a half and a chunk per hop, and three of its own.
#include <algorithm>
#include <utility>
#include <vector>

#include "models/transformer/layers/attention_layer.h"
#include "models/transformer/layers/query_half.h"

namespace precbench {
namespace {

/// Rows that every rank has of its keys, [M, kv_width], and that move on to the next rank.
class PassedRows {
 public:
  explicit PassedRows(const StepContext& step, DType dtype)
      : comm_(*step.parameters.groups().context.comm),
        held_(step.push(dtype, step.M, step.attention_shape.kv_width())),
        coming_(step.push(dtype, step.M, step.attention_shape.kv_width())) {}

  const Tensor& held() const { return held_; }
  /// Returns the rows of the early or the late chunk.
  Tensor chunk(int number) const { return held_.slice_rows(number * held_.rows / 2, held_.rows / 2); }
  /// Starts to send the rows to the next rank, and to receive those of the one before.
  void pass() {
    const int rank = comm_.rank(), ranks = comm_.size();
    ticket_ = comm_.start_send_recv(coming_, (rank + ranks - 1) % ranks, held_, (rank + 1) % ranks);
  }
  /// Waits for them, if pass() was called.
  void arrive() {
    if (ticket_ == 0) return;
    comm_.wait(std::exchange(ticket_, 0));
    std::swap(held_, coming_);
  }

 private:
  Comm& comm_;
  Tensor held_, coming_;
  Comm::Ticket ticket_ = 0;
};

/// The keys and values of all ranks, one rank's at a time, this rank's own first.
class KeyRing {
 public:
  KeyRing(const StepContext& step, const Tensor& qkv) : step_(step), rows_(step, qkv.dtype) {
    step.device.copy_columns({rows_.held(), step.attention_shape.q_width(), qkv});
    pass();
  }

  bool at_end() const { return hop_ == step_.sequence.parts; }
  void next() {
    rows_.arrive();
    ++hop_;
    pass();
  }
  Tensor chunk(int number) const { return rows_.chunk(number); }
  /// Returns the part of each sequence that these keys are.
  SequencePart part() const {
    SequencePart part = step_.sequence;
    part.index = (part.index + part.parts - hop_) % part.parts;
    return part;
  }

 private:
  void pass() {
    if (hop_ + 1 < step_.sequence.parts) rows_.pass();
  }

  const StepContext& step_;
  PassedRows rows_;
  int hop_ = 0;
};

/// A half of this rank's queries and a chunk of keys that it sees.
struct SeenChunk {
  QueryHalf half;
  int chunk;
  AttentionShape shape;
  DocumentMask documents;

  /// Returns true if the keys are those of the queries' own positions.
  bool own() const { return shape.offset == 0; }
};

/// Returns the pairs of halves and chunks of the keys' part. A half's own chunk comes first, and first of those that see it.
std::vector<SeenChunk> seen_chunks(const StepContext& step, std::int64_t layer, const SequencePart& keys) {
  std::vector<SeenChunk> seen;
  for (const int number : {0, 1})
    for (const int chunk : {1, 0}) {
      const QueryHalf half(step, layer, number);
      AttentionShape shape = half.shape;
      shape.T_k = shape.T;
      shape.offset = half.start - keys.start(chunk);
      if (shape.offset < 0) continue;
      if (shape.window > 0 && shape.offset - shape.T + 1 >= shape.window) continue;
      if (shape.window == 0)
        shape.offset = std::min(shape.offset, shape.T);  // all keys: one shape for all such chunks
      DocumentMask documents = half.documents();
      documents.key_start = keys.start(chunk);
      seen.push_back({half, chunk, shape, documents});
    }
  return seen;
}

}  // namespace

void AttentionLayer::attend_ring(std::int64_t layer, const Tensor& out, const Tensor& lse,
                                 const Tensor& qkv) const {
  const AttentionShape& shape = step_.attention_shape;
  const Scope scope(step_.arena);
  const Tensor sum = step_.push(DType::f32, step_.M, shape.out_width()),
               part = step_.push(out.dtype, shape.tokens(), shape.out_width()),
               part_lse = step_.push(DType::f32, shape.heads, shape.tokens());
  for (KeyRing keys(step_, qkv); !keys.at_end(); keys.next())
    for (const SeenChunk& seen : seen_chunks(step_, layer, keys.part())) {
      const QueryHalf& half = seen.half;
      step_.device.attention({.out = {.value = part},
                              .lse = seen.own() ? half.lse_of(lse) : part_lse,
                              .qkv = half.rows_of(qkv),
                              .shape = seen.shape,
                              .kv = keys.chunk(seen.chunk),
                              .documents = seen.documents});
      if (seen.own())
        step_.device.convert({half.rows_of(sum), part});
      else
        step_.device.merge_attention({half.rows_of(sum), half.lse_of(lse), part, part_lse, seen.shape});
    }
  step_.device.convert({out, sum});
}

void AttentionLayer::attend_ring_backward(std::int64_t layer, const Tensor& dqkv, const Tensor& dout,
                                          const AttentionSaved& saved, const Tensor& qkv) const {
  const AttentionShape& shape = step_.attention_shape;
  const Scope scope(step_.arena);
  // Rows of queries, keys and values, as the op takes them; the columns of keys and values stay 0.
  const Tensor sum = step_.push(DType::f32, step_.M, shape.qkv_width()),
               part = step_.push(dqkv.dtype, shape.tokens(), shape.qkv_width()),
               key_part = step_.push(qkv.dtype, shape.tokens(), shape.kv_width());
  step_.device.zero({part});
  PassedRows gradients(step_, qkv.dtype);
  for (KeyRing keys(step_, qkv); !keys.at_end(); keys.next()) {
    for (const SeenChunk& seen : seen_chunks(step_, layer, keys.part())) {
      const QueryHalf& half = seen.half;
      step_.device.attention_backward({.dqkv = part,
                                       .dout = half.rows_of(dout),
                                       .out = half.rows_of(saved.attention),
                                       .lse = half.lse_of(saved.lse),
                                       .qkv = half.rows_of(qkv),
                                       .shape = seen.shape,
                                       .kv = keys.chunk(seen.chunk),
                                       .dkv = seen.own() ? gradients.chunk(seen.chunk) : key_part,
                                       .documents = seen.documents});
      if (seen.own()) {
        step_.device.convert({half.rows_of(sum), part});
        continue;
      }
      step_.device.add({half.rows_of(sum), part});
      gradients.arrive();
      step_.device.add({gradients.chunk(seen.chunk), key_part});
    }
    gradients.arrive();  // also those of keys that nothing sees
    gradients.pass();
  }
  gradients.arrive();
  step_.device.convert({dqkv, sum});
  step_.device.copy_columns({dqkv, shape.q_width(), gradients.held()});
}

}  // namespace precbench
