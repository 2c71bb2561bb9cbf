"""Dead letters: read, redrive and drop them."""
