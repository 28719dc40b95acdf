"""Check each rule of scripts/prose.py on a text that breaks it and on one that does not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _loaded() -> ModuleType:
    """Return scripts/prose.py as a module."""
    spec = importlib.util.spec_from_file_location("scripts_prose", ROOT / "scripts" / "prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


prose = _loaded()

BANNED = [
    "Who is silent is let go of.",
    "What is too much for a message is cut.",
    "Whoever writes the files renews them.",
    "Those that were told.",
    "That the cluster ended a pod is a signal.",
    "Such a pod is deleted.",
    "One that takes too long is ended.",
    "Of a job that has ended nothing is missing.",
    "So many losses of one place in a row are made up for at once.",
    "As if there were room for all that it may have.",
    "Where training reports no steps: how long.",
    "Close this connection. Who is still there presents itself again.",
    "Below so many the job waits.",
    "Until the other side goes.",
    "By component.",
    "With the pods of workloads.",
    "Before anything is heard.",
    "The worker presents itself anew.",
    "The number stands beside the name.",
    "All of them but for the first.",
    "Autoscalers of no sense.",
    "The answer, or an empty text if there is none.",
    "The job is over.",
    "The server drops the connection, for it would fill the memory.",
]
GOOD = [
    "Minimum number of workers; the job waits below it.",
    "Close this connection because the machine dropped the member. A live member reconnects.",
    "Replace this many consecutive losses of one replica without delay.",
    "Decide as if room were unlimited; `_grants` applies the limits.",
    "With c10d, an invalid flag counts against maxRestarts.",
    "Before each commit, the check runs.",
    "Whether the node is cordoned.",
    "That is why the module stands alone.",
    "The pause is over 60 s for a large model.",
    "Return None if the job does not exist.",
    "The worker waits, for example for a Secret.",
    'Show `Who asks` and "anew" as they are.',
]


@pytest.mark.parametrize("words", BANNED)
@pytest.mark.parametrize("place", ['"""{}"""\n', 'LIMIT = 3\n"""{}"""\n', 'def size():\n    """{}"""\n'])
def test_a_docstring_with_a_banned_opening_or_word_is_found(words: str, place: str) -> None:
    assert len(prose.findings(place.format(words))) == 1


@pytest.mark.parametrize("words", GOOD)
def test_plain_sentences_pass(words: str) -> None:
    assert prose.findings(f'LIMIT = 3\n"""{words}"""\n# {words}\n') == []


def test_comments_are_read_as_blocks_and_may_be_fragments() -> None:
    found = prose.findings("one = 1\n# By name.\n# Of its newest\n# end.\ntwo = 2  # What it takes.\n")
    assert [(one.line, one.rule) for one in found] == [(2, "opening"), (5, "opening")]


def test_strings_that_are_no_docstrings_may_be_questions_and_fragments() -> None:
    source = 'print("Who is it?")\n"""Who is it?"""\n'
    assert prose.findings(source) == prose.new_findings(source) == []


MESSAGES = [
    '@click.option("--watch", help="Show it anew every two seconds.")\ndef main():\n    pass\n',
    'def main():\n    raise click.ClickException(f"{file} is read anew")\n',
    'log.warning("%s; it presents itself anew", reason)\n',
    'def main():\n    yield Finding(BAD, "it presents "\n        "itself anew")\n',
    'REMEDY = "get the file anew"\n',
    'WORDS = {"wait": ("run", "Wait until the job is over.")}\n',
]


@pytest.mark.parametrize("source", MESSAGES)
def test_a_message_with_a_banned_word_is_found(source: str) -> None:
    assert [one.rule for one in prose.new_findings(source)] == ["word"]


@pytest.mark.parametrize(
    "source",
    [
        'MODES = ("instead", "beside")\n',
        'print("give --trainjobs beside, or install it")\n',
        "print('the value \"anew\" or `beside` is kept')\n",
        '"""Show it anew."""\n',
        'anew = beside("a", 1)\n',
    ],
)
def test_names_values_and_quotes_in_strings_are_no_findings(source: str) -> None:
    assert prose.new_findings(source) == []


def test_messages_of_tests_and_of_later_folders_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    for folder in ("tests", "elastic"):
        (tmp_path / folder).mkdir()
        path = f"{folder}/one.py"
        (tmp_path / path).write_text('print("show it anew")\n')
        found[folder] = [line for line in prose.report([path]) if "anew" in line]
    assert found["tests"] == []
    assert found["elastic"] == ['elastic/one.py:1: word: "anew": again']


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("# Pages\n\nIt is read anew.\n", [3]),
        ("- All of them but\n  for the first, and\n- it is over.\n", [1, 3]),
        ("All of them but\nfor the first.\n", [1]),
        ("| a job | is over |\n|---|---|\n| Whoever asks | gets it. |\n", [3]),
        ('Give `--trainjobs beside`, or "anew".\n', []),
        ("```yaml\n# it is read anew\n```\n", []),
        ("1. A list:\n   ```\n   # it is read anew\n   ```\n   It ends here, for it is short.\n", [5]),
        ("See [the page](beside.md#anew) <!-- read anew -->.\n", []),
    ],
)
def test_banned_words_are_found_in_the_prose_of_a_page(page: str, lines: list[int]) -> None:
    assert [one.line for one in prose.page_findings(page)] == lines


def test_a_docstring_that_was_cut_inside_a_list_of_fields_is_found() -> None:
    words = "Settings that are the same for all jobs. grows.\n\n    The cluster adds nodes.\n    "
    assert [one.rule for one in prose.findings(f'class Setting:\n    """{words}"""\n')] == ["fields"]
    assert prose.findings('class Setting:\n    """Settings that are the same. It grows.\n\n    More.\n    """\n') == []


LISTS = [
    "Settings. grows: whether the cluster adds nodes.",
    "grows: whether the cluster adds nodes.",
    "Settings.\n\n    grows, sees_nodes: of the cluster.\n    ",
    "Settings; and grows: whether the cluster adds nodes.",
]


@pytest.mark.parametrize("words", LISTS)
def test_a_class_that_explains_a_field_in_its_docstring_is_found(words: str) -> None:
    field = "    grows: bool = False\n"
    assert [one.rule for one in prose.new_findings(f'class Setting:\n    """{words}"""\n\n{field}')] == ["fields"]
    assert prose.new_findings(f'class Setting:\n    """{words}"""\n\n    other: bool = False\n') == []
    inner = f'def make():\n    class Setting:\n        """{words}"""\n\n    {field}'
    assert [one.rule for one in prose.new_findings(inner)] == ["fields"]


def test_a_docstring_that_is_not_imperative_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('def size() -> int:\n    """The size."""\n    return 3\n')
    assert [one.rule for some in prose.moods([str(module)]).values() for one in some] == ["D401"]
    module.write_text('def size() -> int:\n    """Return the size."""\n    return 3\n')
    assert prose.moods([str(module)]) == {}


def test_docstrings_are_found_in_every_kind_of_block() -> None:
    blocks = [
        "if one:\n    pass\nelse:\n    {}",
        "try:\n    pass\nexcept OSError:\n    {}",
        "with one:\n    {}",
        "match one:\n    case 1:\n        {}",
        "class One:\n    {}",
    ]
    for block in blocks:
        indented = 'def size():\n            """Who asks."""'
        assert [found.rule for found in prose.findings(block.format(indented))] == ["opening"], block


def test_an_old_module_is_excused_until_its_content_changes() -> None:
    ratchet = prose.Ratchet({"a": 2}, {"a/old.py": ("123", 2)})
    assert ratchet.excuses("a/old.py", "123")
    assert not ratchet.excuses("a/old.py", "456")
    assert not ratchet.excuses("a/new.py", "123")


def test_an_entry_that_is_added_by_hand_raises_the_count_of_its_package() -> None:
    assert prose.Ratchet({"a": 2}, {"a/old.py": ("123", 2)}).problems() == []
    (line,) = prose.Ratchet({"a": 2}, {"a/old.py": ("123", 2), "a/new.py": ("456", 1)}).problems()
    assert "a has 3 excused findings, but its limit is 2" in line
    assert not prose.Ratchet({"a": 2}, {"a/old.py": ("123", 2), "a/new.py": ("456", 0)}).excuses("a/new.py", "456")


def test_writing_removes_entries_and_lowers_limits_but_never_adds_or_raises() -> None:
    ratchet = prose.Ratchet({"a": 9, "b": 4}, {"a/old.py": ("123", 2), "a/changed.py": ("1", 7), "b/gone.py": ("2", 4)})
    kept = ratchet.needed({"a/old.py": "123", "a/changed.py": "3", "b/new.py": "4"})
    assert kept == prose.Ratchet({"a": 2, "b": 0}, {"a/old.py": ("123", 2)})
    assert prose.Ratchet.parse(kept.text()) == kept
    assert prose.Ratchet({"a": 1}, kept.excused).needed({"a/old.py": "123"}).limits == {"a": 1}


def test_the_whole_check_fails_for_a_new_module_and_passes_for_an_excused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prose, "subjects_since", lambda base: None)
    for folder in ("scripts", "elastic", "docs"):
        (tmp_path / folder).mkdir()
    module = tmp_path / "elastic" / "one.py"
    module.write_text('LIMIT = 3\n"""Below so many the job waits."""\n')
    prose.RATCHET.write_text(prose.Ratchet({}, {}).text())
    assert prose.main([]) == 1
    assert "elastic/one.py:2: opening" in capsys.readouterr().out
    prose.RATCHET.write_text(prose.Ratchet({"elastic": 1}, {"elastic/one.py": (prose.digest("elastic/one.py"), 1)}).text())
    assert prose.main([]) == 0
    module.write_text(module.read_text() + "MORE = 4\n")
    assert prose.main([]) == 1
    assert prose.main(["--write"]) == 0
    assert prose.Ratchet.parse(prose.RATCHET.read_text()) == prose.Ratchet({"elastic": 0}, {})
    module.write_text("LIMIT = 3\n")
    assert prose.main([]) == 0
    (tmp_path / "docs" / "page.md").write_text("The page\nis read anew.\n")
    capsys.readouterr()
    assert prose.main([]) == 1
    assert 'docs/page.md:2: word: "anew": again' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("Take no pod of another namespace for a job's worker", "begin with an area"),
        ("Autoscale: ignore pods of other namespaces", "begin with an area"),
        ("magic: ignore pods of other namespaces", '"magic" is no area'),
        ("autoscale: Ignore pods of other namespaces", "a verb in lower case"),
        ("autoscale: ignore pods that are owned by jobs of other namespaces in this cluster", "the limit is 72"),
    ],
)
def test_a_commit_subject_without_its_form_is_named(subject: str, words: str) -> None:
    (line,) = prose.wrong_subjects([subject], prose.AREAS | {"autoscale"})
    assert words in line


def test_commit_subjects_with_an_area_and_reverts_pass() -> None:
    subjects = ["autoscale: ignore pods owned from another namespace", 'Revert "Take no pod"', "agent, etcd: send the step with Ready"]
    assert prose.wrong_subjects(subjects, prose.AREAS | {"autoscale"}) == []


def _commit(folder: Path, subject: str) -> str:
    """Make an empty commit and return its hash."""
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", subject], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_subjects_are_read_after_the_base_if_the_history_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert prose.subjects_since(prose.BASE) is None
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    base = _commit(tmp_path, "An old subject")
    _commit(tmp_path, "docs: rewrite")
    assert prose.subjects_since(base) == ["docs: rewrite"]
    assert prose.subjects_since(prose.BASE) is None
