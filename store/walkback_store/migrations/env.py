"""Alembic's entry point: runs the migrations on the connection that `opening` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from walkback_store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,  # the caller holds the transaction: all of it or nothing
)
context.run_migrations()
