"""What `show_source` prints is what stands in the file, and names it without a path of this machine."""

from __future__ import annotations

import inspect
import json
from functools import lru_cache
from types import SimpleNamespace

import pytest

from coursekit.build import percent, targets
from coursekit.views.source_code import show_source, source_of


class Sample:
    def plain(self) -> int:
        return 1

    @property
    def value(self) -> int:
        return 2

    @classmethod
    def made(cls) -> Sample:
        return cls()

    @lru_cache  # noqa: B019
    def kept(self) -> int:
        return 3


def test_the_source_is_the_file_s_own() -> None:
    code, file, first = source_of(targets.targets)
    lines = inspect.getsource(targets).splitlines()
    assert file == "coursekit/build/targets.py"
    assert lines[first - 1 : first - 1 + len(code.splitlines())] == code.splitlines()


@pytest.mark.parametrize(
    ("thing", "start"),
    [
        (Sample.plain, "def plain(self)"),
        (Sample().plain, "def plain(self)"),
        (Sample.value, "@property\ndef value(self)"),
        (Sample.made, "@classmethod\ndef made(cls)"),
        (Sample.kept, "@lru_cache"),
        (targets.Target, "@dataclass(frozen=True)\nclass Target:"),
        (targets, '"""The notebooks to build'),
    ],
)
def test_methods_properties_classes_and_modules_are_shown(thing: object, start: str) -> None:
    code, file, first = source_of(thing)
    assert code.startswith(start)
    assert not file.startswith("/") and first >= 1


def test_the_python_function_inside_a_compiled_one_is_shown() -> None:
    class Compiled(SimpleNamespace):
        def __call__(self) -> None:
            """Runs machine code."""

    for name in ("py_func", "fn"):  # numba's and Triton's name for it
        assert source_of(Compiled(**{name: targets.targets})) == source_of(targets.targets)


def test_shown_as_text_and_as_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("coursekit.views.source_code.display", lambda data, raw: shown.append(data))
    show_source(percent.tags, percent.is_code)
    first, second = shown
    assert first["text/plain"].startswith("# coursekit/build/percent.py, lines ")
    assert "```python\ndef tags(" in first["text/markdown"]
    assert "def is_code(" in second["text/plain"]
    assert str(percent.__file__) not in json.dumps([first, second])


@pytest.mark.parametrize("thing", [3, "text", len, SimpleNamespace()])
def test_what_has_no_source_is_refused_by_name(thing: object) -> None:
    with pytest.raises(TypeError, match=r"show_source takes|has no Python source"):
        show_source(thing)
