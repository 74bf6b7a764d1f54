"""Other libraries' ways of calling a pair."""
