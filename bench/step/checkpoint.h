// The whole state of a run on disk: a folder that the ranks write and read together. The number of ranks may
// differ.
//   step-000100/weights.safetensors    the master where there is one, under Hugging Face names
//   step-000100/m.safetensors, v....   the optimizer's state, under the same names
//   step-000100/scales.safetensors     with delayed scaling: the amax history
//   step-000100/state.json             position, definition and losses of the run, program that wrote it
//   step-000100/checksums.txt          checksums of all of these, block by block
// It is written as step-000100.partial and renamed once it is on the disk, so a folder with the final name is
// complete.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/step/block_sums.h"
#include "bench/step/rank.h"
#include "kernels/base/errors.h"
#include "models/checkpoint/safetensors.h"
#include "results/record/record.h"

namespace precbench {

/// Version of state.json, raised when an older program would misread it. Checkpoints without checksums were
/// written before these existed.
inline constexpr int kCheckpointFormat = 1;

/// Per-step results and held-out losses of a run.
struct TrainingCurve {
  std::vector<double> loss, grad_norm, lr;
  std::vector<Evaluation> evaluations;
};

/// Thrown if a newer version of this program, with a newer format, has written the checkpoint.
struct NewerCheckpoint : InvalidInput {
  using InvalidInput::InvalidInput;
};

/// Thrown if a tensor's bytes do not match their checksum.
struct DamagedCheckpoint : InvalidInput {
  using InvalidInput::InvalidInput;
};

/// An open checkpoint. All errors are InvalidInput with one line that names the file.
class Checkpoint {
 public:
  /// Reads and checks everything but the tensors' values. May also throw NewerCheckpoint.
  explicit Checkpoint(const std::string& folder);

  const std::string& path() const { return path_; }
  const std::string& id() const { return id_; }  ///< case that wrote it
  const RunPosition& position() const { return position_; }
  const TrainingCurve& curve() const { return curve_; }
  /// Returns "the checkpoint PATH was written by commit 0123abc, and this program is of commit 456def: ..." if the
  /// steps before and after it may be of different programs; null if they are of one commit, or a commit is unknown.
  std::optional<std::string> other_build_warning() const;

  /// Throws unless the checkpoint belongs to exactly this case and has its dtypes.
  void check_continues(const Plan& plan) const;
  /// Throws if the model or the optimizer differs. Weights and moments may have other dtypes: they are
  /// rounded to the case's.
  void check_forks(const Plan& plan) const;

  /// Returns a reader of what check_continues or check_forks has accepted, part by part, in the dtypes that
  /// the calling rank asks for. The checkpoint must outlive it; ranks may read concurrently. If there are
  /// checksums, the blocks that overlap a part are verified as it is read. The reader throws
  /// DamagedCheckpoint.
  StateReader reader() const;

 private:
  void read_state(const std::string& path);
  /// Verifies `state`, the text of state.json, and that there are checksums for every tensor.
  void read_checksums(const std::string& state);
  /// Returns elements [first, first + n) of a tensor after verifying them.
  const std::byte* checked(const std::string& kind, const StoredTensor& stored, std::int64_t first,
                           std::int64_t n) const;
  /// `resume` requires the case's own dtypes and everything that a run keeps.
  enum class Use : std::uint8_t { resume, fork };
  void check_tensors(const Plan& plan, Use use) const;
  /// Returns true if the tensor is stored with scales that fit its FP8 or FP16 data.
  bool has_scales(const std::string& kind, const std::string& name) const;

  std::string path_, id_, optimizer_;
  std::optional<std::string> git_;  // commit of the program that wrote it
  nlohmann::ordered_json model_;  // from the definition
  RunPosition position_;
  TrainingCurve curve_;
  std::map<std::string, SafetensorsFile> files_;  // by kind: "weights", "m", "v"
  BlockSums sums_;                                // empty for checkpoints written before checksums existed
};

/// Returns the folder of a case's checkpoints, --checkpoint-dir/ID. Throws InvalidInput if there is no
/// --checkpoint-dir.
std::string checkpoint_folder(const Plan& plan);
/// Returns the folder of the state after `step` steps, step-000100 inside checkpoint_folder().
std::string checkpoint_at(const Plan& plan, std::int64_t step);

/// Returns the newest complete checkpoint from which the case can resume with steps left to do; null if there
/// is none. Adds a line to `problems` for each unreadable one. Throws NewerCheckpoint, which must not be
/// overwritten.
std::unique_ptr<Checkpoint> last_checkpoint(const Plan& plan, std::vector<std::string>& problems);

/// Writes the state after `step` steps; a collective, rank 0 has the curve. Returns on every rank why it
/// could not be written, null on success. Older checkpoints are kept until this one is complete. Then
/// --checkpoint-keep last removes them, but after the last step it keeps one: a run killed before its record
/// is written resumes from there.
std::optional<std::string> write_checkpoint(Rank& rank, const Plan& plan, std::int64_t step,
                                            const TrainingCurve& curve);

}  // namespace precbench
