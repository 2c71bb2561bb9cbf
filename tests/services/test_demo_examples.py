from dataclasses import replace

from schemas.activity import Count
from services import count_with_timeout
from services.demo import examples as demo
from tailrace.testing import CRASH


def test_the_demo_shows_every_service_and_says_that_all_is_well(capsys):
    assert demo.main([]) == 0
    shown = capsys.readouterr().out
    for scene in demo.SCENES:
        assert f"── {scene.app.name} ──" in shown
        assert scene.expected
    assert shown.count("equal in every byte") == len(demo.SCENES)
    assert shown.endswith("All results are as expected.\n")


def test_every_scene_has_a_crash_that_destroys_something():
    for scene in demo.SCENES:
        script = list(scene.script)
        before = script[: script.index(CRASH)]
        assert isinstance(before[-1], tuple), scene.app.name


def test_one_service_can_be_shown_alone(capsys):
    assert demo.main(["shapes"]) == 0
    shown = capsys.readouterr().out
    assert "── shapes ──" in shown
    assert "── sensors ──" not in shown


def test_a_name_that_is_not_there_is_refused_with_those_that_are(capsys):
    assert demo.main(["shapes", "circles"]) == 2
    assert "count-with-timeout" in capsys.readouterr().out


def test_another_result_than_the_one_expected_fails(capsys, monkeypatch):
    scene = next(one for one in demo.SCENES if one.app is count_with_timeout.app)
    wrong = replace(scene, expected=[(count_with_timeout.counts, [Count("a", 2)])])
    monkeypatch.setattr(demo, "SCENES", [wrong])
    assert demo.main([]) == 1
    assert "DIFFERS: counts has [Count(key='a', count=3)]" in capsys.readouterr().out


def test_a_handler_that_no_replay_can_repeat_fails(capsys, monkeypatch):
    scene = next(one for one in demo.SCENES if one.app is count_with_timeout.app)
    calls = iter(range(100))
    monkeypatch.setattr(count_with_timeout, "Count", lambda key, count: Count(key, count + next(calls)))
    monkeypatch.setattr(demo, "SCENES", [scene])
    assert demo.main([]) == 1
    assert "DIFFERS" in capsys.readouterr().out
