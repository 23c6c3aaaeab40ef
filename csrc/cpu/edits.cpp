#include "../params/edits.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../counters.h"
#include "../params/automata.h"
#include "log_sum.h"
#include "parallel.h"

namespace pybeam {
namespace {

// The tokens that a hypothesis has seen: others' before its own.
struct Seen {
    const int32_t* before;
    int64_t num_before;
    const int32_t* own;
    int64_t size;  // of both

    int32_t operator[](int64_t place) const {
        return place < num_before ? before[place] : own[place - num_before];
    }
};

float log_add_exp(float a, float b) {
    const float larger = std::max(a, b);
    return larger == -INFINITY ? larger : larger + std::log1p(std::exp(-std::fabs(a - b)));
}

// The logits of one row, or its log-probabilities.
class EditedRow {
  public:
    EditedRow(const EditParams& params, int64_t row, float* logits, int64_t vocab_size)
        : p_(params),
          row_(row),
          logits_(logits),
          size_(vocab_size),
          slot_(params.slot[row]),
          position_(params.position[row]),
          done_(position_ - params.prefix_length[slot_ * params.limit_stride]),
          own_(params.history == nullptr ? nullptr : params.history + row * params.history_size) {}

    void make(const Edit& edit) {
        switch (edit.kind) {
            case EditKind::kRepetition:
                return penalise(edit.floats[slot_], seen(edit));
            case EditKind::kNgram:
                return ban_ngrams(edit.other, seen(edit));
            case EditKind::kTokens:
                return ban_tokens(edit);
            case EditKind::kSequences:
                return ban_sequences(edit, seen(edit));
            case EditKind::kMinLength:
                if ((edit.number != 0 ? position_ : done_) < edit.ints[slot_]) {
                    for_eos([](float& logit) { logit = -INFINITY; });
                }
                return;
            case EditKind::kEosPenalty:
                return for_eos([&](float& logit) { logit *= edit.floats[slot_]; });
            case EditKind::kTokenPenalty:
                if (has(edit.number)) logits_[edit.number] -= edit.floats[slot_];
                return;
            case EditKind::kBiasedPrefix:
                return bias_prefix(edit.floats + 2 * slot_, edit.ints + slot_ * edit.size,
                                   edit.size);
            case EditKind::kFirstToken:
                return allow_first(edit.ints[slot_]);
            case EditKind::kLastToken:
                return allow_eos(edit.number != 0);
            case EditKind::kLogSoftmax:
                return log_softmax(logits_, size_);
            case EditKind::kMarks:
                return order_marks(edit.number, edit.ints[slot_]);
            case EditKind::kRecord:
                return record(edit, edit.ints + slot_ * edit.size);
            case EditKind::kAutomaton:
                return shape_row(*edit.automaton, row_, logits_, size_);
            case EditKind::kCounts:
                return penalise_counts(edit.floats[slot_], edit.more_floats[slot_], seen(edit));
            case EditKind::kSequenceBias:
                return bias_sequences(edit, edit.floats + slot_ * edit.size, seen(edit));
        }
    }

  private:
    bool has(int32_t token) const { return token >= 0 && token < size_; }

    // Leaves a NaN, which `select` reports.
    void ban(int32_t token) {
        if (has(token) && !std::isnan(logits_[token])) logits_[token] = -INFINITY;
    }

    template <class Change>
    void for_eos(const Change& change) {
        for (int32_t i = 0; i < p_.eos.count; ++i) {
            if (has(p_.eos.id[i])) change(logits_[p_.eos.id[i]]);
        }
    }

    // The tokens that count for an edit: with the prompt or the start token, or without.
    Seen seen(const Edit& edit) const {
        if (edit.number == 0) return {nullptr, 0, own_ + 1, position_};
        if (p_.prompt_size == 0) return {nullptr, 0, own_, position_ + 1};
        return {p_.prompt + slot_ * p_.prompt_size, p_.prompt_size, own_ + 1,
                p_.prompt_size + position_};
    }

