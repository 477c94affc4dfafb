// Opening, checking and reading checkpoints. See checkpoint.h.
#include "bench/step/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "bench/step/checkpoint_files.h"
#include "kernels/base/untrusted_input.h"
#include "kernels/numerics/formats.h"
#include "results/record_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// BF16 to FP32 and back, for forks.
void convert(std::vector<std::byte>& to, const std::byte* from, bool from_bf16) {
  if (from_bf16) {
    for (std::size_t i = 0; i < to.size() / 4; ++i) {
      std::uint16_t word = 0;
      std::memcpy(&word, from + 2 * i, sizeof word);
      const float value = bf16_decode(word);
      std::memcpy(to.data() + 4 * i, &value, sizeof value);
    }
    return;
  }
  for (std::size_t i = 0; i < to.size() / 2; ++i) {
    float value = 0;
    std::memcpy(&value, from + 4 * i, sizeof value);
    const std::uint16_t word = bf16_encode(value);
    std::memcpy(to.data() + 2 * i, &word, sizeof word);
  }
}

/// "step-000100" to 100; -1 for other names.
std::int64_t step_of(const std::string& name) {
  const std::string digits = name.starts_with("step-") ? name.substr(5) : "";
  const bool number = !digits.empty() && digits.size() < 18 &&
                      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  return number ? std::stoll(digits) : -1;
}

}  // namespace

std::map<std::int64_t, std::string> checkpoints_in(const std::string& folder) {
  std::map<std::int64_t, std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (const std::int64_t step = step_of(entry->path().filename().string()); step >= 0)
      found[step] = entry->path().string();
  return found;
}

std::pair<std::string, std::string> kind_and_name(const std::string& tensor) {
  const std::size_t slash = tensor.find('/');
  return {tensor.substr(0, slash), tensor.substr(slash + 1)};
}

Checkpoint::Checkpoint(const std::string& folder) : path_(folder) {
  const std::string path = (fs::path(folder) / kStateFile).string();
  try {
    read_state(path);
  } catch (const nlohmann::json::exception&) {  // its message would be about JSON
    throw InvalidInput(path + ": not the state of a checkpoint, or damaged");
  }
}

void Checkpoint::read_state(const std::string& path) {
  Json json;
  const std::string text = read_regular_file(path, kRecordLimits.bytes);
  try {
    json = parse_untrusted<Json>(text, kRecordLimits);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("{}: {}", path, error.what()));
  }
  if (const int format = json.at("format").get<int>(); format > kCheckpointFormat)
    throw NewerCheckpoint(fmt::format(
        "{}: written by a newer version of this program: checkpoint format {}, and this one knows {}", path,
        format, kCheckpointFormat));
  id_ = json.at("id").get<std::string>();
  model_ = json.at("definition").at("model");
  position_.step = json.at("step").get<std::int64_t>();
  position_.sequences = json.at("sequences").get<std::int64_t>();
  position_.seed = json.at("seed").get<std::uint64_t>();
  position_.optimizer_steps_before = json.at("optimizer_steps").get<std::int64_t>() - position_.step;
  for (const auto& [key, series] : {std::pair("loss", &curve_.loss),
                                    std::pair("grad_norm", &curve_.grad_norm), std::pair("lr", &curve_.lr)}) {
    *series = json.at(key).get<std::vector<double>>();
    if (static_cast<std::int64_t>(series->size()) != position_.step)
      throw InvalidInput(fmt::format("{}: damaged: {} has {} entries after {} steps", path, key,
                                     series->size(), position_.step));
  }
  for (const Json& e : json.at("evaluations")) {
    const auto number = [&](const char* key) {
      return e.at(key).is_null() ? std::nullopt : std::optional(e.at(key).get<double>());
    };
    curve_.evaluations.push_back({e.at("step").get<std::int64_t>(), e.at("tokens").get<std::int64_t>(),
                                  number("loss"), number("loss_error"), number("bf16_loss")});
  }
  const auto kinds = json.at("files").get<std::vector<std::string>>();
  for (const std::string& kind : kinds)
    if (kind != kScales && std::find(std::begin(kKinds), std::end(kKinds), kind) == std::end(kKinds))
      throw InvalidInput(fmt::format("{}: its state has {}, which this program does not keep", path, kind));
  for (const char* kind : kKinds) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end())
      throw InvalidInput(fmt::format("{}: its state lacks {}", path, kind));
    files_.emplace(kind, SafetensorsFile(file_of_kind(path_, kind)));
  }
  if (std::find(kinds.begin(), kinds.end(), kScales) != kinds.end())
    files_.emplace(kScales, SafetensorsFile(file_of_kind(path_, kScales)));
}

