// The K steps of any drafter, for one row, as one parallel region: a program of small operations (`program.py`).
//
// Every thread does the small operations itself, on values of its own; products and attention are shared, so that the
// threads wait for each other only there.  Values are floats, rounded to bfloat16 where the drafter's would be.
#include "native.h"

enum Code {
    NEG, SILU, SIGMOID, TANH, COS, SIN, RSQRT, EXP, RELU,                    // as PyTorch calls them
    COPY, GELU, GELU_TANH, SQUARE, AFFINE, ADD, MUL, DIV, SUM, SOFTMAX, LINEAR, EMBED, KEEP, ATTEND, CHOOSE
};
constexpr int DIMS = 4;
struct Operand {  // a strided view of a thread's values, or of the constants
    int64_t constant, start, row;  // row: from one row's value to the next row's
    int64_t stride[DIMS];
};
struct Instruction {
    int64_t code, half;  // half: rounded to bfloat16
    int64_t size[DIMS];
    Operand out, a, b;
    float x, y;
    const void *weight, *bias;
    int64_t in, outs, place, index;  // what they mean depends on the code
};
struct Program {
    const Instruction *reading, *steps;  // of newly verified positions, row by row; of the drafts
    int64_t reading_count, steps_count;
    const float* constants;
    int64_t values, inputs;         // floats per thread; floats of one row's states
    int64_t hidden, places, place;  // where rows' states, their positions, the first draft's position are
    int64_t head_rows, heads, size; // draft vocabulary; shape of the memory
    const int64_t* vocabulary;      // target ids of the head's rows, or null
};
struct Draft {
    int64_t count, fresh, seen, threads;  // seen: verified states, the fresh ones among them
    const int64_t* tokens;                // (fresh + 1,) from that of the first fresh state to the last committed one
    const void* hidden;                   // (fresh, features, hidden)
    void *const *keys, *const *values;    // per layer (heads, capacity, size)
    int64_t head_stride;
    float temperature;    // 0 = greedy
    const double* coins;  // (count,)
    int64_t* ids;         // (count,)
    float* laws;          // (count, head_rows), or null when greedy
    float *room, *shared; // (threads, values), (shared,)
};

constexpr float NEVER = -std::numeric_limits<float>::infinity();

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

template <typename E>
class Drafting {
  public:
    Drafting(const Program& program, const Draft& draft) : program(program), draft(draft) {}

    void run() {
#pragma omp parallel num_threads(std::max<int64_t>(1, draft.threads))
        {
#pragma omp single
            barrier.threads = omp_get_num_threads();
            Thread self{omp_get_thread_num(), draft.room + omp_get_thread_num() * program.values, {}, {}};
            begin(self);
            for (int64_t i = 0; i < program.reading_count; i++) execute(self, program.reading[i], draft.fresh);
            const int64_t last = (draft.fresh - 1) * program.inputs;  // the drafts start from the newest state
            if (last) std::copy_n(self.values + program.hidden + last, program.inputs, self.values + program.hidden);
            for (int64_t i = 0; i < program.steps_count; i++) {
                const Instruction& one = program.steps[i];
                execute(self, one, 1);
                if (one.code == CHOOSE && one.index + 1 == draft.count) break;
            }
        }
    }

  private:
    struct Thread {
        int64_t number;
        float* values;
        std::vector<E> input;
        std::vector<float> weights;
    };
    const Program& program;
    const Draft& draft;
    Barrier barrier;

    void begin(Thread& self) {
        for (int64_t k = 0; k < draft.fresh * program.inputs; k++)
            self.values[program.hidden + k] = to_float(((const E*)draft.hidden)[k]);
        for (int64_t m = 0; m < draft.fresh; m++) self.values[program.places + m] = float(draft.seen - draft.fresh + m);
        self.values[program.place] = float(draft.seen);
    }

