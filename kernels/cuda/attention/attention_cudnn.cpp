// Attention through cuDNN's graph API (cudnn-frontend, header only): one SDPA node forward, one backward,
// BF16 with FP32 arithmetic inside, causal, with a window if the shape has one, or over all keys (cudnn_mask). Keys that no
// query sees are left out of the views; their gradients are cleared.
//
// Q, K, V are strided views of the fused rows [q heads | k heads | v heads], and dQ, dK, dV of the fused
// gradient, so nothing is split, transposed or repeated: cuDNN takes dimensions [B, heads, T, head_dim] with
// any strides whose last is 1, values of another width than keys, and groups query heads over K and V heads itself. Its statistics are max +
// ln(sum of exp) of the scaled scores, packed [B, heads, T, 1]: the layout of `lse` (cudnn-frontend, softmax
// node).
//
// A graph execution launches kernels on the handle's stream and allocates nothing, so it can be captured. If
// T is not a multiple of 128, cuDNN up to 9.15 masks the tail by lengths that the frontend copies in from
// host memory, which it keeps alive for as long as a captured graph needs it.
#include "kernels/cuda/attention/attention_cudnn.h"

#ifdef PRECBENCH_HAS_CUDNN

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn.h>
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <tuple>
#include <unordered_map>

#include "kernels/cuda/check.h"

// The frontend has its own kernels for other ops, compiled at run time. None is in an attention graph, so the
// program does not depend on NVRTC for them.
#pragma weak nvrtcCompileProgram
#pragma weak nvrtcCreateProgram
#pragma weak nvrtcDestroyProgram
#pragma weak nvrtcGetCUBIN
#pragma weak nvrtcGetCUBINSize
#pragma weak nvrtcGetProgramLog
#pragma weak nvrtcGetProgramLogSize

namespace precbench {

static void check(cudnnStatus_t status, const char* call, const char* operation) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw_library_error("cuDNN", status, cudnnGetErrorString(status), call, operation);
}

namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;

static_assert(CUDNN_FRONTEND_VERSION >= 11300,
              "cudnn-frontend 1.13 or newer is needed (tools/setup/fetch_cudnn_frontend.sh)");

std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV };

// Row r of a fused matrix holds token r = b T + t; a head is a run of columns. `rows` of a sequence's take part.
struct Heads {
  std::int64_t count, dim, row_width, rows, rows_of_sequence;

  std::vector<std::int64_t> dims(const AttentionShape& s) const { return {s.B, count, rows, dim}; }
  std::vector<std::int64_t> strides() const { return {rows_of_sequence * row_width, dim, row_width, 1}; }
};

/// A problem, and whether its keys are in rows of their own.
struct CudnnShape : AttentionShape {
  bool own_rows;

  cuda::CudnnMask mask() const { return cuda::cudnn_mask(*this).value(); }
};

Heads heads_of(Uid uid, const CudnnShape& s) {
  const bool output = uid == kOut || uid == kDOut, value = uid == kV || uid == kDV;
  const bool queries = uid == kQ || uid == kDQ || output;
  return {queries ? s.heads : s.kv_heads, output || value ? s.v_dim() : s.head_dim,
          output                   ? s.out_width()
          : !queries && s.own_rows ? s.kv_width()
                                   : s.qkv_width(),
          queries ? s.T : s.mask().keys, queries ? s.T : s.keys()};
}

std::shared_ptr<Tensor_attributes> head_view(fe::graph::Graph& graph, Uid uid, const CudnnShape& s) {
  const Heads heads = heads_of(uid, s);
  return graph.tensor(Tensor_attributes().set_uid(uid).set_dim(heads.dims(s)).set_stride(heads.strides()));
}

void make_output(const std::shared_ptr<Tensor_attributes>& tensor, Uid uid, const CudnnShape& s) {
  const Heads heads = heads_of(uid, s);
  tensor->set_output(true).set_uid(uid).set_dim(heads.dims(s)).set_stride(heads.strides());
}

