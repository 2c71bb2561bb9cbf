"""Dead letters: read them, redrive them, and tell what became of them."""
