// The cases of a study. Trunks come first; forks can be resolved only once the states are there that they fork from.
#pragma once

#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/study/study_settings.h"

namespace precbench {

/// A case with its place, before it is resolved.
struct StudyCase {
  Case fields;
  StudyPlace place;
};

/// When forks begin.
struct ForkAges {
  std::vector<std::int64_t> ages;  ///< steps of the trunks, youngest first
  std::optional<bool> steady;      ///< as in StudyPlace
};

class StudyPlan {
 public:
  /// One model of the settings, and the recipes asked for; the device must be chosen. Throws InvalidInput where these
  /// are none, or BF16 alone, and "FILE:LINE: why" for a ladder with more channels than the model has.
  StudyPlan(const StudySettings& settings, const std::string& model, std::string out);

  const std::string& model() const { return base_.model; }
  const std::vector<StudyCase>& trunks() const { return trunks_; }
  /// The first recipe that is asked for.
  const std::string& first_recipe() const;
  /// All that is no trunk, trunk by trunk; with sensitivity_only, only the cases that measure sensitivity. `trunks`: those
  /// above, resolved. Before they have run nobody knows the age of a study that chooses it: the last is taken, and the number of
  /// cases is the same.
  std::vector<StudyCase> forks(const std::vector<Plan>& trunks) const;
  std::vector<StudyCase> forks(const std::vector<Plan>& trunks, const ForkAges& ages) const;
  /// Writes the recipes of the ladder of bits to OUT/recipes/. Throws InvalidInput where it cannot.
  void write_recipes() const;

 private:
  /// A way to compute a fork.
  struct Variant {
    std::string recipe;
    bool perturbed = false;  ///< BF16 with one weight changed: the noise floor
    bool asked = false;
    std::optional<std::string> apart_from = std::nullopt;
    bool breaks = false;
  };
  /// A recipe with bits taken away, of mantissas or of exponents.
  struct Rung {
    StudyPart part;
    std::string path, base;
    Recipe recipe;
    int bits = 0;
  };

  StudyPlace place(StudyPart part, std::int64_t trunk, std::int64_t age = 0, std::int64_t seed = 0) const;
  void choose_variants(const std::vector<std::string>& asked);
  Variant& variant(const std::string& recipe);
  void make_rungs();
  StudyCase fork(const std::string& checkpoint, StudyPart part, std::int64_t trunk, std::int64_t age,
                 std::int64_t seed, const Variant& variant) const;
  /// Whether its forks compare gradients: where the settings ask for it and the recipe's can be.
  bool compares_gradients(const Variant& variant) const;
  void add_forks(const Plan& trunk, std::int64_t number, const ForkAges& ages,
                 std::vector<StudyCase>& cases) const;
  void add_ladders(const Plan& trunk, std::int64_t number, const ForkAges& ages,
                   std::vector<StudyCase>& cases) const;
  void add_sensitivity(const Plan& trunk, std::int64_t number, const ForkAges& ages,
                       std::vector<StudyCase>& cases) const;

  const StudySettings& settings_;
  std::string out_, study_;
  Case base_, fork_base_;
  std::vector<Variant> variants_;
  std::vector<Rung> rungs_;
  std::vector<StudyCase> trunks_;
};

/// With their places. Throws like resolve().
std::vector<Plan> resolve(const std::vector<StudyCase>& cases);

}  // namespace precbench
