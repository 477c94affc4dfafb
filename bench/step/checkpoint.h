// The whole state of a run on disk: a folder that the ranks write and read together, whatever their number.
//   step-000100/weights.safetensors    the master where there is one, under Hugging Face names
//   step-000100/m.safetensors, v....   what the optimizer keeps, likewise
//   step-000100/scales.safetensors     with delayed scaling: amaxes of the steps before
//   step-000100/state.json             where the run stands, what it is, who wrote it, and its losses so far
//   step-000100/checksums.txt          of all of these, block by block
// It is written beside, as step-000100.partial, and renamed once all of it is on the disk: what has the name is whole.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/step/block_sums.h"
#include "bench/step/rank.h"
#include "kernels/base/errors.h"
#include "models/checkpoint/safetensors.h"
#include "results/record.h"

namespace precbench {

/// Of state.json; raised when an older program would read it wrongly. Checksums came without: what has none is from before.
inline constexpr int kCheckpointFormat = 1;

/// What a run has said of each of its steps, and of its held-out text.
struct TrainingCurve {
  std::vector<double> loss, grad_norm, lr;
  std::vector<Evaluation> evaluations;
};

/// A version of this program has written it that knows more than this one.
struct NewerCheckpoint : InvalidInput {
  using InvalidInput::InvalidInput;
};

/// Bytes of a tensor are not those that were written.
struct DamagedCheckpoint : InvalidInput {
  using InvalidInput::InvalidInput;
};

/// A checkpoint, open. All errors are InvalidInput with one line that names the file.
class Checkpoint {
 public:
  /// Everything but the tensors' values is read and checked here. Throws NewerCheckpoint, too.
  explicit Checkpoint(const std::string& folder);

  const std::string& path() const { return path_; }
  const std::string& id() const { return id_; }  ///< of the case that it is of
  const RunPosition& position() const { return position_; }
  const TrainingCurve& curve() const { return curve_; }

  /// Throws where it is not of this very case, or in other formats.
  void check_continues(const Plan& plan) const;
  /// Throws where it is of another model or optimizer. Weights and moments may be in other formats: they are rounded to
  /// the case's.
  void check_forks(const Plan& plan) const;

  /// What check_continues or check_forks has passed, part by part, in the formats of the rank that asks. The
  /// checkpoint must outlive it; ranks may read at the same time. Where there are checksums, the blocks that a part lies
  /// in are checked as it is read. Throws DamagedCheckpoint.
  StateReader reader() const;

 private:
  void read_state(const std::string& path);
  /// Of the text of state.json, and that there are sums of all that can be read.
  void read_checksums(const std::string& state);
  /// Elements [first, first + n) of a tensor, checked.
  const std::byte* checked(const std::string& kind, const StoredTensor& stored, std::int64_t first,
                           std::int64_t n) const;
  /// `continues`: in the formats of the case, and with all that a run keeps.
  void check_tensors(const Plan& plan, bool continues) const;
  /// Whether a tensor's codes stand there with scales that fit them.
  bool has_scales(const std::string& kind, const std::string& name) const;

  std::string path_, id_, optimizer_;
  nlohmann::ordered_json model_;  // of the definition
  RunPosition position_;
  TrainingCurve curve_;
  std::map<std::string, SafetensorsFile> files_;  // by kind: "weights", "m", "v"
  BlockSums sums_;                                // none of a checkpoint from before there were any
};

/// The folder of a case's checkpoints, --checkpoint-dir/ID. Throws InvalidInput where there is no --checkpoint-dir.
std::string checkpoint_folder(const Plan& plan);
/// Of the state after `step` steps: in that folder, step-000100.
std::string checkpoint_at(const Plan& plan, std::int64_t step);

/// The newest whole checkpoint that the case can go on from, with steps left to do; null if there is none. Of those
/// that cannot be read `problems` gets a line each. Throws NewerCheckpoint, which must not be written over.
std::unique_ptr<Checkpoint> last_checkpoint(const Plan& plan, std::vector<std::string>& problems);

/// A collective, after `step` steps; rank 0 has the curve. Returns why it could not be written, on every rank; empty if
/// it was. Older ones stay until it is whole; then, with --checkpoint-keep last, they go, but for the one before the
/// last step's: from there a run goes on that is killed before its record is written.
std::string write_checkpoint(Rank& rank, const Plan& plan, std::int64_t step, const TrainingCurve& curve);

}  // namespace precbench
