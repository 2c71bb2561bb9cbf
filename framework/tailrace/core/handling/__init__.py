"""What a handler works with besides its event: the context, and the collections of its actor."""
