"""Draws the timeline of a trace as an SVG: a row for each track, a bar for each span.

draw_timeline.py TRACE.json PICTURE.svg [--from MS] [--to MS] [--title TEXT]

TRACE.json is what `headrace stream --trace` writes. The picture is for documents; to look into a trace, Perfetto is better.
"""

import argparse
import json
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, LEFT, ROW, TOP = 960, 120, 18, 56
COLOURS = {"range": "#4878a8", "copy": "#d08030"}
OTHER = "#888888"


def bars(trace: dict) -> tuple[dict[int, str], list[dict]]:
    """The names of the tracks by their numbers, and the spans."""
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    return names, [e for e in events if e["ph"] == "X"]


def lanes(spans: list[dict]) -> list[tuple[int, dict]]:
    """Spans that overlap get lanes of their own: the lane beside each."""
    ends: list[float] = []
    placed = []
    for span in sorted(spans, key=lambda each: each["ts"]):
        lane = next((at for at, end in enumerate(ends) if end <= span["ts"]), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = span["ts"] + span["dur"]
        placed.append((lane, span))
    return placed


def step_of(length_ms: float) -> float:
    """A round distance between the marks of the axis, for at most ten of them."""
    step = 1.0
    while length_ms / step > 10:
        step *= 2.5 if str(step).startswith("2") else 2
    return step


def draw(trace: dict, begin_ms: float, end_ms: float, title: str) -> str:
    names, spans = bars(trace)
    inside = [s for s in spans if s["ts"] / 1e3 < end_ms and (s["ts"] + s["dur"]) / 1e3 > begin_ms]
    scale = (WIDTH - LEFT - 16) / (end_ms - begin_ms)

    def x(time_ms: float) -> float:
        return LEFT + (min(max(time_ms, begin_ms), end_ms) - begin_ms) * scale

    body, y = [], TOP
    for track in sorted({s["tid"] for s in inside}, key=lambda each: names.get(each, "")):
        placed = lanes([s for s in inside if s["tid"] == track])
        height = ROW * (1 + max(lane for lane, _ in placed))
        body.append(f'<text x="{LEFT - 8}" y="{y + ROW - 5}" text-anchor="end">{escape(names.get(track, str(track)))}</text>')
        for lane, span in placed:
            left, right = x(span["ts"] / 1e3), x((span["ts"] + span["dur"]) / 1e3)
            body.append(
                f'<rect x="{left:.1f}" y="{y + lane * ROW + 2}" width="{max(right - left, 0.8):.1f}" height="{ROW - 4}" '
                f'fill="{COLOURS.get(span["name"], OTHER)}" stroke="white"/>'
            )
        y += height + 4
    axis, at, step = [], begin_ms, step_of(end_ms - begin_ms)
    while at <= end_ms:
        axis.append(f'<line x1="{x(at):.1f}" y1="{TOP - 6}" x2="{x(at):.1f}" y2="{y}" stroke="#dddddd"/>')
        axis.append(f'<text x="{x(at):.1f}" y="{TOP - 10}" text-anchor="middle" fill="#666666">{at:g} ms</text>')
        at += step
    legend = []
    for number, (name, colour) in enumerate(COLOURS.items()):
        left = LEFT + 90 * number
        legend.append(f'<rect x="{left}" y="{y + 8}" width="14" height="12" fill="{colour}"/>')
        legend.append(f'<text x="{left + 20}" y="{y + 18}">{name}</text>')
    height = y + 32
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
            *axis,
            *body,
            *legend,
            "</svg>",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--from", dest="begin", type=float, default=0.0, metavar="MS")
    parser.add_argument("--to", dest="end", type=float, metavar="MS")
    parser.add_argument("--title", default="")
    given = parser.parse_args()
    trace = json.loads(given.trace.read_text(encoding="utf-8"))
    _, spans = bars(trace)
    end = given.end if given.end is not None else max((s["ts"] + s["dur"]) / 1e3 for s in spans)
    given.picture.write_text(draw(trace, given.begin, end, given.title), encoding="utf-8")


if __name__ == "__main__":
    main()
