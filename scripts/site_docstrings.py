"""Docstrings as Markdown: examples, which stand in no section of their own, become blocks of code."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*\n?(?:^.+\n?)*", re.M)


class FencedExamples(griffe.Extension):
    """Changes every docstring of a package when all of it is read."""

    def on_package(self, *, pkg, **about):
        waiting = [pkg]
        while waiting:
            one = waiting.pop()
            if one.docstring:
                one.docstring.value = fenced(one.docstring.value)
            waiting += [member for member in one.members.values() if not member.is_alias]


def fenced(text):
    """Return the text with its examples in fences, each up to the next empty line."""
    return EXAMPLE.sub(lambda example: f"```pycon\n{example[0].rstrip()}\n```\n", text)
