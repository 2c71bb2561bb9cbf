"""The page for people: the app as a graph, its tasks and what holds them, the state of a key, dead letters. Plain HTML, no scripts."""
