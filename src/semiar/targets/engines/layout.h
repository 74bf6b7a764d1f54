// How structures lie in memory, for the other side to compare with its own (`layout.py`).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

static inline std::string about(const char* name, int64_t place, int64_t size) {
    return std::string(name) + " " + std::to_string(place) + " " + std::to_string(size) + "\n";
}

// EACH(macro, kind, a, b, ...) = macro(kind, a) macro(kind, b) ...
#define PARENTHESES ()
#define EXPAND(...) EXPAND_16(EXPAND_16(EXPAND_16(EXPAND_16(__VA_ARGS__))))
#define EXPAND_16(...) EXPAND_4(EXPAND_4(EXPAND_4(EXPAND_4(__VA_ARGS__))))
#define EXPAND_4(...) EXPAND_1(EXPAND_1(EXPAND_1(EXPAND_1(__VA_ARGS__))))
#define EXPAND_1(...) __VA_ARGS__
#define EACH(macro, kind, ...) EXPAND(EACH_STEP(macro, kind, __VA_ARGS__))
#define EACH_STEP(macro, kind, one, ...) \
    macro(kind, one) __VA_OPT__(EACH_AGAIN PARENTHESES(macro, kind, __VA_ARGS__))
#define EACH_AGAIN() EACH_STEP

// name, place and size of every field, then of the whole; the list has to be complete, or this does not compile
#define FIELD(kind, name) about(#kind "." #name, offsetof(kind, name), sizeof(kind::name)) +
#define FIELDS(kind, ...)                                              \
    ((void)[](kind& all) { [[maybe_unused]] auto& [__VA_ARGS__] = all; }, \
     EACH(FIELD, kind, __VA_ARGS__) about(#kind, 0, sizeof(kind)))

// name and number of every value of an enumeration
#define VALUE(kind, name) about(#kind "." #name, name, 0) +
#define VALUES(kind, ...) (EACH(VALUE, kind, __VA_ARGS__) std::string())