    const float* at(Thread& self, const Operand& from, int64_t row) {
        return (from.constant ? program.constants : self.values) + from.start + row * from.row;
    }
    float* goal(Thread& self, const Operand& out, int64_t row) { return self.values + out.start + row * out.row; }

    void execute(Thread& self, const Instruction& one, int64_t rows) {
        switch (one.code) {
            case LINEAR: return product(self, one, rows);
            case EMBED: return embed(self, one, rows);
            case KEEP: return keep(self, one, rows);
            case ATTEND: return attention(self, one);
            case CHOOSE:
                if (self.number == 0) choose(one.index, at(self, one.a, 0));
                return barrier.wait();
            case SUM:
                for (int64_t row = 0; row < rows; row++) add_up(self, one, row);
                return;
            case SOFTMAX:
                for (int64_t row = 0; row < rows; row++) softmax(self, one, row);
                return;
            default:
                for (int64_t row = 0; row < rows; row++) elements(self, one, row);
        }
    }

    // visit(out, a, b) at the beginning of every line of the innermost dimension
    template <typename Visit>
    void lines(Thread& self, const Instruction& one, int64_t row, Visit visit) {
        float* out = goal(self, one.out, row);
        const float *a = at(self, one.a, row), *b = at(self, one.b, row);
        const int64_t *so = one.out.stride, *sa = one.a.stride, *sb = one.b.stride;
        for (int64_t i = 0; i < one.size[0]; i++)
            for (int64_t j = 0; j < one.size[1]; j++)
                for (int64_t k = 0; k < one.size[2]; k++)
                    visit(out + i * so[0] + j * so[1] + k * so[2], a + i * sa[0] + j * sa[1] + k * sa[2],
                          b + i * sb[0] + j * sb[1] + k * sb[2]);
    }

