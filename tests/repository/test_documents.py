"""What README and docs say must be so: tables come from the results, commands exist."""

import ast
import json
import re
import shlex

import typer

from benchmarks.tables import DOCUMENTS, TABLES, with_tables
from pmal.cli import app
from tests.support.documented import PAGES, ROOT

SPOKEN = [
    *PAGES,
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")),
]


def test_tables_are_those_of_the_results():
    stale = [path.name for path in DOCUMENTS if with_tables(path.read_text()) != path.read_text()]
    assert not stale, "run: python -m benchmarks.tables --write"


def test_every_table_stands_in_a_document():
    text = "".join(document.read_text() for document in DOCUMENTS)
    assert not [name for name in TABLES if f"<!-- table {name} -->" not in text]


def inline_commands(program):
    """Commands between backticks in running text; those in `sh` blocks are run elsewhere."""
    texts = [re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.S | re.M) for path in SPOKEN]
    found = [words for text in texts for words in re.findall(rf"`{program} ([^`]+)`", text)]
    return sorted({" ".join(words.split()) for words in found})


def test_commands_in_the_text_exist():
    assert len(inline_commands("pmal")) > 20
    for line in inline_commands("pmal"):
        command, words = typer.main.get_command(app), shlex.split(line)
        if words[0] == "COMMAND":
            continue
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        alone = not words or words[0].startswith("--")
        assert alone or not hasattr(command, "commands"), f"pmal {line}: no such command"
        options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        for word in words:
            assert not word.startswith("--") or word in (*options, "--help"), f"pmal {line}: no option {word}"


def test_scripts_in_the_text_exist():
    assert inline_commands("python")
    for line in inline_commands("python"):
        [name] = re.findall(r"^(?:-m )?((?:benchmarks|scripts)[\w./]*)", line)
        path = ROOT / (name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
        assert path.is_file() or (path.with_suffix("") / "__main__.py").is_file(), line


def test_sources_are_documented_where_people_look():
    from pmal.data.sources.readers import list_sources

    text = (ROOT / "docs" / "data.md").read_text()
    missing = [info.name for info in list_sources() if f"`{info.name}`" not in text]
    assert not missing


def test_families_of_splits_are_documented_where_people_look():
    from pmal.commands.options import DATA_HELP
    from pmal.data.splits.protocols import list_families, list_sets
    from pmal.data.splits.task import OWN_FAMILIES

    families = {family for name in list_sets() for family in list_families(name)} | set(OWN_FAMILIES)
    text = (ROOT / "docs" / "data.md").read_text()
    assert not [name for name in families if f"`{name}`" not in text]
    assert families <= set(re.findall(r"\w+", DATA_HELP["family"]))


def documented_options():
    """Method to option to default, from the tables of docs/baselines.md; some are of one method alone."""
    found = {}
    for section in (ROOT / "docs" / "baselines.md").read_text().split("\n## ")[1:]:
        methods = re.findall(r"`([\w+]+)`", section.partition("\n")[0])
        for names, values, words in re.findall(r"^\| (`.+?`) \| ([^|]+) \| ([^|]+) \|$", section, flags=re.M):
            only = re.search(r"\(`([\w+]+)`\)$", words.strip())
            for name, value in zip(re.findall(r"`(\w+)`", names), values.split(", "), strict=True):
                for method in [only[1]] if only else methods:
                    found.setdefault(method, {})[name] = json.loads(value)
    return found


def test_options_of_methods_are_documented_with_their_defaults():
    from pmal.ensemble.heads import default_options
    from pmal.methods import METHODS

    heads = {name: method.final or method.head for name, method in METHODS.items()}
    expected = {name: default_options(head) for name, head in heads.items() if default_options(head)}
    assert documented_options() == expected


def links_of(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    found = re.findall(r"\]\(([^)\s]+)\)|<img[^>]* src=\"([^\"]+)\"", text)
    return [first or second for first, second in found]


def test_links_lead_to_files_of_the_repository():
    inside = [(page, link) for page in SPOKEN for link in links_of(page) if not re.match(r"[a-z]+:", link)]
    assert len(inside) > 50
    assert [
        f"{page.name}: {link}" for page, link in inside if not (page.parent / link.split("#")[0]).exists()
    ] == []


def test_every_promise_names_a_test_that_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "reliability.md").read_text())
    rows = re.findall(r"^\| \d+ \|", (ROOT / "docs" / "reliability.md").read_text(), flags=re.M)
    assert len(named) == len(rows) >= 40
    for path, name in named:
        assert f"\ndef {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


IDIOM = re.compile(r"computed anew|turned away|as far as \w+ \w+ measured|\b1 epochs|It does\.|Of a table\.")
ELLIPSIS = re.compile(r"(Of|In|For|That|Those|With)\b")


def docstrings(text):
    """Strings that stand alone: those of modules, classes and functions, and those below a name."""
    lines = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    return [line.value for line in lines if isinstance(line, ast.Constant) and isinstance(line.value, str)]


def test_words_are_those_of_other_manuals():
    """No phrases that a reader has to decode; no docstring that makes sense only after the name above it."""
    found = {}
    for file in [*SPOKEN, *(ROOT / "src").rglob("*.py")]:
        text = file.read_text()
        found[file] = IDIOM.findall(text)
        if file.suffix == ".py":
            found[file] += [words for words in docstrings(text) if ELLIPSIS.match(words)]
    assert sum(len(docstrings(file.read_text())) for file in found if file.suffix == ".py") > 2000
    assert not {file: words for file, words in found.items() if words}
