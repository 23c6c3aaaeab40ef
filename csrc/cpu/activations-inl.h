// Activation functions. Every lane uses the same arithmetic, so a value depends on its argument
// alone. The relative error is a few 2^-24, plus the effect of an error of 2^-24 in the argument.
// Results below 1e-35 may be zero. NaN stays NaN. Included inside a namespace, after exp.

// 1 / (1 + exp(-x)).
inline Vec sigmoid(Vec x) {
    const Vec one = broadcast(1.0f);
    const Vec e = exp_nonpositive(negative_abs(x));
    return div(where_negative(x, e, one), add(one, e));
}

inline Vec tanh(Vec x) {
    const Vec one = broadcast(1.0f);
    const Vec n = negative_abs(x);
    const Vec e = exp_nonpositive(add(n, n));
    const Vec large = div(sub(one, e), add(one, e));
    // the formula above cancels near 0: there tanh(x) = x + x w p(w), w = x^2
    const Vec w = mul(x, x);
    Vec p = broadcast(-5.717025604e-03f);
    p = fma(p, w, broadcast(2.065056935e-02f));
    p = fma(p, w, broadcast(-5.374349281e-02f));
    p = fma(p, w, broadcast(1.333149076e-01f));
    p = fma(p, w, broadcast(-3.333328366e-01f));
    const Vec small = fma(mul(x, w), p, x);
    const Vec is_small = sub(broadcast(-0.625f), n);
    return where_negative(is_small, small, where_negative(x, sub(broadcast(0.0f), large), large));
}

inline Vec relu(Vec x) { return max(broadcast(0.0f), x); }

inline Vec silu(Vec x) { return mul(x, sigmoid(x)); }

// x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vec tanh_gelu(Vec x) {
    const Vec scale = fma(mul(x, x), broadcast(7.135481283e-02f), broadcast(1.595769122f));
    return mul(x, sigmoid(mul(x, scale)));
}

// x P(x), P the normal distribution: for x < 0 it is exp(-x^2 / 2) r(-x), and r(z) (k + z) is a
// polynomial of (k - z) / (k + z), to a relative error of 3e-8.
inline Vec gelu(Vec x) {
    const Vec k = broadcast(2.875f);
    // beyond 14 the exponential is zero
    const Vec n = max(broadcast(-14.0f), negative_abs(x));
    const Vec inverse = div(broadcast(1.0f), sub(k, n));
    const Vec s = mul(add(k, n), inverse);
    Vec p = broadcast(-3.239292419e-04f);
    p = fma(p, s, broadcast(6.583189243e-04f));
    p = fma(p, s, broadcast(1.880100695e-03f));
    p = fma(p, s, broadcast(-5.288586020e-03f));
    p = fma(p, s, broadcast(-1.418684330e-02f));
    p = fma(p, s, broadcast(3.142812103e-02f));
    p = fma(p, s, broadcast(2.065556198e-01f));
    p = fma(p, s, broadcast(4.924972355e-01f));
    p = fma(p, s, broadcast(7.242799401e-01f));
    const Vec e = exp_nonpositive(mul(mul(n, n), broadcast(-0.5f)));
    const Vec tail = mul(mul(p, inverse), e);
    return mul(x, where_negative(x, tail, sub(broadcast(1.0f), tail)));
}

// A function as a type, so that loops inline it.
template <Vec (*f)(Vec)>
struct Function {
    static Vec of(Vec x) { return f(x); }
};

inline Vec identity(Vec x) { return x; }

template <class Body>
inline void with_function(Activation activation, const Body& body) {
    switch (activation) {
        case Activation::kNone:
            return body(Function<identity>());
        case Activation::kRelu:
            return body(Function<relu>());
        case Activation::kGelu:
            return body(Function<gelu>());
        case Activation::kTanhGelu:
            return body(Function<tanh_gelu>());
        case Activation::kSilu:
            return body(Function<silu>());
        case Activation::kTanh:
            return body(Function<tanh>());
    }
}

// y = f(y) for rows of one panel. It is never inlined: the compiler might contract a product and a
// sum in one copy and not in another.
__attribute__((noinline)) void activate(Activation activation, int64_t num_rows, float* y,
                                        int64_t y_stride) {
    if (activation == Activation::kNone) return;
    with_function(activation, [&](auto function) {
        for (int64_t row = 0; row < num_rows; ++row) {
            for (int64_t c = 0; c < kPanel; c += kWidth) {
                float* const at = y + row * y_stride + c;
                store(at, function.of(load(at)));
            }
        }
    });
}
