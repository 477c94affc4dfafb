// Opens, checks and reads checkpoints. See checkpoint.h.
#include "bench/step/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "bench/case/plan.h"
#include "bench/machine/build_info.h"
#include "bench/step/checkpoint_files.h"
#include "kernels/base/untrusted_input.h"
#include "kernels/device/devices.h"
#include "kernels/numerics/state_formats.h"
#include "results/record/provenance.h"
#include "results/record/record_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Inverse of safetensors_name().
DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::e4m3})
    if (name == safetensors_name(dtype)) return dtype;
  return DType::f32;
}

/// Returns elements [first, first + n) of a stored tensor, which begin at `from`, in FP32. `scale`: the
/// tensor's one scale, or COAT's scales per group; null if it has none.
std::vector<float> widened(const std::byte* from, DType dtype, const StoredTensor* scale, std::int64_t first,
                           std::int64_t n) {
  std::vector<float> values(n), scales(scale ? scale->size() : 0);
  if (scale) std::memcpy(scales.data(), scale->data, scale->bytes);
  for (std::int64_t i = 0; i < n; ++i) {
    if (dtype == DType::f32) {
      std::memcpy(&values[i], from + 4 * i, sizeof(float));
    } else if (bits_of(dtype) == 16) {
      std::uint16_t word = 0;
      std::memcpy(&word, from + 2 * i, sizeof word);
      values[i] = dtype == DType::bf16 ? bf16_decode(word) : f16_decode(word) / scales[0];
    } else if (scales.size() == 1) {
      values[i] = e4m3_decode(static_cast<std::uint8_t>(from[i])) / scales[0];
    } else {
      const float* s = scales.data() + (first + i) / kCoatGroup * kCoatScaleFloats;
      values[i] = coat_decode(static_cast<std::uint8_t>(from[i]), {s[0], s[1], s[2]});
    }
  }
  return values;
}

/// Writes values as a rank's FP32 or BF16.
void narrow(std::vector<std::byte>& to, DType dtype, const std::vector<float>& values) {
  if (dtype == DType::f32) {
    std::memcpy(to.data(), values.data(), to.size());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t word = bf16_encode(values[i]);
    std::memcpy(to.data() + 2 * i, &word, sizeof word);
  }
}

/// Returns 100 for "step-000100", -1 for other names.
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

const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::e4m3:
      return "F8_E4M3";
    default:
      return "F32";
  }
}

std::vector<StateTensor> state_of(const Plan& plan) {
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 55;
  const std::unique_ptr<Device> device = make_dry_device(nullptr);
  const std::unique_ptr<Comm> comm = make_dry_comm(0, plan.ranks);
  Arena arena(device->allocate(kUnlimited), kUnlimited);
  return Parameters(*device, *comm, arena, plan.model, plan.parameters).state();
}

std::pair<std::string, std::string> kind_and_name(const std::string& tensor) {
  const std::size_t slash = tensor.find('/');
  return {tensor.substr(0, slash), tensor.substr(slash + 1)};
}

Checkpoint::Checkpoint(const std::string& folder) : path_(folder) {
  const std::string path = (fs::path(folder) / kStateFile).string();
  try {
    read_state(path);
  } catch (const nlohmann::json::exception&) {  // whose message is about JSON, not about the checkpoint
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
  if (const Json program = json.value("program", Json()); program.is_object())
    if (const Json git = program.value("git", Json()); git.is_string()) git_ = git.get<std::string>();
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
  const Json& fields = json.at("case");
  optimizer_ = fields.value("optimizer", Case{}.optimizer);
  for (const std::string& kind : json.at("files").get<std::vector<std::string>>()) {
    if (std::find(std::begin(kKinds), std::end(kKinds), kind) == std::end(kKinds))
      throw InvalidInput(fmt::format("{}: its state has {}, which this program does not keep", path, kind));
    files_.emplace(kind, SafetensorsFile(file_of_kind(path_, kind)));
  }
  if (json.contains("checksums")) read_checksums(text);
}

std::optional<std::string> Checkpoint::other_build_warning() const {
  const std::string here = build_info().commit;
  if (!git_ || here.empty() || *git_ == here) return std::nullopt;
  return fmt::format(
      "the checkpoint {} was written by commit {}, and this program is of commit {}: the run is of both; "
      "--fresh starts it anew",
      path_, short_commit(*git_), short_commit(here));
}

void Checkpoint::read_checksums(const std::string& state) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const std::string path = (fs::path(path_) / kChecksumsFile).string();
  sums_ = BlockSums(path, read_regular_file(path, kMost));
  const BlockSums::Range all{0, static_cast<std::int64_t>(state.size())};
  if (!sums_.cover(kStateFile, all.end) ||
      !sums_.damaged(kStateFile, reinterpret_cast<const std::byte*>(state.data()), all).empty())
    throw InvalidInput(fmt::format("{}: damaged: it is not what {} has the checksum of",
                                   (fs::path(path_) / kStateFile).string(), kChecksumsFile));
  for (const auto& [kind, file] : files_)
    for (const StoredTensor& tensor : file.tensors())
      if (!sums_.cover(fmt::format("{}/{}", kind, tensor.name), tensor.bytes))
        throw InvalidInput(fmt::format("{}: damaged: it lacks some of {}/{}", path, kind, tensor.name));
}

