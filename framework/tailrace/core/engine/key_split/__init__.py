"""Split by key: run the history of one task as several shards of its keys, and put the results together."""
