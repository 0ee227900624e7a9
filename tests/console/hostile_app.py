"""An app for `walkback work`, in whose log hostile text turns up: of its agent's name, and of what its agent raises."""

from __future__ import annotations

import walkback as wb

MARKUP = "[/x][@click=app.bell]m[/][bold]"
EVIL = f"\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b2J\u202e\u200b\r\n{MARKUP}"


@wb.agent(name=f"agent {MARKUP}")
def hostile(run: wb.Run) -> None:
    raise BaseException(f"raised:{EVIL}")


app = wb.App(agents=[hostile])
