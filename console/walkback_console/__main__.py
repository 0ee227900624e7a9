"""`python -m walkback_console` is the `walkback` command."""

from __future__ import annotations

from walkback_console.cli import main

if __name__ == "__main__":
    main()
