"""Durable values: which types may be stored, what bytes they become, what their schemas allow, and keys."""
