"""Drafters from the original projects' checkpoints."""
