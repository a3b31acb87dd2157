"""bench/RESULTS.md: a section for each comparison, each replaceable alone, and a summary of all."""

import dataclasses
import json
import os
import pathlib
import re

INTRODUCTION = """\
# Benchmark results

Written by `./run bench`; [README.md](README.md) says what is measured, how, and how to read it.
Figures are medians of alternated rounds; ratios are medians of the ratios within a round, with the
least and the greatest beside them. GB are 10^9 bytes, MiB 2^20."""

# A section stands between two comments; the first also holds what the summary needs.
SECTION = re.compile(
    r"^<!-- bench:begin (?P<name>\S+) (?P<data>.*) -->\n"
    r"(?P<text>.*?)\n"
    r"<!-- bench:end (?P=name) -->$",
    re.DOTALL | re.MULTILINE,
)


@dataclasses.dataclass
class Verdict:
    """A figure beside its target."""

    what: str
    figure: str
    target: str
    met: bool

    def cells(self) -> list[str]:
        return [self.what, self.figure, self.target, "met" if self.met else "**missed**"]


@dataclasses.dataclass
class Table:
    head: list[str]
    rows: list[list[str]]
    words: int = 1  # columns of words come first, then figures, aligned to the right

    def text(self) -> str:
        rule = ["---"] * self.words + ["---:"] * (len(self.head) - self.words)
        return "\n".join(f"| {' | '.join(row)} |" for row in [self.head, rule, *self.rows])


@dataclasses.dataclass
class Section:
    name: str
    title: str
    explanation: str
    commands: list[str]
    medians: Table
    verdicts: list[Verdict]
    rounds: Table
    provenance: list[str] = dataclasses.field(default_factory=list)

    def text(self) -> str:
        commands = "\n".join(self.commands)
        return "\n\n".join(
            [
                f"## {self.title}",
                self.explanation,
                f"```\n{commands}\n```",
                self.medians.text(),
                self._verdicts().text(),
                "\n".join(f"- {line}" for line in self.provenance),
                "<details><summary>Every round</summary>",
                self.rounds.text(),
                "</details>",
            ]
        )

    def summary(self) -> str:
        """For a terminal."""
        tables = f"{self.medians.text()}\n\n{self._verdicts().text()}"
        return f"\n{self.title}\n\n{tables}\n"

    def _verdicts(self) -> Table:
        return Table(["", "figure", "target", ""], [each.cells() for each in self.verdicts])


def merge(existing: str, sections: list[Section], order: list[str]) -> str:
    """The file with `sections` replaced, the others as they were: first those of `order`, in that order."""
    found = {
        each["name"]: (json.loads(each["data"]), each["text"])
        for each in SECTION.finditer(existing)
    }
    for section in sections:
        verdicts = [dataclasses.asdict(verdict) for verdict in section.verdicts]
        found[section.name] = ({"title": section.title, "verdicts": verdicts}, section.text())

    summary = Table(["", "", "figure", "target", ""], [], words=2)
    blocks = []
    for name in [*order, *(name for name in found if name not in order)]:
        if name not in found:
            continue
        data, text = found[name]
        summary.rows += [[data["title"], *Verdict(**each).cells()] for each in data["verdicts"]]
        encoded = json.dumps(data, ensure_ascii=False).replace("-->", "--\\u003e")
        begin, end = f"<!-- bench:begin {name} {encoded} -->", f"<!-- bench:end {name} -->"
        blocks.append(f"{begin}\n{text}\n{end}")
    return "\n\n".join([INTRODUCTION, "## Summary", summary.text(), *blocks]) + "\n"


def write(path: pathlib.Path, sections: list[Section], order: list[str]) -> None:
    existing = path.read_text(encoding="utf-8") if path.exists() else ""
    new = path.with_name(path.name + ".new")
    new.write_text(merge(existing, sections, order), encoding="utf-8")
    os.replace(new, path)
