#include "catalogue.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "log_sum.h"
#include "numbers.h"
#include "parallel.h"

namespace pybeam {
namespace {

// The node that a token leads to; -1: there is none.
int32_t child_of(const CatalogueTree& tree, int64_t node, int32_t token) {
    const Edges edges = edges_of(tree, node);
    const int32_t *begin = tree.token + edges.begin, *end = tree.token + edges.end;
    const int32_t* found = std::lower_bound(begin, end, token);
    const bool is_there = found != end && *found == token;
    return is_there ? static_cast<int32_t>(found - tree.token) + 1 : -1;
}

float logit_at(const void* row, DType dtype, int64_t i) {
    switch (dtype) {
        case DType::kBFloat16:
            return to_float(static_cast<const BFloat16*>(row)[i]);
        case DType::kFloat16:
            return to_float(static_cast<const Half*>(row)[i]);
        default:
            return static_cast<const float*>(row)[i];
    }
}

bool has(const uint32_t* words, int64_t node) { return words[node >> 5] >> (node & 31) & 1; }

}  // namespace

Edges edges_of(const CatalogueTree& tree, int64_t node) {
    if (node < 0 || node >= tree.num_inner) return {0, 0};
    const Edges edges{tree.first[node], tree.first[node + 1]};
    if (edges.begin < 0 || edges.begin > edges.end || edges.end > tree.num_edges) {
        throw std::runtime_error("`first` must ascend from 0 to the number of edges");
    }
    return edges;
}

Columns::Columns(const CatalogueColumnsParams& params) : p_(params) {
    edges_.reserve(p_.num_rows);
    for (int64_t row = 0; row < p_.num_rows; ++row) {
        if (p_.node[row] > p_.tree.num_edges || p_.line[row] < 0 ||
            p_.line[row] >= p_.num_filters) {
            throw std::runtime_error("`node` must be a node of the tree, `line` a filter");
        }
        edges_.push_back(edges_of(p_.tree, p_.node[row]));
    }
}

const float* Columns::write_row(int64_t row, const void* logits) {
    const Edges edges = edges_[row];
    const int64_t node = p_.node[row], count = edges.end - edges.begin;
    const uint32_t* alive = p_.words + p_.line[row] * 2 * p_.num_words;
    const uint32_t* ends = alive + p_.num_words;
    // EOS comes first wherever its column is, so that a sum does not depend on the columns
    static thread_local std::vector<float> values;
    values.resize(count + 1);
    poison(values.data(), values.size() * sizeof(float));
    const float* own = has_layers() ? static_cast<const float*>(logits) : nullptr;
    const auto value = [&](int64_t place, int64_t token) {
        return own != nullptr ? own[place] : at(logits, token);
    };
    values[0] = node >= 0 && has(ends, node) ? value(0, p_.eos_id) : -INFINITY;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t edge = edges.begin + i;
        values[i + 1] = has(alive, edge + 1) ? value(i + 1, p_.tree.token[edge]) : -INFINITY;
    }
    normalise(logits, values);
    float* out = p_.out + row * p_.num_columns;
    float* tokens = out + (p_.eos_first ? 1 : 0);
    std::copy(values.begin() + 1, values.end(), tokens);
    std::fill(tokens + count, tokens + p_.num_columns - 1, -INFINITY);
    out[p_.eos_first ? 0 : p_.num_columns - 1] = values[0];
    return out;
}

float Columns::at(const void* logits, int64_t token) {
    if (token >= 0 && token < p_.vocab_size) return logit_at(logits, p_.dtype, token);
    has_strange_token_ = true;
    return -INFINITY;
}

void Columns::normalise(const void* logits, std::vector<float>& values) const {
    if (p_.normalise == Normalise::kNothing) return;
    const bool reads_all = p_.normalise == Normalise::kVocabulary;
    const LogSum sum = reads_all ? log_sum_of(logits, p_.dtype, p_.vocab_size)
                                 : log_sum_of(values.data(), DType::kFloat32, std::ssize(values));
    for (float& value : values) value = sum.log_prob(value);
}

void Columns::check() const {
    if (has_strange_token_) throw std::runtime_error("`token` must hold columns of the logits");
}

void launch_catalogue_walk(const CatalogueWalkParams& p) {
    for (int64_t row = 0; row < p.num_rows; ++row) {
        const int64_t slot = p.row_slot[row], node = p.node[row];
        if (slot < 0 || slot >= p.num_slots || node < 0 || node >= p.max_nodes) {
            throw std::runtime_error("`row_slot` and `node` must be those of token trees");
        }
        const int64_t line = slot * p.max_nodes;
        const int64_t parent = std::max(p.parent[line + node], 0);
        if (parent >= p.max_nodes) throw std::runtime_error("`parent` must hold nodes");
        const bool has_begun = p.num_generated[row] > 0;
        const int32_t here = has_begun ? child_of(p.tree, p.state[line + parent], p.token[row]) : 0;
        p.out[row] = p.state[line + node] = here;
    }
}

int32_t ColumnTokens::token(int64_t row, int32_t column) const {
    if (column == eos_column()) return eos_id;
    const Edges edges = row < 0 || row >= num_rows ? Edges{0, 0} : edges_of(tree, node[row]);
    const int64_t edge = edges.begin + column - (eos_first ? 1 : 0);
    if (edge < edges.begin || edge >= edges.end) {
        throw std::runtime_error("a survivor has the column of no token");
    }
    return tree.token[edge];
}

int64_t most_edges(const CatalogueTree& tree, const int32_t* node, int64_t num_rows) {
    int64_t most = 1;
    for (int64_t row = 0; row < num_rows; ++row) {
        const Edges edges = edges_of(tree, node[row]);
        most = std::max(most, edges.end - edges.begin);
    }
    return most;
}

void launch_catalogue_columns(const CatalogueColumnsParams& p) {
    Columns columns(p);
    const int64_t row_bytes = p.row_stride * (p.dtype == DType::kFloat32 ? 4 : 2);
    const bool reads_all = p.normalise == Normalise::kVocabulary;
    const int64_t work = p.num_rows * (reads_all ? p.vocab_size / 2 : p.num_columns);
    parallel_for(threads_for(work, p.num_rows, p.num_threads), p.num_rows, [&](int64_t row) {
        columns.write_row(row, static_cast<const char*>(p.logits) + row * row_bytes);
    });
    columns.check();
}

}  // namespace pybeam
