"""What a client does on any log; each law is run on a log in a folder and on Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest

import tailrace as tr
from tailrace.client import Read
from tailrace.core.errors import BadRecordError, CommitUnknownError
from tailrace.core.records import Output
from tests.client.shop import Customer, Paid, Total, app, payments, totals


def handle(place: str, state: str) -> None:
    """Let a service handle what is there, in a process of its own."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "tailrace",
            "run",
            "tests.client.shop:app",
            "--log",
            place,
            "--state",
            state,
            "--until-end",
        ],
        check=True,
        capture_output=True,
    )


def read_on(client: tr.Client, after: dict[int, int], wait_s: float = 0.0) -> list[Read[Paid]]:
    """What is new; moves ``after``."""
    found = [*client.read(payments, after=after, wait_s=wait_s)]
    after |= {one.partition: one.offset + 1 for one in found}
    return found


def check_sent_handled_and_asked(place: str, state: str) -> None:
    events = [Paid(f"c{n % 50}", 1_700_000_000_000 + n, n) for n in range(2_000)]
    with tr.Client(app, place) as client:
        assert client.get(Customer, "c0") is None
        ends = client.send(payments, *events[:1_000])
        client.send(payments, *events[1_000:], timestamp_ms=5)
        assert sum(ends.values()) >= 1_000
        found = [*client.read(payments)]
        assert Counter(one.event for one in found) == Counter(events)
        assert {one.timestamp_ms == 5 for one in found if one.event in events[1_000:]} == {True}
        assert all(one.timestamp_ms == one.event.at_ms for one in found if one.event in events[:1_000])
        assert {one.event for one in client.read(payments, after=ends)} == set(events[1_000:])
        handle(place, state)
        expected = Counter[str]()
        for one in events:
            expected[one.who] += one.cents
        for who in ("c0", "c17", "c49"):
            instance = client.get(Customer, who)
            assert instance is not None
            assert instance.cents == expected[who]
        assert client.get(Customer, "nobody") is None
        last = {one.event.who: one.event for one in client.read(totals) if one.event is not None}
        assert last == {who: Total(who, cents) for who, cents in expected.items()}


