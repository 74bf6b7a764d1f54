"""Proof that it pays: run (writes a trace), metrics and plots (read it), report, and proof that it is lossless."""
