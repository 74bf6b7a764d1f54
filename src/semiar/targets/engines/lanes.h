// Numbers of both types, 16 side by side, and sums of their products.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

struct bfloat16 {
    uint16_t bits;
};
typedef float Lanes __attribute__((vector_size(64)));  // 16 sums side by side
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
constexpr int WIDTH = 16;

static inline float to_float(float value) { return value; }
static inline float to_float(bfloat16 value) {
    uint32_t wide = uint32_t(value.bits) << 16;
    float result;
    std::memcpy(&result, &wide, 4);
    return result;
}
static inline void assign(float& goal, float value) { goal = value; }
static inline void assign(bfloat16& goal, float value) {  // to nearest, ties to even
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    goal.bits = std::isnan(value) ? 0x7fc0 : uint16_t((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}
static inline Lanes load(const float* from) {
    Lanes result;
    std::memcpy(&result, from, sizeof result);
    return result;
}
static inline Lanes load(const bfloat16* from) {
    Halves half;
    std::memcpy(&half, from, sizeof half);
    Ints wide = __builtin_convertvector(half, Ints) << 16;
    Lanes result;
    std::memcpy(&result, &wide, sizeof result);
    return result;
}
static inline void store(float* goal, Lanes lanes) { std::memcpy(goal, &lanes, sizeof lanes); }
static inline void store(bfloat16* goal, Lanes lanes) {
#ifdef __AVX512BF16__
    __m256bh half = _mm512_cvtneps_pbh((__m512)lanes);
    std::memcpy(goal, &half, sizeof half);
#else
    for (int i = 0; i < WIDTH; i++) assign(goal[i], lanes[i]);
#endif
}
template <typename T>
static inline void store_part(T* goal, Lanes lanes, int count) {
    T all[WIDTH];
    store(all, lanes);
    std::memcpy(goal, all, count * sizeof(T));
}
template <typename T>
static inline Lanes load_part(const T* from, int count) {  // the rest is zero
    T filled[WIDTH] = {};
    std::memcpy(filled, from, count * sizeof(T));
    return load(filled);
}
static inline float sum(Lanes lanes) {
    float total = 0;
    for (int i = 0; i < WIDTH; i++) total += lanes[i];
    return total;
}

// exp(x) to about 1e-7, Cephes' polynomial on what is left of x over ln 2
static inline Lanes exponential(Lanes x) {
    const Lanes zero = {}, low = zero - 87.0f, high = zero + 88.0f;
    x = x < low ? low : x;
    x = x > high ? high : x;
    Lanes scaled = x * 1.44269504f;
    Ints whole = __builtin_convertvector(scaled + (x < zero ? zero - 0.5f : zero + 0.5f), Ints);
    Lanes n = __builtin_convertvector(whole, Lanes);
    Lanes r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Lanes y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    Ints power = (whole + 127) << 23;
    Lanes factor;
    std::memcpy(&factor, &power, sizeof factor);
    return y * factor;
}

// out[r * T + t] = weight[r] . x[t] for R rows of a matrix and T tokens
template <int R, int T, typename E>
static inline void dots(const E* weight, const E* x, int64_t size, float* out) {
    Lanes sums[R][T] = {};
    int64_t k = 0;
    for (; k + WIDTH <= size; k += WIDTH) {
        Lanes read[T];
        for (int t = 0; t < T; t++) read[t] = load(x + t * size + k);
        for (int r = 0; r < R; r++) {
            Lanes row = load(weight + r * size + k);
            for (int t = 0; t < T; t++) sums[r][t] += row * read[t];
        }
    }
    if (k < size)
        for (int r = 0; r < R; r++)
            for (int t = 0; t < T; t++)
                sums[r][t] += load_part(weight + r * size + k, size - k) * load_part(x + t * size + k, size - k);
    for (int r = 0; r < R; r++)
        for (int t = 0; t < T; t++) out[r * T + t] = sum(sums[r][t]);
}
#ifdef __AVX512BF16__
// sums of 16 vectors' lanes at once; every vector's lanes are added in the order i + (i + 8), + 4, + 2, + 1
static inline __m512 sums_of_16(const __m512* v) {
    __m512 a[8], b[4], c[2];
    for (int j = 0; j < 8; j++)
        a[j] = _mm512_add_ps(_mm512_shuffle_f32x4(v[j], v[j + 8], 0x44), _mm512_shuffle_f32x4(v[j], v[j + 8], 0xee));
    for (int j = 0; j < 4; j++)
        b[j] = _mm512_add_ps(_mm512_shuffle_f32x4(a[j], a[j + 4], 0x88), _mm512_shuffle_f32x4(a[j], a[j + 4], 0xdd));
    for (int j = 0; j < 2; j++)
        c[j] = _mm512_add_ps(_mm512_shuffle_ps(b[j], b[j + 2], 0x44), _mm512_shuffle_ps(b[j], b[j + 2], 0xee));
    return _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
}
constexpr int PLACE[WIDTH] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};  // of the i-th sum's vector

template <int R, int T>
static inline void dots(const bfloat16* weight, const bfloat16* x, int64_t size, float* out) {
    __m512 sums[R * T];
#pragma GCC unroll 32
    for (int i = 0; i < R * T; i++) sums[i] = _mm512_setzero_ps();
    for (int64_t k = 0; k < size; k += 32) {
        __mmask32 mask = size - k >= 32 ? ~0u : (1u << (size - k)) - 1;
        __m512bh read[T];
#pragma GCC unroll 32
        for (int t = 0; t < T; t++) read[t] = (__m512bh)_mm512_maskz_loadu_epi16(mask, x + t * size + k);
#pragma GCC unroll 32
        for (int r = 0; r < R; r++) {
            __m512bh row = (__m512bh)_mm512_maskz_loadu_epi16(mask, weight + r * size + k);
#pragma GCC unroll 32
            for (int t = 0; t < T; t++) sums[r * T + t] = _mm512_dpbf16_ps(sums[r * T + t], row, read[t]);
        }
    }
    for (int start = 0; start < R * T; start += WIDTH) {
        __m512 group[WIDTH];
#pragma GCC unroll 32
        for (int i = 0; i < WIDTH; i++) group[PLACE[i]] = start + i < R * T ? sums[start + i] : _mm512_setzero_ps();
        _mm512_mask_storeu_ps(out + start, R * T - start >= WIDTH ? 0xffff : (1u << (R * T - start)) - 1, sums_of_16(group));
    }
}
#endif
