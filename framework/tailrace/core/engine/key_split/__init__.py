"""Split by key: replay the history of one task as several shards of its keys, and merge the results."""
