"""Cases measured from outside: real workers, in separate processes, on an embedded log with RocksDB.

`house` feeds the services and waits for their outputs. `service` runs one of them. Each other module has one or two cases.
"""