void set_types(fe::graph::Graph& graph) {
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
}

float score_scale(const AttentionShape& s) { return 1.0f / std::sqrt(static_cast<float>(s.head_dim)); }

/// A query of a window sees the keys with key + left bound > query.
template <class Attributes>
void set_mask(Attributes& attributes, const CudnnShape& s) {
  const cuda::CudnnMask::Kind kind = s.mask().kind;
  attributes.set_causal_mask(kind == cuda::CudnnMask::Kind::causal);
  attributes.set_causal_mask_bottom_right(kind == cuda::CudnnMask::Kind::causal_at_end);
  if (s.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(s.window));
}

void build_forward(fe::graph::Graph& graph, const CudnnShape& s) {
  set_types(graph);
  auto q = head_view(graph, kQ, s);
  auto k = head_view(graph, kK, s);
  auto v = head_view(graph, kV, s);
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_generate_stats(true)
                     .set_attn_scale(score_scale(s));
  set_mask(options, s);
  auto [out, lse] = graph.sdpa(q, k, v, options);
  make_output(out, kOut, s);
  lse->set_output(true)
      .set_uid(kLse)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({s.B, s.heads, s.T, 1})
      .set_stride({s.heads * s.T, s.T, 1, 1});
}

void build_backward(fe::graph::Graph& graph, const CudnnShape& s, bool deterministic) {
  set_types(graph);
  auto q = head_view(graph, kQ, s);
  auto k = head_view(graph, kK, s);
  auto v = head_view(graph, kV, s);
  auto out = head_view(graph, kOut, s);
  auto dout = head_view(graph, kDOut, s);
  auto lse = graph.tensor(Tensor_attributes()
                              .set_uid(kLse)
                              .set_data_type(fe::DataType_t::FLOAT)
                              .set_dim({s.B, s.heads, s.T, 1})
                              .set_stride({s.heads * s.T, s.T, 1, 1}));
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("attention_backward")
                     .set_attn_scale(score_scale(s))
                     .set_deterministic_algorithm(deterministic);
  set_mask(options, s);
  auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, lse, options);
  make_output(dq, kDQ, s);
  make_output(dk, kDK, s);
  make_output(dv, kDV, s);
}

// The q, k and v columns of a fused matrix, or those of k and v in one of their own.
struct ColumnPointers {
  std::byte *q, *k, *v;
  ColumnPointers(const Tensor& fused, const Tensor& own, const AttentionShape& s)
      : q(fused.as<std::byte>()),
        k(own.empty() ? q + bytes_of(DType::bf16, s.q_width()) : own.as<std::byte>()),
        v(k + bytes_of(DType::bf16, s.k_width())) {}
};

class Implementation final : public CudnnAttention {
 public:
  explicit Implementation(CUstream_st* stream) : stream_(stream) {
    PRECBENCH_CHECK(cudnnCreate(&handle_));
    PRECBENCH_CHECK(cudnnSetStream(handle_, stream));
  }
  ~Implementation() override { cudnnDestroy(handle_); }
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  std::string version() const override {
    const std::size_t v = cudnnGetVersion();  // 91400 is 9.14.0
    return fmt::format("{}.{}", v / 10000, v / 100 % 100);
  }

  const Plan& forward_plan(const AttentionShape& shape, bool own_rows) override {
    return find({shape, own_rows}, Kind::forward).plan;
  }
  const Plan& backward_plan(const AttentionShape& shape, bool own_rows, bool deterministic) override {
    return find({shape, own_rows}, backward_kind(deterministic)).plan;
  }

  void forward(const ops::Attention& op, void* workspace) override {
    const ColumnPointers in(op.qkv, op.kv, op.shape);
    std::unordered_map<std::int64_t, void*> pointers = {
        {kQ, in.q}, {kK, in.k}, {kV, in.v}, {kOut, op.out.value.data}, {kLse, op.lse.data}};
    execute(find({op.shape, !op.kv.empty()}, Kind::forward), pointers, workspace, "attention");
  }

