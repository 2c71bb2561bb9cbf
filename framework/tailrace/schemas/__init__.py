"""The types of an app's events and messages: locked in a file, compared with it, and exported for others.

What is compatible is what decodes: ``reading`` states how msgspec, as the codecs of topics and messages use it,
reads one type's values as another type.
"""
