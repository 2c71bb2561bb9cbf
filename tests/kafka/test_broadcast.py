"""The first start of an app with a broadcast topic on Kafka: in processes that come and go, no payment is judged before the rules are there."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tests.broadcast.app import Verdict, make_app, ordered, payments, records, rules, verdicts
from tests.kafka.members import Members, await_tasks, stopped
from tests.runtime.bounded_run import check_history, read_all
from tests.soak.processes import wait_until

APP = "tests.broadcast.app:app"
COUNT = 5_000


def test_no_payment_is_judged_before_the_rules_are_there(kafka_url: str, tmp_path: Path) -> None:
    plan = make_app().plan()
    with closing(KafkaLog(kafka_url)) as log, closing(Members(kafka_url, tmp_path)) as members:
        prepare_log(log, plan, create_declared=True)
        log.append_all(records([*payments(COUNT), *rules(1), *rules(2)]))

        def judged() -> int:
            return sum(log.end_offset("verdicts", number) for number in range(plan.partitions))

        one, two = (members.start(APP, name) for name in ("one", "two"))
        await_tasks(two, 1)
        two.kill()
        wait_until(lambda: judged() > 0, "the first payments are judged")
        one.kill()
        three = members.start(APP, "three")
        await_tasks(three, plan.partitions)
        wait_until(lambda: len(read_all(log, "verdicts", Verdict)) >= COUNT, "all payments are judged")
        stopped(three)
        assert ordered(read_all(log, "verdicts", Verdict)) == verdicts(payments(COUNT), rules(2))
        check_history(log, plan)
