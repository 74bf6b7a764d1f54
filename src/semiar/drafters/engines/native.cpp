// The K steps of any drafter, for one row, as one parallel region: a program of small operations (`program.py`).
//
// Every thread does the small operations itself, on values of its own; products and attention are shared, so that the
// threads wait for each other only there.  Values are floats, rounded to bfloat16 where the drafter's would be.
#include "layout.h"
#include "products.h"

constexpr float NEVER = -std::numeric_limits<float>::infinity();

template <typename E>
class Drafting {
  public:
    Drafting(const Program& program, const Draft& draft) : program(program), draft(draft) {}

    void run() {
#pragma omp parallel num_threads(std::max<int64_t>(1, draft.threads))
        {
#pragma omp single
            barrier.threads = omp_get_num_threads();
            Worker<E> self{{program.constants, draft.room + omp_get_thread_num() * program.values},
                           program, draft, barrier, omp_get_thread_num()};
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
    const Program& program;
    const Draft& draft;
    Barrier barrier;

    void begin(Worker<E>& self) {
        for (int64_t k = 0; k < draft.fresh * program.inputs; k++)
            self.values[program.hidden + k] = to_float(((const E*)draft.hidden)[k]);
        for (int64_t m = 0; m < draft.fresh; m++) self.values[program.places + m] = float(draft.seen - draft.fresh + m);
        self.values[program.place] = float(draft.seen);
    }

    void execute(Worker<E>& self, const Instruction& one, int64_t rows) {
        switch (one.code) {
            case LINEAR: return product(self, one, rows);
            case EMBED: return embed(self, one, rows);
            case KEEP: return keep(self, one, rows);
            case ATTEND: return attention(self, one);
            case CHOOSE:
                if (self.number == 0) choose(one.index, self.at(one.a, 0));
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

    // index: the drafted token that is read, 0 = the last committed one; or -1 - j: the j-th from a fresh row's on
    void embed(Worker<E>& self, const Instruction& one, int64_t rows) {
        for (int64_t row = 0; row < rows; row++) {
            int64_t token = one.index < 0   ? draft.tokens[row - 1 - one.index]
                            : one.index > 0 ? draft.ids[one.index - 1]
                                            : draft.tokens[draft.fresh];
            const E* from = (const E*)one.weight + token * one.outs;
            float* to = self.goal(one.out, row);
            for (int64_t k = 0; k < one.outs; k++) to[k] = to_float(from[k]);
        }
    }

    // keys (a) and values (b), a line per head; index: the slot behind the verified ones, or -1: fresh rows' own slots
    void keep(Worker<E>& self, const Instruction& one, int64_t rows) {
        for (int64_t task = self.number; task < rows * program.heads; task += barrier.threads) {
            const int64_t row = task / program.heads, head = task % program.heads;
            const int64_t slot = draft.seen + (one.index < 0 ? row - draft.fresh : one.index);
            const int64_t to = head * draft.head_stride + slot * program.size;
            const float* key = self.at(one.a, row) + head * one.a.stride[2];
            const float* value = self.at(one.b, row) + head * one.b.stride[2];
            for (int64_t k = 0; k < program.size; k++) {
                assign(((E*)draft.keys[one.place])[to + k], key[k * one.a.stride[3]]);
                assign(((E*)draft.values[one.place])[to + k], value[k * one.b.stride[3]]);
            }
        }
        barrier.wait();
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

extern "C" const char* semiar_layout() {
    static const std::string text =
        VALUES(Code, CODES) + FIELDS(Operand, constant, start, row, stride) +
        FIELDS(Instruction, code, half, size, out, a, b, x, y, weight, bias, inputs, outs, place, index) +
        FIELDS(Program, reading, steps, reading_count, steps_count, constants, values, inputs, hidden, places, place,
               head_rows, heads, size, vocabulary) +
        FIELDS(Draft, count, fresh, seen, threads, tokens, hidden, keys, values, head_stride, temperature, coins, ids,
               laws, room, shared);
    return text.c_str();
}
