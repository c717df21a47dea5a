"""What the documentation site needs next to docs/: see `hooks` in mkdocs.yml.

Links from docs/ to other files of the repository are written as they work in the repository, such as
`../benchmarks/results`. The site has no repository around it, so these files are put into it, under
`repository/`, and a folder becomes a page that lists it. The reference of commands and settings is made from
the program itself.
"""

import dataclasses
import os
import re
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Files of the repository that are pages of the site, whoever links to them."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(?=[)#])")


def on_files(files, config):
    """Add the files of the repository that pages link to, and what these link to in turn."""
    from mkdocs.structure.files import File

    documents = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    waiting = {target for uri, text in documents for target in _outside(uri, text)}
    waiting |= {ROOT / name for name in PAGES}
    done = set()
    while waiting:
        path = waiting.pop()
        done.add(path)
        uri = site_uri(path)
        if path.is_dir():
            text, found = _listing(path)
            files.append(File.generated(config, uri, content=text))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
            found = _outside(uri, path.read_text(encoding="utf-8")) if path.suffix == ".md" else set()
        waiting |= found - done
    return files


def on_page_markdown(markdown, page, config, files):
    """Links as the site needs them, and generated parts in the place of their marks."""
    uri = page.file.src_uri
    if uri.startswith("reference/"):
        markdown = markdown.replace(
            "<!-- commands -->", commands_text() if "<!-- commands" in markdown else ""
        )
        markdown = markdown.replace(
            "<!-- settings -->", settings_text() if "<!-- settings" in markdown else ""
        )
    if uri.startswith("repository/") and not (ROOT / uri.removeprefix("repository/")).is_file():
        return markdown  # a listing: its links are the site's already
    return LINK.sub(lambda link: _site_link(uri, link[1]), markdown)


def site_uri(path):
    """Where a file or folder of the repository is in the site.

    >>> site_uri(ROOT / "docs" / "data.md"), site_uri(ROOT / "CHANGELOG.md"), site_uri(ROOT / "benchmarks")
    ('data.md', 'repository/CHANGELOG.md', 'repository/benchmarks/index.md')
    """
    inside = path.relative_to(ROOT).as_posix()
    if inside == "README.md":
        return "index.md"
    if inside.startswith("docs/"):
        return inside.removeprefix("docs/")
    return f"repository/{inside}/index.md" if path.is_dir() else f"repository/{inside}"


def _target(uri, link):
    """The file of the repository that a link on the page `uri` means; None where there is none."""
    base = ROOT / uri.removeprefix("repository/") if uri.startswith("repository/") else ROOT / "docs" / uri
    path = Path(os.path.normpath(base.parent / link))
    return path if path.is_relative_to(ROOT) and path.exists() else None


def _outside(uri, text):
    targets = (_target(uri, link) for link in LINK.findall(_without_code(text)))
    return {path for path in targets if path and site_uri(path).startswith("repository/")}


def _without_code(text):
    return re.sub(r"^```.*?^```$|`[^`\n]*`(?!\])", "", text, flags=re.S | re.M)


def _site_link(uri, link):
    path = _target(uri, link)
    # A link that leads nowhere is left as it is: the strict build names it.
    return quote(os.path.relpath(site_uri(path), os.path.dirname(uri) or ".")) if path else link


def _listing(folder):
    """A page with the entries of a folder, and these."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "__")))
    lines = [
        f"- [{entry.name}{'/' * entry.is_dir()}]({quote(entry.name)}{'/index.md' * entry.is_dir()})"
        for entry in entries
    ]
    name = folder.relative_to(ROOT).as_posix()
    head = f"---\nsearch:\n  exclude: true\ntitle: {name}\n---\n\n# {name}\n\n"
    return head + "\n".join(lines) + "\n", set(entries)


def commands_text():
    """Every command: usage, what it does, arguments and options."""
    import typer

    from pmal.cli import app

    return "\n".join(_command_text("pmal", typer.main.get_command(app)))


def _command_text(name, command):
    inner = getattr(command, "commands", {})
    context = command.context_class(command, info_name=name)
    lines = []
    if name != "pmal" and not (inner and command.no_args_is_help):
        usage = command.get_usage(context).removeprefix("Usage: ")
        lines = [
            f"## {name}",
            "",
            *_paragraphs(command.help),
            "",
            f"`{usage}`",
            "",
            "| option | |",
            "|---|---|",
        ]
        records = [option.get_help_record(context) for option in command.params]
        lines += [f"| `{_option(record[0])}` | {_cell(record[1])} |" for record in records if record]
        lines.append("")
    for word, one in inner.items():
        lines += _command_text(f"{name} {word}", one)
    return lines


def _paragraphs(text):
    return [line.strip() for line in (text or "").splitlines()]


def _cell(text):
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _option(text):
    """With the kind of its value in capitals; an argument's name says it.

    >>> _option("--split <int range>"), _option("SOURCE <str>")
    ('--split INT', 'SOURCE')
    """
    if not text.startswith("-"):
        return text.split(" <")[0]
    return re.sub(r"<(\w+)( range)?>", lambda kind: kind[1].upper(), text).replace("|", "\\|")


def settings_text():
    """Every setting by section: default and meaning."""
    from pmal.config import RunConfig, field_help

    nested = {
        field.name: field.default_factory for field in dataclasses.fields(RunConfig) if field.name in SECTIONS
    }
    lines = _section("", RunConfig, [name for name in field_help(RunConfig) if name not in nested])
    for name, section in nested.items():
        lines += _section(name, section, list(field_help(section)))
    return "\n".join(lines)


SECTIONS = ("data", "encoder", "training", "ensemble", "mining", "optimization", "rejection")


def _section(name, config, names):
    from pmal.config import field_help

    default, meaning = config(), field_help(config)
    prefix = f"{name}." if name else ""
    title = f"`{name}`: {config.__doc__}" if name else "The run"
    lines = [f"## {title}".rstrip("."), "", "| setting | default | |", "|---|---|---|"]
    rows = [(f"{prefix}{one}", _shown(getattr(default, one)), _cell(meaning[one])) for one in names]
    return [*lines, *(f"| `{key}` | {value} | {text} |" for key, value, text in rows), ""]


def _shown(value):
    return f"`{value}`" if value not in ((), {}, "") else ""
