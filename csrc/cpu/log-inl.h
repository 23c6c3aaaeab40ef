// log(x) for positive, normal x, to about 1 ulp and exactly 0 at 1: n ln 2 + 2 artanh(z) where
// x = f 2^n, 3/4 <= f < 3/2, z = (f - 1) / (f + 1). Included inside a namespace, after the vectors.
inline Vec log_positive(Vec x) {
    Vec n;
    const Vec f = split_power(x, &n);
    const Vec one = broadcast(1.0f);
    const Vec z = div(sub(f, one), add(f, one));
    const Vec zz = mul(z, z);
    Vec p = broadcast(2.0f / 9);
    p = fma(p, zz, broadcast(2.0f / 7));
    p = fma(p, zz, broadcast(2.0f / 5));
    p = fma(p, zz, broadcast(2.0f / 3));
    p = fma(p, zz, broadcast(2.0f));
    return fma(n, broadcast(0.693147180f), mul(p, z));
}
