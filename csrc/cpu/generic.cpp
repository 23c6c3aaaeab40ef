// The inner kernels for any CPU.
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

namespace pybeam {
namespace {

// clang-format off: each needs those above it
#include "vec_generic-inl.h"
#include "exp-inl.h"
#include "activations-inl.h"
#include "columns-inl.h"
#include "gates-inl.h"
#include "select-inl.h"
#include "row_blocks-inl.h"
#include "tree_attention-inl.h"
#include "pairs-inl.h"
#include "linear-inl.h"
#include "layer_norm-inl.h"
#include "log-inl.h"
#include "mixture-inl.h"
#include "kernels-inl.h"
// clang-format on

}  // namespace

extern const Kernels kGenericKernels = make_kernels("generic");

}  // namespace pybeam
