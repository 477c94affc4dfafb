// Rewrites the edges of a captured graph: instead of starting after the previous kernel, our kernels start
// early and wait for it themselves.
#include "kernels/cuda/hopper/early_start.h"

#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper/driver_function.h"

namespace precbench::hopper {
namespace {

/// Driver functions that describe a graph's kernels.
struct Driver {
  decltype(&cuGraphKernelNodeGetParams) params;
  decltype(&cuKernelGetFunction) function;
  decltype(&cuFuncGetName) name;
  decltype(&cuFuncGetAttribute) attribute;
};

const Driver& driver() {
  static const Driver found = {driver_function<decltype(Driver::params)>("cuGraphKernelNodeGetParams", 12000),
                               driver_function<decltype(Driver::function)>("cuKernelGetFunction", 12000),
                               driver_function<decltype(Driver::name)>("cuFuncGetName", 12030),
                               driver_function<decltype(Driver::attribute)>("cuFuncGetAttribute", 12000)};
  return found;
}

bool is_kernel(cudaGraphNode_t node) {
  cudaGraphNodeType type;
  PRECBENCH_CHECK(cudaGraphNodeGetType(node, &type));
  return type == cudaGraphNodeTypeKernel;
}

/// Returns true if a kernel waits by itself: it is in this namespace and compiled for 9.0 or later.
bool waits(cudaGraphNode_t node) {
  CUDA_KERNEL_NODE_PARAMS params = {};
  if (driver().params(node, &params) != CUDA_SUCCESS) return false;
  CUfunction function = params.func;
  if (!function && driver().function(&function, params.kern) != CUDA_SUCCESS) return false;
  const char* name = nullptr;
  int architecture = 0;
  return driver().name(&name, function) == CUDA_SUCCESS &&
         driver().attribute(&architecture, CU_FUNC_ATTRIBUTE_PTX_VERSION, function) == CUDA_SUCCESS &&
         std::string_view(name).starts_with("_ZN9precbench") && architecture >= 90;
}

struct Edges {
  std::vector<cudaGraphNode_t> from, to;
  std::vector<cudaGraphEdgeData> data;
};

// From CUDA 13 on the unsuffixed names take edge data.
#if CUDART_VERSION >= 13000
constexpr auto get_edges = cudaGraphGetEdges;
constexpr auto add_edges = cudaGraphAddDependencies;
constexpr auto remove_edges = cudaGraphRemoveDependencies;
#else
constexpr auto get_edges = cudaGraphGetEdges_v2;
constexpr auto add_edges = cudaGraphAddDependencies_v2;
constexpr auto remove_edges = cudaGraphRemoveDependencies_v2;
#endif

Edges edges_of(cudaGraph_t graph) {
  std::size_t count = 0;
  PRECBENCH_CHECK(get_edges(graph, nullptr, nullptr, nullptr, &count));
  Edges edges{std::vector<cudaGraphNode_t>(count), std::vector<cudaGraphNode_t>(count),
              std::vector<cudaGraphEdgeData>(count)};
  PRECBENCH_CHECK(get_edges(graph, edges.from.data(), edges.to.data(), edges.data.data(), &count));
  return edges;
}

bool is_plain(const cudaGraphEdgeData& edge) {
  const cudaGraphEdgeData plain = {};
  return std::memcmp(&edge, &plain, sizeof(edge)) == 0;
}

}  // namespace

int start_early(cudaGraph_t graph) {
  if (!driver().params || !driver().function || !driver().name || !driver().attribute) return 0;
  const Edges edges = edges_of(graph);
  std::unordered_map<cudaGraphNode_t, int> waited_for;
  for (const cudaGraphNode_t to : edges.to) ++waited_for[to];
  cudaGraphEdgeData early = {};
  early.type = cudaGraphDependencyTypeProgrammatic;
  early.from_port = cudaGraphKernelNodePortLaunchCompletion;
  int count = 0;
  for (std::size_t i = 0; i < edges.to.size(); ++i) {
    const cudaGraphNode_t from = edges.from[i], to = edges.to[i];
    if (waited_for[to] != 1 || !is_plain(edges.data[i]) || !is_kernel(from) || !is_kernel(to) || !waits(to))
      continue;
    PRECBENCH_CHECK(remove_edges(graph, &from, &to, &edges.data[i], 1));
    PRECBENCH_CHECK(add_edges(graph, &from, &to, &early, 1));
    ++count;
  }
  return count;
}

}  // namespace precbench::hopper
