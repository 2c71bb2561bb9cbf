"""Durable values: the types that may be stored, their encoding, the changes that their schemas allow, and
keys.
"""
