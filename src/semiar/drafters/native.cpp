// The K steps of a semi-autoregressive drafter with a `context` small language model, for one row, as one parallel
// region; `SemiDrafter` says what is computed, this only does it without dispatching anything in between.
#include "native.h"

struct Drafter {  // weights as (out, in)
    int64_t hidden, heads, features, rows, steps;
    float scale, epsilon;
    const void* embedding;
    const void* const* norms;  // of each feature
    const void *join, *read, *places, *norm, *qkv, *out, *fuse_norm, *wide, *wide_bias, *narrow, *narrow_bias, *head,
        *head_bias;  // join and head_bias may be null
    const int64_t* vocabulary;  // target ids of the head's rows, or null
    const float *cosines, *sines;  // (positions, hidden / heads / 2)
};
struct Draft {
    int64_t count, fresh, position, threads;  // position: of the newest verified state
    const int64_t* tokens;                    // (fresh + 1,) from that of the first fresh state to the last committed one
    const void* hidden;                       // (fresh, features, hidden)
    void *keys, *values;                      // (heads, capacity, hidden / heads)
    int64_t head_stride;
    float temperature;    // 0 = greedy
    const double* coins;  // (count,)
    int64_t* ids;         // (count,)
    float* laws;          // (count, rows), or null when greedy
};

template <typename E>
class Drafting {
  public:
    Drafting(const Drafter& drafter, const Draft& draft)
        : drafter(drafter), draft(draft), hidden(drafter.hidden), size(hidden / drafter.heads),
          distant(draft.fresh * hidden), parts(draft.fresh * hidden), x(draft.fresh * hidden), qkv(draft.fresh * 3 * hidden),
          attended(hidden), inner(4 * hidden), logits(drafter.rows) {}

    void run() {
#pragma omp parallel num_threads(std::max<int64_t>(1, draft.threads))
        {
#pragma omp single
            barrier.threads = omp_get_num_threads();
            const int64_t thread = omp_get_thread_num();
            read_fresh(thread);
            for (int64_t index = 0; index < draft.count; index++) step(thread, index);
        }
    }

  private:
    const Drafter& drafter;
    const Draft& draft;
    const int64_t hidden, size;
    Barrier barrier;
    std::vector<E> distant;  // (fresh, hidden)
    std::vector<float> parts, x, qkv;
    std::vector<E> attended, inner;
    std::vector<float> logits;

    // this thread's share of a matrix's rows, for tokens whose inputs are `from`; all threads are done when it returns
    template <typename Give>
    void product(
        const void* weight, const E* from, int64_t in, int64_t count, int64_t out, int64_t thread, Give give,
        int64_t start = 0) {
        auto edge = [&](int64_t of) { return start + share(out - start, of, barrier.threads); };
        linear((const E*)weight, from, in, count, edge(thread), edge(thread + 1),
               [&](int64_t row, int64_t rows, int64_t m, const float* values) {
                   for (int64_t i = 0; i < rows; i++) give(row + i, m, values[i]);
               });
        barrier.wait();
    }

    void embed(int64_t token, E* out) {
        const E* row = (const E*)drafter.embedding + token * hidden;
        for (int64_t k = 0; k < hidden; k++) assign(out[k], to_float(row[k]) * drafter.scale);
    }

    void rotate(const float* from, int64_t position, E* out) {
        const int64_t half = size / 2;
        turn(from, drafter.cosines + position * half, drafter.sines + position * half, half, out);
    }

    // key and value of one head, at a slot of the memory
    void keep(const float* from, int64_t head, int64_t slot, int64_t position) {
        int64_t goal = head * draft.head_stride + slot * size;
        rotate(from + hidden + head * size, position, (E*)draft.keys + goal);
        for (int64_t k = 0; k < size; k++)
            assign(((E*)draft.values)[goal + k], from[2 * hidden + head * size + k]);
    }

    // h_p of the fresh states, then their keys and values
    void read_fresh(int64_t thread) {
        const int64_t count = draft.fresh, features = drafter.features;
        std::vector<E> normed(count * features * hidden), pairs(count * 2 * hidden);
        std::vector<float> plain(hidden);
        for (int64_t i = 0; i < count * features; i++) {
            for (int64_t k = 0; k < hidden; k++) plain[k] = to_float(((const E*)draft.hidden)[i * hidden + k]);
            norm(plain.data(), (const E*)drafter.norms[i % features], hidden, drafter.epsilon, &normed[i * hidden]);
        }
        const E* joined = normed.data();
        if (drafter.join) {
            product(drafter.join, normed.data(), features * hidden, count, hidden, thread,
                    [&](int64_t row, int64_t m, float value) { assign(distant[m * hidden + row], value); });
            joined = distant.data();
        } else if (thread == 0) {
            std::copy(normed.begin(), normed.end(), distant.begin());
        }
        for (int64_t m = 0; m < count; m++) {
            std::copy(joined + m * hidden, joined + (m + 1) * hidden, &pairs[m * 2 * hidden]);
            embed(draft.tokens[m + 1], &pairs[m * 2 * hidden + hidden]);
        }
        product(drafter.read, pairs.data(), 2 * hidden, count, hidden, thread,
                [&](int64_t row, int64_t m, float value) { x[m * hidden + row] = value; });
        for (int64_t m = 0; m < count; m++)
            norm(&x[m * hidden], (const E*)drafter.norm, hidden, drafter.epsilon, &normed[m * hidden]);
        product(drafter.qkv, normed.data(), hidden, count, 3 * hidden, thread,
                [&](int64_t row, int64_t m, float value) { qkv[m * 3 * hidden + row] = value; }, hidden);
        for (int64_t task = thread; task < count * drafter.heads; task += barrier.threads) {
            int64_t m = task / drafter.heads, slot = draft.position - count + 1 + m;
            keep(&qkv[m * 3 * hidden], task % drafter.heads, slot, slot + 1);
        }
        barrier.wait();
    }

