"""Split by key: replay one partition in several processes. The theory is in ``core.engine.key_split``."""
