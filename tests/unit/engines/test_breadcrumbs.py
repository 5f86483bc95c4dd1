"""Breadcrumbs name what was being worked on, and for how long."""

import pytest

from batchgen.engines.breadcrumbs import SLOTS, Trail, TrailWriter


@pytest.fixture
def trail():
    made = Trail()
    yield made
    made.close()


def test_they_name_the_live_requests_with_their_admission_steps(trail):
    with TrailWriter(trail.fd) as writer:
        writer.begin_step([0, 5])
        writer.begin_step([])
        writer.begin_step([9])
        writer.end([5])
    crumbs = trail.read()
    assert crumbs.step == 3
    assert crumbs.live == {0: 1, 9: 3}
    assert crumbs.age(0) == 3
    assert crumbs.age(9) == 1


def test_slots_are_used_again(trail):
    with TrailWriter(trail.fd) as writer:
        for step in range(3 * SLOTS):
            writer.begin_step([step])
            if step >= 2:
                writer.end([step - 2])
    assert set(trail.read().live) == {3 * SLOTS - 2, 3 * SLOTS - 1}


def test_more_live_requests_than_slots_do_no_harm(trail):
    with TrailWriter(trail.fd) as writer:
        writer.begin_step(range(SLOTS + 10))
        writer.end(range(SLOTS + 10))
        writer.begin_step([1])
    assert trail.read().live == {1: 2}
