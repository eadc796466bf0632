"""Training speed against the machine's own limit."""
