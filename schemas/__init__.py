"""The events that services exchange, as msgspec structs: the one thing that two services have in common.

A type here is a contract with stored history: fields are added with a default and never change their meaning.
"""
