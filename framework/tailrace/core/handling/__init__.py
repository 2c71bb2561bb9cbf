"""What a handler works with besides its event and its context: the collections of its actor, entry by entry."""
