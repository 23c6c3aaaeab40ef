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
