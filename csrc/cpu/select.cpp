#include "select.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "../dispatch.h"
#include "../params/select.h"
#include "../scratch.h"
#include "parallel.h"

namespace pybeam {

float keep_largest(Key* keys, int64_t count, int64_t limit) {
    std::nth_element(keys, keys + limit - 1, keys + count, std::greater<>());
    return keys[limit - 1].value();
}

namespace {

struct Candidate {
    float score;
    float log_prob;
    int32_t parent;
    int32_t token;
    bool is_held;
};

// Keeps a lower bound of the n-th largest of many numbers, in memory for 2 n of them.
class NthLargest {
  public:
    NthLargest(std::vector<float>* buffer, int64_t n) : kept_(*buffer), n_(n) { kept_.clear(); }

    // Whether a number may raise the bound; a NaN does not.
    bool admits(float x) const { return x > bound_; }

    void push(float x) {
        if (!admits(x)) return;
        kept_.push_back(x);
        if (static_cast<int64_t>(kept_.size()) == 2 * n_) shrink();
    }

    float bound() {
        if (static_cast<int64_t>(kept_.size()) >= n_) shrink();
        return bound_;
    }

  private:
    void shrink() {
        std::nth_element(kept_.begin(), kept_.begin() + n_ - 1, kept_.end(), std::greater<>());
        bound_ = kept_[n_ - 1];
        kept_.resize(n_);
    }

    std::vector<float>& kept_;
    int64_t n_;
    float bound_ = -FLT_MAX;  // below every score that is not -inf
};

// Memory that one thread needs to finish a beam. It is kept from call to call.
struct BeamScratch {
    std::vector<float> pooled;
    std::vector<float> groups;
    std::vector<float> group_bound;  // per entry of the beam
    std::vector<Key> keys;           // of logits by token
    std::vector<Candidate> candidates;
    std::vector<Key> order;  // of scores by place among the candidates
};

// The result of reading a row.
struct Row {
    float peak;     // is subtracted from the logits
    float log_sum;  // so is this
    float largest;  // at least the largest logit that is no banned one
    bool has_nan;

    // The score of a token, as the filter of `collect_row` computes it.
    float score(float own, float logit) const { return own + ((logit - peak) - log_sum); }
};

class Select {
  public:
    Select(const SelectParams& params, const Kernels& kernels)
        : p_(params), k_(kernels), dtype_(static_cast<int>(params.dtype)) {
        const int64_t block = kBlockVectors * k_.vector_width;
        num_groups_ = (p_.vocab_size + block - 1) / block * k_.vector_width;
        item_bytes_ = p_.dtype == DType::kFloat32 ? 4 : 2;
        find_rows();
    }

    void run() {
        static thread_local Scratch<float> block_max;
        block_max_ = block_max.room(num_rows_ * num_groups_);
        rows_.resize(num_rows_);
        // two logits are read in the time of one multiply-add of a product
        const int64_t work = num_rows_ * p_.vocab_size / 2;
        parallel_for(threads_for(work, num_rows_, p_.num_threads), num_rows_,
                     [this](int64_t row) { read_row(row); });
        parallel_for(threads_for(work, p_.num_beams, p_.num_threads), p_.num_beams,
                     [this](int64_t beam) { finish_beam(beam); });
        for (int64_t s = 0; s < p_.num_beams; ++s) {
            if (p_.count_out[s] > p_.capacity) {
                throw std::runtime_error("select: a beam has more survivors than `capacity`");
            }
        }
    }

