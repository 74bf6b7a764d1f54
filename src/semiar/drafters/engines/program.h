// The instructions of a program, and what a draft is asked with; `program.py` and `native.py` have the same.
#pragma once
#include <cstdint>

// as PyTorch calls them; then those that more than one of its operations becomes
#define CODES                                                                                                    \
    NEG, SILU, SIGMOID, TANH, COS, SIN, RSQRT, EXP, RELU,                                                        \
    COPY, GELU, GELU_TANH, SQUARE, AFFINE, ADD, MUL, DIV, SUM, SOFTMAX, LINEAR, EMBED, KEEP, ATTEND, CHOOSE
enum Code { CODES };
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
    int64_t inputs, outs, place, index;  // what they mean depends on the code
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
