// Sums of products over few tokens: what the native engine's passes are made of.
//
// Every weight is read once, in the order in which it lies in memory.  What is computed for a token does not depend on
// how many other tokens there are, on the rows beside it or on the number of threads: each sum has one order.
#pragma once
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
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

// Matrices (out, in) of bfloat16 are laid out in blocks of 32 rows, pairs of inputs first: (out / 32, in / 2, 32, 2), filled
// up with zeros, so that a product needs no sums across lanes.  Other types lie as they are.
template <typename E>
constexpr bool IN_BLOCKS = false;
constexpr int64_t BLOCK = 32;

#ifdef __AVX512BF16__
template <>
constexpr bool IN_BLOCKS<bfloat16> = true;
constexpr int64_t PAIR = 2 * BLOCK;  // elements of a block that belong to one pair of inputs

// out[t][g * BLOCK + row] for G blocks of rows and T tokens, each sum in the order of the inputs
template <int T, int G>
static inline void block_product(const bfloat16* weight, int64_t pairs, const bfloat16* x, int64_t size, float* out) {
    __m512 sums[T * G * 2];
#pragma GCC unroll 64
    for (int i = 0; i < T * G * 2; i++) sums[i] = _mm512_setzero_ps();
    for (int64_t k = 0; k < pairs; k++) {
#pragma GCC unroll 8
        for (int g = 0; g < G; g++) {
            const bfloat16* from = weight + (g * pairs + k) * PAIR;
            _mm_prefetch((const char*)(from + G * pairs * PAIR), _MM_HINT_T1);  // the processor's own prefetcher stops
            _mm_prefetch((const char*)(from + G * pairs * PAIR + BLOCK), _MM_HINT_T1);  // at every block's end
            __m512bh low = (__m512bh)_mm512_loadu_si512(from), high = (__m512bh)_mm512_loadu_si512(from + BLOCK);
#pragma GCC unroll 16
            for (int t = 0; t < T; t++) {
                int32_t both;
                std::memcpy(&both, x + t * size + 2 * k, 4);
                __m512bh pair = (__m512bh)_mm512_set1_epi32(both);
                sums[(t * G + g) * 2] = _mm512_dpbf16_ps(sums[(t * G + g) * 2], low, pair);
                sums[(t * G + g) * 2 + 1] = _mm512_dpbf16_ps(sums[(t * G + g) * 2 + 1], high, pair);
            }
        }
    }
#pragma GCC unroll 64
    for (int i = 0; i < T * G * 2; i++) _mm512_storeu_ps(out + i * WIDTH, sums[i]);
}

template <int G>
static void block_product_of(
    int tokens, const bfloat16* weight, int64_t pairs, const bfloat16* x, int64_t size, float* out) {
    switch (tokens) {
#define TOKENS_ARE(T) \
    case T:           \
        return block_product<T, G>(weight, pairs, x, size, out);
        TOKENS_ARE(1) TOKENS_ARE(2) TOKENS_ARE(3) TOKENS_ARE(4) TOKENS_ARE(5) TOKENS_ARE(6) TOKENS_ARE(7)
        TOKENS_ARE(8) TOKENS_ARE(9) TOKENS_ARE(10) TOKENS_ARE(11) TOKENS_ARE(12)
#undef TOKENS_ARE
    }
}

constexpr int64_t TOKENS = 12;  // most whose sums stay in registers

// give(row, rows, token, values) for the rows [first, last) of weight (rows, size) and all tokens of x (count, size)
template <int G, typename Give>
static void blocks(
    const bfloat16* weight, const bfloat16* x, int64_t size, int64_t count, int64_t first, int64_t last, Give give) {
    float out[TOKENS * 2 * BLOCK];
    const int64_t parts = (count + TOKENS - 1) / TOKENS, pairs = (size + 1) / 2;  // parts of about equal size
    int64_t block = first / BLOCK;
    for (; block * BLOCK < last; block += G) {
        if ((block + G) * BLOCK > (last + BLOCK - 1) / BLOCK * BLOCK)  // fewer than G are left
            return blocks<1>(weight, x, size, count, std::max(first, block * BLOCK), last, give);
        for (int64_t part = 0; part < parts; part++) {
            const int64_t token = count * part / parts, tokens = count * (part + 1) / parts - token;
            block_product_of<G>(int(tokens), weight + block * pairs * PAIR, pairs, x + token * size, size, out);
            const int64_t low = std::max(first, block * BLOCK), high = std::min(last, (block + G) * BLOCK);
            for (int64_t t = 0; t < tokens; t++)
                give(low, high - low, token + t, out + t * G * BLOCK + low - block * BLOCK);
        }
    }
}
#endif

template <typename E, typename Give>
static void linear(const E* weight, const E* x, int64_t size, int64_t count, int64_t first, int64_t last, Give give) {
#ifdef __AVX512BF16__
    if constexpr (IN_BLOCKS<E>) {
        if (count == 1) return blocks<4>(weight, x, size, count, first, last, give);
        if (count <= 4) return blocks<2>(weight, x, size, count, first, last, give);
        return blocks<1>(weight, x, size, count, first, last, give);
    }
#endif
    for (int64_t row = first; row < last; row++)
        for (int64_t token = 0; token < count; token++) {
            float value;
            dots<1, 1>(weight + row * size, x + token * size, size, &value);
            give(row, int64_t(1), token, &value);
        }
}

