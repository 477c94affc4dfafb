// Covariance of stack factors by effect, for estimating the spreads of effects (stack_evidence.cpp) and for the factors
// (stack_factor.cpp).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "bench/predict/stack_factor.h"

namespace precbench {

/// One step of a stack, of a source.
struct StackStep {
  Stack stack;
  StackSetting setting;
  std::string source;
};

/// Values by effect that two comparisons have in common; their sum, weighed with the squares of the spreads, is the
/// covariance.
using StackBases = std::array<double, kStackEffects>;
/// `same`: both are one comparison.
StackBases stack_covariance(const StackEvidence& a, const StackEvidence& b, bool same);

/// Replaces the rows of the lower triangle of a symmetric matrix by its Cholesky factor. Returns false if it is not
/// positive definite.
bool factorize(std::vector<std::vector<double>>& rows);
/// Returns factor^-1 times `values`.
std::vector<double> solve_lower(const std::vector<std::vector<double>>& factor, std::vector<double> values);
/// Returns the logarithm of a normal density of mean 0, but for a constant.
double log_likelihood_of(const std::vector<std::vector<double>>& factor, const std::vector<double>& values);
/// Returns the logarithms of the factors.
std::vector<double> log_factors(const std::vector<StackEvidence>& evidence);

}  // namespace precbench
