"""The screens: each shows one thing, reads it under a name of its own, and does what the table of actions says."""
