"""Faust as the neighbour: its tables become events of an app, its committed offsets the start of the app's inputs.

A service of Faust can run an app beside its agents (``service``). The extra ``faust`` is needed for codecs and for that service.
"""
