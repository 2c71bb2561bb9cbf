"""The tools of a handler besides its event and its context: the collections of its actor, entry by entry."""
