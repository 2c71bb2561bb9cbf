"""A client of a service, for web servers, scripts and tests: sends events, reads committed records, asks for the state of a key."""

from tailrace.client.asynchronous import AsyncClient
from tailrace.client.client import Client, Read

__all__ = ["AsyncClient", "Client", "Read"]
