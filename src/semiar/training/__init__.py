"""Losses, trainers and the run that turns a configuration into a pair."""
