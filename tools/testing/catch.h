// Catch2's assertions for every *_test.cpp, whichever of 2.13 and 3 is installed.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
