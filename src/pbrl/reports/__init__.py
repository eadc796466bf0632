"""HTML pages that open without a network."""
