#include "automata.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "../counters.h"
#include "log_sum.h"
#include "numbers.h"
#include "parallel.h"

namespace pybeam {
namespace {

// The state to look further in, a smaller one; -1: there is none.
int32_t failure_of(const Automata& automata, int64_t state) {
    if (automata.is_tree() || state < 0 || state >= automata.num_inner) return -1;
    const int32_t failure = automata.state[state].failure;
    if (failure >= state) throw std::runtime_error("`failure` must be a smaller state");
    return std::max(failure, -1);
}

bool is_run(const Automata& automata, const Edges& edges) {
    const int64_t count = edges.end - edges.begin;
    return count > 0 && automata.token[edges.begin] >= 0 &&
           automata.token[edges.end - 1] - int64_t{automata.token[edges.begin]} == count - 1;
}

// The edge of a token among these, or the first one with a larger token.
int64_t find_edge(const Automata& automata, const Edges& edges, int32_t token) {
    if (is_run(automata, edges)) {
        const int64_t number = token - int64_t{automata.token[edges.begin]};
        return edges.begin + std::clamp<int64_t>(number, 0, edges.end - edges.begin);
    }
    const int32_t* begin = automata.token + edges.begin;
    return std::lower_bound(begin, automata.token + edges.end, token) - automata.token;
}

// Whether outputs may go on to this state of a pool, and end in time.
bool fits(const Automata& automata, int32_t target, int32_t room) {
    return target >= 0 && target < automata.num_inner && automata.state[target].needed < room;
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

// Whether outputs may go on by every edge of this state that leads somewhere, and end in time.
bool all_fit(const Automata& automata, int32_t state, int32_t room) {
    return automata.state[state].most_needed < room;
}

// x, or -inf where the weight is -inf, without a branch: compilers take none into vectors.
float unless_forbidden(float weight, float x) {
    constexpr uint32_t kForbidden = 0xff800000;
    const uint32_t mask = bits_from_float(weight) == kForbidden ? ~uint32_t{0} : 0;
    return float_from_bits((bits_from_float(x) & ~mask) | (kForbidden & mask));
}

// x += added + weights, -inf where a weight is -inf.
void add_run(const float* __restrict weights, float added, int64_t size, float* __restrict x) {
    for (int64_t i = 0; i < size; ++i) {
        x[i] = unless_forbidden(weights[i], x[i] + (added + weights[i]));
    }
}

// x += others, -inf where those are -inf.
void add_others(float others, int64_t size, float* x) {
    if (others == -INFINITY) {
        std::fill_n(x, size, -INFINITY);
    } else if (others != 0.0f) {
        for (int64_t i = 0; i < size; ++i) x[i] += others;
    }
}

bool has(const uint32_t* words, int64_t node) { return words[node >> 5] >> (node & 31) & 1; }

}  // namespace

Edges edges_of(const Automata& automata, int64_t state) {
    if (state < 0 || state >= automata.num_inner) return {0, 0};
    const Edges edges{automata.first[state], automata.first[state + 1]};
    if (edges.begin < 0 || edges.begin > edges.end || edges.end > automata.num_edges) {
        throw std::runtime_error("`first` must ascend from 0 to the number of edges");
    }
    return edges;
}

int32_t next_state(const Automata& automata, int64_t state, int32_t token) {
    while (state >= 0) {
        const Edges edges = edges_of(automata, state);
        const int64_t edge = find_edge(automata, edges, token);
        if (edge < edges.end && automata.token[edge] == token) {
            return automata.is_tree() ? static_cast<int32_t>(edge) + 1 : automata.target[edge];
        }
        const int32_t failure = failure_of(automata, state);
        if (failure < 0) {
            return automata.is_tree() || state >= automata.num_inner ? -1
                                                                     : automata.state[state].other;
        }
        state = failure;
    }
    return -1;
}

Columns::Columns(const AutomatonColumnsParams& params) : p_(params) {
    const bool is_tree = p_.automata.is_tree();
    edges_.reserve(p_.num_rows);
    for (int64_t row = 0; row < p_.num_rows; ++row) {
        const int64_t last = is_tree ? p_.automata.num_edges : p_.automata.num_inner - 1;
        const bool has_line = !is_tree || (p_.line[row] >= 0 && p_.line[row] < p_.num_filters);
        if (p_.node[row] > last || !has_line) {
            throw std::runtime_error("`node` must be a node of the tree, `line` a filter");
        }
        edges_.push_back(edges_of(p_.automata, p_.node[row]));
    }
}

const float* Columns::write_row(int64_t row, const void* logits) {
    const Edges edges = edges_[row];
    const int64_t count = edges.end - edges.begin;
    float* out = p_.out + row * p_.num_columns;
    float* tokens = out + (p_.eos_first ? 1 : 0);
    float* eos = out + (p_.eos_first ? 0 : p_.num_columns - 1);
    std::fill(tokens + count, tokens + p_.num_columns - 1, -INFINITY);
    if (is_open_run(row)) {
        write_run(row, static_cast<const float*>(logits), eos, tokens);
        return out;
    }
    // EOS comes first wherever its column is, so that a sum does not depend on the columns
    static thread_local std::vector<float> values;
    values.resize(count + 1);
    poison(values.data(), values.size() * sizeof(float));
    const bool is_tree = p_.automata.is_tree();
    is_tree ? read_tree(row, logits, values.data()) : read_pool(row, logits, values.data());
    normalise(logits, values);
    if (!is_tree) add_weights(row, values.data());
    std::copy(values.begin() + 1, values.end(), tokens);
    *eos = values[0];
    return out;
}

bool Columns::is_open_run(int64_t row) const {
    const int32_t node = p_.node[row];
    const bool is_plain = p_.dtype == DType::kFloat32 && p_.normalise != Normalise::kColumns;
    return !p_.automata.is_tree() && is_plain && node >= 0 && is_run(p_.automata, edges_[row]) &&
           p_.automata.token[edges_[row].end - 1] < p_.vocab_size &&
           all_fit(p_.automata, node, p_.line[row]);
}

void Columns::write_run(int64_t row, const float* logits, float* eos,
                        float* __restrict tokens) const {
    const Edges edges = edges_[row];
    const bool sums = p_.normalise == Normalise::kVocabulary;
    const LogSum sum = sums ? log_sum_of(logits, DType::kFloat32, p_.vocab_size) : LogSum{};
    const float* __restrict x = logits + p_.automata.token[edges.begin];
    const float* __restrict weight = p_.automata.weight + edges.begin;
    for (int64_t i = 0; i < edges.end - edges.begin; ++i) {
        tokens[i] = sum.log_prob(unless_forbidden(weight[i], x[i])) + weight[i];
    }
    const float final = p_.automata.state[p_.node[row]].final;
    *eos = sum.log_prob(final > -INFINITY ? logits[p_.eos_id] : -INFINITY) + final;
}

void Columns::read_tree(int64_t row, const void* logits, float* values) {
    const Edges edges = edges_[row];
    const int64_t node = p_.node[row], count = edges.end - edges.begin;
    const uint32_t* alive = p_.words + p_.line[row] * 2 * p_.num_words;
    const uint32_t* ends = alive + p_.num_words;
    const float* own = has_layers() ? static_cast<const float*>(logits) : nullptr;
    const auto value = [&](int64_t place, int64_t token) {
        return own != nullptr ? own[place] : at(logits, token);
    };
    values[0] = node >= 0 && has(ends, node) ? value(0, p_.eos_id) : -INFINITY;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t edge = edges.begin + i;
        values[i + 1] = has(alive, edge + 1) ? value(i + 1, p_.automata.token[edge]) : -INFINITY;
    }
}

void Columns::read_pool(int64_t row, const void* logits, float* values) {
    const Automata& automata = p_.automata;
    const Edges edges = edges_[row];
    const int32_t node = p_.node[row];
    const bool ends = node >= 0 && automata.state[node].final > -INFINITY;
    *values++ = ends ? at(logits, p_.eos_id) : -INFINITY;
    const bool fit = node >= 0 && all_fit(automata, node, p_.line[row]);
    for (int64_t edge = edges.begin; edge < edges.end; ++edge) {
        const int32_t target = automata.target[edge];
        const bool is_allowed = fit ? target >= 0 : fits(automata, target, p_.line[row]);
        *values++ = is_allowed ? at(logits, automata.token[edge]) : -INFINITY;
    }
}

void Columns::add_weights(int64_t row, float* values) const {
    const Edges edges = edges_[row];
    const int32_t node = p_.node[row];
    if (node >= 0) *values += p_.automata.state[node].final;
    for (int64_t edge = edges.begin; edge < edges.end; ++edge) {
        *++values += p_.automata.weight[edge];
    }
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

void launch_automaton_walk(const AutomatonWalkParams& p) {
    const Counted counted(Kernel::kProcessors, unknown_work);
    const bool is_tree = p.automata.is_tree();
    for (int64_t row = 0; row < p.num_rows; ++row) {
        const int64_t slot = p.row_slot[row], node = p.node[row];
        if (slot < 0 || slot >= p.num_slots || node < 0 || node >= p.max_nodes) {
            throw std::runtime_error("`row_slot` and `node` must be those of token trees");
        }
        int32_t* state = p.state + slot * p.max_nodes;
        const int64_t parent = std::max(p.parent[slot * p.max_nodes + node], 0);
        if (parent >= p.max_nodes) throw std::runtime_error("`parent` must hold nodes");
        const int32_t done = p.position[row] - p.prefix_length[slot * p.limit_stride];
        const int32_t start = is_tree ? 0 : p.line[slot];
        // state 0 of a pool allows everything, and steps may leave it out
        const bool moves = done > 0 && (is_tree || start != 0);
        const int32_t here = moves ? next_state(p.automata, state[parent], p.token[row]) : start;
        state[node] = here;
        p.out[row] = is_tree || done >= 0 ? here : 0;
        p.line_out[row] = is_tree ? p.line[slot] : p.max_length[slot * p.limit_stride] - done - 1;
    }
}

int32_t ColumnTokens::token(int64_t row, int32_t column) const {
    if (column == eos_column()) return eos_id;
    const Edges edges = row < 0 || row >= num_rows ? Edges{0, 0} : edges_of(automata, node[row]);
    const int64_t edge = edges.begin + column - (eos_first ? 1 : 0);
    if (edge < edges.begin || edge >= edges.end) {
        throw std::runtime_error("a survivor has the column of no token");
    }
    return automata.token[edge];
}

int64_t most_edges(const Automata& automata, const int32_t* node, int64_t num_rows) {
    int64_t most = 1;
    for (int64_t row = 0; row < num_rows; ++row) {
        const Edges edges = edges_of(automata, node[row]);
        most = std::max(most, edges.end - edges.begin);
    }
    return most;
}

void launch_automaton_columns(const AutomatonColumnsParams& p) {
    const Counted counted(Kernel::kProcessors, unknown_work);
    Columns columns(p);
    const int64_t row_bytes = p.row_stride * (p.dtype == DType::kFloat32 ? 4 : 2);
    const bool reads_all = p.normalise == Normalise::kVocabulary;
    const int64_t work = p.num_rows * (reads_all ? p.vocab_size / 2 : p.num_columns);
    parallel_for(threads_for(work, p.num_rows, p.num_threads), p.num_rows, [&](int64_t row) {
        columns.write_row(row, static_cast<const char*>(p.logits) + row * row_bytes);
    });
    columns.check();
}

void check_states(const AutomatonLogitsParams& p) {
    for (int64_t row = 0; row < p.num_rows; ++row) {
        if (p.node[row] >= p.automata.num_inner) {
            throw std::runtime_error("`node` must be a state of the pool");
        }
        for (int64_t state = p.node[row]; state >= 0; state = failure_of(p.automata, state)) {
            edges_of(p.automata, state);
        }
    }
}

void shape_row(const AutomatonLogitsParams& p, int64_t row, float* logits, int64_t vocab_size) {
    struct Shaped {
        int32_t token;
        float logit;
    };
    static thread_local std::vector<Shaped> shaped;
    shaped.clear();
    const Automata& automata = p.automata;
    const int32_t node = p.node[row], room = p.line[row];
    const float final = node < 0 ? -INFINITY : automata.state[node].final;
    for (int32_t i = 0; i < p.eos.count; ++i) {
        const int32_t id = p.eos.id[i];
        if (id >= 0 && id < vocab_size) shaped.push_back({id, logits[id] + final});
    }
    // what tokens without an edge get, in this state or in those to look further in
    float others = -INFINITY, added = 0.0f;
    // edges of the last state, if they are a run that all fits, and what is added to their weights
    Edges run{0, 0};
    float of_run = 0.0f;
    for (int32_t here = node; here >= 0;) {
        const AutomatonState& own = automata.state[here];
        const Edges edges{automata.first[here], automata.first[here + 1]};
        const bool fit = all_fit(automata, here, room);
        if (fit && own.failure < 0 && is_run(automata, edges)) {
            run = edges;
            of_run = added;
        }
        for (int64_t edge = edges.begin; run.end == 0 && edge < edges.end; ++edge) {
            const int32_t token = automata.token[edge], target = automata.target[edge];
            if (token < 0 || token >= vocab_size) continue;
            const bool is_allowed = fit ? target >= 0 : fits(automata, target, room);
            const float weight = added + automata.weight[edge];
            shaped.push_back({token, is_allowed ? logits[token] + weight : -INFINITY});
        }
        added += own.other_weight;
        if (own.failure < 0 && fits(automata, own.other, room)) others = added;
        here = own.failure;
    }
    const int64_t lowest = run.end == 0 ? 0 : automata.token[run.begin];
    const int64_t begin = std::min(lowest, vocab_size);
    const int64_t end = std::min(lowest + run.end - run.begin, vocab_size);
    add_others(others, begin, logits);
    if (begin < end) {
        add_run(automata.weight + run.begin, of_run, end - begin, logits + begin);
    }
    add_others(others, vocab_size - end, logits + end);
    // EOS and the edges of the state itself, which count, are the last to be written
    for (auto one = shaped.rbegin(); one != shaped.rend(); ++one) logits[one->token] = one->logit;
}

void launch_automaton_logits(const AutomatonLogitsParams& p) {
    const Counted counted(Kernel::kProcessors, unknown_work);
    check_states(p);
    const int64_t work = p.num_rows * (p.vocab_size / 8);
    parallel_for(threads_for(work, p.num_rows, p.num_threads), p.num_rows, [&](int64_t row) {
        shape_row(p, row, p.logits + row * p.row_stride, p.vocab_size);
    });
}

}  // namespace pybeam
