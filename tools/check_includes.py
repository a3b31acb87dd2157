"""Checks the include arrows between the rooms: they point downwards only, through public headers, without cycles.

check_includes.py [ROOT]

Prints one line for each wrong include, `file:line: why`, and exits with 1 if there is any. The table is the one of the
design: what a room may use is what it names here and, in turn, what those may use.
"""

import re
import sys
from pathlib import Path

MAY_USE = {
    "base": [],
    "coro": ["base"],
    "memory": ["base"],
    "safetensors": ["base"],
    "io": ["coro"],
    "http": ["io", "coro"],
    "storage": ["http", "io"],
    "device": ["memory", "io", "coro"],
    "stream": ["device", "storage", "http", "io", "safetensors", "memory", "coro", "base"],
    "asio": ["stream"],
    "torch": ["stream"],
}

_PUBLIC = "include/headrace/"
_PRIVATE = "lib/"
_SOURCES = {".hpp", ".cpp", ".h", ".c"}
_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def reachable(room: str) -> set[str]:
    """The rooms that `room` may use, itself among them."""
    found = {room}
    pending = [room]
    while pending:
        for below in MAY_USE[pending.pop()]:
            if below not in found:
                found.add(below)
                pending.append(below)
    return found


ALLOWED = {room: reachable(room) for room in MAY_USE}


def room_of(file: str) -> str | None:
    """The room of a header or source: `lib/io/ring.cpp` is in io. None for what is in no room (the front door, tests)."""
    for top in (_PUBLIC, _PRIVATE):
        if file.startswith(top):
            room, slash, _ = file.removeprefix(top).partition("/")
            return room if slash else None
    return None


def includes_of(path: Path) -> list[tuple[int, str, str]]:
    """Line, quote and name of each include of a file."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if match := _INCLUDE.match(line):
            found.append((number, match.group(1), match.group(2)))
    return found


def resolve(root: Path, file: str, quote: str, name: str) -> str | None:
    """The file of ours that an include names, relative to `root`; None for the system's and other projects'."""
    folders = [root / "include", root / "lib", root]
    if quote == '"':
        folders.insert(0, (root / file).parent)
    for folder in folders:
        candidate = (folder / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return None


def complaint(file: str, target: str) -> str | None:
    """What is wrong with `file` including `target`; None if nothing is."""
    source_room, target_room = room_of(file), room_of(target)
    target_is_private = target.startswith(_PRIVATE)
    if file.startswith(_PUBLIC) and not target.startswith(_PUBLIC):
        return f"a public header includes {target}, which is not installed"
    if source_room is None:
        # The front door, programs and tests may use everything public; a room's own tests its private headers too.
        if target_is_private and not file.startswith((_PRIVATE, f"tests/{target_room}/")):
            return f"{target} is private to room {target_room}: include a public header of that room"
        return None
    if source_room not in ALLOWED:
        return f"{source_room} is no room of the design (tools/check_includes.py lists them)"
    if target_room is None:
        if target.startswith(_PUBLIC):
            return f"room {source_room} includes {target}, the front door: include what is needed from its room"
        return None
    if target_room == source_room:
        return None
    if target_is_private:
        return f"{target} is private to room {target_room}: include a public header of that room"
    if target_room not in ALLOWED[source_room]:
        may = ", ".join(sorted(ALLOWED[source_room] - {source_room})) or "nothing"
        return f"room {source_room} may not use room {target_room} (it may use: {may})"
    return None


def cycle_in(graph: dict[str, list[str]]) -> list[str] | None:
    """A cycle of files that include each other, first file repeated at the end; None if there is none."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        pending = [(start, iter(graph[start]))] if start not in done else []
        path += [start] if pending else []
        while pending:
            node, rest = pending[-1]
            following = next(rest, None)
            if following is None:
                pending.pop()
                path.pop()
                done.add(node)
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                pending.append((following, iter(graph.get(following, []))))
                path.append(following)
    return None


def check(root: Path) -> list[str]:
    """All complaints about the sources below `root`."""
    root = root.resolve()
    complaints = []
    graph: dict[str, list[str]] = {}
    for top in ("include", "lib", "cli", "python", "tests", "bench", "examples"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in _SOURCES or not path.is_file():
                continue
            file = path.relative_to(root).as_posix()
            targets = []
            for number, quote, name in includes_of(path):
                target = resolve(root, file, quote, name)
                if target is None:
                    if name.startswith("headrace/"):
                        complaints.append(f"{file}:{number}: no header {_PUBLIC.removesuffix('headrace/')}{name}")
                    continue
                targets.append(target)
                if why := complaint(file, target):
                    complaints.append(f"{file}:{number}: {why}")
            graph[file] = targets
    if cycle := cycle_in(graph):
        complaints.append(f"{cycle[0]}:1: these files include each other: {' -> '.join(cycle)}")
    return complaints


def main() -> int:
    complaints = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent)
    for line in complaints:
        print(line)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
