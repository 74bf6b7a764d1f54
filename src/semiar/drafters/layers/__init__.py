"""The building blocks of drafters: fusion, small language models, context memory, heads, norm."""
