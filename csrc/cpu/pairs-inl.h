// Products of bfloat16 pairs without an instruction for them: as float32. Included inside a
// namespace, after the vectors.

using RoundedX = float;

inline void round_row(const float* x, int64_t depth, void* out) {
    float* const rounded = static_cast<float*>(out);
    for (int64_t k = 0; k < depth; ++k) {
        BFloat16 narrow;
        from_float(x[k], &narrow);
        rounded[k] = to_float(narrow);
    }
    if (depth % 2 != 0) rounded[depth] = 0.0f;
}
