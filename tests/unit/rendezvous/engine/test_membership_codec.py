"""The engine's messages have on the wire the names, tags and bounds that neighbouring releases know."""

import json
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from elastic.membership import wire
from elastic.membership.codec import struct_of
from elastic.membership.hosts import Host, HostFacts, HostState
from elastic_training.rendezvous.engine.messages.doing import Doing, DoingKind, Doings, Watch
from elastic_training.rendezvous.engine.messages.in_place import Able, Change, Progressed, Stage

RESTART = wire.Restart(id="3-s/pod", generation=3, cause="user", pod="pod")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (wire.Beat(), '{"t":"beat"}'),
        (wire.Join(incarnation="pod/1", ready=False), '{"t":"join","incarnation":"pod/1","ready":false}'),
        (wire.Ready(after=3, step=7), '{"t":"ready","after":3,"step":7}'),
        (wire.Failed(generation=3, status=1), '{"t":"failed","generation":3,"status":1}'),
        (Able(workers=2), '{"t":"able","workers":2}'),
        (Progressed(generation=3, step=9), '{"t":"stepped","generation":3,"step":9}'),
        (Doings(generation=3, workers=(Doing(kind=DoingKind.STOPPED),)), '{"t":"doings","generation":3,"workers":[{"kind":"stopped"}]}'),
        (
            wire.Join(incarnation="p/1", held=wire.Held(id="3-s", generation=3, rank=0, size=1, unacknowledged_restarts=(RESTART,))),
            '{"t":"join","incarnation":"p/1","held":{"id":"3-s","generation":3,"rank":0,"size":1,'
            '"uncounted":[{"id":"3-s/pod","generation":3,"cause":"user","pod":"pod"}]}}',
        ),
    ],
)
def test_a_message_of_a_member_has_its_form(message: Any, text: str) -> None:
    assert wire.encode(message).decode() == text
    assert wire.Decoder[Any](wire.FromMember).decode(text) == message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (wire.View(), "{}"),
        (
            wire.View(generation=3, change=Change(stage=Stage.HOLD, round=2), watch=Watch.LOOK, unacknowledged_restarts=(RESTART,)),
            '{"generation":3,"uncounted":[{"id":"3-s/pod","generation":3,"cause":"user","pod":"pod"}],'
            '"change":{"phase":"hold","round":2},"watch":"look"}',
        ),
        (
            wire.Expectation(members=("w0",), unsettled=(RESTART,), settled_to=2, hosts=HostFacts(hosts=(Host(name="a", uid="u"),))),
            '{"members":["w0"],"open":[{"id":"3-s/pod","generation":3,"cause":"user","pod":"pod"}],"booked_to":2,'
            '"hosts":{"hosts":[{"name":"a","uid":"u"}]}}',
        ),
        (wire.Expectation(budget=wire.Budget(max_restarts=3)), '{"budget":{"max_restarts":3}}'),
        (
            wire.WorldReport(job="j", generation=3, phase="running", unacknowledged_restarts=(RESTART,), hosts=HostState(listed=("u",))),
            '{"job":"j","generation":3,"phase":"running","uncounted":[{"id":"3-s/pod","generation":3,"cause":"user","pod":"pod"}],'
            '"hosts":{"listed":["u"]}}',
        ),
    ],
)
def test_a_message_of_server_or_controller_has_its_form(message: Any, text: str) -> None:
    assert wire.encode(message).decode() == text
    assert wire.Decoder[Any](type(message)).decode(text) == message
    assert wire.convert(wire.to_builtins(message), type(message)) == message


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (wire.FromMember, '{"t":"join","incarnation":""}'),
        (wire.FromMember, '{"t":"join","incarnation":"a b"}'),
        (wire.FromMember, '{"t":"able","workers":0}'),
        (wire.FromMember, '{"t":"finished","generation":-1}'),
        (wire.FromMember, '{"t":"nothing"}'),
        (wire.Expectation, '{"members":["w\\u00f6"]}'),
        (wire.Expectation, '{"budget":{"hang_s":0}}'),
        (wire.WorldReport, '{"job":"j","generation":9007199254740993,"phase":"running"}'),
    ],
)
def test_a_message_beyond_its_bounds_is_refused(type: Any, text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        wire.Decoder[Any](type).decode(text)


def test_every_field_of_a_message_has_its_place_on_the_wire() -> None:
    """The structs are made from the messages, so a field that is added needs no second definition. Its default is left out."""
    for cls in (*get_args(wire.FromMember), wire.View, wire.Expectation, wire.WorldReport):
        info = inspect.type_info(struct_of(cls))
        assert isinstance(info, inspect.StructType)
        assert [one.name for one in info.fields] == list(cls.__slots__)
        required = {one.encode_name: 1 if isinstance(one.type, inspect.IntType) else "x" for one in info.fields if one.required}
        tag = {} if info.tag_field is None else {info.tag_field: info.tag}
        assert json.loads(wire.encode(wire.convert({**tag, **required}, cls))) == {**tag, **required}
