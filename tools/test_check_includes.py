"""The include arrows of the design, on small trees."""

import pytest

from check_includes import check


@pytest.fixture
def tree(tmp_path):
    """Writes files from text by path, and gives the complaints about them."""

    def complaints(files: dict[str, str]) -> list[str]:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return check(tmp_path)

    return complaints


HEADERS = {
    "include/headrace/base/error.hpp": "#pragma once\n",
    "include/headrace/io/socket.hpp": "#pragma once\n#include <headrace/base/error.hpp>\n",
    "include/headrace/stream/model.hpp": "#pragma once\n",
    "include/headrace/headrace.hpp": '#pragma once\n#include "headrace/stream/model.hpp"\n',
    "lib/io/ring.hpp": "#pragma once\n",
}


def test_lets_arrows_point_down(tree):
    assert tree(
        {
            **HEADERS,
            "lib/stream/model.cpp": "#include <headrace/stream/model.hpp>\n#include <headrace/base/error.hpp>\n#include <vector>\n",
            "lib/io/socket.cpp": '#include "io/ring.hpp"\n#include "headrace/io/socket.hpp"\n',
            "cli/main.cpp": "#include <headrace/headrace.hpp>\n",
            "tests/io/ring_test.cpp": '#include "io/ring.hpp"\n#include <headrace/stream/model.hpp>\n',
        }
    ) == []


@pytest.mark.parametrize(
    ("file", "include", "why"),
    [
        ("lib/base/error.cpp", "<headrace/io/socket.hpp>", "base may not use room io"),
        ("include/headrace/io/file.hpp", '"headrace/stream/model.hpp"', "io may not use room stream"),
        ("include/headrace/io/file.hpp", '"io/ring.hpp"', "not installed"),
        ("lib/http/pool.cpp", '"io/ring.hpp"', "private to room io"),
        ("lib/http/pool.cpp", '"../io/ring.hpp"', "private to room io"),
        ("cli/main.cpp", '"io/ring.hpp"', "private to room io"),
        ("tests/http/pool_test.cpp", '"io/ring.hpp"', "private to room io"),
        ("lib/stream/model.cpp", "<headrace/headrace.hpp>", "front door"),
        ("lib/cellar/wine.cpp", "<headrace/base/error.hpp>", "no room of the design"),
        ("lib/http/pool.cpp", "<headrace/io/sockets.hpp>", "no header include/headrace/io/sockets.hpp"),
    ],
)
def test_names_the_line_of_a_wrong_arrow(tree, file, include, why):
    complaints = tree({**HEADERS, file: f"#pragma once\n#include {include}\n"})
    assert len(complaints) == 1
    assert complaints[0].startswith(f"{file}:2: ")
    assert why in complaints[0]


def test_finds_headers_that_include_each_other(tree):
    (complaint,) = tree(
        {
            "include/headrace/io/a.hpp": "#include <headrace/io/b.hpp>\n",
            "include/headrace/io/b.hpp": "#include <headrace/io/c.hpp>\n",
            "include/headrace/io/c.hpp": "#include <headrace/io/a.hpp>\n",
        }
    )
    assert "include each other" in complaint
