// Parts that the kernels on the token tree share.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "../params/tree.h"

namespace pybeam {

// The survivors of one source that become its next rows.
struct Survivors {
    const int32_t* parent;
    const int32_t* token;
    const float* log_prob;
    int32_t count;
};

[[noreturn]] inline void fail_tree(const std::string& what) {
    throw std::runtime_error("token tree: " + what);
}

// Checks what `inherit_paths` uses as addresses.
void check_paths(const Tree& tree, int64_t slot, const Survivors& survivors, int32_t eos_id);

// Gives every row that goes on the path of its parent, and all others a path to nowhere. A node
// that no row sees frees its cell.
void inherit_paths(const Tree& tree, int64_t slot, const Survivors& survivors, int32_t eos_id);

// Adds the nodes that are appended next to the paths of their rows.
void extend_paths(const Tree& tree, int64_t slot, const Survivors& survivors, int32_t eos_id);

}  // namespace pybeam
