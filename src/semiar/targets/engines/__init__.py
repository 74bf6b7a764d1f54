"""How a target's passes run: packed, compiled, by a kernel of our own, or without padding in training."""
