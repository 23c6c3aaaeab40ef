// One row of a mixture: log((1 / n) sum_i exp(log_prob_i)). Included inside a namespace, after exp
// and log.

constexpr int kMixVecs = 4;  // vectors whose exponentials are computed side by side

// Mixes `count` columns from `column` on, at most kVecs vectors.
template <int kVecs>
inline void mix_columns(const MixtureParams& params, const MixedRow* members, float* out,
                        int64_t column, int64_t count) {
    const auto log_prob = [&](int64_t i, int v) {
        const MixedRow& member = members[i];
        const Vec logit = load_some(member.logits + column + v * kWidth, count - v * kWidth);
        return sub(sub(logit, broadcast(member.peak)), broadcast(member.log_sum));
    };
    Vec top[kVecs], floor[kVecs], total[kVecs];
    for (int v = 0; v < kVecs; ++v) top[v] = log_prob(0, v);
    for (int64_t i = 1; i < params.num_members; ++i) {
        for (int v = 0; v < kVecs; ++v) top[v] = max(top[v], log_prob(i, v));
    }
    for (int v = 0; v < kVecs; ++v) {
        // if all members say -inf, subtracting it would give NaN
        floor[v] = max(top[v], broadcast(-FLT_MAX));
        total[v] = broadcast(0.0f);
    }
    for (int64_t i = 0; i < params.num_members; ++i) {
        for (int v = 0; v < kVecs; ++v) {
            total[v] = add(total[v], exp_nonpositive(sub(log_prob(i, v), floor[v])));
        }
    }
    const Vec share = broadcast(1.0f / static_cast<float>(params.num_members));
    for (int v = 0; v < kVecs; ++v) {
        store_some(out + column + v * kWidth, count - v * kWidth,
                   add(top[v], log_positive(mul(total[v], share))));
    }
}

inline void mix_row(const MixtureParams& params, const MixedRow* members, float* out) {
    constexpr int64_t kStep = kMixVecs * kWidth;
    int64_t column = 0;
    for (; column + kStep <= params.vocab_size; column += kStep) {
        mix_columns<kMixVecs>(params, members, out, column, kStep);
    }
    for (; column < params.vocab_size; column += kWidth) {
        mix_columns<1>(params, members, out, column, params.vocab_size - column);
    }
}
