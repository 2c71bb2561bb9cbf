"""How an app stands, by what the log says: positions, watermarks, lag, and what holds an operator back."""
