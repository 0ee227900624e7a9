"""The state machine: every legal transition of runs, operations, approvals and what surrounds them.

Read `runs`, `operations`, `people`, `store_wide` and `roles`, in this order. Each class is one transition: its
docstring says what it does, `sources` and `targets` from where to where, `also` what becomes of others, `needs` what
else must hold, `by` who may, and `needs_role` what a person has to be. `transitions` lists them all, and
docs/state-machine.md is made from them.
"""
