// What `precbench list` prints: one aligned table each, on standard output.
#pragma once

namespace precbench {

/// Every built-in recipe: the formats of its three GEMMs, and native, emulated or unsupported on each device
/// here.
void list_recipes();
/// Every preset: its shape and its parameter count.
void list_models();
/// The CPU device and every GPU: what it has and which GEMM modes it runs natively.
void list_devices();

}  // namespace precbench
