"""The types of an app's events and messages: locked in a file, compared with it, and exported for others.

What a type may become is the rule of stored state: ``core.values.type_evolution``.
"""
