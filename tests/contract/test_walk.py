"""A task enters few rooms, and hardly ever climbs back to a room above; see tests/walk.py."""

from __future__ import annotations

import pytest
import walk

# rooms that a task may enter, and functions that may call upwards
LIMITS = {"plan(scenario)": (8, 2), "attack_file(path)": (12, 4), "report(args)": (10, 5)}


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, walk.Walk]:
    return walk.walks(tmp_path_factory.mktemp("walk"))


@pytest.mark.parametrize("task", LIMITS)
def test_a_task_stays_in_few_rooms(task: str, walks: dict[str, walk.Walk]) -> None:
    rooms, climbs = LIMITS[task]
    followed = walks[task]
    assert {"core", "_util"} < followed.rooms
    assert len(followed.rooms) <= rooms
    assert len(followed.climbing) <= climbs


def test_a_call_upwards_is_a_climb() -> None:
    followed = walk.Walk()
    with followed.follow():
        from leakaudit.core import registry
        from leakaudit.tasks.models import MODELS

        registry.configure(MODELS["mlp"], {"hidden": 8})
    assert "registry" in " ".join(place.function for place in followed.climbing)
