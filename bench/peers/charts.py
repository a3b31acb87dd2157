#!/usr/bin/env python3
"""Draws a section's medians as bars: `charts.py FILE.svg < section.json`. Runs where matplotlib is,
beside the contenders.

The input is {"title": text, "panels": [{"title": text, "better": "more" or "less", "values":
{contender: number}}]}."""

import json
import sys

import matplotlib

matplotlib.use("svg")
# The same bars are the same file, and its words are words.
matplotlib.rcParams.update({"svg.hashsalt": "headrace", "svg.fonttype": "none", "font.size": 9})

import matplotlib.pyplot as plt  # noqa: E402

OURS, OTHERS, INK = "#1f77b4", "#c3ccd5", "#4a4a4a"


def main() -> None:
    section = json.load(sys.stdin)
    panels = section["panels"]
    height = 1.0 + 0.34 * max(len(panel["values"]) for panel in panels)
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.1 * len(panels), height), sharey=True, squeeze=False
    )
    for panel, axis in zip(panels, axes[0], strict=True):
        names = list(panel["values"])
        values = [panel["values"][name] for name in names]
        colours = [OURS if name.startswith("headrace") else OTHERS for name in names]
        bars = axis.barh(names, values, color=colours, height=0.7)
        axis.bar_label(
            bars,
            [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values],
            padding=3,
            color=INK,
        )
        axis.set_title(
            f"{panel['title']} ({panel['better']} is better)", fontsize=9, color=INK, loc="left"
        )
        axis.set_xlim(0, 1.2 * max(values) or 1)
        axis.invert_yaxis()
        axis.set_xticks([])
        axis.tick_params(length=0, colors=INK)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    # Shared axes share the turning round as well: once for each panel is back and forth.
    axes[0][0].set_ylim(len(panels[0]["values"]) - 0.5, -0.5)
    figure.suptitle(section["title"], fontsize=10, color=INK, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(sys.argv[1], format="svg", metadata={"Date": None}, transparent=False)


if __name__ == "__main__":
    main()
