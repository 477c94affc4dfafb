// Catch2's assertions for every *_test.cpp, with Catch2 2.13 or 3.
#pragma once
#include <string>
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // as in Catch2 2
inline auto ContainsText(const std::string& part) { return Catch::Matchers::ContainsSubstring(part); }
#else
#include <catch2/catch.hpp>
inline auto ContainsText(const std::string& part) { return Catch::Matchers::Contains(part); }
#endif
