"""The event log as the runtime sees it: topics of ordered records, fenced producers, all-or-nothing commits.

One small interface and its implementations; it carries bytes and knows neither actors nor state.
"""
