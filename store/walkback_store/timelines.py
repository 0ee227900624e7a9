"""The steps of one run, filtered and paged by place or by number; and many operations at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, and_, func, or_, select, tuple_

from walkback_store import schema
from walkback_store.log import Row
from walkback_store.paging import MAX_PAGE, PAGE, bounded, page_size, possible
from walkback_store.reading import Moment
from walkback_store.run_lists import RunLists
from walkback_store.words import OperationStatus

FAULTS = (OperationStatus.FAILED, OperationStatus.UNKNOWN, OperationStatus.DENIED, OperationStatus.COMPENSATED)
"""What an operation is when its step is worth a look."""

_s, _o, _r = schema.steps, schema.operations, schema.runs
_BOTH = _s.outerjoin(_o, and_(_o.c.run_no == _s.c.run_no, _o.c.step == _s.c.step))
_OF_OPERATION = tuple(c.label(f"operation_{c.name}") for c in _o.columns if c.name not in {"run_no", "step"})


@dataclass(frozen=True, slots=True)
class _Steps:
    """Which steps of a run; all that is given must hold."""

    run_no: int
    effect: str | None
    faults: bool
    text: str | None

    def where(self) -> tuple[FromClause, list[ColumnElement[bool]]]:
        """What to look at, and how. Without a filter that is the index of their order alone, and no operation."""
        found: list[ColumnElement[bool]] = [_s.c.run_no == self.run_no]
        if self.effect is not None:
            found.append(_o.c.effect == self.effect)
        if self.faults:
            faulty = (
                _s.c.status == "failed",
                _o.c.status.in_([f.value for f in FAULTS]),
                _o.c.duplicate_suspected == 1,
            )
            found.append(or_(*faulty))
        if self.text:
            said = (_s.c.name, _o.c.tool, _o.c.description, _o.c.error)
            found.append(or_(*(column.icontains(self.text, autoescape=True) for column in said)))
        return (_BOTH if len(found) > 1 else _s), found

    @property
    def possible(self) -> bool:
        return possible(self.effect or "") and possible(self.text or "")


class Timelines(RunLists):
    def timeline(
        self,
        run_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = PAGE,
        effect: str | None = None,
        offset: int | None = None,
        faults: bool = False,
        text: str | None = None,
    ) -> list[Row]:
        """Steps in order, with their operations. `after` and `before` are `first_seq` of a step.

        `offset`, in place of those two, is the number of steps to skip, under the same filters. `faults` leaves the
        steps that failed, and those whose operation failed, is unknown, was denied or compensated, or may have happened
        twice. `text` is a part of the step's name or of its operation's tool, description or error; of the letters a to
        z the case does not matter.
        """
        with self._reading() as moment:
            steps = _Steps(self._run(moment, run_id)["run_no"], effect, faults, text)
            if not steps.possible:
                return []
            _, where = steps.where()
            query = select(_s, *_OF_OPERATION).select_from(_BOTH).where(*where).limit(page_size(limit))
            if offset is not None:
                if after or before is not None:
                    raise ValueError("a page begins at an offset, or after a step, or before one: not two of these.")
                first = _first(moment, steps, offset)
                if first is None:
                    return []
                return moment.rows(query.where(_s.c.first_seq >= first).order_by(_s.c.first_seq))
            if before is not None:
                query = query.where(_s.c.first_seq < before).order_by(_s.c.first_seq.desc())
                return list(reversed(moment.rows(query)))
            return moment.rows(query.where(_s.c.first_seq > after).order_by(_s.c.first_seq))

    def count_steps(
        self, run_id: str, *, effect: str | None = None, faults: bool = False, text: str | None = None
    ) -> int:
        with self._reading() as moment:
            return _count(moment, _Steps(self._run(moment, run_id)["run_no"], effect, faults, text))

    def step_offset(
        self, run_id: str, step: str, *, effect: str | None = None, faults: bool = False, text: str | None = None
    ) -> int | None:
        """How many steps come before this one under these filters; None when it is not there, or is filtered out."""
        with self._reading() as moment:
            steps = _Steps(self._run(moment, run_id)["run_no"], effect, faults, text)
            if not (steps.possible and possible(step)):
                return None
            table, where = steps.where()
            found = moment.values(select(_s.c.first_seq).select_from(table).where(*where, _s.c.step == step).limit(1))
            return _count(moment, steps, _s.c.first_seq < found[0]) if found else None

    def operations_of(self, places: Sequence[tuple[str, str]]) -> list[Row]:
        """The operations at these (run, step), as of one moment and in the order given; those not there are left out.

        With `run_id`, `run_status`, `run_why` and `agent` of each one's run. At most 1,000 at once.
        """
        if len(places) > MAX_PAGE:
            raise ValueError(f"{len(places)} operations were asked for; at most {MAX_PAGE} can be at once.")
        asked = [place for place in dict.fromkeys(places) if all(map(possible, place))]
        of_run = (_r.c.run_id, _r.c.status.label("run_status"), _r.c.why.label("run_why"), _r.c.agent)
        with self._reading() as moment:
            run_ids = list(dict.fromkeys(run_id for run_id, _ in asked))
            runs: dict[str, Row] = {}
            for row in moment.rows(select(_r.c.run_no, *of_run).where(_r.c.run_id.in_(run_ids)).limit(MAX_PAGE)):
                runs[row["run_id"]] = row
            keys = [(runs[run_id]["run_no"], step) for run_id, step in asked if run_id in runs]
            query = select(_o).where(tuple_(_o.c.run_no, _o.c.step).in_(keys)).limit(MAX_PAGE)
            found = {(row["run_no"], row["step"]): row for row in moment.rows(query)}
        named = ((runs[run_id], step) for run_id, step in asked if run_id in runs)
        return [found[key] | run for run, step in named if (key := (run["run_no"], step)) in found]


def _first(moment: Moment, steps: _Steps, offset: int) -> int | None:
    """`first_seq` of the step that so many come before; found in the index alone when nothing is filtered."""
    table, where = steps.where()
    query: Select[Any] = select(_s.c.first_seq).select_from(table).where(*where).order_by(_s.c.first_seq)
    found = moment.values(query.offset(bounded(max(0, offset))).limit(1))
    return int(found[0]) if found else None


def _count(moment: Moment, steps: _Steps, *more: ColumnElement[bool]) -> int:
    if not steps.possible:
        return 0
    table, where = steps.where()
    return int(moment.values(select(func.count()).select_from(table).where(*where, *more).limit(1))[0])
