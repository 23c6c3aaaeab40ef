#include "../params/automaton_places.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "../counters.h"
#include "automata.h"
#include "parallel.h"

namespace pybeam {
namespace {

// A continuation that competes for a place of its beam.
struct Continuation {
    int32_t missing, row, token;
    float score, gain;
    int32_t turn;  // among those behind which as many tokens are missing
};

bool comes_before(const Continuation& a, const Continuation& b) {
    return std::tie(a.missing, b.score, a.row, b.gain, a.token) <
           std::tie(b.missing, a.score, b.row, a.gain, b.token);
}

// The first of the largest numbers.
int64_t place_of_largest(const float* x, int64_t size) {
    // lanes of their own, so that compilers compare many at once
    constexpr int64_t kLanes = 16;
    std::array<float, kLanes> most;
    most.fill(-INFINITY);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        for (int64_t j = 0; j < kLanes; ++j) most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
    }
    for (; i < size; ++i) most[0] = x[i] > most[0] ? x[i] : most[0];
    return std::find(x, x + size, *std::max_element(most.begin(), most.end())) - x;
}

class Places {
  public:
    explicit Places(const AutomatonPlacesParams& params)
        : p_(params), first_(p_.num_rows, -1), is_divided_(p_.num_rows, false) {
        for (int64_t beam = 0; beam < p_.num_beams; ++beam) check_beam(beam);
    }

    void divide() {
        const int64_t work = p_.num_rows * (p_.vocab_size / 8);
        const int threads = threads_for(work, p_.num_rows, p_.num_threads);
        parallel_for(threads, p_.num_rows, [&](int64_t row) {
            if (is_divided_[row]) find_first(row);
        });
        for (int64_t beam = 0; beam < p_.num_beams; ++beam) divide_beam(beam);
        parallel_for(threads, p_.num_rows, [&](int64_t row) {
            if (is_divided_[row]) forbid(row);
        });
        for (const Continuation& one : kept_) logits_of(one.row)[one.token] = one.gain;
    }

  private:
    float* logits_of(int64_t row) const { return p_.log_probs + row * p_.row_stride; }

    int64_t open_places(int64_t beam) const {
        const int64_t entries = p_.entries[beam + 1] - int64_t{p_.entries[beam]};
        return p_.width[beam] - (entries - (p_.offset[beam + 1] - int64_t{p_.offset[beam]}));
    }

    int32_t state_of(int64_t row) const {
        return p_.state[p_.row_slot[row] * p_.max_nodes + p_.node[row]];
    }

    int32_t needed(int32_t state) const {
        return state < 0 ? INT32_MAX : p_.automata.state[state].needed;
    }

    // Calls body(edge) for every edge of a row that has a number.
    template <class Body>
    void for_edges(int64_t row, const Body& body) const {
        const Edges edges = edges_of(p_.automata, state_of(row));
        const int32_t* child = p_.child + p_.row_slot[row] * p_.num_children;
        for (int64_t i = 0; i < p_.num_children; ++i) {
            if (child[i] >= 0 && child[i] < edges.end - edges.begin) body(edges.begin + child[i]);
        }
    }

    void check_beam(int64_t beam) {
        const int64_t begin = p_.offset[beam], end = p_.offset[beam + 1];
        if ((beam == 0 && begin != 0) || begin > end || end > p_.num_rows) {
            throw std::runtime_error("`offset` must ascend from 0 to the number of rows");
        }
        for (int64_t row = begin; row < end; ++row) {
            const int64_t slot = p_.row_slot[row], node = p_.node[row], entry = p_.entry[row];
            if (slot < 0 || slot >= p_.num_slots || node < 0 || node >= p_.max_nodes || entry < 0 ||
                entry >= p_.max_entries) {
                throw std::runtime_error("`row_slot`, `node` and `entry` must be those of beams");
            }
            if (slot != p_.row_slot[begin]) {
                throw std::runtime_error("`row_slot` must be the same in all rows of a beam");
            }
            if (state_of(row) >= p_.automata.num_inner) {
                throw std::runtime_error("`state` must hold states of the pool");
            }
            bool has_edge = false;
            for_edges(row, [&](int64_t edge) {
                has_edge = true;
                if (p_.automata.token[edge] < 0 || p_.automata.token[edge] >= p_.vocab_size) {
                    throw std::runtime_error("`token` must hold columns of the log-probabilities");
                }
            });
            is_divided_[row] =
                has_edge && p_.position[row] >= p_.prefix_length[slot] && open_places(beam) > 1;
        }
    }

