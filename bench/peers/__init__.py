"""The same durable steps on Walkback and on others, each in a process of its own; `bench_runtime` runs them.

What is here beside `walkback_steps` runs in an environment of its own, `.venv-peers`, which has not got Walkback in it:
only the standard library and what `requirements.txt` names may be imported.
"""
