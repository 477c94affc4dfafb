// Writes checkpoints: rank 0 lays out the files, every rank fills in its parts, rank 0 renames the finished
// folder.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <future>
#include <system_error>

#include "bench/machine/environment.h"
#include "bench/step/checkpoint.h"
#include "bench/step/checkpoint_files.h"
#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"
#include "kernels/numerics/element_runs.h"
#include "models/checkpoint/safetensors_parts.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Layouts = std::map<std::string, SafetensorsLayout>;

/// Suffixes of checkpoints that are being written (partial) or replaced by a new one.
constexpr const char *kPartial = ".partial", *kReplaced = ".replaced";

[[noreturn]] void cannot_write(const std::string& path) {
  throw InvalidInput(fmt::format("{}: cannot be written ({})", path, error_text(errno)));
}

/// Returns the layouts by kind, the same on every rank. The header contains the step, and so does the
/// fingerprint.
Layouts layouts_of(const std::vector<StateTensor>& state, std::int64_t optimizer_steps) {
  std::map<std::string, std::vector<NamedTensor>> tensors;
  for (const StateTensor& tensor : state) {
    const auto [kind, name] = kind_and_name(tensor.name);
    tensors[kind].push_back({name, safetensors_name(tensor.values.dtype), tensor.shape, nullptr});
  }
  Layouts layouts;
  for (const auto& [kind, list] : tensors)
    layouts[kind] = lay_out_safetensors(list, {{"optimizer_steps", fmt::format("{}", optimizer_steps)}});
  return layouts;
}

/// Creates the files. First removes what a killed run has left half-written, because it takes disk space.
void make_files(const std::string& folder, const Layouts& layouts) {
  const fs::path parent = fs::path(folder).parent_path();
  fs::create_directories(parent);
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent))
    if (const fs::path end = entry.path().extension(); end == kPartial || end == kReplaced)
      left.push_back(entry.path());
  for (const fs::path& path : left) fs::remove_all(path);
  fs::create_directory(folder);
  for (const auto& [kind, layout] : layouts) PartFile::make(file_of_kind(folder, kind), layout);
}

void write_text(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file) cannot_write(path);
  const bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
                     std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
  const int reason = errno;
  const bool closed = std::fclose(file) == 0;
  if (!whole) errno = reason;
  if (!whole || !closed) cannot_write(path);
}

/// Returns the file with the checksums of one rank's parts, which exists until rank 0 has merged all of them.
std::string sums_of_rank(const std::string& folder, int rank) {
  return (fs::path(folder) / fmt::format("checksums-{:06}.txt", rank)).string();
}

/// Writes this rank's parts. Each is written while the next one comes from the device and is summed.
void write_parts(Rank& rank, const std::string& folder, const Layouts& layouts) {
  std::map<std::string, PartFile> files;
  BlockSums sums;
  for (const auto& [kind, layout] : layouts) files.try_emplace(kind, file_of_kind(folder, kind));
  std::vector<std::byte> written;
  std::future<void> writing;
  rank.parameters().save_state([&](const StateTensor& part, std::vector<std::byte>& bytes) {
    const ElementMap place = in_bytes(part.place, part.values.dtype);
    const auto size = static_cast<std::int64_t>(bytes.size());
    sums.add(part.name, place, bytes.data(), size);
    if (writing.valid()) writing.get();
    written.swap(bytes);
    const auto [kind, name] = kind_and_name(part.name);
    const ElementMap in_file = place.within(layouts.at(kind).offsets.at(name));
    writing = std::async(std::launch::async, [&written, in_file, size, file = &files.at(kind)] {
      for_each_run(in_file, size, [&](std::int64_t i, std::int64_t offset, std::int64_t count) {
        file->write(offset, written.data() + i, count);
      });
      const ElementRange range = range_of(in_file, size);
      file->start_writeback(range.begin, range.size());
    });
  });
  if (writing.valid()) writing.get();
  for (const auto& [kind, file] : files) file.sync();
  write_text(sums_of_rank(folder, rank.comm().rank()), sums.text());
}

/// Merges the ranks' checksums and adds that of the state. Ranks without a part have no file.
void write_sums(const std::string& folder, int ranks, const std::vector<StateTensor>& state,
                const std::string& state_text) {
  BlockSums sums;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string path = sums_of_rank(folder, rank);
    if (!fs::exists(path)) continue;
    sums.add(BlockSums(path, read_regular_file(path, fs::file_size(path))));
    fs::remove(path);
  }
  for (const StateTensor& tensor : state) {
    std::int64_t size = 1;
    for (const std::int64_t n : tensor.shape) size *= n;
    if (!sums.cover(tensor.name, bytes_of(tensor.values.dtype, size)))
      throw InvalidInput(fmt::format("{}: the ranks' checksums of {} have a gap", folder, tensor.name));
  }
  sums.add(kStateFile, 0, reinterpret_cast<const std::byte*>(state_text.data()),
           static_cast<std::int64_t>(state_text.size()));
  write_text((fs::path(folder) / kChecksumsFile).string(), sums.text());
}