    void step(int64_t thread, int64_t index) {
        const E* newest = &distant[(draft.fresh - 1) * hidden];
        std::vector<E> pair(newest, newest + hidden), normed(2 * hidden);
        pair.resize(2 * hidden);
        embed(index ? draft.ids[index - 1] : draft.tokens[draft.fresh], &pair[hidden]);
        const E* place = (const E*)drafter.places + index * hidden;
        product(drafter.read, pair.data(), 2 * hidden, 1, hidden, thread, [&](int64_t row, int64_t, float value) {
            x[row] = value + (index ? to_float(place[row]) : 0.0f);
        });
        norm(x.data(), (const E*)drafter.norm, hidden, drafter.epsilon, normed.data());
        product(drafter.qkv, normed.data(), hidden, 1, 3 * hidden, thread,
                [&](int64_t row, int64_t, float value) { qkv[row] = value; });
        attention(thread, index);
        product(drafter.out, attended.data(), hidden, 1, hidden, thread,
                [&](int64_t row, int64_t, float value) { x[row] += value; });
        fuse(thread, newest, normed.data());
        product(drafter.head, pair_of_x(pair), hidden, 1, drafter.rows, thread, [&](int64_t row, int64_t, float value) {
            logits[row] = value + (drafter.head_bias ? to_float(((const E*)drafter.head_bias)[row]) : 0.0f);
        });
        if (thread == 0) choose(index);
        barrier.wait();
    }

    // d_1 is in the memory already, as the pair of the newest state; the later ones stand behind what is verified
    void attention(int64_t thread, int64_t index) {
        const int64_t position = draft.position + 1 + index;
        std::vector<E> query(size);
        std::vector<float> weights;
        for (int64_t head = thread; head < drafter.heads; head += barrier.threads) {
            if (index) keep(qkv.data(), head, draft.position + index, position);
            rotate(&qkv[head * size], position, query.data());
            const int64_t base = head * draft.head_stride;
            attend(query.data(), (E*)draft.keys + base, (E*)draft.values + base, 1, 0, position, size,
                   1 / std::sqrt(float(size)), [](int, int64_t) { return true; }, weights, &attended[head * size]);
        }
        barrier.wait();
    }

    // x = h_t + narrow(silu(wide(norm([h_q ; h_p]))))
    void fuse(int64_t thread, const E* newest, E* normed) {
        std::vector<float> both(2 * hidden);
        for (int64_t k = 0; k < hidden; k++) {
            E recent;
            assign(recent, x[k]);
            both[k] = to_float(recent);
            both[hidden + k] = to_float(newest[k]);
        }
        norm(both.data(), (const E*)drafter.fuse_norm, 2 * hidden, drafter.epsilon, normed);
        product(drafter.wide, normed, 2 * hidden, 1, 2 * hidden, thread, [&](int64_t row, int64_t, float value) {
            value += to_float(((const E*)drafter.wide_bias)[row]);
            assign(inner[row], value / (1.0f + std::exp(-value)));
        });
        const E* last = (const E*)draft.hidden + (draft.fresh * drafter.features - 1) * hidden;
        product(drafter.narrow, inner.data(), 2 * hidden, 1, hidden, thread, [&](int64_t row, int64_t, float value) {
            x[row] = to_float(last[row]) + value + to_float(((const E*)drafter.narrow_bias)[row]);
        });
    }

    const E* pair_of_x(std::vector<E>& room) {
        for (int64_t k = 0; k < hidden; k++) assign(room[k], x[k]);
        return room.data();
    }

    // the best row, or one drawn from the softmax, which is then the law that is reported
    void choose(int64_t index) {
        int64_t best = std::max_element(logits.begin(), logits.end()) - logits.begin();
        if (draft.temperature > 0) {
            const int64_t rows = drafter.rows, whole = rows / WIDTH * WIDTH;
            float top = logits[best], *law = draft.laws + index * rows;
            double total = 0, sum = 0;
            for (int64_t i = 0; i < whole; i += WIDTH)
                store(law + i, exponential((load(&logits[i]) - top) / draft.temperature));
            if (whole < rows)
                store_part(law + whole, exponential((load_part(&logits[whole], rows - whole) - top) / draft.temperature),
                           rows - whole);
            for (int64_t i = 0; i < rows; i++) total += law[i];
            for (int64_t i = 0; i < rows; i++) law[i] /= total;
            total = 0;
            for (int64_t i = 0; i < rows; i++) total += law[i];
            for (int64_t i = 0; i < rows; i++) {
                sum += law[i];
                if (sum > draft.coins[index] * total) {
                    best = i;
                    break;
                }
            }
        }
        draft.ids[index] = drafter.vocabulary ? drafter.vocabulary[best] : best;
    }
};

extern "C" void semiar_draft(const Drafter* drafter, const Draft* draft, int half) {
    if (half)
        Drafting<bfloat16>(*drafter, *draft).run();
    else
        Drafting<float>(*drafter, *draft).run();
}
