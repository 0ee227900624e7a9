"""What the runtime shares: breakers of services, budgets of retries, business identities, and outcomes referred to."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Float, Integer, Text, text

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Name = Text().with_variant(Text(collation="C"), "postgresql")

HELD_UP = "(waits_for >= 'freeze:' AND waits_for < 'freeze;') OR (waits_for >= 'identity:' AND waits_for < 'identity;')"


def upgrade() -> None:
    op.add_column("freezes", Column("until", BigInteger))
    op.add_column("freezes", Column("probe", Name))
    op.add_column("operations", Column("refers_to", Name))
    op.create_table(
        "breakers",
        Column("service", Name, primary_key=True),
        Column("failures", Integer, nullable=False, server_default=text("0")),
        Column("trips", Integer, nullable=False, server_default=text("0")),
        Column("failed_at", BigInteger),
        Column("freeze_no", BigInteger),
    )
    op.create_table(
        "buckets",
        Column("tool", Name, primary_key=True),
        Column("tokens", Float, nullable=False),
        Column("at", BigInteger, nullable=False),
    )
    op.create_table(
        "identities",
        Column("identity", Name, primary_key=True),
        Column("generation", Integer, nullable=False),
        Column("run_id", Name, nullable=False),
        Column("step", Name, nullable=False),
        Column("tool", Name, nullable=False),
        Column("args_hash", Name, nullable=False),
        Column("at", BigInteger, nullable=False),
        Column("outcome", Name),
    )
    op.create_index("ix_identities_run", "identities", ["run_id"])
    op.create_index("ix_runs_held_up", "runs", ["run_no"], sqlite_where=text(HELD_UP), postgresql_where=text(HELD_UP))
