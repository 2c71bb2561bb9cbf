"""An app whose handler asks another system, when its event says where."""

from __future__ import annotations

import logging
import logging.handlers
import socket
import threading

import msgspec

import tailrace as tr


class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
    shop: tr.Key[str]
    port: int = 0
    how: str = "connect"


app = tr.App("calling", partitions=1)
orders = app.topic("orders", Order)
_log = logging.getLogger("tests.processes.calling")
_log.propagate = False


def ask(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)):
        pass


@app.actor
class Shop(tr.Actor):
    asked: int = 0

    @tr.process(orders)
    def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
        del ctx
        self.asked += 1
        if not order.port:
            return
        match order.how:
            case "connect":
                ask(order.port)
            case "look up":
                socket.getaddrinfo("localhost", order.port)
            case "datagram":
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                    one.sendto(b"?", ("127.0.0.1", order.port))
            case "log":
                sender = logging.handlers.DatagramHandler("127.0.0.1", order.port)
                _log.addHandler(sender)
                _log.warning("ordered")
                _log.removeHandler(sender)
                sender.close()
            case _:
                other = threading.Thread(target=ask, args=(order.port,))
                other.start()
                other.join()
