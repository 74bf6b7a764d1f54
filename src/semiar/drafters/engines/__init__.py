"""How draft steps run: as a compiled graph, or as a program of a kernel of our own."""