void Checkpoint::check_tensors(const Plan& plan, bool same_formats) const {
  const Layout layout(plan.model, 1);
  for (const auto& [kind, file] : files_) {
    if (kind == kScales) continue;
    const std::string path = file_of_kind(path_, kind);
    const bool f32 =
        kind == "weights" ? plan.parameters.master == Master::fp32 : plan.parameters.moments == DType::f32;
    for (const Unit& unit : layout.units())
      for (const Parameter& p : unit.parameters) {
        const StoredTensor& stored = file.at(p.name);
        if (stored.shape != p.shape())
          throw InvalidInput(fmt::format("{}: {} has shape [{}], the model {} wants [{}]", path, p.name,
                                         fmt::join(stored.shape, ", "), plan.model.name,
                                         fmt::join(p.shape(), ", ")));
        const char* wanted = f32 ? "F32" : "BF16";
        const bool mapped = stored.dtype == "F32" || stored.dtype == "BF16";
        if (same_formats ? stored.dtype != wanted : !mapped)
          throw InvalidInput(
              fmt::format("{}: {} is {}, and the case keeps {}", path, p.name, stored.dtype, wanted));
      }
  }
}

void Checkpoint::check_scales(const Plan& plan) const {
  if (!plan.parameters.delayed.delayed()) return;
  const std::string path = file_of_kind(path_, kScales);
  const auto file = files_.find(kScales);
  if (file == files_.end()) throw InvalidInput(fmt::format("{}: its state lacks {}", path_, kScales));
  const std::int64_t slots = DelayedScaling::slots_of(plan.model.layers);
  const std::int64_t kept = plan.parameters.delayed.fprop.a.history.length - 1;
  std::map<std::string, std::vector<std::int64_t>> wanted = {{"known", {slots}}};
  if (kept > 0) wanted["history"] = {slots, kept};
  for (const auto& [name, shape] : wanted)
    if (const StoredTensor& stored = file->second.at(name); stored.shape != shape || stored.dtype != "F32")
      throw InvalidInput(fmt::format("{}: {} is {} [{}], the case wants F32 [{}]", path, name, stored.dtype,
                                     fmt::join(stored.shape, ", "), fmt::join(shape, ", ")));
}

void Checkpoint::check_continues(const Plan& plan) const {
  if (id_ != plan.id)
    throw InvalidInput(fmt::format("{}: it is of the case {}, not of {}", path_, id_, plan.id));
  check_tensors(plan, true);
  check_scales(plan);
}

void Checkpoint::check_forks(const Plan& plan) const {
  const Json wanted = *definition_record(plan).model;
  for (const auto& [key, value] : wanted.items()) {
    const Json there = model_.value(key, Json());
    if (key != "name" && there != value)
      throw InvalidInput(fmt::format("{}: its model {} has {} {}, the model {} has {}", path_,
                                     model_.value("name", Json("")).dump(), key, there.dump(),
                                     plan.model.name, value.dump()));
  }
  for (const auto& [key, value] : model_.items())
    if (!wanted.contains(key))
      throw InvalidInput(fmt::format("{}: its model has {} {}, the model {} has none", path_, key,
                                     value.dump(), plan.model.name));
  check_tensors(plan, false);
}

StateReader Checkpoint::reader() const {
  return [this](const StateTensor& part, std::vector<std::byte>& bytes) {
    const auto [kind, name] = kind_and_name(part.name);
    const SafetensorsFile& file = files_.at(kind);
    const StoredTensor& stored = file.at(name);
    const bool bf16 = stored.dtype == "BF16";
    const std::byte* from = stored.data + part.first * (bf16 ? 2 : 4);
    if (bf16 == (part.values.dtype == DType::bf16))
      std::memcpy(bytes.data(), from, bytes.size());
    else
      convert(bytes, from, bf16);
    file.forget(from, part.values.size() * (bf16 ? 2 : 4));
  };
}

std::string checkpoint_folder(const Plan& plan) {
  if (plan.fields.checkpoint_dir.empty())
    throw InvalidInput("--checkpoint-every: where? add --checkpoint-dir DIR, or --out DIR");
  return (fs::path(plan.fields.checkpoint_dir) / plan.id).string();
}

std::string checkpoint_at(const Plan& plan, std::int64_t step) {
  return (fs::path(checkpoint_folder(plan)) / fmt::format("step-{:06}", step)).string();
}

std::unique_ptr<Checkpoint> last_checkpoint(const Plan& plan, std::vector<std::string>& problems) {
  if (plan.fields.checkpoint_every == 0) return nullptr;
  const std::map<std::int64_t, std::string> found = checkpoints_in(checkpoint_folder(plan));
  for (auto newest = found.rbegin(); newest != found.rend(); ++newest) {
    if (newest->first >= plan.fields.steps) continue;
    try {
      auto checkpoint = std::make_unique<Checkpoint>(newest->second);
      checkpoint->check_continues(plan);
      return checkpoint;
    } catch (const NewerCheckpoint&) {
      throw;
    } catch (const InvalidInput& error) {
      problems.push_back(fmt::format("a checkpoint is passed over: {}", error.what()));
    }
  }
  return nullptr;
}

}  // namespace precbench
