"""Names that a pod resolves."""

from __future__ import annotations

from pod_builder import pod

from elastic.local.agent.names import Directory, NamedPod, NamedService, hostname_of, hosts_file


def a_pod(name="w-0", ip="10.64.0.2", **fields):
    given = {"namespace": "default", "uid": f"uid-{name}", "ready": True, "leaving": False, "finished": False, "labels": {"app": "w"}}
    return NamedPod(**{**given, "name": name, "ip": ip, "hostname": "", "subdomain": "", **fields})


def service(name="w", **fields):
    return NamedService(**{"namespace": "default", "name": name, "selector": {"app": "w"}, "not_ready_too": False, **fields})


def names(directory, namespace="default"):
    return {word: line.split()[0] for line in directory.lines(namespace) for word in line.split()[1:]}


def test_a_service_is_known_by_every_form_of_its_name():
    known = names(Directory([service()], [a_pod()], fixed={}))
    assert known == dict.fromkeys(["w", "w.default", "w.default.svc", "w.default.svc.cluster.local"], "10.64.0.2")


def test_the_short_name_is_for_the_own_namespace_only():
    assert "w" not in names(Directory([service()], [a_pod()], fixed={}), namespace="other")
    assert "w.default.svc" in names(Directory([service()], [a_pod()], fixed={}), namespace="other")


def test_a_pod_that_is_not_ready_is_named_only_if_the_service_says_so():
    waiting = [a_pod(ready=False)]
    assert not names(Directory([service()], waiting, fixed={}))
    assert names(Directory([service(not_ready_too=True)], waiting, fixed={}))


def test_pods_that_leave_or_have_finished_are_not_named():
    assert not names(Directory([service()], [a_pod(leaving=True)], fixed={}))
    assert not names(Directory([service(not_ready_too=True)], [a_pod(finished=True)], fixed={}))


def test_a_service_of_many_pods_has_a_line_for_each():
    lines = Directory([service()], [a_pod("w-1", "10.64.0.3"), a_pod()], fixed={}).lines("default")
    assert [line.split()[:2] for line in lines] == [["10.64.0.2", "w"], ["10.64.0.3", "w"]]


def test_a_service_without_selector_leads_nowhere_and_a_fixed_name_wins():
    directory = Directory([service(selector={}), service("kubernetes")], [a_pod()], fixed={("kubernetes", "default"): "10.64.0.1"})
    assert set(names(directory).values()) == {"10.64.0.1"}


def test_a_pod_with_hostname_and_subdomain_has_a_name_below_its_service():
    directory = Directory([service()], [a_pod(hostname="first", subdomain="w")], fixed={})
    assert names(directory)["first.w.default.svc.cluster.local"] == "10.64.0.2"


def test_a_pod_of_a_subdomain_has_the_short_names_that_the_domains_of_each_pod_make_full() -> None:
    """Nodes of a TrainJob are NAME-node-0-INDEX.NAME, and JAX waited for its coordinator for ever."""
    directory = Directory([service()], [a_pod(hostname="first", subdomain="w")], fixed={})
    (near,) = [line for line in directory.lines("default") if "first" in line]
    assert near == "10.64.0.2 first.w.default.svc first.w.default.svc.cluster.local first.w first.w.default"
    (far,) = [line for line in directory.lines("other") if "first" in line]
    assert far == "10.64.0.2 first.w.default.svc first.w.default.svc.cluster.local first.w.default"


def test_a_domain_to_search_shortens_the_names_of_its_hosts_for_that_pod_alone():
    directory = Directory([service()], [a_pod(hostname="first", subdomain="w")], fixed={})
    seeking = pod(metadata={"name": "p", "namespace": "default", "uid": "u"}, dnsConfig={"searches": ["w.default.svc.cluster.local"]})
    assert "10.64.0.2 first.w.default.svc first.w.default.svc.cluster.local first.w first.w.default first\n" in hosts_file(
        seeking, ip="10.64.0.9", hostname="p", directory=directory
    )
    assert "first" not in names(directory)


def test_a_pods_own_name_is_its_address():
    text = hosts_file(
        pod(hostAliases=[{"ip": "1.2.3.4", "hostnames": ["alias"]}]), ip="10.64.0.9", hostname="p", directory=Directory((), (), fixed={})
    )
    assert "10.64.0.9 p\n" in text
    assert "1.2.3.4 alias\n" in text


def test_a_host_name_is_at_most_63_characters_long_and_ends_in_a_letter_or_digit():
    assert hostname_of(pod(metadata={"name": "a" * 62 + "-bc"})) == "a" * 62