def check_many_threads(place: str) -> None:
    """Each event is there once, those of one send together, and a reader that continues gets each once."""
    seen, after = Counter[Paid | None](), dict[int, int]()
    with tr.Client(app, place) as client:

        def send(thread: int) -> None:
            for n in range(20):
                client.send(payments, *(Paid(f"t{thread}", 5 * n + part, 1) for part in range(5)))

        threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            some = Counter(one.event for one in read_on(client, after))
            sends = Counter((one.who, one.at_ms // 5) for one in some.elements() if one is not None)
            assert set(sends.values()) <= {5}, "a part of a send"
            seen += some
        for one in threads:
            one.join()
        seen += Counter(one.event for one in read_on(client, after))
        assert seen == {Paid(f"t{thread}", n, 1): 1 for thread in range(8) for n in range(100)}
        order = [
            one.event.at_ms
            for one in client.read(payments)
            if one.event is not None and one.event.who == "t3"
        ]
        assert order == sorted(order), "a thread's sends are in their order"


def check_one_bad_send_fails_alone(place: str) -> None:
    started, failures = threading.Barrier(6), list[BaseException]()
    with tr.Client(app, place) as client:

        def send(who: str) -> None:
            started.wait()
            try:
                client.send(payments, Paid("fine", 1, 1), Paid(who, 1, 1))
            except tr.TailraceError as error:
                failures.append(error)

        names = [*(f"w{n}" for n in range(5)), "x" * (40 << 20)]
        threads = [threading.Thread(target=send, args=(who,)) for who in names]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        (failure,) = failures
        assert type(failure).__name__ == "RecordTooLargeError"
        assert Counter(one.event.who for one in client.read(payments) if one.event) == {
            "fine": 5,
            **{f"w{n}": 1 for n in range(5)},
        }


def check_refusals(place: str) -> None:
    with tr.Client(app, place) as client:
        with pytest.raises(tr.UsageError, match="int was sent to 'payments'"):
            client.send(payments, 17)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
        other = tr.App("other").topic("payments", Paid)
        with pytest.raises(tr.UsageError, match="is not a topic of the app 'spent'"):
            client.send(other, Paid("a", 1, 1))
        with pytest.raises(tr.UsageError, match="is not a topic of the app 'spent'"):
            [*client.read("payments")]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(tr.UsageError, match="writes the table 'totals' itself"):
            client.send(totals, Total("a", 99))
        wrong: Any = "7"
        with pytest.raises(tr.UsageError, match="is no Paid: Expected `int`, got `str`"):
            client.send(payments, Paid("a", 1, 1), Paid("a", 1, wrong))
        now_s = time.time_ns() // 1_000_000_000
        for at_ms, says in ((now_s, "looks like seconds"), (1_000 * (now_s + 200_000), "ahead of the clock")):
            with pytest.raises(BadRecordError, match=says):
                client.send(payments, Paid("a", at_ms, 1))
        with pytest.raises(tr.UsageError, match="'Customer' is not an actor"):
            client.get("Customer", "a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
        assert client.send(payments) == {}
        assert [*client.read(payments)] == []
        child = os.fork()
        if not child:
            code = 1
            try:
                client.send(payments, Paid("a", 1, 1))
            except tr.UsageError as error:
                code = 0 if "after the fork" in str(error) else 1
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        client.send(payments, Paid("a", 1, 1))  # the parent's is whole
        client._log.append_all([Output("payments", b"a", b"{", 1)], 0)
        with pytest.raises(tr.TailraceError, match=r"is no Paid.*after=\{0: "):
            [*client.read(payments)]


def check_close_ends_sends_first(place: str) -> None:
    """What a send has returned is in the log, whatever closes the client meanwhile."""
    returned, refused = list[int](), list[str]()
    with tr.Client(app, place) as reader:
        for number in range(20):
            client = tr.Client(app, place)

            def send(first: int, client: tr.Client = client) -> None:
                try:
                    for cents in range(first, first + 1_000):
                        client.send(payments, Paid("a", 1, cents))
                        returned.append(cents)
                except tr.UsageError as error:
                    refused.append(error.what)

            threads = [threading.Thread(target=send, args=(4_000 * number + 1_000 * n,)) for n in range(4)]
            for one in threads:
                one.start()
            time.sleep(0.02)
            client.close()
            for one in threads:
                one.join()
        found = Counter(one.event.cents for one in reader.read(payments) if one.event is not None)
    assert {*refused} == {"this client is closed"}
    assert returned
    assert found == Counter(returned)


def check_interrupted(place: str) -> None:
    """A thread whose commit is interrupted leaves the sends of others unknown, and none of them returns."""
    with tr.Client(app, place) as client:
        client.send(payments, Paid("warm", 1, 1))
        sending = client._sending
        writer = sending._writer
        assert writer is not None

        class Interrupted:
            def __getattr__(self, name: str) -> Any:
                return getattr(writer, name)

            def commit(self) -> None:
                raise KeyboardInterrupt

        sending._writer = Interrupted()  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
        raised = dict[str, BaseException]()

        def send(who: str) -> None:
            try:
                client.send(payments, Paid(who, 1, 1))
            except BaseException as error:  # noqa: BLE001  # it is what the test is about
                raised[who] = error

        sending._turn.acquire()
        threads = [threading.Thread(target=send, args=(who,)) for who in "ab"]
        for one in threads:
            one.start()
        while len(sending._pending) < 2:
            time.sleep(0.01)
        sending._turn.release()
        for one in threads:
            one.join()
        assert {type(one) for one in raised.values()} == {KeyboardInterrupt, CommitUnknownError}
        client.send(payments, Paid("after", 1, 1))
        assert {one.event.who for one in client.read(payments) if one.event} == {"warm", "after"}


async def check_async(place: str) -> None:
    import asyncio

    async with tr.AsyncClient(app, place) as client:
        await asyncio.gather(*(client.send(payments, Paid(f"a{n}", n, n)) for n in range(250)))
        found = [one.event async for one in client.read(payments)]
        assert Counter(found) == {Paid(f"a{n}", n, n): 1 for n in range(250)}
        waiting = asyncio.create_task(_first(client, dict.fromkeys(range(3), 10**9)))
        assert await waiting is None
        assert await client.get(Customer, "a1") is None


async def _first(client: tr.AsyncClient, after: dict[int, int]) -> object:
    with pytest.raises(tr.TailraceError):
        async for one in client.read(payments, after=after):
            return one
    return None