/// Syncs a folder: its entries are only on the disk after that.
void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && (::fsync(descriptor) == 0 || errno == EINVAL);
  const int reason = errno;
  if (descriptor >= 0) ::close(descriptor);
  errno = reason;
  if (!synced) cannot_write(folder);
}

Json evaluations_json(const std::vector<Evaluation>& evaluations) {
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  Json all = Json::array();
  for (const Evaluation& e : evaluations)
    all.push_back({{"step", e.step},
                   {"tokens", e.tokens},
                   {"loss", number(e.loss)},
                   {"loss_error", number(e.loss_error)},
                   {"bf16_loss", number(e.bf16_loss)}});
  return all;
}

Json state_json(const Plan& plan, const Layouts& layouts, const RunPosition& position,
                const TrainingCurve& curve) {
  Json kinds = Json::array();
  for (const auto& [kind, layout] : layouts) kinds.push_back(kind);
  const DefinitionRecord definition = definition_record(plan);
  const Environment here = describe_environment(openmp_threads(), -1, 0);
  Json json = {{"format", kCheckpointFormat},
               {"program",
                {{"schema", kSchemaVersion},
                 {"method", kMethodVersion},
                 {"git", here.git ? Json(*here.git) : Json()},
                 {"dirty", here.dirty ? Json(*here.dirty) : Json()}}},
               {"id", plan.id},
               {"case", case_to_json(plan.fields)},
               {"definition",
                {{"model", *definition.model},
                 {"recipe", *definition.recipe},
                 {"data", *definition.data},
                 {"init", *definition.init}}},
               {"step", position.step},
               {"sequences", position.sequences},
               {"seed", position.seed},
               {"optimizer_steps", position.optimizer_steps_before + position.step},
               {"files", kinds},
               {"checksums", kChecksumsFile},
               {"loss", curve.loss},
               {"grad_norm", curve.grad_norm},
               {"lr", curve.lr},
               {"evaluations", evaluations_json(curve.evaluations)}};
  return json;
}

/// Renames the finished checkpoint. One with the same name, from an earlier start of the case, is removed
/// only afterwards.
void give_name(const std::string& partial, const std::string& name) {
  const std::string replaced = name + kReplaced;
  sync_folder(partial);
  fs::remove_all(replaced);
  if (fs::exists(name)) fs::rename(name, replaced);
  fs::rename(partial, name);
  sync_folder(fs::path(name).parent_path().string());
  fs::remove_all(replaced);
}

}  // namespace

std::optional<std::string> write_checkpoint(Rank& rank, const Plan& plan, std::int64_t step,
                                            const TrainingCurve& curve) {
  const bool first = rank.comm().rank() == 0;
  const bool has_parts = rank.parameters().writes_state();
  const std::string folder = checkpoint_folder(plan);
  const std::string name = checkpoint_at(plan, step);
  const std::string partial = name + kPartial;
  const RunPosition position = rank.position(step);
  const std::vector<StateTensor> state = rank.parameters().state();
  const Layouts layouts = layouts_of(state, position.optimizer_steps_before + position.step);
  std::optional<std::string> why;
  // Runs the work on the ranks that have some. Returns true if it succeeded on every rank.
  const auto together = [&](bool mine, const auto& work) {
    try {
      if (mine) work();
    } catch (const InvalidInput& error) {
      why = error.what();
    } catch (const std::system_error& error) {  // the file system's, too
      why = error.what() + limit_text(error.code());
    }
    return rank.sum_over_ranks(why ? 1 : 0) == 0;
  };
  const bool whole =
      together(first, [&] { make_files(partial, layouts); }) &&
      together(has_parts, [&] { write_parts(rank, partial, layouts); }) && together(first, [&] {
        // Names of models and paths need not be UTF-8.
        const std::string text =
            state_json(plan, layouts, position, curve).dump(-1, ' ', false, Json::error_handler_t::replace) +
            "\n";
        write_text((fs::path(partial) / kStateFile).string(), text);
        write_sums(partial, rank.comm().size(), state, text);
        give_name(partial, name);
      });
  std::error_code ignored;
  if (!whole) {
    if (first) fs::remove_all(partial, ignored);
    return why.value_or("another rank could not write its part");
  }
  if (first && plan.checkpoint_keep == CheckpointKeep::last && step < plan.fields.steps)
    for (const auto& [older, path] : checkpoints_in(folder))
      if (older < step) fs::remove_all(path, ignored);
  return std::nullopt;
}

}  // namespace precbench
