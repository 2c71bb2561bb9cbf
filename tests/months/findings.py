"""What is known to be wrong and not yet corrected: the steps that run into it are left out, by the names here.

A finding that is corrected is deleted here, and its steps are taken from then on.
"""

OPEN_UPGRADES = frozenset(
    {
        "default changed",  # keys that were written since have the old default, and others the new one
        "time to live changed",  # what becomes of values that are stored is not yet said
    }
)
"""Upgrades that are left out."""

OPEN_STEPS: frozenset[str] = frozenset()
"""Steps that are left out."""
