"""The shared store: the event log, its projections, snapshots.

The tables are taken from `schema.py` as long as this is the only migration; the next one freezes them here.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

from walkback_store.schema import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQLITE = (
    """
    CREATE TRIGGER events_no_delete BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END
    """,
    """
    CREATE TRIGGER events_no_update BEFORE UPDATE ON events
    WHEN NOT (
        NEW.pos = OLD.pos AND NEW.run_no = OLD.run_no AND NEW.seq = OLD.seq AND NEW.at = OLD.at
        AND NEW.kind = OLD.kind AND NEW.actor = OLD.actor AND NEW.step IS OLD.step
        AND NEW.transition IS OLD.transition AND NEW.hash = OLD.hash
        AND length(NEW.body) = 33 AND substr(NEW.body, 1, 1) = X'02'
    )
    BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END
    """,
    # INSERT OR REPLACE deletes without asking the trigger on deletes.
    """
    CREATE TRIGGER events_no_replace BEFORE INSERT ON events
    WHEN EXISTS (SELECT 1 FROM events WHERE pos = NEW.pos)
        OR EXISTS (SELECT 1 FROM events WHERE run_no = NEW.run_no AND seq = NEW.seq)
        OR EXISTS (SELECT 1 FROM events WHERE transition = NEW.transition)
    BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END
    """,
)

POSTGRESQL = (
    "ALTER TABLE events ADD COLUMN xid BIGINT NOT NULL DEFAULT (pg_current_xact_id()::text::bigint)",
    "CREATE INDEX ix_events_commit_order ON events (xid, pos)",
    """
    CREATE FUNCTION walkback_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'UPDATE' THEN
            IF (NEW.pos, NEW.run_no, NEW.seq, NEW.at, NEW.kind, NEW.actor, NEW.hash, NEW.xid)
               = (OLD.pos, OLD.run_no, OLD.seq, OLD.at, OLD.kind, OLD.actor, OLD.hash, OLD.xid)
               AND NEW.step IS NOT DISTINCT FROM OLD.step
               AND NEW.transition IS NOT DISTINCT FROM OLD.transition
               AND length(NEW.body) = 33 AND get_byte(NEW.body, 0) = 2 THEN
                RETURN NEW;
            END IF;
        END IF;
        RAISE EXCEPTION 'the event log is append-only';
    END $$
    """,
    """
    CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION walkback_append_only()
    """,
    """
    CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION walkback_append_only()
    """,
)


def upgrade() -> None:
    bind = op.get_bind()
    metadata.create_all(bind)
    for statement in SQLITE if bind.dialect.name == "sqlite" else POSTGRESQL:
        op.execute(text(statement))