  void backward(const ops::AttentionBackward& op, bool deterministic, void* workspace) override {
    const ColumnPointers in(op.qkv, op.kv, op.shape), gradient(op.dqkv, op.dkv, op.shape);
    std::unordered_map<std::int64_t, void*> pointers = {
        {kQ, in.q},          {kK, in.k},        {kV, in.v},        {kOut, op.out.data}, {kDOut, op.dout.data},
        {kLse, op.lse.data}, {kDQ, gradient.q}, {kDK, gradient.k}, {kDV, gradient.v},
    };
    const CudnnShape shape{op.shape, !op.kv.empty()};
    execute(find(shape, backward_kind(deterministic)), pointers, workspace, "attention_backward");
    const std::int64_t row = bytes_of(DType::bf16, shape.kv_width()), keys = shape.mask().keys;
    if (const std::int64_t unseen = shape.keys() - keys; unseen > 0)
      PRECBENCH_CHECK(cudaMemset2DAsync(op.dkv.as<std::byte>() + keys * row, shape.keys() * row, 0,
                                        unseen * row, shape.B, stream_));
  }

 private:
  enum class Kind { forward, backward, deterministic_backward };
  static Kind backward_kind(bool deterministic) {
    return deterministic ? Kind::deterministic_backward : Kind::backward;
  }

  struct Entry {
    fe::graph::Graph graph;
    Plan plan;
  };

  Entry& find(const CudnnShape& s, Kind kind) {
    const auto key = std::make_tuple(s.B, s.T, s.heads, s.kv_heads, s.head_dim, s.v_dim(), s.keys(), s.offset,
                                     s.window, s.own_rows, kind);
    if (const auto known = entries_.find(key); known != entries_.end()) return known->second;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    PRECBENCH_CHECK(cudaStreamIsCapturing(stream_, &capture));
    if (capture != cudaStreamCaptureStatusNone)
      throw std::logic_error("attention: a new shape inside a captured step");
    Entry& entry = entries_[key];
    build(entry, s, kind);
    return entry;
  }

  void build(Entry& entry, const CudnnShape& s, Kind kind) {
    if (kind == Kind::forward)
      build_forward(entry.graph, s);
    else
      build_backward(entry.graph, s, kind == Kind::deterministic_backward);
    fe::error_t status = entry.graph.build(handle_, {fe::HeurMode_t::A});
    if (status.is_good()) status = entry.graph.get_workspace_size(entry.plan.workspace_bytes);
    if (!status.is_good()) entry.plan.refusal = "cuDNN " + version() + ": " + one_line(status.get_message());
  }

  void execute(Entry& entry, std::unordered_map<std::int64_t, void*>& pointers, void* workspace,
               const char* op) {
    fe::error_t status = entry.graph.execute(handle_, pointers, workspace);
    if (!status.is_good())
      throw_library_error("cuDNN", static_cast<int>(status.get_code()),
                          one_line(status.get_message()).c_str(), "Graph::execute", op);
  }

  cudaStream_t stream_;
  cudnnHandle_t handle_ = nullptr;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                      std::int64_t, std::int64_t, std::int64_t, bool, Kind>,
           Entry>
      entries_;
};

}  // namespace

std::unique_ptr<CudnnAttention> CudnnAttention::open(CUstream_st* stream, std::string& reason) {
  try {
    return std::make_unique<Implementation>(stream);
  } catch (const std::runtime_error& error) {
    reason = one_line(error.what());
    return nullptr;
  }
}

}  // namespace precbench

#else

namespace precbench {

std::unique_ptr<CudnnAttention> CudnnAttention::open(CUstream_st*, std::string& reason) {
  reason = "this build has no cuDNN (configure where cudnn.h, libcudnn and cudnn-frontend are found)";
  return nullptr;
}

}  // namespace precbench

#endif
