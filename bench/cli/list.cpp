// The tables of `precbench list`. See list.h.
#include "bench/cli/list.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "bench/cli/text_table.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"
#include "kernels/numerics/recipe.h"
#include "models/config/config.h"
#include "models/transformer/flops.h"

namespace precbench {
namespace {

struct Named {
  std::string name;
  std::unique_ptr<Device> device;
};

std::vector<Named> devices() {
  std::vector<Named> all;
  all.push_back({"cpu", make_cpu_device(1)});
  if (find_gpus().count > 0) all.push_back({gpu_properties(0).name, make_gpu_device(0)});
  return all;
}

/// The weakest of the three GEMMs, and why it is not native.
GemmSupport gemm_support_of(const Recipe& recipe, const Device& device) {
  GemmSupport weakest;
  for (const GemmRole role : kGemmRoles) {
    const GemmSupport support = device.support(recipe.gemm(role), role);
    if (support.execution > weakest.execution) weakest = support;
  }
  return weakest;
}

/// A recipe's line, and a note for each device that does not run it natively.
std::vector<std::string> row_of(const Recipe& recipe, const std::vector<Named>& all,
                                std::vector<std::string>& notes) {
  std::vector<std::string> row = {recipe.name};
  std::string fast;
  for (const GemmRole role : kGemmRoles) {
    const GemmRecipe& gemm = recipe.gemm(role);
    row.push_back(gemm.a == gemm.b ? describe(gemm.a) : describe(gemm.a) + ", " + describe(gemm.b));
    fast += gemm.fast_accum ? "+" : "-";
  }
  row.push_back(fast);
  for (const Named& d : all) {
    const GemmSupport support = gemm_support_of(recipe, *d.device);
    row.push_back(name_of(support.execution));
    if (!support.reason.empty())
      notes.push_back(
          fmt::format("{} on {}: {}: {}", recipe.name, d.name, name_of(support.execution), support.reason));
  }
  row.push_back(recipe.reference);
  return row;
}

constexpr std::int64_t kListedLength = 8192;

std::string gigaflops_per_token(const ModelConfig& model, FlopConvention convention) {
  const FlopCount count = flops_per_token(model, kListedLength, convention);
  return fmt::format("{:.3f}", static_cast<double>(count.total()) / 1e9);
}

}  // namespace

void list_recipes() {
  const std::vector<Named> all = devices();
  std::vector<std::string> notes;
  const auto print_table = [&](const char* heading, const char* last, const std::vector<Recipe>& recipes) {
    TextRows rows = {{heading, "fprop X, W", "dgrad dY, W", "wgrad dY, X", "fast"}};
    for (const Named& d : all) rows[0].push_back("on " + d.name);
    rows[0].push_back(last);
    for (const Recipe& recipe : recipes) rows.push_back(row_of(recipe, all, notes));
    fmt::print("{}\n", aligned(rows));
  };
  print_table("recipe", "reference", builtin_recipes());
  print_table("control", "known to be worse, for studies that must find that", control_recipes());
  fmt::print("fast: fast accumulation in fprop, dgrad, wgrad. An emulated recipe has a loss but no speed.\n");
  fmt::print(
      "A recipe of your own may also ask for e4m2, e4m1 (e4m3 with mantissa bits taken away) and e5m1.\n");
  for (const std::string& note : notes) fmt::print("{}\n", note);
}

void list_models() {
  TextRows rows = {{"model", "parameters", "layers", "width", "ffn", "heads", "kv heads", "head dim", "vocab",
                    "tied", "QK-norm", "GFLOPs/token", "torchtitan"}};
  for (const ModelConfig& m : model_presets())
    rows.push_back({m.name, fmt::format("{}", parameter_count(m)), fmt::format("{}", m.layers),
                    fmt::format("{}", m.width), fmt::format("{}", m.ffn), fmt::format("{}", m.heads),
                    fmt::format("{}", m.kv_heads), fmt::format("{}", m.head_dim), fmt::format("{}", m.vocab),
                    m.tied ? "yes" : "no", m.qk_norm ? "yes" : "no",
                    gigaflops_per_token(m, FlopConvention::causal),
                    gigaflops_per_token(m, FlopConvention::torchtitan)});
  fmt::print("{}", aligned(rows));
  fmt::print(
      "\nGFLOPs/token: of a training step with sequences of {} tokens, causal attention halved; torchtitan "
      "counts\nattention in full, and norm weights as if they were linear weights.\n",
      kListedLength);
}

void list_devices() {
  TextRows rows = {{"device", "what", "native", "emulated", "unsupported"}};
  const auto add = [&](const std::string& name, const std::string& what, const Device& device) {
    std::vector<std::string> row = {name, what, "", "", ""};
    for (const Recipe& recipe : builtin_recipes()) {
      std::string& cell = row[2 + static_cast<int>(gemm_support_of(recipe, device).execution)];
      cell += (cell.empty() ? "" : " ") + recipe.name;
    }
    for (std::string& cell : row)
      if (cell.empty()) cell = "-";
    rows.push_back(row);
  };
  add("cpu", "this machine's processor", *make_cpu_device(1));
  const VisibleGpus gpus = find_gpus();
  for (int ordinal = 0; ordinal < gpus.count; ++ordinal) {
    add(fmt::format("{} {}", gpus.device, ordinal), gpu_properties(ordinal).description,
        *make_gpu_device(ordinal));
  }
  fmt::print("{}", aligned(rows));
  if (gpus.count == 0) fmt::print("\nno GPU: {}\n", gpus.reason);
}

}  // namespace precbench
