// One decoding pass of a Llama-like model over few tokens, as one parallel region.
//
// Every weight is read once, in the order in which it lies in memory.  What is computed for a token does not depend on
// how many other tokens are in the pass, on the rows beside it or on the number of threads: each sum has one order.  A
// speculative pass therefore gives the same bits as plain decoding, also in bfloat16.
#include "layout.h"
#include "native.h"

struct Layer {  // weights as (out, in); null = the architecture has none
    const void *input_norm, *qkv, *qkv_bias, *query_norm, *key_norm, *out, *post_norm, *gate_up, *down;
};
struct Model {
    int64_t layers, hidden, heads, shared, head_size, inner, vocab;  // shared: key/value heads
    float epsilon, scaling;
    const Layer* layer;
    const void *embedding, *final_norm, *head;
    const float *cosines, *sines;  // (positions, head_size / 2)
};
struct Pass {
    int64_t rows, count, threads;
    const int64_t *tokens, *lengths, *depths;  // (rows, count), (rows,), (rows, count) or null for a chain
    const uint8_t* mask;                       // (rows, count, count) which new slots a new slot sees; null = a chain
    void* const* memory;                       // keys and values of each layer, (rows, shared, capacity, head_size)
    int64_t row_stride, head_stride;
    const int64_t* wanted;  // (features,) layers whose output is wanted; -1 = after the final norm
    int64_t features;
    void* states;   // (rows, count, features, hidden)
    float* logits;  // (rows, count, vocab), or null
};

// norm (where there is one) and rotary embedding of one head's query or key
template <typename E>
static void rotate(const Model& model, float* head, const E* weight, int64_t position, E* out) {
    int64_t size = model.head_size, half = size / 2;
    if (weight) {
        std::vector<float> plain(head, head + size);
        std::vector<E> normed(size);
        norm(plain.data(), weight, size, model.epsilon, normed.data());
        for (int64_t k = 0; k < size; k++) head[k] = to_float(normed[k]);
    }
    turn(head, model.cosines + position * half, model.sines + position * half, half, out);
}

template <typename E>
struct Work {  // shared by the threads of one pass
    std::vector<float> x, qkv;
    std::vector<E> queries, attended, active;
};

template <typename E>
static void attention(
    const Model& model, const Layer& layer, const Pass& pass, Work<E>& work, Barrier& barrier, E* keys, E* values,
    int64_t thread) {
    const int64_t size = model.head_size, heads = model.heads, width = (heads + 2 * model.shared) * size;
    const int64_t each = heads + model.shared, group = heads / model.shared;
    for (int64_t task = thread; task < pass.rows * pass.count * each; task += pass.threads) {
        int64_t m = task / each, head = task % each, row = m / pass.count, slot = m % pass.count;
        int64_t position = pass.lengths[row] + (pass.depths ? pass.depths[m] : slot);
        float* from = &work.qkv[m * width + head * size];
        if (head < heads) {
            rotate(model, from, (const E*)layer.query_norm, position, &work.queries[(m * heads + head) * size]);
            continue;
        }
        int64_t goal = row * pass.row_stride + (head - heads) * pass.head_stride + (pass.lengths[row] + slot) * size;
        rotate(model, from, (const E*)layer.key_norm, position, keys + goal);
        for (int64_t k = 0; k < size; k++) assign(values[goal + k], from[model.shared * size + k]);
    }
    barrier.wait();
    std::vector<float> weights;
    const int64_t groups = (pass.count + QUERIES - 1) / QUERIES;
    for (int64_t task = thread; task < pass.rows * groups * heads; task += pass.threads) {
        int64_t head = task % heads, row = task / heads / groups, start = task / heads % groups * QUERIES;
        int64_t past = pass.lengths[row], m = row * pass.count + start;
        int queries = int(std::min<int64_t>(QUERIES, pass.count - start));
        int64_t count = past + (pass.mask ? pass.count : start + queries);
        int64_t base = row * pass.row_stride + head / group * pass.head_stride, goal = (m * heads + head) * size;
        auto sees = [&](int q, int64_t i) {
            return i < past || (pass.mask ? bool(pass.mask[(m + q) * pass.count + i - past]) : i - past <= start + q);
        };
        attend(&work.queries[goal], keys + base, values + base, queries, heads * size, count, size, model.scaling, sees,
               weights, &work.attended[goal]);
    }
}

// silu(gate) * up for a share of the inner units; `gates` has room for all of them
template <typename E>
static void feed_forward(
    const Model& model, const Layer& layer, const E* x, int64_t count, int64_t first, int64_t last, float* gates,
    E* active) {
    const E* gate_up = (const E*)layer.gate_up;
    const int64_t units = last - first;
    linear(gate_up, x, model.hidden, count, first, last, [&](int64_t row, int64_t rows, int64_t m, const float* values) {
        std::copy(values, values + rows, gates + m * units + row - first);
    });
    for (int64_t i = 0; i < count * units; i += WIDTH) {  // what stands behind the last one is not used
        Lanes in = load(gates + i);
        store(gates + i, in / (exponential(-in) + 1.0f));
    }
    linear(gate_up, x, model.hidden, count, model.inner + first, model.inner + last,
           [&](int64_t row, int64_t rows, int64_t m, const float* values) {
               const int64_t unit = row - model.inner;
               for (int64_t i = 0; i < rows; i++)
                   assign(active[m * model.inner + unit + i], gates[m * units + unit + i - first] * values[i]);
           });
}