  private:
    // The row of every entry, -1 for a held one; checks what will be used as an address.
    void find_rows() {
        if (p_.offset[0] != 0) throw std::runtime_error("select: `offset` must start at 0");
        const int64_t num_entries = p_.offset[p_.num_beams];
        row_of_.resize(num_entries);
        beam_of_.resize(p_.num_rows);
        int64_t row = 0;
        for (int64_t s = 0; s < p_.num_beams; ++s) {
            if (p_.offset[s] > p_.offset[s + 1] || p_.offset[s + 1] > num_entries) {
                throw std::runtime_error("select: `offset` must not decrease");
            }
            if (p_.width[s] < 0 || p_.width[s] > kMaxWidth) {
                throw std::runtime_error("select: `width` must be 0 to " +
                                         std::to_string(kMaxWidth));
            }
            for (int64_t entry = p_.offset[s]; entry < p_.offset[s + 1]; ++entry) {
                const bool is_held = p_.is_ended != nullptr && p_.is_ended[entry];
                row_of_[entry] = is_held ? -1 : static_cast<int32_t>(row);
                if (is_held) continue;
                if (row < p_.num_rows) beam_of_[row] = static_cast<int32_t>(s);
                ++row;
            }
        }
        if (row > p_.num_rows) {
            throw std::runtime_error(
                "select: `logits` must have one row per entry that has not ended");
        }
        num_rows_ = row;
    }

    const void* row_data(int64_t row) const {
        return static_cast<const char*>(p_.logits) + row * p_.row_stride * item_bytes_;
    }

    float* groups_of(int64_t row) const { return block_max_ + row * num_groups_; }

    const EosIds* banned(int64_t beam) const {
        return p_.ban_eos != nullptr && p_.ban_eos[beam] ? &p_.eos : nullptr;
    }

    bool is_forced(int64_t beam) const { return p_.forced != nullptr && p_.forced[beam] >= 0; }

    void read_row(int64_t row) {
        const RowTotal total = k_.scan_row[dtype_](row_data(row), p_.vocab_size,
                                                   banned(beam_of_[row]), groups_of(row));
        const bool has_nan = std::isnan(total.sum);
        rows_[row] = p_.normalise ? Row{total.peak, static_cast<float>(std::log(total.sum)),
                                        total.peak, has_nan}
                                  : Row{0.0f, 0.0f, total.peak, has_nan};
    }

    void finish_beam(int64_t beam) {
        static thread_local BeamScratch scratch;
        bool has_nan = false;
        for (int64_t entry = p_.offset[beam]; entry < p_.offset[beam + 1]; ++entry) {
            has_nan |= row_of_[entry] >= 0 && rows_[row_of_[entry]].has_nan;
        }
        p_.has_nan_out[beam] = has_nan;
        scratch.candidates.clear();
        const int64_t wanted =
            (p_.finishing == Finishing::kRefill ? 1 + p_.eos.count : 1) * p_.width[beam];
        if (!has_nan && wanted > 0) {
            collect(beam, wanted, &scratch);
            rank(wanted, &scratch);
        }
        prune_and_write(beam, scratch.candidates);
    }

    // Every candidate that may be among the best `wanted` of the beam, by parent and rank.
    void collect(int64_t beam, int64_t wanted, BeamScratch* scratch) const {
        const int64_t begin = p_.offset[beam], end = p_.offset[beam + 1];
        int64_t limit = p_.max_candidates == nullptr ? p_.vocab_size : p_.max_candidates[beam];
        limit = std::max<int64_t>(std::min({limit, wanted, p_.vocab_size}), 0);
        const bool forced = is_forced(beam);
        const float min_score = forced ? 0.0f : least_score(begin, end, wanted, limit, scratch);
        for (int64_t entry = begin; entry < end; ++entry) {
            const auto parent = static_cast<int32_t>(entry - begin);
            const float score = p_.score[entry];
            if (row_of_[entry] < 0) {
                scratch->candidates.push_back({score, 0.0f, parent, p_.eos.id[0], true});
            } else if (forced) {
                scratch->candidates.push_back({score, 0.0f, parent, p_.forced[beam], false});
            } else if (limit > 0 && !(best_score(entry) < min_score)) {
                RowFilter filter{};
                filter.score = score;
                filter.min_score = min_score;
                filter.above = scratch->group_bound[entry - begin];
                filter.limit = limit;
                filter.banned = banned(beam);
                collect_row(row_of_[entry], parent, filter, scratch);
            }
        }
    }