    void penalise(float penalty, const Seen& seen) {
        // a token that comes twice is penalised once, so all are read before one is written
        static thread_local std::vector<float> before;
        before.clear();
        for (int64_t i = 0; i < seen.size; ++i) {
            before.push_back(has(seen[i]) ? logits_[seen[i]] : 0.0f);
        }
        for (int64_t i = 0; i < seen.size; ++i) {
            if (!has(seen[i])) continue;
            logits_[seen[i]] = before[i] < 0.0f ? before[i] * penalty : before[i] / penalty;
        }
    }

    void ban_ngrams(int64_t n, const Seen& seen) {
        for (int64_t i = n - 1; i < seen.size; ++i) {
            int64_t back = 1;
            while (back < n && seen[i - back] == seen[seen.size - back]) ++back;
            if (back == n) ban(seen[i]);
        }
    }

    // `number` is the least place where a hypothesis starts; -1: the tokens are banned everywhere.
    void ban_tokens(const Edit& edit) {
        if (edit.number >= 0 && position_ != std::max(position_ - done_, edit.number)) return;
        const int32_t* tokens = edit.ints + slot_ * edit.size;
        for (int64_t i = 0; i < edit.size; ++i) ban(tokens[i]);
    }

    // Sequences begin with their last tokens.
    void ban_sequences(const Edit& edit, const Seen& seen) {
        const int32_t* line = edit.ints + slot_ * edit.size * edit.longest;
        const int64_t count = std::min<int64_t>(edit.count[slot_], edit.size);
        for (int64_t i = 0; i < count; ++i, line += edit.longest) {
            const int64_t length = completed(line, edit.longest, seen);
            const bool is_spared = edit.other != 0 && length == 1 && p_.eos.has(line[0]);
            if (length > 0 && !is_spared) ban(line[0]);
        }
    }

    // How many tokens a sequence has, which begins with its last one, if that one would complete it
    // now; else 0.
    static int64_t completed(const int32_t* line, int64_t longest, const Seen& seen) {
        int64_t back = 1;
        while (back < longest && line[back] >= 0 && back <= seen.size &&
               line[back] == seen[seen.size - back]) {
            ++back;
        }
        return back < longest && line[back] >= 0 ? 0 : back;
    }

    void bias_sequences(const Edit& edit, const float* biases, const Seen& seen) {
        const int32_t* line = edit.ints + slot_ * edit.size * edit.longest;
        for (int64_t i = 0; i < edit.size; ++i, line += edit.longest) {
            if (has(line[0]) && completed(line, edit.longest, seen) > 0) {
                logits_[line[0]] += biases[i];
            }
        }
    }

    void penalise_counts(float frequency, float presence, const Seen& seen) {
        if (frequency == 0.0f && presence == 0.0f) return;
        static thread_local std::vector<int32_t> tokens;
        tokens.clear();
        for (int64_t i = 0; i < seen.size; ++i) {
            if (has(seen[i])) tokens.push_back(seen[i]);
        }
        std::sort(tokens.begin(), tokens.end());
        for (auto first = tokens.begin(); first != tokens.end();) {
            const auto last = std::upper_bound(first, tokens.end(), *first);
            logits_[*first] -= static_cast<float>(last - first) * frequency + presence;
            first = last;
        }
    }

    void bias_prefix(const float* logs, const int32_t* prefix, int64_t size) {
        if (done_ < 0 || done_ > position_ || done_ >= size || !has(prefix[done_])) return;
        if (!std::equal(prefix, prefix + done_, own_ + position_ + 1 - done_)) return;
        for (int64_t i = 0; i < size_; ++i) logits_[i] += logs[1];
        float& wanted = logits_[prefix[done_]];
        wanted = log_add_exp(wanted, logs[0]);
    }

    void allow_first(int32_t token) {
        // a prefix takes the place of this token
        if (token < 0 || position_ != 0 || done_ != 0) return;
        std::fill_n(logits_, size_, -INFINITY);
        if (has(token)) logits_[token] = 0.0f;
    }

    void allow_eos(bool is_scored) {
        if (done_ + 1 != p_.max_length[slot_ * p_.limit_stride]) return;
        float of_eos[kMaxEos] = {}, *kept = of_eos;
        if (is_scored) for_eos([&](float& logit) { *kept++ = logit; });
        std::fill_n(logits_, size_, -INFINITY);
        kept = of_eos;
        for_eos([&](float& logit) { logit = *kept++; });
    }

