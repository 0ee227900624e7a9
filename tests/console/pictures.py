"""A picture of a Textual screen: PNG from its SVG, with a font of this machine and nothing from the network."""

from __future__ import annotations

import re
from pathlib import Path

import resvg_py

FAMILY = "DejaVu Sans Mono"
FONTS = (
    "DejaVuSansMono.ttf",
    "DejaVuSansMono-Bold.ttf",
    "DejaVuSansMono-Oblique.ttf",
    "DejaVuSansMono-BoldOblique.ttf",
)
PLACES = (
    Path("/usr/share/fonts"),
    Path("/usr/local/share/fonts"),
    Path("/Library/Fonts"),
    Path.home() / ".local/share/fonts",
    Path.home() / ".fonts",
    Path.home() / "Library/Fonts",
)
ZOOM = 1.0


class NoFont(RuntimeError):
    pass


def fonts(places: tuple[Path, ...] = PLACES) -> list[Path]:
    """The font files, the upright one first. With other fonts the pictures would differ from machine to machine."""
    found = {file.name: file for place in places if place.is_dir() for file in place.rglob("DejaVuSansMono*.ttf")}
    if FONTS[0] not in found:
        where = ", ".join(map(str, places))
        raise NoFont(f"no {FONTS[0]} in {where}. Install DejaVu, such as Debian's package fonts-dejavu-core.")
    return [found[name] for name in FONTS if name in found]


def local_font(svg: str) -> str:
    """The same SVG with no font from elsewhere."""
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    svg = re.sub(r"font-family:\s*[^;}]+", f"font-family: '{FAMILY}'", svg)
    return re.sub(r"font-variant-east-asian:[^;}]*;?", "", svg)


def to_png(svg: str, *, zoom: float = ZOOM) -> bytes:
    files = [str(file) for file in fonts()]
    return resvg_py.svg_to_bytes(
        svg_string=local_font(svg),
        zoom=zoom,
        skip_system_fonts=True,
        font_files=files,
        font_family=FAMILY,
        monospace_family=FAMILY,
    )
