"""Draw docs/pictures/NAME.svg for every design of a drafter: what carries the distant past, what the drafted tokens.

`python tools/pictures.py` writes them all; the same table gives the same bytes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
WIDTH, HEIGHT, LOW_HEIGHT, LINE = 700, 224, 142, 16  # without a lower row it is lower
INK, GREY, AMBER = "#1f2937", "#6b7280", "#b45309"
COLOURS = {  # fill and edge of each kind of box
    "text": ("#f3f4f6", GREY), "distant": ("#dbeafe", "#2563eb"), "recent": ("#fef3c7", AMBER),
    "head": ("#ede9fe", "#7c3aed"), "drafts": ("#dcfce7", "#15803d"),
}  # fmt: skip
SUBSCRIPTS = {"1": "\u2081", "2": "\u2082", "3": "\u2083", "k": "\u2096", "t": "\u209c"}
TOP, LOWER, HIGH = 36, 128, 62  # upper row, lower row, height of a box
ONCE, EACH = "d_2, d_3, .../all at once", "d_2, d_3, .../one after another"
SEMI = "the target's states/h_t, or h_1 ... h_t"
STATE, STATES = "the target's/last state h_t", "all of the target's/states h_1 ... h_t"

# name: distant past; recent past (empty: no box); what gives the drafts; the drafts; which box they are fed back to
DESIGNS = {
    "semi": (SEMI, "a small LM/over d_1 ... d_k", "fusion (an MLP),/draft head", EACH, "recent"),
    "medusa": (STATE, "", "K stacks of blocks,/draft head", ONCE, ""),
    "hydra": (STATE, "embeddings of/d_1 ... d_k,/side by side", "an MLP per step,/draft head", EACH, "recent"),
    "recurrent": (STATE, "an RNN state s_k/over d_1 ... d_k", "blocks on [h_t; s_k],/draft head", EACH, "recent"),
    "mlp": ("h_t as the/first state", "the same state/takes them in", "added to h_t,/draft head", EACH, "recent"),
    "eagle": (STATES, "its own guesses at/the next states", "one decoder layer,/draft head", EACH, "recent"),
    "parallel": (STATES, "d_1, then K - 1/learned masks", "attention, fusion,/draft head", ONCE, ""),
    "skip": ("the target's first/layers, over all/tokens", "", "a trained exit,/draft head", EACH, "distant"),
    "model": ("a small LM with/a cache of its own", "", "its own/output head", EACH, "distant"),
    "lookup": ("longest earlier/match of the/text's end", "", "no head:/copy what followed", ONCE, ""),
    "recycling": ("a table of likely/next tokens of/each token", "", "no model: the/row's best", EACH, "distant"),
    "hybrid": ("lookup: longest/earlier match", "a trained/drafter", "a long match?/else as trained", EACH, "recent"),
    "none": ("the target", "", "its output head", "one token a pass,/nothing drafted", ""),
}
OWN = {"hybrid": ("first choice", "otherwise"), "none": ("", "")}  # above the boxes, where it is not the usual


@dataclass(frozen=True)
class Picture:
    """A design as the table has it."""

    name: str
    distant: str
    recent: str
    head: str
    drafts: str
    feedback: str


def write(x: float, y: float, line: str, size: int = 13, ink: str = INK, at: str = "middle") -> str:
    """One line of text; ``x_k`` is x with a subscript."""
    text = escape(line)
    for letter, low in SUBSCRIPTS.items():
        text = text.replace(f"_{letter}", low)
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{ink}" text-anchor="{at}">{text}</text>'


def box(x: int, y: int, width: int, text: str, kind: str, note: str = "") -> str:
    """A box with centred lines, and what it stands for above it."""
    fill, edge = COLOURS[kind]
    lines = text.split("/")
    first = y + HIGH / 2 + 5 - LINE * (len(lines) - 1) / 2
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{HIGH}" rx="8" fill="{fill}" stroke="{edge}"/>'
    inside = [write(x + width / 2, first + LINE * index, line) for index, line in enumerate(lines)]
    return "\n".join([shape, *inside, write(x + 2, y - 6, note, 11, edge, "start")])


def arrow(points: list[tuple[float, float]], ink: str = INK, dash: str = "none") -> str:
    """A line with a head at its end."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    (x0, y0), (x, y) = points[-2:]
    length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
    u, v = (x - x0) / length, (y - y0) / length
    tip = f"{x:g},{y:g} {x - 8 * u + 4 * v:g},{y - 8 * v - 4 * u:g} {x - 8 * u - 4 * v:g},{y - 8 * v + 4 * u:g}"
    line = f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="1.5" stroke-dasharray="{dash}"/>'
    return f'{line}\n<polygon points="{tip}" fill="{ink}"/>'


def draw(one: Picture) -> str:
    """The whole picture."""
    middle, low = TOP + HIGH / 2, LOWER + HIGH / 2
    both = "distant and recent past" if one.feedback == "distant" else "distant past"
    above, below = OWN.get(one.name, (both, "recent past"))
    fed = "drafted tokens and its own states" if one.name == "eagle" else "drafted tokens"
    height = HEIGHT if one.recent else LOW_HEIGHT
    ground = height - 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="DejaVu Sans, Verdana, sans-serif" role="img">',
        f"<title>{one.name}: from the verified text to drafts</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="12" fill="#ffffff"/>',
        box(16, TOP, 112, "verified text/x_1 ... x_t", "text"),
        box(172, TOP, 152, one.distant, "distant", above),
        box(368, TOP, 158, one.head, "head"),
        box(554, TOP, 134, one.drafts, "drafts", "drafts" if one.drafts in (ONCE, EACH) else ""),
        *(arrow([(start, middle), (end, middle)]) for start, end in ((128, 171), (324, 367), (526, 553))),
    ]
    if one.recent:
        parts += [
            box(172, LOWER, 152, one.recent, "recent", below),
            arrow([(324, low), (447, low), (447, TOP + HIGH + 1)]),
        ]
    if one.name in OWN and one.recent:
        parts.append(arrow([(72, TOP + HIGH), (72, low), (171, low)]))
    if one.feedback:
        end = (LOWER if one.feedback == "recent" else TOP) + HIGH + 1
        parts.append(arrow([(621, TOP + HIGH), (621, ground), (248, ground), (248, end)], AMBER, "5 4"))
        parts.append(write(447, ground - 6, f"{fed} are fed back", 11, AMBER))
    elif one.drafts == ONCE:
        parts.append(write(555, ground - 6, "drafted tokens are not read", 11, GREY))
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> int:
    """Write all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, row in DESIGNS.items():
        (FOLDER / f"{name}.svg").write_text(draw(Picture(name, *row)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
