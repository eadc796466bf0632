"""The paper's tables and figures: what to run, and how to draw it, as data."""
