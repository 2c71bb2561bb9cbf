"""Durable values: types that may be stored, their encoding, the changes their schemas allow, and keys."""
