"""The one table of actions. Footer, help, palette, read-only mode, the command log and the commands are made from it.

What an action does to the world, whom it may be done by, what it asks for and why it cannot be done just now are data
here; screens and commands only ask. Functions decide from a `Subject` and do no I/O: `make` returns the transitions,
and whoever has the store commits them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from walkback_console import deciding as do
from walkback_console import many_at_once as bulk
from walkback_console.deciding import Answers, BadAnswer
from walkback_console.subjects import Subject

if TYPE_CHECKING:
    from walkback_store.machine.base import Transition

VIEWER, OPERATOR, APPROVER, ADMIN = ROLES = ("viewer", "operator", "approver", "admin")
"""From the least to the most that a person may do; each may do what those before it may."""

INBOX, OPERATION, APPROVAL, BATCH, RUNS, RUN, WORKERS = SCREENS = (
    "inbox",
    "operation",
    "approval",
    "batch",
    "runs",
    "run",
    "workers",
)
EVERYWHERE = frozenset(SCREENS)


@dataclass(frozen=True, slots=True)
class Who:
    """The person: proven by the system or the database. `claim` is only what they call themselves."""

    actor: str
    role: str = OPERATOR
    claim: str | None = None

    @property
    def name(self) -> str:
        return self.actor.removeprefix("operator:")

    def may(self, needed: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(needed)

    def sign(self, transition: Transition) -> Transition:
        if self.claim is not None:
            transition.claim = self.claim
        return transition


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    required: bool = True
    hint: str = ""
    default: Callable[[Subject], str] = lambda _: ""


REASON = Field("reason", "Why", hint="stored with the decision, for whoever looks next")
COUNTED = Field("confirm", "Type how many, and why", hint="such as: 9 the ledger lost them")
MAYBE_REASON = Field("reason", "Why", required=False, hint="optional; stored with the decision")


@dataclass(frozen=True, slots=True)
class Action:
    id: str
    keys: tuple[str, ...]
    label: str
    says: str
    on: frozenset[str] = EVERYWHERE
    role: str = VIEWER
    """The least that whoever does it must be. What changes anything needs more than a viewer."""
    danger: bool = False
    """It may change the world, so that it is confirmed."""
    fields: tuple[Field, ...] = ()
    disabled: Callable[[Subject], str | None] = lambda _: None
    effects: Callable[[Subject, Answers], list[str]] = lambda _, __: []
    """What exactly will happen, a sentence each."""
    make: Callable[[Subject, Answers, str], list[Transition]] | None = None
    """None for what changes nothing: the screen does it."""
    command: Callable[[Subject, Answers], str] | None = None
    button: str = ""
    """On what confirms it, where the label alone would be misread."""
    hidden: bool = False
    """It works, but stands in no footer: there is no room for everything."""

    @property
    def mutates(self) -> bool:
        return self.make is not None


def why_not(action: Action, subject: Subject | None, who: Who, *, read_only: bool = False) -> str | None:
    """Why this cannot be done now, in words for whoever pressed the key; None when it can."""
    if action.mutates:
        if read_only:
            return "the console was opened with --read-only"
        if not who.may(action.role):
            return f"it needs the role {action.role}, and {who.name} is {who.role}; an admin can grant it"
        if subject is None:
            return "nothing is selected"
        if subject.missing is not None:
            return subject.missing
    return None if subject is None else action.disabled(subject)


def checked(action: Action, answers: Answers) -> dict[str, str]:
    """The answers, whole; `BadAnswer` names the first that is missing."""
    found = {field.name: answers.get(field.name, "").strip() for field in action.fields}
    for field in action.fields:
        if field.required and not found[field.name]:
            raise BadAnswer(f"{field.label.lower()}: something has to be given. Nothing was done.")
    return found


def command_for(action: Action, subject: Subject, answers: Answers | None = None) -> str | None:
    return None if action.command is None else action.command(subject, answers or {})


def find(action_id: str) -> Action:
    return BY_ID[action_id]


# --- the table ---------------------------------------------------------------------------------------------------

CALLS = frozenset({INBOX, OPERATION})
HERE = frozenset({INBOX, OPERATION, APPROVAL, RUN})
ON_RUNS = frozenset({INBOX, OPERATION, APPROVAL, RUNS, RUN})

TABLE: tuple[Action, ...] = (
    Action("open", ("enter",), "open", "Look closer at what is selected.", on=EVERYWHERE - {OPERATION, APPROVAL},
           command=do.says("show", reason=False)),
    Action("back", ("escape", "q"), "back", "Back to where you came from; from the inbox, q leaves.", hidden=True),
    Action("verify", ("v",), "verify again", "A worker reads the world once more; what it finds settles it.",
           on=CALLS, role=OPERATOR, disabled=do.cannot_verify, effects=do.verify_effects, make=do.verify,
           command=do.says("resolve", "--verify", reason=False)),
    Action("happened", ("h",), "it happened", "You looked, and it did: give the evidence and the result.",
           on=CALLS, role=OPERATOR, danger=True, disabled=do.not_unknown, effects=do.happened_effects, make=do.happened,
           fields=(Field("evidence", "Evidence", hint="what shows that it happened: a number, a link, what you saw"),
                   Field("result", "Result", required=False, hint="what the tool would have returned; JSON"),
                   REASON),
           command=do.says("resolve", "--happened", flags={"evidence": "evidence", "result": "result"})),
    Action("fail", ("f",), "it did not: fail", "It did not happen, and is not tried again: the agent sees a failure.",
           on=CALLS, role=OPERATOR, danger=True, disabled=do.not_unknown, effects=do.fail_effects, make=do.fail,
           fields=(REASON,), command=do.says("resolve", "--absent")),
    Action("retry", ("r",), "it did not: retry", "It did not happen: a worker calls it again, in ten seconds.",
           on=CALLS, role=OPERATOR, danger=True, disabled=do.not_unknown, effects=do.retry_effects, make=do.retry,
           fields=(REASON,), command=do.says("retry")),
    Action("approve", ("a",), "approve", "Let it be called, with exactly the arguments shown.",
           on=frozenset({APPROVAL}), role=APPROVER, danger=True, disabled=do.not_asked, effects=do.approve_effects,
           make=do.approve, fields=(MAYBE_REASON,), command=do.says("approve")),
    Action("refuse", ("d",), "refuse", "It is not called, and the agent is told why.",
           on=frozenset({APPROVAL}), role=APPROVER, danger=True, disabled=do.not_asked, effects=do.refuse_effects,
           make=do.refuse, fields=(REASON,), command=do.says("deny")),
    Action("compensate", ("c",), "compensate", "Undo a step, a transaction, all after a step, or the whole run.",
           on=frozenset({OPERATION, APPROVAL, RUN, INBOX}), role=OPERATOR, danger=True, disabled=do.cannot_undo,
           effects=do.undo_effects, make=do.compensate,
           fields=(Field("scope", "Undo", hint="step 3 | after 3 | transaction NAME | run", default=do.scope_default),
                   REASON), command=do.undo_command),
    Action("dismiss", ("D",), "no duplicate", "You looked: there is no second effect, or it is taken care of.",
           on=HERE, role=OPERATOR, danger=True, disabled=do.not_suspected, make=do.dismiss, fields=(REASON,),
           hidden=True, effects=lambda s, _: ["The suspicion ends and its record stays. Nothing is called."],
           command=do.says("resolve", "--no-duplicate")),
    Action("resume", ("R",), "resume", "The run goes on: after a pause, after a review, or again after a failure.",
           on=ON_RUNS, role=OPERATOR, danger=True, disabled=do.cannot_resume, effects=do.resume_effects, make=do.resume,
           fields=(REASON,), command=do.about_run("resume")),
    Action("pause", ("p",), "pause", "The run stops at its next boundary.", on=ON_RUNS, role=OPERATOR, danger=True,
           disabled=do.not_in(("running", "waiting", "needs_operator", "compensating"), "paused"),
           effects=do.pause_effects, make=do.pause, fields=(MAYBE_REASON,), command=do.about_run("pause"), hidden=True),
    Action("cancel", ("X",), "cancel", "The run ends at its next boundary; what it did stands.", on=ON_RUNS,
           role=OPERATOR, danger=True, disabled=do.not_in(do.OPEN, "cancelled"), effects=do.cancel_effects,
           make=do.cancel, fields=(REASON,), command=do.about_run("cancel"), button="Cancel the run",
           hidden=True),
    Action("freeze", ("F",), "freeze", "Stop every call of a tool, an agent, a service, or all of them, at once.",
           role=OPERATOR, danger=True, effects=do.freeze_effects, make=do.freeze,
           fields=(Field("what", "Freeze", hint="tool NAME | agent NAME | service NAME | everything",
                         default=do.freeze_default), REASON), command=do.freeze_command("freeze", do.freeze_default)),
    Action("unfreeze", ("U",), "unfreeze", "Lift a freeze: calls are made again.", role=OPERATOR, danger=True,
           disabled=do.nothing_frozen, effects=do.unfreeze_effects, make=do.unfreeze,
           fields=(Field("what", "Unfreeze", hint="as it is shown above", default=do.unfreeze_default), REASON),
           command=do.freeze_command("unfreeze", do.unfreeze_default), hidden=True),
    Action("undo", ("u",), "take back", "Take back what was decided and has not been carried out yet.",
           role=OPERATOR, disabled=do.nothing_waits, effects=do.take_back_effects, make=do.take_back,
           command=do.about_run("undo"), on=ON_RUNS | {BATCH}),
    Action("note", ("w",), "note", "Words for the next person, kept with the run.", on=ON_RUNS, role=OPERATOR,
           disabled=do.no_run, make=do.note, fields=(Field("reason", "Note"),), hidden=True,
           effects=lambda s, _: [f"The note is kept with {s.place}. Nothing else changes."], command=do.says("note")),
    Action("own", ("o",), "take it", "Take ownership: others see that you are on it.", on=ON_RUNS, role=OPERATOR,
           disabled=do.no_run, make=do.own, command=do.says("own", reason=False), hidden=True,
           effects=lambda s, _: [f"{s.run_id} is yours; others see that."]),
    Action("handover", ("O",), "hand over", "Give the run to somebody else, with a note.", on=ON_RUNS, role=OPERATOR,
           disabled=do.no_run, make=do.hand_over, hidden=True,
           fields=(Field("owner", "To"), Field("reason", "Note", hint="what they should know")),
           effects=lambda s, _: [f"{s.run_id} belongs to them from now on. It stays where it is."],
           command=do.says("own", flags={"owner": "to"})),
    Action("verify_all", ("v",), "verify all", "Workers ask the world about each; what they find splits them.",
           on=frozenset({BATCH}), role=OPERATOR, danger=True, disabled=bulk.none_verifiable,
           effects=bulk.verify_effects, make=bulk.verify,
           fields=(Field("confirm", "Type how many", hint="the number above, to show that you know"),),
           command=bulk.command("resolve", "--verify", reason=False)),
    Action("happened_each", ("h",), "they happened", "One after the other, each with evidence of its own.",
           on=frozenset({BATCH}), disabled=bulk.none_open),
    Action("fail_all", ("f",), "they did not: fail", "None happened, and none is tried again.",
           on=frozenset({BATCH}), role=OPERATOR, danger=True, disabled=bulk.none_open, effects=bulk.fail_effects,
           make=bulk.fail, fields=(COUNTED,), command=bulk.command("resolve", "--absent")),
    Action("retry_all", ("r",), "they did not: retry", "One first; then the others, until one does not succeed.",
           on=frozenset({BATCH}), role=OPERATOR, danger=True, disabled=bulk.none_open, effects=bulk.retry_effects,
           make=bulk.retry, fields=(COUNTED,), command=bulk.command("retry")),
    Action("handover_all", ("O",), "hand over", "Give all of them to somebody else, with a note.",
           on=frozenset({BATCH}), role=OPERATOR, danger=True, disabled=bulk.none_open,
           effects=bulk.hand_over_effects, make=bulk.hand_over, fields=(Field("owner", "To"), COUNTED),
           command=bulk.command("own")),
    Action("stop_batch", ("K",), "stop the batch", "What has not gone out yet stays as it is.",
           on=frozenset({BATCH, WORKERS}), role=OPERATOR, danger=True, disabled=bulk.no_batch,
           effects=bulk.stop_effects, make=bulk.stop, fields=(REASON,), command=bulk.stop_command),
    Action("run", ("t",), "whole run", "The run's timeline, with its states.",
           on=frozenset({INBOX, OPERATION, APPROVAL, BATCH}), disabled=do.no_run, command=do.about_run("show")),
    Action("similar", ("m",), "more like it", "Runs that failed with the same error.",
           on=frozenset({RUNS, RUN, INBOX, OPERATION}), disabled=do.no_error, hidden=True),
    Action("last_good", ("l",), "last success", "The last run of the same agent that succeeded.", on=ON_RUNS,
           disabled=do.no_run, hidden=True),
    Action("source", ("e",), "source", "Open the line of code where it failed in $EDITOR.",
           on=frozenset({RUN, OPERATION, INBOX}), disabled=do.no_run, hidden=True),
    Action("copy", ("y",), "copy id", "Copy the id of what is selected.", hidden=True),
    Action("copy_command", ("Y",), "copy command", "Copy the command that shows or does the same.", hidden=True),
    Action("pager", ("P",), "pager", "Read all of it in $PAGER.", hidden=True),
    Action("save", ("S",), "save", "Save all of it to a file.", hidden=True),
)  # fmt: skip

BY_ID = {action.id: action for action in TABLE}


def on_screen(screen: str) -> list[Action]:
    return [action for action in TABLE if screen in action.on]