    void elements(Thread& self, const Instruction& one, int64_t row) {
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
    void add_up(Thread& self, const Instruction& one, int64_t row) {
        float* all = goal(self, one.out, row);
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

    void softmax(Thread& self, const Instruction& one, int64_t row) {
        const int64_t n = one.size[3], so = one.out.stride[3], sa = one.a.stride[3];
        lines(self, one, row, [&](float* out, const float* a, const float*) {
            float best = a[0], total = 0;
            for (int64_t i = 1; i < n; i++) best = std::max(best, a[i * sa]);
            for (int64_t i = 0; i < n; i++) total += out[i * so] = std::exp(a[i * sa] - best);
            for (int64_t i = 0; i < n; i += WIDTH)
                put(out + i * so, so, n - i, fetch(out + i * so, so, n - i) / total, one.half);
        });
    }

    // outs rows of a matrix for `in` inputs; each thread has a share of the rows, and then everything
    void product(Thread& self, const Instruction& one, int64_t rows) {
        const int64_t in = one.in, outs = one.outs;
        self.input.assign(rows * in + 2, E{});
        for (int64_t row = 0; row < rows; row++) {
            const float* from = at(self, one.a, row);
            E* to = &self.input[row * in];
            int64_t k = 0;
            for (; k + WIDTH <= in; k += WIDTH) store(to + k, load(from + k));
            for (; k < in; k++) assign(to[k], from[k]);
        }
        float* shared = draft.shared + one.place;
        auto edge = [&](int64_t of) { return share(outs, of, barrier.threads); };
        linear((const E*)one.weight, self.input.data(), in, rows, edge(self.number), edge(self.number + 1),
               [&](int64_t row, int64_t count, int64_t m, const float* values) {
                   std::copy_n(values, count, shared + m * outs + row);
               });
        barrier.wait();
        const E* bias = (const E*)one.bias;
        for (int64_t row = 0; row < rows; row++) {
            float* to = goal(self, one.out, row);
            const float* from = shared + row * outs;
            for (int64_t i = 0; i < outs; i += WIDTH) {
                Lanes x = fetch(from + i, 1, outs - i);
                if (bias) x += outs - i >= WIDTH ? load(bias + i) : load_part(bias + i, int(outs - i));
                put(to + i, 1, outs - i, x, one.half);
            }
        }
    }

    // index: the drafted token that is read, 0 = the last committed one; or -1 - j: the j-th from a fresh row's on
    void embed(Thread& self, const Instruction& one, int64_t rows) {
        for (int64_t row = 0; row < rows; row++) {
            int64_t token = one.index < 0   ? draft.tokens[row - 1 - one.index]
                            : one.index > 0 ? draft.ids[one.index - 1]
                                            : draft.tokens[draft.fresh];
            const E* from = (const E*)one.weight + token * one.outs;
            float* to = goal(self, one.out, row);
            for (int64_t k = 0; k < one.outs; k++) to[k] = to_float(from[k]);
        }
    }

    // keys (a) and values (b), a line per head; index: the slot behind the verified ones, or -1: fresh rows' own slots
    void keep(Thread& self, const Instruction& one, int64_t rows) {
        for (int64_t task = self.number; task < rows * program.heads; task += barrier.threads) {
            const int64_t row = task / program.heads, head = task % program.heads;
            const int64_t slot = draft.seen + (one.index < 0 ? row - draft.fresh : one.index);
            const int64_t to = head * draft.head_stride + slot * program.size;
            const float* key = at(self, one.a, row) + head * one.a.stride[2];
            const float* value = at(self, one.b, row) + head * one.b.stride[2];
            for (int64_t k = 0; k < program.size; k++) {
                assign(((E*)draft.keys[one.place])[to + k], key[k * one.a.stride[3]]);
                assign(((E*)draft.values[one.place])[to + k], value[k * one.b.stride[3]]);
            }
        }
        barrier.wait();
    }

    // a draft's query to what is verified and to `index` drafts behind that; shared like a product
    void attention(Thread& self, const Instruction& one) {
        const int64_t heads = program.heads, size = program.size, count = draft.seen + one.index;
        float* shared = draft.shared + one.in;
        std::vector<E> query(size), mixed(size);
        for (int64_t head = self.number; head < heads; head += barrier.threads) {
            const float* from = at(self, one.a, 0) + head * one.a.stride[2];
            for (int64_t k = 0; k < size; k++) assign(query[k], from[k * one.a.stride[3]]);
            const int64_t base = head * draft.head_stride;
            attend(query.data(), (E*)draft.keys[one.place] + base, (E*)draft.values[one.place] + base, 1, 0, count, size,
                   1 / std::sqrt(float(size)), [](int, int64_t) { return true; }, self.weights, mixed.data());
            for (int64_t k = 0; k < size; k++) shared[head * size + k] = to_float(mixed[k]);
        }
        barrier.wait();
        std::copy_n(shared, heads * size, goal(self, one.out, 0));
    }

    // the best row, or one drawn from the softmax, which is then the law that is reported
    void choose(int64_t index, const float* logits) {
        const int64_t rows = program.head_rows, whole = rows / WIDTH * WIDTH;
        int64_t best = std::max_element(logits, logits + rows) - logits;
        if (draft.temperature > 0) {
            float top = logits[best], *law = draft.laws + index * rows;
            double total = 0, sum = 0;
            for (int64_t i = 0; i < whole; i += WIDTH)
                store(law + i, exponential((load(logits + i) - top) / draft.temperature));
            if (whole < rows)
                store_part(law + whole, exponential((load_part(logits + whole, int(rows - whole)) - top) / draft.temperature),
                           int(rows - whole));
            for (int64_t i = 0; i < rows; i++) total += law[i] = logits[i] > NEVER ? law[i] : 0.0f;
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
        draft.ids[index] = program.vocabulary ? program.vocabulary[best] : best;
    }
};

extern "C" void semiar_draft(const Program* program, const Draft* draft, int half) {
    if (half)
        Drafting<bfloat16>(*program, *draft).run();
    else
        Drafting<float>(*program, *draft).run();
}
