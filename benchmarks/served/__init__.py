"""What is measured from outside: real workers, as processes of their own, on an embedded log with RocksDB.

`house` feeds them and waits for what comes out, `service` is one of them; each other module is a case or two.
"""
