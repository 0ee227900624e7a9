"""Commands that tell a run what it waits for (`signal`), or what became of an unknown call of it (`resolve`)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence

from walkback_console.cli import USAGE, bulk, deciding
from walkback_console.cli.finding import find_run
from walkback_console.cli.printing import Printer, as_json, t
from walkback_console.cli.session import Explained, Session
from walkback_console.whoami import operator_of
from walkback_store.machine.runs import SendSignal


def parse_json(option: str, text: str) -> object:
    """What was given as JSON on the command line."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise Explained(
            f"{option} is not JSON ({error}). Quote it for the shell: {option} '{{\"paid\": true}}', or a text as "
            f"{option} '\"yes\"'. Nothing was changed.",
            USAGE,
        ) from error


def signal(session: Session, given: str, name: str, data: str | None, signal_id: str | None) -> None:
    payload = None if data is None else parse_json("--data", data)
    with session.open() as store:
        run_id = find_run(store, given)
        before = store.run(run_id)
        sent = SendSignal(
            actor=operator_of(store),
            claim=session.claim,
            run_id=run_id,
            signal_id=signal_id or uuid.uuid4().hex,
            name=name,
            payload=payload,
        )
        done = store.do(sent)
    new = not done.repeated
    status = done.run["status"] if done.run is not None else before["status"]
    woke = new and before["waits_for"] == f"signal:{name}" and status != before["status"]
    if session.as_json:
        as_json(
            {
                "run": run_id,
                "name": name,
                "id": sent.signal_id,
                "new": new,
                "woke": woke,
                "event": done.seq if new else None,
                "status": status,
            }
        )
        return
    out = Printer()
    if not new:
        out.line(t(f"{run_id} has had the signal {sent.signal_id} already. It counts once; nothing was changed."))
    elif woke:
        out.line(t(f"{run_id} waited for {name}: it goes on as soon as a worker takes it."))
    else:
        out.line(t(f"{name} is kept for {run_id}, until a step waits for it. The run is {status}."))


def resolve(
    session: Session, places: Sequence[str], chosen: Mapping[str, bool], answers: Mapping[str, str | None], *, yes: bool
) -> None:
    wanted = [action for action, is_chosen in chosen.items() if is_chosen]
    if len(wanted) != 1:
        raise Explained(
            "say what became of it: one of --verify, --happened, --absent, --retry, --no-duplicate and --hand-over. "
            "Nothing was changed.",
            USAGE,
        )
    if wanted[0] != "happened" and (answers["evidence"] or answers["result"]):
        raise Explained("--evidence and --result go with --happened. Nothing was changed.", USAGE)
    if answers["result"]:
        parse_json("--result", answers["result"])
    if len(places) > 1:
        bulk.decide(session, wanted[0], places, answers, yes=yes)
    elif wanted[0] == "handover":
        deciding.decide_run(session, "handover", places[0], answers, yes=yes)
    else:
        deciding.decide(session, wanted[0], places[0], answers, yes=yes)


def retry(session: Session, places: Sequence[str], reason: str, *, yes: bool) -> None:
    if len(places) > 1:
        bulk.decide(session, "retry", places, {"reason": reason}, yes=yes)
    else:
        deciding.decide(session, "retry", places[0], {"reason": reason}, yes=yes)


def own(session: Session, places: Sequence[str], to: str | None, reason: str, *, yes: bool) -> None:
    answers = {"owner": to, "reason": reason}
    if len(places) > 1 and to is None:
        raise Explained("several are handed to somebody: --to NAME. To take them yourself, name one at a time.", USAGE)
    if len(places) > 1:
        bulk.decide(session, "handover", places, answers, yes=yes)
    else:
        deciding.decide_run(session, "own" if to is None else "handover", places[0], answers, yes=yes)
