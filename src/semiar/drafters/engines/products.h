// The operations that the threads share: products and attention, whose results every thread then has for itself.
#pragma once
#include "elements.h"
#include "native.h"

template <typename E>
struct Worker : Values {  // one thread's part in a draft
    const Program& program;
    const Draft& draft;
    Barrier& barrier;
    int64_t number;
    std::vector<E> input{};
    std::vector<float> weights{};
};

// outs rows of a matrix for `in` inputs; each thread has a share of the rows, and then everything
template <typename E>
static void product(Worker<E>& self, const Instruction& one, int64_t rows) {
    const int64_t in = one.inputs, outs = one.outs;
    self.input.assign(rows * in + 2, E{});
    for (int64_t row = 0; row < rows; row++) {
        const float* from = self.at(one.a, row);
        E* to = &self.input[row * in];
        int64_t k = 0;
        for (; k + WIDTH <= in; k += WIDTH) store(to + k, load(from + k));
        for (; k < in; k++) assign(to[k], from[k]);
    }
    float* shared = self.draft.shared + one.place;
    auto edge = [&](int64_t of) { return share(outs, of, self.barrier.threads); };
    linear((const E*)one.weight, self.input.data(), in, rows, edge(self.number), edge(self.number + 1),
           [&](int64_t row, int64_t count, int64_t m, const float* values) {
               std::copy_n(values, count, shared + m * outs + row);
           });
    self.barrier.wait();
    const E* bias = (const E*)one.bias;
    for (int64_t row = 0; row < rows; row++) {
        float* to = self.goal(one.out, row);
        const float* from = shared + row * outs;
        for (int64_t i = 0; i < outs; i += WIDTH) {
            Lanes x = fetch(from + i, 1, outs - i);
            if (bias) x += outs - i >= WIDTH ? load(bias + i) : load_part(bias + i, int(outs - i));
            put(to + i, 1, outs - i, x, one.half);
        }
    }
}

// a draft's query to what is verified and to `index` drafts behind that; shared like a product
template <typename E>
static void attention(Worker<E>& self, const Instruction& one) {
    const int64_t heads = self.program.heads, size = self.program.size, count = self.draft.seen + one.index;
    float* shared = self.draft.shared + one.inputs;
    std::vector<E> query(size), mixed(size);
    for (int64_t head = self.number; head < heads; head += self.barrier.threads) {
        const float* from = self.at(one.a, 0) + head * one.a.stride[2];
        for (int64_t k = 0; k < size; k++) assign(query[k], from[k * one.a.stride[3]]);
        const int64_t base = head * self.draft.head_stride;
        attend(query.data(), (E*)self.draft.keys[one.place] + base, (E*)self.draft.values[one.place] + base, 1, 0, count, size,
               1 / std::sqrt(float(size)), [](int, int64_t) { return true; }, self.weights, mixed.data());
        for (int64_t k = 0; k < size; k++) shared[head * size + k] = to_float(mixed[k]);
    }
    self.barrier.wait();
    std::copy_n(shared, heads * size, self.goal(one.out, 0));
}
