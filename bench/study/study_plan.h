// The cases of a study. Trunks come first; forks can be resolved only once the states that they start from
// exist.
#pragma once

#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/study/study_settings.h"

namespace precbench {

/// An unresolved case with its place in the study.
struct StudyCase {
  Case fields;
  StudyPlace place;
};

/// Ages at which forks begin.
struct ForkAges {
  std::vector<std::int64_t> ages;  ///< steps of the trunks, youngest first
  std::optional<bool> steady;      ///< as in StudyPlace
};

class StudyPlan {
 public:
  /// Plans one model of the settings with the requested recipes; the device must be chosen. Throws
  /// InvalidInput if there are no recipes other than BF16, and "FILE:LINE: why" for a ladder with more
  /// channels than the model has.
  StudyPlan(const StudySettings& settings, const std::string& model, std::string out);

  const std::string& model() const { return base_.model; }
  const std::vector<StudyCase>& trunks() const { return trunks_; }
  /// Returns the first requested recipe.
  const std::string& first_recipe() const;
  /// Returns all cases other than trunks, trunk by trunk; with sensitivity_only, only those that measure
  /// sensitivity.
  /// `trunks`: trunks() resolved. In the first overload, before the trunks have run, a study that chooses its
  /// age assumes the last one, which gives the same number of cases.
  std::vector<StudyCase> forks(const std::vector<Plan>& trunks) const;
  std::vector<StudyCase> forks(const std::vector<Plan>& trunks, const ForkAges& ages) const;
  /// Writes the recipes of the ladders of bits to OUT/recipes/. Throws InvalidInput if it cannot.
  void write_recipes() const;

 private:
  /// A recipe (or perturbed BF16) in which forks run, and its role in the study.
  struct Variant {
    std::string recipe;
    bool perturbed = false;  ///< BF16 with one weight changed: the noise floor
    bool asked = false;
    std::optional<std::string> apart_from = std::nullopt;
    bool breaks = false;
    std::optional<std::string> against = std::nullopt;  ///< name of the incumbent that it is compared with
  };
  /// A recipe with mantissa or exponent bits removed.
  struct Rung {
    StudyPart part;
    std::string path, base;
    Recipe recipe;
    int bits = 0;
  };

  StudyPlace place(StudyPart part, std::int64_t trunk, std::int64_t age = 0, std::int64_t seed = 0) const;
  void choose_variants(const std::vector<std::string>& asked);
  Variant& variant(const std::string& recipe);
  /// Compares all requested recipes with the incumbent, which becomes one of them.
  void add_incumbent();
  void make_rungs();
  StudyCase fork(const std::string& checkpoint, StudyPart part, std::int64_t trunk, std::int64_t age,
                 std::int64_t seed, const Variant& variant) const;
  /// Returns the recipes in which the last weights of a variant's forks are read, as --eval-recipes has them.
  std::string readings_of(const Variant& variant) const;
  /// True if its forks compare gradients: the settings ask for it and the recipe supports it.
  bool compares_gradients(const Variant& variant) const;
  /// `readings`: readings_of() the variants, by recipe.
  void add_forks(const Plan& trunk, std::int64_t number, const ForkAges& ages,
                 const std::map<std::string, std::string>& readings, std::vector<StudyCase>& cases) const;
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

/// Resolves the cases, with their places. Throws like validate().
std::vector<Plan> validate(const std::vector<StudyCase>& cases);

}  // namespace precbench
