"""Entries are replaced, never changed; differences between two are reported."""

import pytest

from service.errors import Kind
from service.registry.entry import FOLDER, Changes, ModelEntry
from tests.service.registry.test_memory import version


def test_an_entry_stays_as_it_is_for_those_who_read_it() -> None:
    entry = ModelEntry("net").with_versions([1, 2]).with_state(2, model=version("net", 2))
    broken = entry.with_fault(2, "damaged", 0.0)
    assert (entry.broken, entry.fallback_from, broken.fallback_from) == ({}, None, None)
    assert broken.with_versions([1, 2, 3]).with_fault(3, "damaged", 0.0).fallback_from == 3


def test_transient_faults_are_tried_again_ever_later_and_others_are_not_counted() -> None:
    entry, waits = ModelEntry("net").with_versions([1]), list[float]()
    for _ in range(8):
        entry = entry.with_fault(1, "disk", 100.0, transient=True)
        waits.append(entry.broken[1].again_at - 100)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert entry.with_fault(1, "damaged", 100.0).broken[1].wait_s == 1


def test_changes_between_two_entries() -> None:
    before = ModelEntry("net").with_versions([1, 2, 3]).with_fault(1, "damaged", 0.0)
    after = before.with_fault(1, "damaged", 9.0).with_fault(3, "no card", 9.0)
    after = after.with_state(2, model=version("net", 2))
    changes = Changes.between({"net": before}, {"net": after})
    assert (changes.loaded, changes.unloaded, changes.refused) == ([("net", 2)], [], [("net", 3, "no card")])
    assert Changes.between({"net": after}, {}).unloaded == [("net", 2)]
    again = Changes.between({"net": before}, {"net": after}, again=True)
    assert again.refused == [("net", 1, "damaged"), ("net", 3, "no card")]


@pytest.mark.parametrize(
    ("number", "now", "kind"),
    [
        (None, 0.0, Kind.NOT_READY),
        (None, 1.0, None),
        (1, 0.0, Kind.BROKEN_MODEL),
        (2, 0.0, Kind.NOT_READY),
        (2, 1.0, None),
        (3, 0.0, Kind.UNKNOWN_VERSION),
    ],
)
def test_what_is_said_of_a_version_that_cannot_be_had(number: int | None, now: float, kind: Kind | None) -> None:
    entry = ModelEntry("net").with_versions([1, 2]).with_fault(1, "damaged", 0.0)
    assert entry.refusal(None, now) is None  # version 2 is untried
    refusal = entry.with_fault(2, "disk", 0.0, transient=True).refusal(number, now)
    assert (refusal and refusal.kind) is kind


def test_a_folder_that_cannot_be_read_stands_for_all_of_its_versions() -> None:
    entry = ModelEntry("net").with_fault(FOLDER, "permission denied", 0.0, transient=True)
    assert entry.refusal(4, 1.0) is None
    refusal = entry.refusal(4, 0.5)
    assert refusal is not None
    assert "net' cannot be served: permission denied; it will be tried again in 1 s" in refusal.detail
    assert entry.with_versions([4]).refusal(4, 0.0) is None  # untried
    unreadable = ModelEntry("net").with_versions([1]).with_fault(FOLDER, "permission denied", 0.0, transient=True)
    assert (unreadable.refusal(4, 0.5) is None, unreadable.refusal(4, 1.0) is None) == (False, True)