    // The most that a candidate of this entry can score.
    float best_score(int64_t entry) const {
        const Row& row = rows_[row_of_[entry]];
        return row.score(p_.score[entry], row.largest);
    }

    // Finds a lower bound of the scores of the beam's best `wanted` candidates, and for every row
    // an exclusive lower bound of its best `limit` logits. The maximum of a group is a candidate
    // too, so the n-th largest maximum is at most the n-th largest of all.
    float least_score(int64_t begin, int64_t end, int64_t wanted, int64_t limit,
                      BeamScratch* scratch) const {
        NthLargest pooled(&scratch->pooled, wanted);
        scratch->group_bound.assign(end - begin, -INFINITY);
        for (int64_t entry = begin; entry < end; ++entry) {
            const int64_t row = row_of_[entry];
            if (row < 0) {
                pooled.push(p_.score[entry]);
                continue;
            }
            // most rows of a wide beam have nothing that counts any more
            if (limit == 0 || !pooled.admits(best_score(entry))) continue;
            fold_groups(row, limit, &scratch->groups);
            auto& groups = scratch->groups;
            std::erase_if(groups, [&](float logit) {
                return !pooled.admits(rows_[row].score(p_.score[entry], logit));
            });
            if (static_cast<int64_t>(groups.size()) > limit) {
                std::nth_element(groups.begin(), groups.begin() + limit, groups.end(),
                                 std::greater<>());
                groups.resize(limit);
            }
            if (static_cast<int64_t>(groups.size()) == limit) {
                const float least = *std::min_element(groups.begin(), groups.end());
                // safely below, even if the processor flushes subnormals to zero
                scratch->group_bound[entry - begin] =
                    least - std::fabs(least) * FLT_EPSILON - FLT_MIN;
            }
            for (float logit : groups) {
                pooled.push(rows_[row].score(p_.score[entry], logit));
            }
        }
        return pooled.bound();
    }

    // Finds at least twice `limit` maxima of groups of the row, if it has so many groups.
    void fold_groups(int64_t row, int64_t limit, std::vector<float>* folded) const {
        const float* groups = groups_of(row);
        const int64_t size = std::min(num_groups_, (2 * limit + 15) / 16 * 16);
        folded->assign(groups, groups + size);
        for (int64_t begin = size; begin < num_groups_; begin += size) {
            const int64_t count = std::min(size, num_groups_ - begin);
            float* out = folded->data();
            for (int64_t i = 0; i < count; ++i) {
                out[i] = groups[begin + i] > out[i] ? groups[begin + i] : out[i];
            }
        }
    }

    void collect_row(int64_t row, int32_t parent, RowFilter filter, BeamScratch* scratch) const {
        filter.peak = rows_[row].peak;
        filter.log_sum = rows_[row].log_sum;
        auto& keys = scratch->keys;
        keys.resize(2 * filter.limit + kBlockVectors * k_.vector_width);
        poison(keys.data(), keys.size() * sizeof(Key));
        int64_t count = k_.collect_row[dtype_](row_data(row), p_.vocab_size, groups_of(row), filter,
                                               keys.data());
        if (count > filter.limit) {
            keep_largest(keys.data(), count, filter.limit);
            count = filter.limit;
        }
        std::sort(keys.begin(), keys.begin() + count, std::greater<>());
        for (int64_t i = 0; i < count; ++i) {
            const float log_prob = (keys[i].value() - filter.peak) - filter.log_sum;
            scratch->candidates.push_back(
                {filter.score + log_prob, log_prob, parent, keys[i].index(), false});
        }
    }

