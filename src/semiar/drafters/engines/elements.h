// The operations on single numbers, sums and softmax: every thread does them itself, on values of its own.
#pragma once
#include "lanes.h"
#include "program.h"

struct Values {  // where a thread finds its numbers
    const float* constants;
    float* values;

    const float* at(const Operand& from, int64_t row) const {
        return (from.constant ? constants : values) + from.start + row * from.row;
    }
    float* goal(const Operand& out, int64_t row) const { return values + out.start + row * out.row; }
};

static inline Lanes fetch(const float* from, int64_t stride, int64_t count) {
    if (stride == 1) return count >= WIDTH ? load(from) : load_part(from, int(count));
    Lanes lanes = {};
    if (stride == 0) return lanes + *from;
    for (int64_t i = 0; i < std::min<int64_t>(count, WIDTH); i++) lanes[i] = from[i * stride];
    return lanes;
}
static inline void put(float* goal, int64_t stride, int64_t count, Lanes lanes, bool half) {
    if (half) {
        bfloat16 rounded[WIDTH];
        store(rounded, lanes);
        lanes = load(rounded);
    }
    if (stride == 1 && count >= WIDTH) return store(goal, lanes);
    for (int64_t i = 0; i < std::min<int64_t>(count, WIDTH); i++) goal[i * stride] = lanes[i];
}
template <typename F>
static inline Lanes each(Lanes x, F function) {
    for (int i = 0; i < WIDTH; i++) x[i] = function(x[i]);
    return x;
}
static inline Lanes sigmoid(Lanes x) { return 1.0f / (exponential(-x) + 1.0f); }
static inline Lanes tanh(Lanes x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// Abramowitz and Stegun 7.1.26, to about 1e-7
static inline Lanes erf(Lanes x) {
    Lanes size = x < 0.0f ? -x : x, t = 1.0f / (1.0f + 0.3275911f * size);
    Lanes y = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    y = 1.0f - y * exponential(-size * size);
    return x < 0.0f ? -y : y;
}

static inline Lanes of_one(const Instruction& one, Lanes x) {
    switch (one.code) {
        case NEG: return -x;
        case SILU: return x * sigmoid(x);
        case SIGMOID: return sigmoid(x);
        case TANH: return tanh(x);
        case GELU: return 0.5f * x * (1.0f + erf(x * 0.70710678f));
        case GELU_TANH: return 0.5f * x * (1.0f + tanh(0.79788456f * (x + 0.044715f * x * x * x)));
        case COS: return each(x, [](float v) { return std::cos(v); });
        case SIN: return each(x, [](float v) { return std::sin(v); });
        case RSQRT: return each(x, [](float v) { return 1 / std::sqrt(v); });
        case SQUARE: return x * x;
        case EXP: return exponential(x);
        case RELU: return x > 0.0f ? x : Lanes{};
        case AFFINE: return x * one.x + one.y;
        default: return x;
    }
}
static inline Lanes of_two(const Instruction& one, Lanes a, Lanes b) {
    return one.code == ADD ? a + b * one.x : one.code == MUL ? a * b : a / b;
}

// visit(out, a, b) at the beginning of every line of the innermost dimension
template <typename Visit>
static inline void lines(const Values& self, const Instruction& one, int64_t row, Visit visit) {
    float* out = self.goal(one.out, row);
    const float *a = self.at(one.a, row), *b = self.at(one.b, row);
    const int64_t *so = one.out.stride, *sa = one.a.stride, *sb = one.b.stride;
    for (int64_t i = 0; i < one.size[0]; i++)
        for (int64_t j = 0; j < one.size[1]; j++)
            for (int64_t k = 0; k < one.size[2]; k++)
                visit(out + i * so[0] + j * so[1] + k * so[2], a + i * sa[0] + j * sa[1] + k * sa[2],
                      b + i * sb[0] + j * sb[1] + k * sb[2]);
}

static void elements(const Values& self, const Instruction& one, int64_t row) {
    const int64_t n = one.size[3], so = one.out.stride[3], sa = one.a.stride[3], sb = one.b.stride[3];
    const bool two = one.code == ADD || one.code == MUL || one.code == DIV;
    lines(self, one, row, [&](float* out, const float* a, const float* b) {
        for (int64_t i = 0; i < n; i += WIDTH) {
            Lanes x = fetch(a + i * sa, sa, n - i);
            x = two ? of_two(one, x, fetch(b + i * sb, sb, n - i)) : of_one(one, x);
            put(out + i * so, so, n - i, x, one.half);
        }
    });
}

// the sizes are those of what is summed; the sum does not move (stride 0) along what it is taken over
static void add_up(const Values& self, const Instruction& one, int64_t row) {
    float* all = self.goal(one.out, row);
    std::fill_n(all, one.outs, 0.0f);
    const int64_t n = one.size[3], so = one.out.stride[3], sa = one.a.stride[3];
    lines(self, one, row, [&](float* out, const float* a, const float*) {
        if (so == 0) {
            Lanes sums = {};
            for (int64_t i = 0; i < n; i += WIDTH) {
                Lanes x = fetch(a + i * sa, sa, n - i);
                if (sa == 0 && n - i < WIDTH)
                    for (int64_t k = n - i; k < WIDTH; k++) x[k] = 0;
                sums += x;
            }
            *out += sum(sums);
        } else {
            for (int64_t i = 0; i < n; i++) out[i * so] += a[i * sa];
        }
    });
    for (int64_t i = 0; i < one.outs; i += WIDTH)
        put(all + i, 1, one.outs - i, fetch(all + i, 1, one.outs - i) * one.x, one.half);
}

static void softmax(const Values& self, const Instruction& one, int64_t row) {
    const int64_t n = one.size[3], so = one.out.stride[3], sa = one.a.stride[3];
    lines(self, one, row, [&](float* out, const float* a, const float*) {
        float best = a[0], total = 0;
        for (int64_t i = 1; i < n; i++) best = std::max(best, a[i * sa]);
        for (int64_t i = 0; i < n; i++) total += out[i * so] = std::exp(a[i * sa] - best);
        for (int64_t i = 0; i < n; i += WIDTH)
            put(out + i * so, so, n - i, fetch(out + i * so, so, n - i) / total, one.half);
    });
}
