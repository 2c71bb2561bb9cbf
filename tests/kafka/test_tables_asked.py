"""Tables that are asked by key, on Kafka: the laws of ``tests.serve``, other producers, and a topic that is replaced."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka.cimpl import NewPartitions

from tailrace.core.values.partitioner import partition_of
from tests.kafka.outside import Outside
from tests.runtime.processes import wait_until
from tests.serve import tables_asked as laws
from tests.serve.asking import serving
from tests.serve.tables_asked import TILL, asked_of, output, prepared
from tests.serve.till import PARTITIONS, Revenue


def test_server_client_and_command_say_of_every_key_what_a_dict_is(kafka_url: str) -> None:
    laws.check_that_all_say_what_a_dict_is(kafka_url)


def test_an_aborted_change_is_not_seen(kafka_url: str) -> None:
    laws.check_that_an_aborted_change_is_not_seen(kafka_url)


def test_a_key_in_another_partition_than_murmur2_s_is_refused_until_it_is_deleted_there(
    kafka_url: str,
) -> None:
    laws.check_misplaced(kafka_url)


def test_a_topic_that_is_deleted_and_made_again_is_read_from_its_beginning(kafka_url: str) -> None:
    with closing(prepared(kafka_url)) as log:
        log.append_all([output("revenues", Revenue(shop, 5)) for shop in ("ada", "bob")])
        with serving(kafka_url, range(PARTITIONS), TILL) as asked:
            laws.until_read(log, asked)
            outside = Outside(kafka_url)
            outside.replace("revenues")
            with closing(prepared(kafka_url)) as again:
                # More than there was, so that the positions in the old topic are positions in the new one.
                again.append_all([output("revenues", Revenue(f"shop {n}", n)) for n in range(200)])

                def is_read() -> bool:
                    again.append_all([output("revenues", Revenue(f"shop {n}", 1)) for n in range(20)])
                    return asked_of(asked, "revenues", Revenue("ada", 0)).status == 404

                wait_until(is_read, "the old values are gone")
                laws.until_read(again, asked)
                laws.check_all(again, asked)
                for n in range(200):
                    expected = (1, Revenue(f"shop {n}", n if n >= 20 else 1))
                    laws.expect(asked_of(asked, "revenues", expected[1]), "revenues", expected)


def test_a_topic_made_again_with_as_many_records_and_one_that_gets_partitions_are_noticed_in_a_quiet_hour(
    kafka_url: str,
) -> None:
    ada = output("revenues", Revenue("ada", 5))
    here = partition_of(ada.key or b"", PARTITIONS)
    other = next(f"s{n}" for n in range(99) if partition_of(f"s{n}".encode(), PARTITIONS) == here)
    with closing(prepared(kafka_url)) as log:
        log.append_all([ada])
        with serving(kafka_url, range(PARTITIONS), TILL) as asked:
            laws.until_read(log, asked)
            outside = Outside(kafka_url)
            outside.replace("revenues")
            with closing(prepared(kafka_url)) as again:
                again.append_all([output("revenues", Revenue(other, 7))])
                gone = Revenue("ada", 0)
                wait_until(lambda: asked_of(asked, "revenues", gone).status == 404, "the old value is gone")
                laws.expect(
                    asked_of(asked, "revenues", Revenue(other, 0)), "revenues", (1, Revenue(other, 7))
                )
            wanted = [NewPartitions(outside.prefix + "revenues", PARTITIONS + 1)]
            for made in outside.admin.create_partitions(wanted).values():
                made.result()
            says = "the table has 4 partitions, and the app has 3"
            wait_until(lambda: says in str(asked_of(asked, "revenues", gone).body), "the server says so")
