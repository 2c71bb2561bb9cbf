"""Topics whose records are in the wire format of Confluent: a zero byte, the id of a schema (4 bytes), the event.

A ``Registry`` has the formats ``avro`` and ``json_schema``. Avro needs the extra ``tailrace[registry]``.
"""

from tailrace.registry.registry import Registry

__all__ = ["Registry"]
