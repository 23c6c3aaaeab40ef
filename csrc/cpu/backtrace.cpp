#include <algorithm>
#include <stdexcept>

#include "../params/tree.h"

namespace pybeam {

void launch_backtrace(const BacktraceParams& p) {
    for (int64_t i = 0; i < p.num_hypotheses; ++i) {
        const int64_t slot = p.slot[i];
        if (slot < 0 || slot >= p.num_slots) throw std::runtime_error("`slot` is out of range");
        if (p.node[i] < -1 || p.node[i] >= p.max_nodes) {
            throw std::runtime_error("`node` is out of range");
        }
        const int32_t* token = p.token + slot * p.max_nodes;
        const int32_t* parent = p.parent + slot * p.max_nodes;
        int64_t length = 0;
        for (int32_t n = p.node[i]; n >= 0; n = parent[n]) {
            // also what makes this loop end
            if (parent[n] >= n) throw std::runtime_error("a node's parent must come before it");
            ++length;
        }
        int32_t* out = p.tokens_out + i * p.capacity;
        int64_t column = length;
        for (int32_t n = p.node[i]; n >= 0; n = parent[n]) {
            if (--column < p.capacity) out[column] = token[n];
        }
        std::fill(out + std::min(length, p.capacity), out + p.capacity, -1);
        p.length_out[i] = static_cast<int32_t>(length);
    }
}

}  // namespace pybeam
