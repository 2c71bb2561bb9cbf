"""Split by key: run one partition in several processes. The theory is in ``core.engine.key_split``."""