template <typename E>
static void run(const Model& model, const Pass& asked) {
    const int64_t count = asked.rows * asked.count, hidden = model.hidden, size = model.head_size;
    const int64_t width = (model.heads + 2 * model.shared) * size, inside = model.heads * size;
    static thread_local Work<E> work;
    work.x.resize(count * hidden);
    work.qkv.resize(count * width);
    work.queries.resize(count * inside);
    work.attended.resize(count * inside);
    work.active.resize(count * model.inner);
    Work<E>& shared = work;
    Barrier barrier;
#pragma omp parallel num_threads(std::max<int64_t>(1, asked.threads))
    {
        Pass pass = asked;
        pass.threads = omp_get_num_threads();  // it may give fewer
#pragma omp single
        barrier.threads = pass.threads;
        const int64_t thread = omp_get_thread_num();
        auto first = [&](int64_t all) { return share(all, thread, pass.threads); };
        auto last = [&](int64_t all) { return share(all, thread + 1, pass.threads); };
        std::vector<E> normed(count * hidden);  // each thread its own: cheaper than waiting for one
        std::vector<float> gates(count * (last(model.inner) - first(model.inner)) + WIDTH);
        auto norm_all = [&](const void* weight) {
            for (int64_t m = 0; m < count; m++)
                norm(&shared.x[m * hidden], (const E*)weight, hidden, model.epsilon, &normed[m * hidden]);
        };
        auto add = [&](int64_t row, int64_t rows, int64_t m, const float* values) {
            for (int64_t i = 0; i < rows; i++) shared.x[m * hidden + row + i] += values[i];
        };
        auto hand_out = [&](int64_t layer) {
            for (int64_t f = 0; f < pass.features; f++)
                for (int64_t m = thread; pass.wanted[f] == layer && m < count; m += pass.threads)
                    for (int64_t k = 0; k < hidden; k++) {
                        E& goal = ((E*)pass.states)[(m * pass.features + f) * hidden + k];
                        layer < 0 ? void(goal = normed[m * hidden + k]) : assign(goal, shared.x[m * hidden + k]);
                    }
        };
        for (int64_t m = thread; m < count; m += pass.threads)
            for (int64_t k = 0; k < hidden; k++)
                shared.x[m * hidden + k] = to_float(((const E*)model.embedding)[pass.tokens[m] * hidden + k]);
        barrier.wait();
        for (int64_t index = 0; index < model.layers; index++) {
            const Layer& layer = model.layer[index];
            const E* bias = (const E*)layer.qkv_bias;
            norm_all(layer.input_norm);
            linear((const E*)layer.qkv, normed.data(), hidden, count, first(width), last(width),
                   [&](int64_t row, int64_t rows, int64_t m, const float* values) {
                       for (int64_t i = row; i < row + rows; i++)
                           shared.qkv[m * width + i] = values[i - row] + (bias ? to_float(bias[i]) : 0.0f);
                   });
            barrier.wait();
            attention<E>(model, layer, pass, shared, barrier, (E*)pass.memory[2 * index],
                         (E*)pass.memory[2 * index + 1], thread);
            barrier.wait();
            linear((const E*)layer.out, shared.attended.data(), inside, count, first(hidden), last(hidden), add);
            barrier.wait();
            norm_all(layer.post_norm);
            feed_forward(model, layer, normed.data(), count, first(model.inner), last(model.inner), gates.data(),
                         shared.active.data());
            barrier.wait();
            linear((const E*)layer.down, shared.active.data(), model.inner, count, first(hidden), last(hidden), add);
            barrier.wait();
            hand_out(index);
        }
        norm_all(model.final_norm);
        hand_out(-1);
        if (pass.logits)
            linear((const E*)model.head, normed.data(), hidden, count, first(model.vocab), last(model.vocab),
                   [&](int64_t row, int64_t rows, int64_t m, const float* values) {
                       std::copy(values, values + rows, pass.logits + m * model.vocab + row);
                   });
    }
}

extern "C" void semiar_pass(const Model* model, const Pass* pass, int half) {
    if (half)
        run<bfloat16>(*model, *pass);
    else
        run<float>(*model, *pass);
}

extern "C" const char* semiar_layout() {
    static const std::string text =
        FIELDS(Layer, input_norm, qkv, qkv_bias, query_norm, key_norm, out, post_norm, gate_up, down) +
        FIELDS(Model, layers, hidden, heads, shared, head_size, inner, vocab, epsilon, scaling, layer, embedding,
               final_norm, head, cosines, sines) +
        FIELDS(Pass, rows, count, threads, tokens, lengths, depths, mask, memory, row_stride, head_stride, wanted,
               features, states, logits);
    return text.c_str();
}
