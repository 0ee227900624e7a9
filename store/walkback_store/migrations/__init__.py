"""Schema migrations. `env.py` is Alembic's entry; `versions/` are the steps."""
