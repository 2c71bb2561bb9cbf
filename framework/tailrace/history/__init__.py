"""The past of an app: what is stored of it (``reading``), and what is done with it in the rooms above.

The live service is in ``runtime``, which uses this package.
"""
