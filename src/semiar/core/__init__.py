"""Pure tensors: no models, no files."""
