// exp(x) for x <= 0, to about 1 ulp: 2^n times a polynomial of the fraction that is exactly 1 at 0.
// 0 below -87, NaN for NaN.
inline Vec exp_nonpositive(Vec x) {
    const Vec min_x = broadcast(-87.0f);
    const Vec log2_e = broadcast(1.44269504f);
    const Vec clamped = max(min_x, x);
    const Vec n = round(mul(clamped, log2_e));
    const Vec f = fma(clamped, log2_e, sub(broadcast(0.0f), n));
    Vec p = broadcast(1.535335905e-04f);
    p = fma(p, f, broadcast(1.339887851e-03f));
    p = fma(p, f, broadcast(9.618437849e-03f));
    p = fma(p, f, broadcast(5.550332367e-02f));
    p = fma(p, f, broadcast(2.402264774e-01f));
    p = fma(p, f, broadcast(6.931471825e-01f));
    p = fma(p, f, broadcast(1.0f));
    return scale_by_power(p, n, x, min_x);
}
