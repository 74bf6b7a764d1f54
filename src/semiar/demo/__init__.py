"""The demonstration: a generated data set and the whole line run on it."""