    // Notes the best token of a row but EOS.
    void find_first(int64_t row) {
        float* x = logits_of(row);
        std::array<float, kMaxEos> held;
        const auto for_eos = [&](const auto& body) {
            for (int32_t i = 0; i < p_.eos.count; ++i) body(held[i], x[p_.eos.id[i]]);
        };
        for_eos([](float& kept, float own) { kept = own; });
        for_eos([](float&, float& own) { own = -INFINITY; });
        first_[row] = static_cast<int32_t>(place_of_largest(x, p_.vocab_size));
        for_eos([](float kept, float& own) { own = kept; });
    }

    void divide_beam(int64_t beam) {
        const int32_t begin = p_.offset[beam], end = p_.offset[beam + 1];
        const auto first = is_divided_.begin() + begin, last = is_divided_.begin() + end;
        if (std::find(first, last, true) == last) return;
        found_.clear();
        take_best(beam);
        for (int32_t row = begin; row < end; ++row) take_own(row);
        std::sort(found_.begin(), found_.end(), comes_before);
        for (size_t i = 0; i < found_.size(); ++i) {
            const bool is_next = i > 0 && found_[i - 1].missing == found_[i].missing;
            found_[i].turn = is_next ? found_[i - 1].turn + 1 : 0;
        }
        std::stable_sort(found_.begin(), found_.end(),
                         [](const auto& a, const auto& b) { return a.turn < b.turn; });
        const int64_t places = open_places(beam);
        int64_t place = 0, goes_on = 0;
        for (const Continuation& one : found_) {
            ++place;
            // what ends takes no place of what goes on
            const bool is_kept = p_.eos.has(one.token) ? place <= places : ++goes_on <= places;
            if (is_kept && is_divided_[one.row]) kept_.push_back(one);
        }
    }

    // The best continuations of all rows, of which those of held hypotheses are none.
    void take_best(int64_t beam) {
        row_of_.assign(p_.max_entries, -1);
        for (int32_t row = p_.offset[beam]; row < p_.offset[beam + 1]; ++row) {
            row_of_[p_.entry[row]] = row;
        }
        const int64_t places = open_places(beam);
        for (int64_t i = 0; i < p_.num_best && std::ssize(found_) < places; ++i) {
            const int32_t parent = p_.parent[beam * p_.num_best + i];
            const int32_t token = p_.token[beam * p_.num_best + i];
            const bool is_there = parent >= 0 && parent < p_.max_entries && row_of_[parent] >= 0;
            if (is_there) take(row_of_[parent], token);
        }
        num_best_ = std::ssize(found_);
    }

    // The best continuation of a row, those that are nearer to what is missing, and every end.
    void take_own(int32_t row) {
        const int32_t before = needed(state_of(row));
        bool has_first = first_[row] < 0 || is_taken(row, first_[row]);
        for_edges(row, [&](int64_t edge) {
            const int32_t token = p_.automata.token[edge], target = p_.automata.target[edge];
            if (target >= p_.automata.num_inner) throw std::runtime_error("`target` is no state");
            if (needed(target) >= before || p_.eos.has(token)) return;
            has_first = has_first || token == first_[row];
            if (!is_taken(row, token)) take(row, token);
        });
        if (!has_first) take(row, first_[row]);
        for (int32_t i = 0; i < p_.eos.count; ++i) take(row, p_.eos.id[i]);
    }

    bool is_taken(int32_t row, int32_t token) const {
        return std::any_of(
            found_.begin(), found_.begin() + num_best_,
            [&](const Continuation& one) { return one.row == row && one.token == token; });
    }

    void take(int32_t row, int32_t token) {
        if (token < 0 || token >= p_.vocab_size) return;
        const int64_t slot = p_.row_slot[row];
        const float gain = logits_of(row)[token];
        const float score = p_.score[slot * p_.max_entries + p_.entry[row]] + gain;
        if (!(score > -INFINITY)) return;
        const int32_t next = next_state(p_.automata, state_of(row), token);
        if (next >= p_.automata.num_inner) throw std::runtime_error("`target` is no state");
        found_.push_back({needed(next), row, token, score, gain, 0});
    }

    void forbid(int64_t row) const {
        float* x = logits_of(row);
        for (int64_t i = 0; i < p_.vocab_size; ++i) x[i] = x[i] < INFINITY ? -INFINITY : x[i];
    }

    const AutomatonPlacesParams& p_;
    std::vector<int32_t> first_, row_of_;
    std::vector<uint8_t> is_divided_;
    std::vector<Continuation> found_, kept_;
    int64_t num_best_ = 0;
};

}  // namespace

void launch_automaton_places(const AutomatonPlacesParams& p) {
    const Counted counted(Kernel::kProcessors, unknown_work);
    Places(p).divide();
}

}  // namespace pybeam
