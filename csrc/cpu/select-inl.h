// The two loops over a row of logits. Included inside a namespace, after the vectors.

constexpr int64_t kBlock = kBlockVectors * kWidth;

// Copies the last, partial block into a full block of float32 and fills it up with -inf.
template <class T>
inline void copy_tail(const T* x, int64_t count, float* block) {
    for (int64_t i = 0; i < count; ++i) block[i] = to_float(x[i]);
    for (int64_t i = count; i < kBlock; ++i) block[i] = -INFINITY;
}

// Whether a block holds a NaN.
template <class T>
inline bool has_nan(const T* x) {
    const Vec lowest = broadcast(-INFINITY);
    uint32_t lanes = ~uint32_t{0};
    for (int i = 0; i < kBlockVectors; ++i) lanes &= greater_equal(load(x + i * kWidth), lowest);
    return lanes != (uint32_t{1} << kWidth) - 1;
}

template <class T, bool kSums>
inline void scan_block(const T* x, float* block_max, RowTotal* total) {
    Vec top[4];
    for (int i = 0; i < 4; ++i) top[i] = load(x + i * kWidth);
    for (int i = 4; i < kBlockVectors; ++i) top[i % 4] = max(top[i % 4], load(x + i * kWidth));
    top[0] = max(max(top[0], top[1]), max(top[2], top[3]));
    store(block_max, top[0]);
    if constexpr (!kSums) {
        if (greater(top[0], broadcast(total->peak))) total->peak = largest(top[0]);
        if (has_nan(x)) total->sum = NAN;
        return;
    }
    if (greater(top[0], broadcast(total->peak))) {
        const float peak = largest(top[0]);
        total->sum *= std::exp(static_cast<double>(total->peak) - static_cast<double>(peak));
        total->peak = peak;
    }
    // while all logits are -inf, subtracting the peak would give NaN
    const Vec peak = broadcast(total->peak == -INFINITY ? 0.0f : total->peak);
    Vec sums[4];
    for (int i = 0; i < 4; ++i) sums[i] = exp_nonpositive(sub(load(x + i * kWidth), peak));
    for (int i = 4; i < kBlockVectors; ++i) {
        sums[i % 4] = add(sums[i % 4], exp_nonpositive(sub(load(x + i * kWidth), peak)));
    }
    total->sum += sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// Returns the largest logit of the lane that holds `token`, without those of `banned`.
template <class T>
inline float lane_max_without(const T* x, int64_t vocab_size, int64_t token, const EosIds& banned) {
    const int64_t begin = token / kBlock * kBlock + token % kWidth;
    float top = -INFINITY;
    for (int64_t i = begin; i < begin + kBlock && i < vocab_size; i += kWidth) {
        const float logit = to_float(x[i]);
        if (logit > top && !banned.has(static_cast<int32_t>(i))) top = logit;
    }
    return top;
}

template <class T, bool kSums>
RowTotal scan_row(const void* row, int64_t vocab_size, const EosIds* banned, float* block_max) {
    const T* x = static_cast<const T*>(row);
    RowTotal total{-INFINITY, kSums ? 0.0 : 1.0};
    int64_t begin = 0;
    for (; begin + kBlock <= vocab_size; begin += kBlock) {
        scan_block<T, kSums>(x + begin, block_max + begin / kBlockVectors, &total);
    }
    if (begin < vocab_size) {
        float tail[kBlock];
        copy_tail(x + begin, vocab_size - begin, tail);
        scan_block<float, kSums>(tail, block_max + begin / kBlockVectors, &total);
    }
    for (int32_t i = 0; banned != nullptr && i < banned->count; ++i) {
        const int32_t token = banned->id[i];
        if (token < 0 || token >= vocab_size) continue;
        block_max[token / kBlock * kWidth + token % kWidth] =
            lane_max_without(x, vocab_size, token, *banned);
    }
    if (!kSums && total.peak == INFINITY) total.sum = NAN;
    return total;
}

struct VecFilter {
    Vec score, peak, log_sum, min_score, above;
};

inline uint32_t passes(const VecFilter& filter, Vec logit) {
    const Vec score = add(filter.score, sub(sub(logit, filter.peak), filter.log_sum));
    return greater_equal(score, filter.min_score) & greater(logit, filter.above);
}

template <class T>
int64_t collect_row(const void* row, int64_t vocab_size, const float* block_max, RowFilter filter,
                    Key* keys) {
    const T* x = static_cast<const T*>(row);
    VecFilter vec{broadcast(filter.score), broadcast(filter.peak), broadcast(filter.log_sum),
                  broadcast(filter.min_score), broadcast(filter.above)};
    int64_t count = 0;
    for (int64_t begin = 0; begin < vocab_size; begin += kBlock) {
        if (!passes(vec, load(block_max + begin / kBlockVectors))) continue;
        float block[kBlock];
        if (begin + kBlock <= vocab_size) {
            for (int i = 0; i < kBlockVectors; ++i) {
                store(block + i * kWidth, load(x + begin + i * kWidth));
            }
        } else {
            copy_tail(x + begin, vocab_size - begin, block);
        }
        for (int i = 0; i < kBlockVectors; ++i) {
            uint32_t lanes = passes(vec, load(block + i * kWidth));
            for (; lanes != 0; lanes &= lanes - 1) {
                const int64_t lane = i * kWidth + __builtin_ctz(lanes);
                const auto token = static_cast<int32_t>(begin + lane);
                if (filter.banned != nullptr && filter.banned->has(token)) continue;
                keys[count++] = Key(block[lane], token);
            }
        }
        if (count > 2 * filter.limit) {
            // later tokens lose ties, so from here on only larger logits count
            vec.above = broadcast(keep_largest(keys, count, filter.limit));
            count = filter.limit;
        }
    }
    return count;
}
