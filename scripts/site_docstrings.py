"""Docstrings as Markdown: examples become blocks of code, and lines about parameters a list."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*\n?(?:^.+\n?)*", re.M)


class PlainDocstrings(griffe.Extension):
    """Changes every docstring of a package when all of it is read."""

    def on_package(self, *, pkg, **about):
        waiting = [pkg]
        while waiting:
            one = waiting.pop()
            if one.docstring:
                one.docstring.value = fenced(listed(one.docstring.value, parameters_of(one)))
            waiting += [member for member in one.members.values() if not member.is_alias]


def parameters_of(one):
    call = one.members.get("__init__") if one.is_class else one
    return {parameter.name for parameter in getattr(call, "parameters", ())}


def fenced(text):
    """The text with its examples in fences, each up to the next empty line."""
    return EXAMPLE.sub(lambda example: f"```pycon\n{example[0].rstrip()}\n```\n", text)


def listed(text, names):
    """The text with its lines about parameters, and those that go on with them, as a list."""
    lines, inside = [], False
    for line in text.splitlines():
        found = re.match(r"([a-z]\w*(?:, [a-z]\w*)*): (.*)", line)
        if found and set(found[1].split(", ")) <= names:
            lines += [*([] if inside else [""]), f"- **{found[1]}**: {found[2]}"]
            inside = True
        else:
            inside = inside and bool(line)
            lines.append(f"    {line}" if inside else line)
    return "\n".join(lines)
