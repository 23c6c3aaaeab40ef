// The headers that the inner kernels need, whatever the instruction set. It comes before the target
// pragma: no inline function that other files share may get that target's instructions.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../dispatch.h"
#include "../params/gates.h"
#include "../params/layer_norm.h"
#include "../params/linear.h"
#include "../params/mixture.h"
#include "../params/tree_attention.h"
#include "numbers.h"
#include "select.h"

// The instructions that functions between these two may have, as a compiler is told of them.
#define PYBEAM_PRAGMA(...) _Pragma(#__VA_ARGS__)
#ifdef __clang__
#define PYBEAM_TARGET(features) \
    PYBEAM_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define PYBEAM_END_OF_TARGET PYBEAM_PRAGMA(clang attribute pop)
#else
#define PYBEAM_TARGET(features) PYBEAM_PRAGMA(GCC target(features))
#define PYBEAM_END_OF_TARGET
#endif
