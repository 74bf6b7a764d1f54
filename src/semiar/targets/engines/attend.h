// Attention of few queries to the keys and values of one head.
#pragma once
#include <limits>
#include <vector>

#include "lanes.h"

// rotary embedding of a head of 2 * half units
template <typename E>
static inline void turn(const float* head, const float* cosines, const float* sines, int64_t half, E* out) {
    for (int64_t k = 0; k < half; k++) {
        assign(out[k], head[k] * cosines[k] - head[k + half] * sines[k]);
        assign(out[k + half], head[k + half] * cosines[k] + head[k] * sines[k]);
    }
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