    // Leaves the best `wanted` candidates, best first; equal scores keep their order.
    static void rank(int64_t wanted, BeamScratch* scratch) {
        auto& order = scratch->order;
        auto& candidates = scratch->candidates;
        order.clear();
        for (size_t i = 0; i < candidates.size(); ++i) {
            if (!(candidates[i].score > -INFINITY)) continue;
            order.emplace_back(candidates[i].score, static_cast<int64_t>(i));
        }
        const int64_t count = std::min<int64_t>(wanted, order.size());
        std::nth_element(order.begin(), order.begin() + count, order.end(), std::greater<>());
        std::sort(order.begin(), order.begin() + count, std::greater<>());
        static thread_local std::vector<Candidate> ranked;
        ranked.clear();
        for (int64_t i = 0; i < count; ++i) ranked.push_back(candidates[order[i].index()]);
        candidates.swap(ranked);
    }

    bool ends(const Candidate& candidate) const { return p_.eos.has(candidate.token); }

    // Splits the ranked candidates into those that finish now and the next beam, in place.
    int64_t finish(int64_t width, std::vector<Candidate>* candidates) const {
        const auto begin = candidates->begin(), end = candidates->end();
        const auto has_ended = [this](const Candidate& candidate) { return ends(candidate); };
        switch (p_.finishing) {
            case Finishing::kNone:
                return 0;
            case Finishing::kHeld:
                return std::find_if_not(begin, end, has_ended) - begin;
            case Finishing::kShrink:
                return std::stable_partition(begin, end, has_ended) - begin;
            case Finishing::kRefill:
                break;
        }
        const auto within = begin + std::min<int64_t>(width, candidates->size());
        candidates->erase(std::remove_if(within, end, has_ended), end);
        const int64_t finished = std::stable_partition(begin, within, has_ended) - begin;
        if (static_cast<int64_t>(candidates->size()) > finished + width) {
            candidates->resize(finished + width);
        }
        return finished;
    }

    void prune_and_write(int64_t beam, std::vector<Candidate>& candidates) const {
        const int64_t finished = finish(p_.width[beam], &candidates);
        float best = p_.best_finished == nullptr ? -INFINITY : p_.best_finished[beam];
        if (!candidates.empty() && p_.finishing == Finishing::kHeld) {
            best = std::max(best, candidates.front().score);
        }
        float best_log_prob = -INFINITY;
        for (size_t i = finished; i < candidates.size(); ++i) {
            best = std::max(best, candidates[i].score);
            if (!candidates[i].is_held) {
                best_log_prob = std::max(best_log_prob, candidates[i].log_prob);
            }
        }
        const float floor = best - (p_.margin == nullptr ? INFINITY : p_.margin[beam]);
        const float local_floor =
            best_log_prob - (p_.local_margin == nullptr ? INFINITY : p_.local_margin[beam]);
        int64_t count = 0;
        for (size_t i = 0; i < candidates.size(); ++i) {
            const Candidate& candidate = candidates[i];
            const bool is_kept = static_cast<int64_t>(i) < finished ||
                                 (candidate.score > floor &&
                                  (candidate.is_held || candidate.log_prob > local_floor));
            if (is_kept) write(beam, count++, candidate);
        }
        p_.count_out[beam] = static_cast<int32_t>(count);
        p_.num_finished_out[beam] = static_cast<int32_t>(finished);
        for (; count < p_.capacity; ++count)
            write(beam, count, {-INFINITY, -INFINITY, -1, -1, false});
    }

    void write(int64_t beam, int64_t column, const Candidate& candidate) const {
        if (column >= p_.capacity) return;
        const int64_t i = beam * p_.capacity + column;
        p_.token_out[i] = candidate.token;
        p_.parent_out[i] = candidate.parent;
        p_.score_out[i] = candidate.score;
        p_.log_prob_out[i] = candidate.log_prob;
    }

    const SelectParams& p_;
    const Kernels& k_;
    int dtype_;
    int64_t item_bytes_;
    int64_t num_groups_;  // per row: one per lane and block
    float* block_max_ = nullptr;
    int64_t num_rows_ = 0;  // rows behind these are padding
    std::vector<Row> rows_;
    std::vector<int32_t> row_of_;
    std::vector<int32_t> beam_of_;
};

}  // namespace

void launch_select(const SelectParams& params) { Select(params, kernels()).run(); }

}  // namespace pybeam
