"""Benchmarks of services on Kafka, with one broker, beside a transactional loop written by hand.

`python -m benchmarks.run --kafka` starts a broker for all cases. A case that is run alone starts one of its own.
"""
