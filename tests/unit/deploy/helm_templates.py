"""Render templates as Helm does, as far as our chart uses Go's template language and Helm's functions. Any other word is an error."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from elastic import certificates

TOKEN = re.compile(r'\s*("(?:\\.|[^"\\])*"|\(|\)|\||:=|-?\d+|\$\w*(?:\.\w+)*|\.(?:\w+(?:\.\w+)*)?|\w+)')
Scope = dict[str, Any]


@dataclass
class Block:
    """A part between `if` or `with` and `end`, with its part behind `else`."""

    word: str
    condition: str
    then: list[Any]
    otherwise: list[Any]


@dataclass
class Files:
    """The files of the chart that are no templates."""

    files: dict[str, str]


class Rendering:
    """Render the templates of one release. `objects` are the Secrets of the cluster by name; `helm template` sees none."""

    def __init__(self, files: dict[str, str], values: dict[str, Any], namespace: str, objects: dict[str, Any] | None = None) -> None:
        described = {"AppVersion": "1"}
        release = {"Namespace": namespace, "Name": "elastic"}
        self._root = {"Values": values, "Release": release, "Chart": described, "Files": Files(files)}
        self._objects = objects or {}

    def of(self, text: str) -> str:
        blocks, _ = _parsed(list(_pieces(text)))
        return self._text(blocks, self._root, {})

    def _text(self, blocks: list[Any], dot: Any, variables: Scope) -> str:
        out = []
        for block in blocks:
            if isinstance(block, str):
                out.append(block)
            elif isinstance(block, Block):
                found = self._value(block.condition, dot, variables)
                inner = found if block.word == "with" and found else dot
                out.append(self._text(block.then if found else block.otherwise, inner, dict(variables)))
            else:
                (action,) = block
                name, is_set, rest = action.partition(":=")
                value = self._value(rest if is_set else action, dot, variables)
                if is_set:
                    variables[name.strip()] = value
                else:
                    out.append(_shown(value))
        return "".join(out)

    def _value(self, expression: str, dot: Any, variables: Scope) -> Any:
        tokens = TOKEN.findall(expression)
        assert "".join(tokens) == re.sub(r'\s+(?=(?:[^"]*"[^"]*")*[^"]*$)', "", expression), expression
        value, rest = self._pipeline(tokens, dot, variables)
        assert not rest, expression
        return value

    def _pipeline(self, tokens: list[str], dot: Any, variables: Scope) -> tuple[Any, list[str]]:
        piped: list[Any] = []
        while True:
            terms: list[Any] = []
            while tokens and tokens[0] not in ("|", ")"):
                token, *tokens = tokens
                if token == "(":
                    value, tokens = self._pipeline(tokens, dot, variables)
                    assert tokens[0] == ")"
                    tokens = tokens[1:]
                    terms.append(value)
                else:
                    terms.append(self._term(token, dot, variables))
            value = terms[0](*terms[1:], *piped) if callable(terms[0]) else terms[0]
            assert callable(terms[0]) or (len(terms) == 1 and not piped), terms
            if not tokens or tokens[0] == ")":
                return value, tokens
            piped, tokens = [value], tokens[1:]

    def _term(self, token: str, dot: Any, variables: Scope) -> Any:
        if token.startswith('"'):
            return json.loads(token)
        if re.fullmatch(r"-?\d+", token):
            return int(token)
        if token == ".Files.Get":
            return self._root["Files"].files.__getitem__
        if token.startswith("$"):
            name, *fields = token.split(".")
            return _field(variables[name], fields)
        if token.startswith("."):
            return _field(dot, [part for part in token.split(".") if part])
        return {"lookup": self._lookup, **FUNCTIONS}[token]

    def _lookup(self, version: str, kind: str, namespace: str, name: str) -> Any:
        assert (version, kind, namespace) == ("v1", "Secret", self._root["Release"]["Namespace"])
        return self._objects.get(name, {})


def _field(value: Any, names: list[str]) -> Any:
    for name in names:
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def _pieces(text: str) -> Iterator[str | tuple[str]]:
    """Yield text and actions. A dash at an action's edge takes the white space there away."""
    place, trims = 0, False
    for found in re.finditer(r"\{\{(-)?\s*(/\*.*?\*/|.*?)\s*(-)?\}\}", text, re.DOTALL):
        before = text[place : found.start()]
        before = before.lstrip() if trims else before
        yield before.rstrip() if found[1] else before
        if not found[2].startswith("/*"):
            yield (found[2],)
        place, trims = found.end(), bool(found[3])
    yield text[place:].lstrip() if trims else text[place:]


def _parsed(pieces: list[str | tuple[str]], inside: bool = False) -> tuple[list[Any], list[str | tuple[str]]]:
    """Return the blocks until `end` or `else`, and the pieces from there on."""
    made: list[Any] = []
    while pieces:
        piece = pieces[0]
        if isinstance(piece, str):
            made.append(piece)
            pieces = pieces[1:]
            continue
        word, _, rest = piece[0].partition(" ")
        if word in ("end", "else"):
            assert inside
            return made, pieces
        pieces = pieces[1:]
        if word not in ("if", "with"):
            made.append(piece)
            continue
        then, pieces = _parsed(pieces, inside=True)
        otherwise: list[Any] = []
        if pieces[0] == ("else",):
            otherwise, pieces = _parsed(pieces[1:], inside=True)
        assert pieces[0] == ("end",)
        made.append(Block(word, rest, then, otherwise))
        pieces = pieces[1:]
    assert not inside
    return made, pieces


def _shown(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _required(message: str, value: Any) -> Any:
    assert value, message
    return value


def _dig(*words: Any) -> Any:
    *keys, default, found = words
    for key in keys:
        found = (found or {}).get(key)
    return default if found is None else found


def _merged(target: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    for other in others:
        target |= {key: value for key, value in other.items() if key not in target}
    return target


def _signed(name: str, addresses: list[str], names: list[str], days: int, ca: Pair) -> Pair:
    made = certificates.issue(certificates.Pair(ca.Cert.encode(), ca.Key.encode()), name, names=(*names, *addresses))
    return Pair(made.certificate.decode(), made.key.decode())


@dataclass
class Pair:
    """A certificate as Helm's functions return it."""

    Cert: str
    Key: str


def _ca(name: str, days: int) -> Pair:
    made = certificates.make_ca(name)
    return Pair(made.certificate.decode(), made.key.decode())


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": lambda *words: next((word for word in words if not word), words[-1]),
    "or": lambda *words: next((word for word in words if word), words[-1]),
    "not": lambda word: not word,
    "eq": lambda one, other: one == other,
    "ne": lambda one, other: one != other,
    "gt": lambda one, other: one > other,
    "int": int,
    "quote": lambda word: json.dumps(str(word)),
    "default": lambda default, value: value or default,
    "required": _required,
    "dict": dict,
    "list": lambda *words: list(words),
    "concat": lambda *lists: [word for one in lists for word in one],
    "merge": _merged,
    "dig": _dig,
    "printf": lambda text, *words: text % words,
    "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).rstrip("\n"),
    "nindent": lambda width, text: "".join(f"\n{' ' * width * bool(line)}{line}" for line in text.split("\n")),
    "b64enc": lambda text: base64.b64encode(text.encode()).decode(),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "randAlphaNum": lambda length: secrets.token_hex(length)[:length],
    "genCA": _ca,
    "genSignedCert": _signed,
}
