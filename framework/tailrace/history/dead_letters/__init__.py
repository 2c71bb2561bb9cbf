"""Dead letters: read them, redrive them, and report their outcomes."""