    // Marks are the tokens from `begin` on, in their order. A segment of text begins and ends with
    // one, and text is what stands before EOS. Less than 0 as the largest first mark: any token but
    // the one before the marks may be the first.
    void order_marks(int32_t begin, int32_t largest_first) {
        if (done_ < 0 || done_ > position_ || begin < 1 || begin >= size_) return;
        const bool is_first = done_ == 0;
        forbid(begin - 1, begin);
        if (is_first && largest_first < 0) return;
        const int32_t* made = own_ + position_ + 1 - done_;
        int32_t latest = done_ - 1;
        while (latest >= 0 && made[latest] < begin) --latest;
        const bool is_last = !is_first && latest == done_ - 1;
        const bool begins = is_last && (done_ < 2 || made[done_ - 2] >= begin);
        const bool ends = is_last && !begins;
        if (begins) forbid(begin, size_);
        // one that ends a segment may begin the next one
        if (latest >= 0) forbid(begin, int64_t{made[latest]} + (ends ? 0 : 1));
        if (is_first) forbid(int64_t{largest_first} + 1, size_);
        const int64_t others = is_first ? begin : ends ? std::min(p_.eos.id[0], begin) : 0;
        forbid(0, others);
        if (outweigh(begin, others)) forbid(others, begin);
    }

    void forbid(int64_t first, int64_t last) {
        first = std::clamp<int64_t>(first, 0, size_);
        std::fill(logits_ + first, logits_ + std::clamp<int64_t>(last, first, size_), -INFINITY);
    }

    // Whether the tokens from `begin` on together are more probable than each from `others` up to
    // there. A NaN is not less than anything.
    bool outweigh(int64_t begin, int64_t others) const {
        if (others >= begin) return false;
        const RowTotal total = total_of(logits_ + begin, DType::kFloat32, size_ - begin);
        const auto mass = static_cast<float>(total.peak + std::log(total.sum));
        return std::all_of(logits_ + std::max<int64_t>(others, 0), logits_ + begin,
                           [mass](float logit) { return logit < mass; });
    }

    // Changes nothing.
    void record(const Edit& edit, const int32_t* given) const {
        const int32_t behind = given[0], line = given[1];
        if (done_ != -behind || line < 0 || line >= edit.num_records) return;
        const LogSum sum = log_sum_of(logits_, DType::kFloat32, size_);
        const int64_t num_tokens = edit.size - kRecordTokens;
        for (int64_t i = 0; i < num_tokens; ++i) {
            const int32_t token = given[kRecordTokens + i];
            edit.record[line * num_tokens + i] =
                has(token) ? sum.log_prob(logits_[token]) : -INFINITY;
        }
    }

    const EditParams& p_;
    const int64_t row_;
    float* const logits_;
    const int64_t size_;
    const int64_t slot_;
    const int32_t position_;
    const int32_t done_;  // tokens behind the prefix; negative within it
    const int32_t* const own_;
};

}  // namespace

void edit_row(const EditParams& params, int64_t row, float* logits, int64_t vocab_size) {
    EditedRow edited(params, row, logits, vocab_size);
    for (int64_t i = 0; i < params.num_edits; ++i) edited.make(params.edits[i]);
}

void launch_edit_logits(const EditParams& params, const EditedLogits& logits) {
    const Counted counted(Kernel::kProcessors, unknown_work);
    int64_t row_work = 0;
    for (int64_t i = 0; i < params.num_edits; ++i) {
        const Edit& edit = params.edits[i];
        row_work += params.history_size + edit.size * std::max<int64_t>(edit.longest, 1);
    }
    const int64_t num_rows = logits.num_rows, vocab_size = logits.vocab_size;
    parallel_for(
        threads_for(num_rows * row_work, num_rows, logits.num_threads), num_rows,
        [&](int64_t row) { edit_row(params, row, logits.data + row * vocab_size, vocab_size); });
}

}  // namespace pybeam
