"""Widgets of the console that draw line by line, so that the length of what they show costs nothing."""
