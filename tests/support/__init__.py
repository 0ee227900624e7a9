"""What the tests share: a real PostgreSQL server, and a proxy that cuts its connections on command."""
