"""The incident is what it says it is, on both databases, and a live worker carries on what a person decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.incident import DECOYS, Incident, effects, fill, wait_until, worker
from walkback_console.whoami import operator_of
from walkback_store import Store, open_store
from walkback_store.fsck import fsck
from walkback_store.machine.people import Approve, DecideRetry, RecordHappened, RequestVerify
from walkback_store.queries import RunFilter


@pytest.fixture
def incident(store_url: str, tmp_path: Path) -> Incident:
    return fill(store_url, tmp_path / "world")


@pytest.fixture
def store(incident: Incident) -> Iterator[Store]:
    with open_store(incident.url, create=False) as store:
        yield store


def test_the_inbox_has_what_the_incident_says_it_has(incident: Incident, store: Store) -> None:
    counts = {kind: count.n for kind, count in store.inbox_counts(store.now()).items()}
    assert counts == incident.kinds
    first, second, *rest = store.inbox(store.now())
    assert (first["run_id"], first["step"], first["n"], first["kind"]) == (*incident.mail, 1, "unknown")
    assert (second["tool"], second["n"]) == ("charge_card", 40)
    assert [(row["kind"], row["n"]) for row in rest] == [
        ("duplicate_suspected", 1), ("unknown", 2), ("diverged", 1), ("stuck", 1), ("drift", 1), ("review", 1),
        ("approval", 3), ("approval", 1), ("approval", 1),
    ]  # fmt: skip
    members = store.inbox_members(second, store.now()).rows
    assert {(row["run_id"], row["step"]) for row in members} == set(incident.outage)
    assert fsck(store).problems == []


def test_what_is_urgent_comes_before_everything_else(store_url: str, tmp_path: Path) -> None:
    incident = fill(store_url, tmp_path / "world", urgent=True)
    with open_store(store_url) as store:
        first, second, third = store.inbox(store.now())[:3]
        assert {kind: count.n for kind, count in store.inbox_counts(store.now()).items()} == incident.kinds
    assert (first["run_id"], first["step"]) == incident.approvals["soon"]
    assert (second["kind"], second["run_id"]) == ("compensation_failed", incident.compensation_failed)
    assert (third["run_id"], third["step"]) == incident.mail


def test_every_run_is_in_the_status_it_is_named_for(incident: Incident, store: Store) -> None:
    status = {
        incident.diverged: "needs_operator", incident.drifted: "needs_operator", incident.review: "needs_operator",
        incident.stuck: "running", incident.last_good: "succeeded", incident.paused: "paused",
        incident.waiting: "waiting", incident.cancelled: "cancelled",
        **{run_id: "waiting" for run_id, _ in incident.approvals.values()},
        **dict.fromkeys(incident.failed, "failed"),
        **dict.fromkeys(incident.decoys, "succeeded"),
    }  # fmt: skip
    assert {run_id: store.run(run_id)["status"] for run_id in status} == status
    assert len(incident.decoys) == DECOYS
    (fingerprint,) = {store.run(run_id)["fingerprint"] for run_id in incident.failed}
    assert {row["run_id"] for row in store.runs(RunFilter(fingerprint=fingerprint)).rows} == set(incident.failed)
    assert store.operation(*incident.duplicate).operation["duplicate_suspected"] == 1


def test_the_world_knows_what_became_of_the_forty_charges(incident: Incident) -> None:
    assert {fate: len(incident.fates(fate)) for fate in ("happened", "absent", "cannot tell")} == {
        "happened": 28, "absent": 9, "cannot tell": 3,
    }  # fmt: skip
    charged = {effect["order"] for effect in incident.world.effects("charge")}
    assert {run_id for run_id, _ in incident.outage} & charged == {run_id for run_id, _ in incident.fates("happened")}
    assert len(incident.world.effects("mail")) == 2  # the unknown one was sent, and one to apologise


def test_a_live_worker_carries_out_what_is_decided_and_nothing_happens_twice(incident: Incident, store: Store) -> None:
    me = operator_of(store)
    (retried, step), (booked, _) = incident.fates("absent")[0], incident.fates("happened")[0]
    again, _ = incident.fates("happened")[1]
    long, at = incident.approvals["long"]
    mails = len(effects(incident.world.folder, "mail"))
    with worker(incident.url, incident.world.folder):
        for run_id in (retried, again):
            store.do(DecideRetry(actor=me, run_id=run_id, step=step, reason="they are back", regret=0))
        found = RecordHappened(
            actor=me, run_id=incident.mail[0], step=incident.mail[1], reason="the customer has it", evidence="a call",
            result="mail-1",
        )  # fmt: skip
        store.do(found)
        found = RecordHappened(
            actor=me, run_id=booked, step=step, reason="seen in the bank's list", evidence="entry 17",
            result={"id": "charge-17"},
        )  # fmt: skip
        store.do(found)
        digest = store.operation(long, at).approvals[-1]["digest"]
        store.do(Approve(actor=me, run_id=long, step=at, digest=digest, reason="reviewed", regret=0))
        for run_id in (retried, again, booked, incident.mail[0], long):
            wait_until(lambda run_id=run_id: store.run(run_id)["status"] == "succeeded")
    keys = Counter(effect["key"] for effect in effects(incident.world.folder, "charge"))
    assert set(keys.values()) == {1}
    charges = Counter(effect["order"] for effect in effects(incident.world.folder, "charge"))
    assert (charges[retried], charges[again], charges[booked]) == (1, 1, 1)
    assert len(effects(incident.world.folder, "mail")) == mails
    assert [effect["service"] for effect in effects(incident.world.folder, "deploy")] == ["checkout"]
    assert fsck(store).problems == []


def test_verified_again_the_forty_split_into_28_9_and_3(incident: Incident, store: Store) -> None:
    me = operator_of(store)
    with worker(incident.url, incident.world.folder):
        for run_id, step in incident.outage:
            store.do(RequestVerify(actor=me, run_id=run_id, step=step))

        def settled() -> Counter[str]:
            return Counter(store.run(run_id)["status"] for run_id, _ in incident.outage)

        wait_until(lambda: settled() == {"succeeded": 28, "needs_operator": 12})
    seen = Counter(
        [event.data["evidence"] for event in store.events(run_id) if event.kind == "verification"][-1]
        for run_id, _ in incident.outage
    )
    assert seen == {"happened": 28, "absent": 9, "cannot_tell": 3}
    assert len(effects(incident.world.folder, "charge")) == DECOYS + 28