bool Checkpoint::has_scales(const std::string& kind, const std::string& name) const {
  const auto file = files_.find(kind + kScaleSuffix);
  if (file == files_.end()) return false;
  const std::string& codes = files_.at(kind).at(name).dtype;
  const StoredTensor& scale = file->second.at(name);
  const std::int64_t groups = (files_.at(kind).at(name).size() + kCoatGroup - 1) / kCoatGroup;
  const bool tensor = scale.shape == std::vector<std::int64_t>{1};
  const bool coat = scale.shape == std::vector<std::int64_t>{groups, kCoatScaleFloats};
  return scale.dtype == "F32" && ((tensor && codes == "F16") || ((tensor || coat) && codes == "F8_E4M3"));
}

void Checkpoint::check_tensors(const Plan& plan, Use use) const {
  if (unsupported_reason(plan)) return;  // reported in the case's row
  Plan reader = plan;
  if (use == Use::fork) reader.parameters.keep_frozen_values = true;  // a fork quantizes them anew
  for (const StateTensor& tensor : state_of(reader)) {
    const auto [kind, name] = kind_and_name(tensor.name);
    if (use == Use::fork && (kind == kScales || kind.ends_with(kScaleSuffix))) continue;
    const std::string path = file_of_kind(path_, kind);
    const auto file = files_.find(kind);
    if (file == files_.end())
      throw InvalidInput(
          fmt::format("{}: its state lacks {}", (fs::path(path_) / kStateFile).string(), kind));
    if (kind == FrozenWeights::kStateKind && use == Use::fork && !file->second.find(name))
      throw InvalidInput(fmt::format(
          "{}: lacks {}: its run had frozen weights in memory as quantized copies alone and can only be continued; fork "
          "one with --recipe bf16 or with --fidelity-batches, which keep them",
          path, name));
    const StoredTensor& stored = file->second.at(name);
    const char* wanted = safetensors_name(tensor.values.dtype);
    const bool mapped = stored.dtype == "F32" || stored.dtype == "BF16" || has_scales(kind, name);
    if (stored.shape != tensor.shape || (use == Use::resume ? stored.dtype != wanted : !mapped))
      throw InvalidInput(fmt::format("{}: {} is {} [{}], the case expects {} [{}]", path, name, stored.dtype,
                                     fmt::join(stored.shape, ", "), wanted, fmt::join(tensor.shape, ", ")));
  }
}

void Checkpoint::check_continues(const Plan& plan) const {
  if (id_ != plan.id)
    throw InvalidInput(fmt::format("{}: it is of the case {}, not of {}", path_, id_, plan.id));
  check_tensors(plan, Use::resume);
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
  if (optimizer_ != plan.fields.optimizer)
    throw InvalidInput(
        fmt::format("{}: its optimizer is {}, the case's is {}", path_, optimizer_, plan.fields.optimizer));
  check_tensors(plan, Use::fork);
}

const std::byte* Checkpoint::checked(const std::string& kind, const StoredTensor& stored, std::int64_t first,
                                     std::int64_t n) const {
  const std::string name = fmt::format("{}/{}", kind, stored.name);
  const DType dtype = dtype_named(stored.dtype);
  const BlockSums::Range bad =
      sums_.damaged(name, stored.data, {bytes_of(dtype, first), bytes_of(dtype, first + n)});
  if (!bad.empty())
    throw DamagedCheckpoint(fmt::format("{}: damaged: bytes {} to {} of {} are not those that were written",
                                        file_of_kind(path_, kind), bad.begin, bad.end, stored.name));
  return stored.data + bytes_of(dtype, first);
}

StateReader Checkpoint::reader() const {
  return [this](const StateTensor& part, std::vector<std::byte>& bytes) {
    const auto [kind, name] = kind_and_name(part.name);
    const SafetensorsFile& file = files_.at(kind);
    const StoredTensor& stored = file.at(name);
    const DType dtype = dtype_named(stored.dtype);
    const std::int64_t n = part.values.size();
    const std::byte* from = checked(kind, stored, part.place.first, n);
    if (dtype == part.values.dtype) {
      std::memcpy(bytes.data(), from, bytes.size());
    } else {
      const auto scales = files_.find(kind + kScaleSuffix);
      const StoredTensor* scale = scales == files_.end() ? nullptr : &scales->second.at(name);
      if (scale) checked(scales->first, *scale, 0, scale->size());
      narrow(bytes, part.values.dtype, widened(from, dtype, scale, part.place.first, n));
    }
    const auto [begin, end] =
        sums_.around(part.name, {bytes_of(dtype, part.place.first), bytes_of(dtype, part.place.first + n)});
    file.forget(stored.data + begin, end - begin);
  };
}

std::string checkpoint_folder(const Plan& plan) {
  if (plan.fields.checkpoint_dir.empty())
    throw InvalidInput("--checkpoint-every: no checkpoint folder: add --checkpoint-dir DIR or --out DIR");
  return (fs::path(plan.fields.checkpoint_dir) / plan.id).string();
}

std::string checkpoint_at(const Plan& plan, std::int64_t step) {
  return (fs::path(checkpoint_folder(plan)) / fmt::format("step-{:06}", step)).string();
}

std::unique_ptr<Checkpoint> last_checkpoint(const Plan& plan, std::vector<std::string>& problems) {
  if (!writes_checkpoints(plan.fields)) return nullptr;
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
