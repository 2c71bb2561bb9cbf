"""The page for people: what it shows is what the reports say, whatever is in the log, and it can be read on a phone."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from tailrace.graph.model import Edge, Graph, Node
from tailrace.serve.page.drawing import drawing_of
from tests.runtime.processes import wait_until
from tests.serve.asking import Asked, serving
from tests.serve.depot import DAY, Arrival, app, arrivals
from tests.serve.stocked import ODD, RAW, append, run_on, stock, stocked

HOSTILE = "<script>alert(1)</script>\"'&"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("page")
    log = stocked(folder)
    append(log, [(arrivals, Arrival(HOSTILE, DAY, HOSTILE))])
    run_on(log, folder / "state")
    with serving(log) as asked:
        asked.until_ready()
        yield asked


def shown(server: Asked, path: str, status: int = 200) -> str:
    said = server.ask(path)
    assert said.status == status, said.body
    assert "default-src 'none'" in said.headers["content-security-policy"]
    assert isinstance(said.body, bytes)
    return said.body.decode()


def test_the_overview_has_every_node_of_the_graph_and_what_holds_each_actor(server: Asked) -> None:
    page = shown(server, "/")
    for actor in app.plan().actors:
        assert f">{actor.name}</text>" in page
    assert page.count("<g class=") == len(app.plan().actors) + len(app.plan().inputs) - 1, "all but the inbox"
    assert "arrivals: all records are read" in page
    wait_until(lambda: "records/s" in shown(server, "/"), "there is a second report, and so a rate")


def test_a_key_is_shown_with_its_state_and_timers_as_text_only(server: Asked) -> None:
    page = shown(server, f"/keys?{urlencode({'actor': 'Depot', 'key': HOSTILE})}")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "clear" in page
    assert "2024-05-02T00:00:00.000Z" in page


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/keys?actor=Depot&key=nobody", 404),
        (f"/keys?actor={quote(HOSTILE)}&key=a", 404),
        ("/keys?actor=Number&key=many", 400),
        ("/keys?actor=Depot&key=" + "k" * 50_000, 404),
        ("/keys?actor=Depot&key=%ff", 404),
    ],
)
def test_a_wrong_question_is_a_page_with_the_reason(server: Asked, path: str, status: int) -> None:
    page = shown(server, path, status)
    assert 'role="alert"' in page
    assert "<script" not in page


def test_a_key_is_taken_as_it_is_typed_and_one_of_bytes_percent_encoded(server: Asked) -> None:
    assert "&#34;tin&#34;" in shown(server, f"/keys?{urlencode({'actor': 'Depot', 'key': ODD})}")
    assert "moves" in shown(server, f"/keys?{urlencode({'actor': 'Raw', 'key': quote(RAW, safe='')})}")


def test_the_history_of_a_key_is_its_trace(server: Asked) -> None:
    page = shown(server, f"/history?{urlencode({'actor': 'Depot', 'key': HOSTILE})}")
    assert "Depot.arrived" in page
    assert "count: nothing → 1" in page
    assert "<script" not in page
    shown(server, "/history?actor=Depot&key=%00", 500)
    shown(server, "/history?actor=Number&key=--help", 400)


def test_the_status_is_that_of_the_command(server: Asked) -> None:
    said = server.ask("/status").body
    assert (said["app"], len(said["tasks"])) == ("depot", 2)
    positions = [source["position"] for task in said["tasks"] for source in task["sources"]]
    assert sum(positions) == len(stock()) + 1


def test_there_may_be_no_dead_letters(server: Asked) -> None:
    assert "There are none." in shown(server, "/dead-letters")


@pytest.mark.parametrize("width", [390, 1200])
def test_chromium_shows_all_of_a_page(server: Asked, tmp_path: Path, width: int) -> None:
    """The picture is as wide as the window, and Chromium finds no error in what it was given."""
    picture = tmp_path / "page.png"
    done = subprocess.run(
        [
            "chromium",
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--enable-logging=stderr", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}"),
            *(f"--window-size={width},900", f"--screenshot={picture}"),
            f"http://127.0.0.1:{server.port}/",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert not re.findall(r"CONSOLE.*", done.stderr)
    data = picture.read_bytes()
    assert int.from_bytes(data[16:20], "big") == width
    assert len(data) > 10_000, "it is not empty"


def test_a_circle_of_topics_is_drawn_with_each_node_in_a_place_of_its_own() -> None:
    nodes = [Node(str(number), "topic", f"name {number}" * 9, ("app",)) for number in range(4)]
    edges = [Edge(str(one), str((one + 1) % 4), "emits") for one in range(4)]
    drawing = drawing_of(Graph((), tuple(nodes), tuple(edges)), {})
    assert len({(box.x, box.y) for box in drawing.boxes}) == 4
    assert all(box.x + drawing.box_width <= drawing.width for box in drawing.boxes)
    assert len(drawing.arrows) == 4