template <typename E>
static void norm(const float* x, const E* weight, int64_t size, float epsilon, E* out) {
    Lanes squares = {};
    int64_t k = 0;
    for (; k + WIDTH <= size; k += WIDTH) squares += load(x + k) * load(x + k);
    if (k < size) squares += load_part(x + k, size - k) * load_part(x + k, size - k);
    float scale = 1.0f / std::sqrt(sum(squares) / size + epsilon);
    for (k = 0; k + WIDTH <= size; k += WIDTH) store(out + k, load(x + k) * scale * load(weight + k));
    if (k < size) store_part(out + k, load_part(x + k, size - k) * scale * load_part(weight + k, size - k), size - k);
}

// query . key for the keys [first, first + 16), of which those from `count` on stand for nothing
template <typename E>
static inline void scores_of_16(const E* query, const E* keys, int64_t first, int64_t count, int64_t size, float* out) {
    for (int64_t i = 0; i < WIDTH; i++) dots<1, 1>(keys + std::min(first + i, count - 1) * size, query, size, out + i);
}
#ifdef __AVX512BF16__
static inline void scores_of_16(
    const bfloat16* query, const bfloat16* keys, int64_t first, int64_t count, int64_t size, float* out) {
    if (first + WIDTH <= count) return dots<WIDTH, 1>(keys + first * size, query, size, out);
    for (int64_t i = first; i < count; i++) dots<1, 1>(keys + i * size, query, size, out + i - first);
}
#endif

constexpr int QUERIES = 4, PARTS = 4;  // whose sums stay in registers

// mixed[q] = sum_i weights[q][i] value_i over PARTS (or one) times 16 units of the values, in the order of the slots
template <int Q, int P, typename E>
static inline void mix(const E* values, int64_t size, int64_t count, const float* weights, int64_t padded, Lanes* mixed) {
    Lanes sums[Q][P] = {};
    for (int64_t i = 0; i < count; i++)
        for (int p = 0; p < P; p++) {
            Lanes value = load(values + i * size + p * WIDTH);
            for (int q = 0; q < Q; q++) sums[q][p] += value * weights[q * padded + i];
        }
    for (int q = 0; q < Q; q++)
        for (int p = 0; p < P; p++) mixed[q * P + p] = sums[q][p];
}
template <int P, typename E>
static inline void mix_of(
    int queries, const E* values, int64_t size, int64_t count, const float* weights, int64_t padded, Lanes* mixed) {
    switch (queries) {
        case 1: return mix<1, P>(values, size, count, weights, padded, mixed);
        case 2: return mix<2, P>(values, size, count, weights, padded, mixed);
        case 3: return mix<3, P>(values, size, count, weights, padded, mixed);
        default: return mix<4, P>(values, size, count, weights, padded, mixed);
    }
}

// exp(score - best) over the slots that a query sees, 0 elsewhere; returns their sum, in the order of the slots
template <typename E, typename Sees>
static inline float weigh(
    const E* query, const E* keys, int64_t count, int64_t size, float scaling, Sees sees, float* weights) {
    float best = -std::numeric_limits<float>::infinity(), total = 0;
    for (int64_t i = 0; i < count; i += WIDTH) scores_of_16(query, keys, i, count, size, weights + i);
    for (int64_t i = 0; i < count; i++)
        if (sees(i)) best = std::max(best, weights[i] * scaling);
    for (int64_t i = 0; i < count; i += WIDTH) store(weights + i, exponential(load(weights + i) * scaling - best));
    for (int64_t i = 0; i < count; i++) total += weights[i] = sees(i) ? weights[i] : 0.0f;
    return total;
}

// softmax(query . keys) values for some tokens' queries of one head, `stride` apart
template <typename E, typename Sees>
static void attend(
    const E* query, const E* keys, const E* values, int queries, int64_t stride, int64_t count, int64_t size,
    float scaling, Sees sees, std::vector<float>& weights, E* out) {
    const int64_t padded = (count + WIDTH - 1) / WIDTH * WIDTH;
    weights.resize(queries * padded);
    float total[QUERIES];
    for (int q = 0; q < queries; q++)
        total[q] = weigh(query + q * stride, keys, count, size, scaling, [&](int64_t i) { return sees(q, i); },
                         &weights[q * padded]);
    Lanes mixed[QUERIES * PARTS];
    for (int64_t unit = 0; unit < size;) {
        const int parts = unit + PARTS * WIDTH <= size ? PARTS : 1;
        const int64_t units = std::min<int64_t>(parts * WIDTH, size - unit);
        if (units < WIDTH) {  // a head whose size is no multiple of 16
            for (int q = 0; q < queries; q++) {
                Lanes sum = {};
                for (int64_t i = 0; i < count; i++)
                    sum += load_part(values + i * size + unit, units) * weights[q * padded + i];
                store_part(out + q * stride + unit, sum / total[q], units);
            }
        } else {
            auto some = parts == PARTS ? mix_of<PARTS, E> : mix_of<1, E>;
            some(queries, values + unit, size, count, weights.data(), padded, mixed);
            for (int q = 0; q < queries; q++)
                for (int p = 0; p < parts; p++)
                    store(out + q * stride + unit + p * WIDTH, mixed[q * parts + p] / total[q]);
        }
        unit += units;
    }
}

// Spins for some microseconds, then sleeps: on a busy machine the thread that is waited for gets this one's processor.
class Barrier {
  public:
    int64_t threads = 1;
    void wait() {
        int now = round.load();
        if (arrived.fetch_add(1) + 1 == threads) {
            arrived.store(0);
            round.store(now + 1);
            round.notify_all();
            return;
        }
        for (int i = 0; i < SPINS; i++) {
            if (round.load(std::memory_order_acquire) != now) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        round.wait(now);
    }

  private:
    static constexpr int SPINS = 2000;
    std::atomic<int64_t> arrived{0};
    std::atomic<int> round{0};
};
