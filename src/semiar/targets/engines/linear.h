// Matrix products and norms over few tokens: every weight is read once, in the order in which it lies in memory.
#pragma once
#include "lanes.h"

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

// where thread `of` begins in the rows of a matrix that all threads share, at the edge of a block
static inline int64_t share(int64_t rows, int64_t of, int64_t threads) {
    return of == threads ? rows : rows * of / threads / BLOCK * BLOCK;
}

// whether matrices have to lie in blocks
extern "C" int semiar_in_blocks(int half) { return half && IN_BLOCKS<bfloat16>; }
