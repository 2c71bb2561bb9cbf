"""Faust as the neighbour: its tables become events of an app, its committed offsets the start of the app's inputs.

The extra ``faust`` is needed for the codecs of tables that are not JSON.
"""
