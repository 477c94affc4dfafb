// Formulas of activations and of soft-capping, for the CPU and the CUDA device.
#pragma once

#include <cmath>

#include "kernels/numerics/activation.h"
#include "kernels/numerics/formats.h"
#include "kernels/numerics/multiply_add.h"

namespace precbench {

// FP32 functions of C libraries differ in the last place: tanhf, erfcf and log1pf do between glibc 2.36 and 2.41. So
// the host rounds FP64's result, which gives the nearest float for all but about one in 2^28 values.

PRECBENCH_HD inline float tanh_of(float x) {
#ifdef __CUDA_ARCH__
  return tanhf(x);
#else
  return static_cast<float>(std::tanh(static_cast<double>(x)));
#endif
}

PRECBENCH_HD inline float erfc_of(float x) {
#ifdef __CUDA_ARCH__
  return erfcf(x);
#else
  return static_cast<float>(std::erfc(static_cast<double>(x)));
#endif
}

// act(g) = g sigma(g). slope returns x act'(g), given sigma(g). `Math` has a device's sigmoid.

template <class Math>
struct Silu {
  PRECBENCH_HD static float sigma(float g) { return Math::sigmoid(g); }
  PRECBENCH_HD static float slope(float x, float g, float sigma) {
    return x * sigma * multiply_add(g, 1.0f - sigma, 1.0f);
  }
};

/// gelu_tanh(g) = g sigmoid(2 u(g)), u(g) = kSlope (g + kCube g^3).
template <class Math>
struct GeluTanh {
  static constexpr float kSlope = 0.7978845608028654f;  // sqrt(2 / pi)
  static constexpr float kCube = 0.044715f;
  PRECBENCH_HD static float sigma(float g) {
    return Math::sigmoid(2.0f * kSlope * g * multiply_add(kCube * g, g, 1.0f));
  }
  PRECBENCH_HD static float slope(float x, float g, float sigma) {
    // Derivative of sigmoid's argument.
    const float inner = 2.0f * kSlope * multiply_add(3.0f * kCube * g, g, 1.0f);
    return x * sigma * multiply_add(g * (1.0f - sigma), inner, 1.0f);
  }
};

template <class Math>
struct Gelu {
  static constexpr float kRootHalf = 0.70710678f, kDensity = 0.39894228f;  // 1 / sqrt(2), 1 / sqrt(2 pi)
  PRECBENCH_HD static float sigma(float g) { return 0.5f * erfc_of(-g * kRootHalf); }
  PRECBENCH_HD static float slope(float x, float g, float sigma) {
    return x * multiply_add(g * kDensity, expf(-0.5f * g * g), sigma);
  }
};

/// max(g, 0)^2.
struct SquaredRelu {
  PRECBENCH_HD static float sigma(float g) { return fmaxf(g, 0.0f); }
  PRECBENCH_HD static float slope(float x, float, float sigma) { return 2.0f * x * sigma; }
};

/// The gate of gpt-oss's SwiGLU, whose output is (up + 1) g sigma(1.702 g) of clamped gate and up. A value that equals the limit,
/// as many do in BF16, has no gradient; nor has it in PyTorch 2.15.
template <class Math>
struct ClampedGate {
  static constexpr float kAlpha = 1.702f;
  float limit;

  /// Values, and derivatives with respect to gate and up.
  struct Result {
    float s, dgate, dup;
  };
  PRECBENCH_HD Result operator()(float gate, float up) const {
    // NaN passes, unlike with fminf.
    const float g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
    const float sigma = Math::sigmoid(kAlpha * g), glu = g * sigma;
    const bool held = gate >= limit, held_up = up >= limit || up <= -limit;
    return {(u + 1.0f) * glu, held ? 0.0f : (u + 1.0f) * sigma * multiply_add(kAlpha * g, 1.0f - sigma, 1.0f),
            held_up ? 0.0f : glu};
  }
};

/// Calls body with the functions of a gate's activation.
template <class Math, class Body>
void with_activation(Activation activation, Body&& body) {
  if (activation == Activation::gelu_tanh) return body(GeluTanh<Math>());
  if (activation == Activation::gelu) return body(Gelu<Math>());
  body(Silu<Math>());
}

/// Calls body with the functions of any activation.
template <class Math, class Body>
void with_any_activation(Activation activation, Body&& body) {
  if (activation == Activation::relu2) return body(SquaredRelu());
  with_activation<Math>(activation, body);
}

/// Returns cap tanh(x / cap), or x if cap is 0.
PRECBENCH_HD inline float soft_capped(float x, float cap) { return cap == 0 ? x : cap * tanh_of(x / cap); }
/// Returns the derivative of soft_capped, from its value; cap is not 0.
PRECBENCH_HD inline float soft_cap_slope(float capped, float cap) {
  const float ratio = capped / cap;
  return multiply_add(-ratio, ratio, 1.0f);
}

}  // namespace precbench
