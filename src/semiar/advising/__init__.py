"""What to do on this machine, with this data, in minutes."""
