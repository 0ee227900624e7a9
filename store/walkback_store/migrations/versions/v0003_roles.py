"""What people may do: one role each. Whoever migrates becomes the first admin, which `opening` records as an event."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Name = Text().with_variant(Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "roles",
        Column("person", Name, primary_key=True),
        Column("role", Name, nullable=False),
        Column("by", Name, nullable=False),
        Column("at", BigInteger, nullable=False),
    )
